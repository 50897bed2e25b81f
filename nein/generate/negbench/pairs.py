"""HardNeg-Syn: two pictures that differ in one object, made by an editor or from text. A detector has to find
the object in one and not in the other. A pair gives two images, without the object and with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nein import editors
from nein.datasets.negbench import sentences
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.sentences import stream
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.engine.images import ImageError
from nein.loading.errors import isolated
from nein.metrics.base import MetricError, fingerprint
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
    """A text-to-image pipeline of diffusers draws both pictures from one noise, so that they are alike."""

    def __init__(self, pipeline: Any, identity: dict[str, Any], *, resolution: int, steps: int) -> None:
        self.pipeline, self._identity = pipeline, identity
        self.resolution, self.steps = resolution, steps
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {"kind": "text", **self._identity, "resolution": self.resolution, "steps": self.steps}

    def make(
        self, plans: Sequence[PairPlan], sources: Sequence[Any], seeds: Sequence[int]
    ) -> list[Pictures | str]:
        return [
            (self._draw(plan.caption, seed), self._draw(plan.caption_with, seed))
            for plan, seed in zip(plans, seeds, strict=True)
        ]

    def _draw(self, text: str, seed: int) -> np.ndarray:
        import torch

        drawn = self.pipeline(
            prompt=text, height=self.resolution, width=self.resolution, num_inference_steps=self.steps,
            generator=torch.Generator().manual_seed(seed),  # on the CPU: the same noise on any device
            output_type="np",
        )  # fmt: skip
        return (np.asarray(drawn.images[0]) * 255).round().clip(0, 255).astype(np.uint8)


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
    plans: Sequence[PairPlan | str], ids: Sequence[str], source: Callable[[str], np.ndarray | None],
    maker: EditorMaker | TextMaker, verifier: Verifier, save: Callable[[str, np.ndarray], str], *,
    seed: int, attempts: int,
) -> list[Concepts]:  # fmt: skip
    """Two images per plan, or one that says why there is no pair. source: the picture an editor starts from,
    by id; save: writes a picture under a name and returns its path."""
    done: dict[str, list[Concepts]] = {}
    open_: list[tuple[PairPlan, np.ndarray | None]] = []
    for name, plan in zip(ids, plans, strict=True):
        if isinstance(plan, str):
            done[name] = [Concepts(name, "", problem=plan)]
            continue
        try:
            open_.append((plan, source(plan.id)))
        except ImageError as error:
            done[name] = [Concepts(name, "", problem=_unreadable(error))]
    for turn in range(attempts):
        if not open_:
            break
        seeds = [sample_seed(seed, f"pair/{plan.id}", turn) for plan, _ in open_]
        going, pictures = zip(*open_, strict=True)
        results, left = maker.make(going, pictures, seeds), []
        for (plan, picture), pair in zip(open_, results, strict=True):
            why = pair if isinstance(pair, str) else _refuse(plan, pair, verifier)
            if isinstance(pair, str) or why:
                done[plan.id] = [Concepts(plan.id, "", problem=NOT_MADE, notes=(why,))]
                left.append((plan, picture))
            else:
                other, note = (plan.other,) if plan.other else (), (f"made at try {turn + 1}",)
                names = [f"{plan.id}-{end}" for end in ("without", "with")]
                paths = [save(name, image) for name, image in zip(names, pair, strict=True)]
                stem, present = plan.source_id or plan.id, (*plan.objects, plan.extra)
                done[plan.id] = [
                    Concepts(names[0], paths[0], (plan.caption,), plan.objects, (plan.extra, *other),
                             source_id=stem, notes=note),
                    Concepts(names[1], paths[1], (plan.caption_with,), present, other, source_id=stem),
                ]  # fmt: skip
        open_ = left
    return [image for name in ids for image in done[name]]


def _unreadable(error: ImageError) -> str:
    return f"{UNREADABLE}: {str(error).rpartition(': ')[2]}"  # without the path


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


def verify(
    verifier: Verifier, images: Sequence[Concepts], picture: Callable[[Concepts], np.ndarray], *,
    positives: bool,
) -> list[Concepts]:  # fmt: skip
    """The images without the absent objects that are there after all and, with `positives`, without the
    present ones that are not found. picture: decodes an image; an ImageError makes it unusable."""
    done: list[Concepts] = []
    pictures, usable = [], []
    as_released = verifier.protocol == "paper"
    for image in images:
        if as_released and not image.problem and len(image.negatives) != verifier.wanted:
            image = image.noting(f"absent objects not as many as wanted, {UNVERIFIED}")
        elif not image.problem:
            try:
                pictures.append(picture(image))
                usable.append(image)
            except ImageError as error:
                why = _unreadable(error)
                image = image.noting(f"{why}, {UNVERIFIED}") if as_released else replace(image, problem=why)
        done.append(image)
    # By paper those asked about together compete, and the present ones would win: they are asked apart.
    questions: list[list[tuple[str, ...]]] = [[image.negatives] for image in usable]
    if positives and as_released:
        questions = [[image.negatives, image.positives] for image in usable]
    elif positives:
        questions = [[(*image.negatives, *image.positives)] for image in usable]

    # All images together or, where that fails, one by one, so that one odd image costs itself only.
    def answered(names: Sequence[tuple[str, ...]]) -> list[Any]:
        return isolated(
            lambda rows: verifier.scores([pictures[i] for i in rows], [names[i] for i in rows]),
            range(len(pictures)),
            str,
        )

    answers = [answered(names) for names in zip(*questions, strict=True)]
    verified: dict[str, Concepts] = {}
    for image, *rows in zip(usable, *answers, strict=True):
        failure = next((row for row in rows if isinstance(row, str)), None)
        if failure is not None:
            verified[image.id] = replace(image, problem=f"{NOT_ASKED}: {failure}")
            continue
        is_shown = {name: verifier.present(score) for row in rows for name, score in row.items()}
        absent = tuple(name for name in image.negatives if not is_shown[name])
        present = tuple(name for name in image.positives if not positives or is_shown[name])
        notes = ["absent object detected, dropped"] * (len(image.negatives) - len(absent))
        notes += ["present object not detected, dropped"] * (len(image.positives) - len(present))
        verified[image.id] = replace(image.noting(*notes), negatives=absent, positives=present)
    return [verified.get(image.id, image) for image in done]
