"""HardNeg-Syn: two pictures that differ in one object, made by an editor or from text. A detector has to find
the object in one and not in the other. A pair gives two images, without the object and with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.datasets.negbench import sentences
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.sentences import stream
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.loading.digests import folder_digest
from nein.loading.errors import isolated_answers
from nein.metrics.base import MetricError, fingerprint
from nein.models.llm.client import Client
from nein.wording import nouns

NOT_MADE = "no try gave a pair that the detector confirms"


@dataclass(frozen=True)
class PairPlan:
    """A pair to be made. objects: in both pictures; extra: in the second only; other: in neither, if there is
    one."""

    id: str
    caption: str
    caption_with: str
    objects: tuple[str, ...]
    extra: str
    other: str = ""
    source_id: str = ""


Pictures = tuple[np.ndarray, np.ndarray]  # without the object, and with it
Looked = tuple[Concepts, np.ndarray | str | None]  # an image, and its pixels or why there are none


class EditorMaker:
    """One of our editors adds the object to a given picture."""

    def __init__(self, editor: Any) -> None:
        self.editor, self.fingerprint = editor, editor.fingerprint

    def describe(self) -> dict[str, Any]:
        return {"kind": "editor", **self.editor.describe()}

    def make(
        self, plans: Sequence[PairPlan], sources: Sequence[Any], seeds: Sequence[int]
    ) -> list[Pictures | str]:
        """Both pictures of every plan, or why there are none. sources: (H, W, 3) uint8 each."""
        requests = [
            editors.EditRequest(plan.id, source, f"Add {nouns.with_article(plan.extra, some=True)}.", seed)
            for plan, source, seed in zip(plans, sources, seeds, strict=True)
        ]
        return [
            result.error or "the editor gave no picture" if result.image is None else (source, result.image)
            for source, result in zip(sources, self.editor.edit(requests), strict=True)
        ]


class TextMaker:
    """A text-to-image pipeline of diffusers (folder or hub, safetensors only): both pictures from one
    noise, so that they are alike. Raises UserError."""

    def __init__(self, name: str, *, resolution: int, steps: int, device: str, dtype: str) -> None:
        import torch
        from diffusers import AutoPipelineForText2Image, DiffusionPipeline

        from nein.editors.checkpoint import check_parts, check_tokenizers, explained, locate
        from nein.loading.digests import torch_dtype

        where, revision = locate(name)
        with explained(name):
            check_parts(DiffusionPipeline.load_config(where, revision=revision), name, where, revision)
            pipeline = AutoPipelineForText2Image.from_pretrained(
                where, revision=revision, use_safetensors=True, torch_dtype=torch_dtype(dtype)
            )
        check_tokenizers(pipeline, name)
        pipeline.set_progress_bar_config(disable=True)
        if getattr(pipeline, "safety_checker", None) is not None:
            # A refused picture would be black, and the detector would then judge it.
            pipeline.safety_checker = None
        weights = folder_digest(Path(where)) if Path(where).is_dir() else f"{where}@{revision or 'main'}"
        self.pipeline = pipeline.to(torch.device(device))
        self._facts = {
            "kind": "text", "class": type(pipeline).__name__, "weights": weights, "dtype": dtype,
            "resolution": resolution, "steps": steps,
        }  # fmt: skip
        self.fingerprint = fingerprint(self._facts)

    def describe(self) -> dict[str, Any]:
        return self._facts

    def make(
        self, plans: Sequence[PairPlan], sources: Sequence[Any], seeds: Sequence[int]
    ) -> list[Pictures | str]:
        return [
            (self._draw(plan.caption, seed), self._draw(plan.caption_with, seed))
            for plan, seed in zip(plans, seeds, strict=True)
        ]

    def _draw(self, text: str, seed: int) -> np.ndarray:
        import torch

        size, steps = self._facts["resolution"], self._facts["steps"]
        drawn = self.pipeline(
            prompt=text, height=size, width=size, num_inference_steps=steps, output_type="np",
            generator=torch.Generator().manual_seed(seed),  # on the CPU: the same noise on any device
        )  # fmt: skip
        return (np.asarray(drawn.images[0]) * 255).round().clip(0, 255).astype(np.uint8)


@dataclass(frozen=True)
class PairTools:
    """What makes pairs. client: thinks of scenes; None where an editor starts from pictures."""

    maker: EditorMaker | TextMaker
    verifier: Verifier
    client: Client | None = None

    @property
    def fingerprint(self) -> str:
        return fingerprint({"maker": self.maker.fingerprint, "detector": self.verifier.fingerprint})

    def describe(self) -> dict[str, Any]:
        parts = {"maker": self.maker, "detector": self.verifier, "llm": self.client}
        return {kind: part.describe() for kind, part in parts.items() if part is not None}

    def usage(self) -> dict[str, Any]:
        return self.client.usage() if self.client is not None else {}

    def stop(self) -> None:
        """Ends waiting for answers."""
        if self.client is not None:
            self.client.stop()


def plan_edit(image: Concepts, vocabulary: Sequence[str], seed: int) -> PairPlan | str:
    """What is added to a captioned picture: an object of the vocabulary that it is not said to show."""
    if image.problem or not image.captions or not image.positives:
        return image.problem or "no caption or no object"
    rng = stream(seed, image.id, "pair")
    absent = [n for n in vocabulary if n not in image.positives and n not in image.unsure]
    if not absent:
        return "no object of the vocabulary is absent"
    caption = rng.choice(image.captions)
    extra, other = (*rng.sample(absent, min(2, len(absent))), "")[:2]
    text = caption.rstrip()
    added = f"{text if text.endswith('.') else text + '.'} There is {nouns.with_article(extra, some=True)}."
    return PairPlan(image.id, caption, added, image.positives, extra, other, image.source_id or image.id)


def make_pairs(
    plans: Mapping[str, PairPlan | str],
    pictures: Mapping[str, Any],
    tools: PairTools,
    *,
    folder: Path,
    seed: int,
    attempts: int,
) -> list[Concepts]:
    """Two images per plan, or one that says why there is no pair; files below `folder`.

    pictures  By id, what an editor starts from, (H, W, 3) uint8, or why there is none; None for text.
    """
    done: dict[str, list[Concepts]] = {}
    for name, plan in plans.items():
        problem = next((part for part in (plan, pictures[name]) if isinstance(part, str)), NOT_MADE)
        done[name] = [Concepts(name, "", problem=problem)]
    open_ = [
        plan
        for plan in plans.values()
        if not isinstance(plan, str) and not isinstance(pictures[plan.id], str)
    ]
    for turn in range(attempts):
        if not open_:
            break
        seeds = [sample_seed(seed, f"pair/{plan.id}", turn) for plan in open_]
        results = tools.maker.make(open_, [pictures[plan.id] for plan in open_], seeds)
        left = []
        for plan, pair in zip(open_, results, strict=True):
            why = pair if isinstance(pair, str) else _refuse(plan, pair, tools.verifier)
            if isinstance(pair, str) or why:
                done[plan.id] = [Concepts(plan.id, "", problem=NOT_MADE, notes=(why,))]
                left.append(plan)
            else:
                done[plan.id] = _images(plan, pair, folder, note=f"made at try {turn + 1}")
        open_ = left
    return [image for images in done.values() for image in images]


def _images(plan: PairPlan, pair: Pictures, folder: Path, *, note: str) -> list[Concepts]:
    """Without the object, and with it."""
    names = [f"{plan.id}-{end}" for end in ("without", "with")]
    paths = [f"pictures/{name.replace('/', '_')}.png" for name in names]
    for path, picture in zip(paths, pair, strict=True):
        write_png(folder / path, picture)
    other, source = (plan.other,) if plan.other else (), plan.source_id or plan.id
    present = (*plan.objects, plan.extra)
    return [
        Concepts(names[0], paths[0], (plan.caption,), plan.objects, (plan.extra, *other),
                 source_id=source, notes=(note,)),
        Concepts(names[1], paths[1], (plan.caption_with,), present, other, source_id=source),
    ]  # fmt: skip


def _refuse(plan: PairPlan, pair: Pictures, verifier: Verifier) -> str:
    """Why a pair may not be used, "" if it may."""
    names = [*plan.objects, plan.extra, *([plan.other] if plan.other else [])]
    try:
        without, with_ = verifier.scores(list(pair), [names, names])
    except MetricError as error:
        return f"{NOT_ASKED}: {error}"
    if verifier.present(without[plan.extra]):
        return "the object is in the picture without it"
    if not verifier.present(with_[plan.extra]):
        return "the object is not in the picture with it"
    if any(not verifier.present(scores[name]) for scores in (without, with_) for name in plan.objects):
        return "another object is lost"
    if plan.other and any(verifier.present(scores[plan.other]) for scores in (without, with_)):
        return "the further absent object is there"
    return ""


UNREADABLE = "unreadable image"
NOT_ASKED = "the detector failed"
UNVERIFIED = "not verified, as in the released code"


@dataclass(frozen=True)
class Verifier:
    """A detector and how it is read: `{object}` of the query is the name; wanted: absent objects that an
    image should have (protocol "paper")."""

    detector: Any
    query: str
    threshold: float
    protocol: sentences.Protocol = "fixed"
    wanted: int = 0

    @property
    def fingerprint(self) -> str:
        return str(self.detector.fingerprint)

    def describe(self) -> dict[str, Any]:
        return dict(self.detector.describe())

    def scores(self, images: Sequence[np.ndarray], names: Sequence[Sequence[str]]) -> list[dict[str, float]]:
        """Highest score per name, per image. Raises UserError where "paper" needs labels that the detector
        lacks."""
        labels = [[self.query.format(object=name) for name in row] for row in names]
        detections = self.detector.detect(images, labels, self.threshold)
        which = "named" if self.protocol == "paper" else "score"
        if any(getattr(box, which) is None for seen in detections for box in seen.values()):
            raise UserError(
                "The detector does not say which label a box has, by which --protocol paper goes; take "
                "OWL-ViT or OWLv2 as --detector, or --protocol fixed."
            )
        return [
            {name: float(getattr(seen[label], which)) for name, label in zip(row, texts, strict=True)}
            for row, texts, seen in zip(names, labels, detections, strict=True)
        ]

    def present(self, score: float) -> bool:
        return score >= self.threshold


def verify(verifier: Verifier, images: Sequence[Looked], *, positives: bool) -> list[Concepts]:
    """The images without the absent objects that are there after all and, with `positives`, without the
    present ones that are not found."""
    done: dict[str, Concepts] = {}
    usable: list[tuple[Concepts, Any]] = []
    as_released = verifier.protocol == "paper"
    for image, picture in images:
        if image.problem:
            pass
        elif as_released and len(image.negatives) != verifier.wanted:
            image = image.noting(f"absent objects not as many as wanted, {UNVERIFIED}")
        elif not isinstance(picture, str):
            usable.append((image, picture))
        elif as_released:
            image = image.noting(f"{picture}, {UNVERIFIED}")
        else:
            image = replace(image, problem=picture)
        done[image.id] = image
    # By paper those asked about together compete, and the present ones would win: they are asked apart.
    together = [
        image.negatives + (image.positives if positives and not as_released else ()) for image, _ in usable
    ]
    asked = [together, [image.positives for image, _ in usable]] if positives and as_released else [together]
    pictures = [picture for _, picture in usable]
    answers = [isolated_answers(verifier.scores, pictures, names, str) for names in asked]
    for number, (image, _) in enumerate(usable):
        rows = [answer[number] for answer in answers]
        failure = next((row for row in rows if isinstance(row, str)), None)
        if failure is not None:
            done[image.id] = replace(image, problem=f"{NOT_ASKED}: {failure}")
            continue
        is_shown = {name: verifier.present(score) for row in rows for name, score in row.items()}
        absent = tuple(name for name in image.negatives if not is_shown[name])
        present = tuple(name for name in image.positives if not positives or is_shown[name])
        notes = ["absent object detected, dropped"] * (len(image.negatives) - len(absent))
        notes += ["present object not detected, dropped"] * (len(image.positives) - len(present))
        done[image.id] = replace(image.noting(*notes), negatives=absent, positives=present)
    return [*done.values()]
