"""HardNeg-Syn: two pictures that differ in one object, made by an editor or from text. A detector has to find
the object in one and not in the other. A pair gives two images, without the object and with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.sentences import stream
from nein.engine.blocks import sample_seed
from nein.engine.images import ImageError
from nein.generate.negbench.verify import NOT_ASKED, UNREADABLE, Verifier
from nein.metrics.base import MetricError
from nein.wording import nouns

NOT_MADE = "no try gave a pair that the detector confirms"


@dataclass(frozen=True)
class Plan:
    """A pair to be made. objects: in both pictures; extra: in the second only; other: in neither, if there is
    one."""

    id: str
    caption: str
    caption_with: str
    objects: tuple[str, ...]
    extra: str
    other: str = ""
    source_id: str = ""


class Maker(Protocol):
    """Makes both pictures of a plan; None and a reason where it cannot."""

    fingerprint: str

    def describe(self) -> dict[str, Any]: ...

    def make(
        self, plans: Sequence[Plan], sources: Sequence[np.ndarray | None], seeds: Sequence[int]
    ) -> list[tuple[np.ndarray, np.ndarray] | str]: ...


class EditorMaker:
    """One of our editors adds the object to a given picture."""

    def __init__(self, editor: Any) -> None:
        self.editor, self.fingerprint = editor, editor.fingerprint

    def describe(self) -> dict[str, Any]:
        return {"kind": "editor", **self.editor.describe()}

    def make(
        self, plans: Sequence[Plan], sources: Sequence[np.ndarray | None], seeds: Sequence[int]
    ) -> list[tuple[np.ndarray, np.ndarray] | str]:
        from nein import editors

        requests = [
            editors.EditRequest(plan.id, source, f"Add {nouns.with_article(plan.extra, some=True)}.", seed)
            for plan, source, seed in zip(plans, sources, seeds, strict=True)
            if source is not None
        ]
        results = {result.id: result for result in self.editor.edit(requests)}
        made: list[tuple[np.ndarray, np.ndarray] | str] = []
        for plan, source in zip(plans, sources, strict=True):
            result = results.get(plan.id)
            if source is None or result is None or result.image is None:
                made.append((result.error if result else None) or "the editor gave no picture")
            else:
                made.append((source, result.image))
        return made


class TextMaker:
    """A text-to-image pipeline of diffusers draws both pictures from one noise, so that they are alike."""

    def __init__(self, pipeline: Any, identity: dict[str, Any], *, resolution: int, steps: int) -> None:
        from nein.metrics.loading import fingerprint

        self.pipeline, self._identity = pipeline, identity
        self.resolution, self.steps = resolution, steps
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {"kind": "text", **self._identity, "resolution": self.resolution, "steps": self.steps}

    def make(
        self, plans: Sequence[Plan], sources: Sequence[np.ndarray | None], seeds: Sequence[int]
    ) -> list[tuple[np.ndarray, np.ndarray] | str]:
        made: list[tuple[np.ndarray, np.ndarray] | str] = []
        for plan, seed in zip(plans, seeds, strict=True):
            made.append((self._draw(plan.caption, seed), self._draw(plan.caption_with, seed)))
        return made

    def _draw(self, text: str, seed: int) -> np.ndarray:
        import torch

        drawn = self.pipeline(
            prompt=text,
            height=self.resolution,
            width=self.resolution,
            num_inference_steps=self.steps,
            generator=torch.Generator().manual_seed(seed),  # on the CPU: the same noise on any device
            output_type="np",
        )
        return (np.asarray(drawn.images[0]) * 255).round().clip(0, 255).astype(np.uint8)


def plan_edit(image: Concepts, vocabulary: Sequence[str], seed: int) -> Plan | str:
    """What is added to a captioned picture: an object of the vocabulary that it is not said to show."""
    if image.problem or not image.captions or not image.positives:
        return image.problem or "no caption or no object"
    rng = stream(seed, image.id, "pair")
    absent = [n for n in vocabulary if n not in image.positives and n not in image.unsure]
    if not absent:
        return "no object of the vocabulary is absent"
    caption = rng.choice(image.captions)
    extra, other = (*rng.sample(absent, min(2, len(absent))), "")[:2]
    said = caption.rstrip()
    added = f"{said if said.endswith('.') else said + '.'} There is {nouns.with_article(extra, some=True)}."
    return Plan(image.id, caption, added, image.positives, extra, other, image.source_id or image.id)


def make_pairs(
    plans: Sequence[Plan | str],
    ids: Sequence[str],
    source: Callable[[str], np.ndarray | None],
    maker: Maker,
    verifier: Verifier,
    save: Callable[[str, np.ndarray], str],
    *,
    seed: int,
    attempts: int,
) -> list[Concepts]:
    """Two images per plan, or one that says why there is no pair. source: the picture an editor starts from,
    by id; save: writes a picture under a name and returns its path."""
    done: dict[str, list[Concepts]] = {}
    open_: list[tuple[Plan, np.ndarray | None]] = []
    for name, plan in zip(ids, plans, strict=True):
        if isinstance(plan, str):
            done[name] = [Concepts(name, "", problem=plan)]
            continue
        try:
            open_.append((plan, source(plan.id)))
        except ImageError as error:
            done[name] = [Concepts(name, "", problem=f"{UNREADABLE}: {str(error).rpartition(': ')[2]}")]
    for turn in range(attempts):
        seeds = [sample_seed(seed, f"pair/{plan.id}", turn) for plan, _ in open_]
        made = (
            maker.make([plan for plan, _ in open_], [picture for _, picture in open_], seeds) if open_ else []
        )
        left = []
        for (plan, picture), pair in zip(open_, made, strict=True):
            why = pair if isinstance(pair, str) else _refuse(plan, pair, verifier)
            if isinstance(pair, str) or why:
                done[plan.id] = [Concepts(plan.id, "", problem=NOT_MADE, notes=(why,))]
                left.append((plan, picture))
            else:
                other, note = (plan.other,) if plan.other else (), (f"made at try {turn + 1}",)
                names = [f"{plan.id}-{end}" for end in ("without", "with")]
                paths = [save(name, image) for name, image in zip(names, pair, strict=True)]
                stem, shown = plan.source_id or plan.id, (*plan.objects, plan.extra)
                done[plan.id] = [
                    Concepts(names[0], paths[0], (plan.caption,), plan.objects, (plan.extra, *other),
                             source_id=stem, notes=note),
                    Concepts(names[1], paths[1], (plan.caption_with,), shown, other, source_id=stem),
                ]  # fmt: skip
        open_ = left
    return [image for name in ids for image in done[name]]


def _refuse(plan: Plan, pair: tuple[np.ndarray, np.ndarray], verifier: Verifier) -> str:
    """Why a pair may not be used, "" if it may."""
    asked = [*plan.objects, plan.extra, *([plan.other] if plan.other else [])]
    try:
        without, with_ = verifier.scores(list(pair), [asked, asked])
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
