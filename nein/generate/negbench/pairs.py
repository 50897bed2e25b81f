"""Verifies objects in images with a detector, and makes the pairs of images of HardNeg-Syn.

A pair is an image without and with one object, made by an editor or from text; the detector must find the
object in the second image alone. Parts: verification (also of single images), makers, plans and files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.datasets.negbench import sentences
from nein.datasets.negbench.sentences import Concepts
from nein.engine.folder import Row, sample_seed
from nein.engine.images import write_png
from nein.loading.errors import UserError, isolate_answers
from nein.loading.weights import torch_dtype
from nein.metrics.base import MetricError, fingerprint
from nein.models.llm import Client
from nein.wording import families

# --- verification -------------------------------------------------------------------------------------
DETECTOR_FAILED = "the detector failed"
UNVERIFIED = "not verified, as in the released code"
LoadedImage = tuple[Concepts, np.ndarray | str]  # record, and pixels, (H, W, 3) uint8, or why there are none


@dataclass(frozen=True)
class Verifier:
    """A detector and how it is asked."""

    detector: Any
    query: str  # with "{object}" for the name
    threshold: float
    protocol: sentences.Protocol = "fixed"
    absent_count: int = 0  # of "paper", which verifies only images with this number of absent objects

    @property
    def fingerprint(self) -> str:
        return str(self.detector.fingerprint)

    def describe(self) -> Row:
        return dict(self.detector.describe())

    def detect(self, images: Sequence[np.ndarray], names: Sequence[Sequence[str]]) -> list[dict[str, bool]]:
        """Per image: name -> whether it is detected. Raises UserError if boxes have no labels ("paper")."""
        prompts = [[self.query.format(object=name) for name in row] for row in names]
        detections = self.detector.detect(images, prompts, self.threshold)  # per image: prompt -> best box
        # "paper" counts the boxes for which the prompt is the likeliest of all; "fixed" asks for each alone.
        field = "named" if self.protocol == "paper" else "score"
        if any(getattr(box, field) is None for boxes in detections for box in boxes.values()):
            raise UserError(
                "--protocol paper needs labels of boxes; pass OWL-ViT, OWLv2, or --protocol fixed."
            )
        detected = []
        for row, texts, boxes in zip(names, prompts, detections, strict=True):
            scores = [getattr(boxes[text], field) for text in texts]
            detected.append({name: score >= self.threshold for name, score in zip(row, scores, strict=True)})
        return detected


def verify(verifier: Verifier, images: Sequence[LoadedImage], *, also_present: bool) -> list[Concepts]:
    """Drops absent objects that the detector finds and, with `also_present`, present ones that it misses."""
    results: dict[str, Concepts] = {}
    usable: dict[str, np.ndarray] = {}  # id -> (H, W, 3) uint8
    as_released = verifier.protocol == "paper"
    for image, pixels in images:
        if image.problem:
            pass
        elif as_released and len(image.negatives) != verifier.absent_count:
            image = image.add_notes(f"absent objects not as many as wanted, {UNVERIFIED}")
        elif not isinstance(pixels, str):
            usable[image.id] = pixels
        elif as_released:  # the image cannot be read
            image = image.add_notes(f"{pixels}, {UNVERIFIED}")
        else:
            image = replace(image, problem=pixels)
        results[image.id] = image

    # Under "paper" the names of a query compete for a box: present objects get a query of their own.
    queries = [[results[name].negatives for name in usable]]  # per query the names for every image
    if also_present and as_released:
        queries.append([results[name].positives for name in usable])
    elif also_present:
        queries = [[results[name].negatives + results[name].positives for name in usable]]
    answers = [isolate_answers(verifier.detect, usable.values(), names, str) for names in queries]

    for position, name in enumerate(usable):
        rows = [answer[position] for answer in answers]  # of every query: name -> detected?; or a failure
        image = results[name]
        failures = [row for row in rows if isinstance(row, str)]
        if failures:
            results[name] = replace(image, problem=f"{DETECTOR_FAILED}: {failures[0]}")
            continue
        is_shown: dict[str, bool] = {}
        for row in rows:
            is_shown.update(row)
        absent = tuple(key for key in image.negatives if not is_shown[key])
        present = tuple(key for key in image.positives if not also_present or is_shown[key])
        notes = ["absent object detected, dropped"] * (len(image.negatives) - len(absent))
        notes += ["present object not detected, dropped"] * (len(image.positives) - len(present))
        results[name] = replace(image.add_notes(*notes), negatives=absent, positives=present)
    return [*results.values()]


# --- makers of pairs ----------------------------------------------------------------------------------
NOT_MADE = "no try gave a pair that the detector confirms"
Pair = tuple[np.ndarray, np.ndarray]  # (H, W, 3) uint8 each: without the object, and with it


@dataclass(frozen=True)
class PairPlan:
    """A pair to make."""

    id: str
    caption: str  # of the first image, without the object
    caption_with: str  # of the second image
    objects: tuple[str, ...]  # in both images
    extra: str  # the object: in the second image alone
    other: str  # in neither; "": none is known
    source_id: str  # image by which intervals are clustered
    start: Any  # (H, W, 3) uint8, the editor's input; None for a pair made from text


class EditorMaker:
    """Adds the object to an existing image with one of our editors."""

    def __init__(self, editor: editors.Editor) -> None:
        self.editor = editor
        self.fingerprint, self.describe = editor.fingerprint, editor.describe  # for the manifest

    def make(self, plans: Sequence[PairPlan], seeds: Sequence[int]) -> list[Pair | str]:
        """Both images of every plan, or why there are none."""
        requests = []
        for plan, seed in zip(plans, seeds, strict=True):
            instruction = f"Add {families.add_article(plan.extra, some=True)}."
            requests.append(editors.EditRequest(plan.id, plan.start, instruction, seed))
        pairs: list[Pair | str] = []
        for plan, result in zip(plans, self.editor.edit(requests) if requests else [], strict=True):
            problem = result.error or "the editor gave no picture"
            pairs.append(problem if result.image is None else (plan.start, result.image))
        return pairs


class TextMaker:
    """Generates both images from text, by a pipeline of diffusers (safetensors) and from the same noise."""

    def __init__(self, name: str, *, steps: int, device: str, dtype: str) -> None:
        import torch
        from diffusers import AutoPipelineForText2Image, DiffusionPipeline

        from nein.editors import checkpoint

        folder, revision = checkpoint.locate(name)
        with checkpoint.explain_errors(name):
            index = DiffusionPipeline.load_config(folder, revision=revision)
            checkpoint.check_parts(index, name, folder, revision)
            options: Row = {"revision": revision, "use_safetensors": True, "torch_dtype": torch_dtype(dtype)}
            if "safety_checker" in index:  # it would make a refused image black, for the detector to judge
                options["safety_checker"] = None
            self.pipeline = AutoPipelineForText2Image.from_pretrained(folder, **options)
        checkpoint.check_tokenizers(self.pipeline, name)
        parts = self.pipeline.components
        modules = {key: part for key, part in parts.items() if isinstance(part, torch.nn.Module)}
        tokenizers = [part for part in parts.values() if hasattr(part, "get_vocab")]
        weights = checkpoint.content_hash(modules, tokenizers)
        class_name = type(self.pipeline).__name__
        self._facts = {"class": class_name, "weights": weights, "dtype": dtype, "steps": steps}
        self.fingerprint, self.steps = fingerprint(self._facts), steps
        self.pipeline.to(device).set_progress_bar_config(disable=True)

    def describe(self) -> Row:
        return self._facts

    def make(self, plans: Sequence[PairPlan], seeds: Sequence[int]) -> list[Pair | str]:
        """Both images of every plan."""
        import torch

        pairs: list[Pair | str] = []
        for plan, seed in zip(plans, seeds, strict=True):
            texts = [plan.caption, plan.caption_with]  # without the object, with it
            noise = [torch.Generator().manual_seed(seed) for _ in texts]  # on the CPU: the same on any device
            images = self.pipeline(prompt=texts, generator=noise, num_inference_steps=self.steps).images
            without, with_extra = (np.array(image.convert("RGB")) for image in images)  # each (H, W, 3) uint8
            pairs.append((without, with_extra))
        return pairs


@dataclass(frozen=True)
class PairTools:
    """The models that make pairs, loaded."""

    maker: EditorMaker | TextMaker
    verifier: Verifier
    client: Client | None = None  # the language model that writes scenes; None for an editor

    @property
    def fingerprint(self) -> str:
        return fingerprint({"maker": self.maker.fingerprint, "detector": self.verifier.fingerprint})

    def describe(self) -> Row:
        parts = {"maker": self.maker, "detector": self.verifier, "llm": self.client}
        return {kind: part.describe() for kind, part in parts.items() if part is not None}

    def usage(self) -> Row:
        return self.client.usage() if self.client else {}

    def stop(self) -> None:
        if self.client:
            self.client.stop()

    def find_problem(self, plan: PairPlan, pair: Pair) -> str:
        """Why the detector refuses a pair; "" if it accepts it."""
        names = [name for name in (*plan.objects, plan.extra, plan.other) if name]
        try:
            without, with_extra = self.verifier.detect(pair, [names, names])  # name -> whether detected
        except MetricError as error:
            return f"{DETECTOR_FAILED}: {error}"
        if without[plan.extra]:
            return "the object is in the picture without it"
        if not with_extra[plan.extra]:
            return "the object is not in the picture with it"
        if not all(detected[name] for detected in (without, with_extra) for name in plan.objects):
            return "another object is lost"
        if plan.other and (without[plan.other] or with_extra[plan.other]):
            return "the further absent object is there"
        return ""


# --- plans and files ----------------------------------------------------------------------------------
def plan_edit(loaded: LoadedImage, vocabulary: Sequence[str], seed: int) -> PairPlan | str:
    """Plans the addition of an object that no caption or annotation names; or says why there is no plan."""
    image, pixels = loaded
    if image.problem or not image.captions or not image.positives:
        return image.problem or "no caption or no object"
    rng = sentences.make_rng(seed, image.id, "pair")
    absent = [name for name in vocabulary if name not in image.positives and name not in image.unsure]
    if not absent:
        return "no object of the vocabulary is absent"
    if isinstance(pixels, str):
        return pixels
    caption = rng.choice(image.captions)
    extra, *others = rng.sample(absent, min(2, len(absent)))
    # "A dog on a beach" -> "A dog on a beach. There is a car."
    added = f"{caption.rstrip().removesuffix('.')}. There is {families.add_article(extra, some=True)}."
    return PairPlan(
        id=image.id, caption=caption, caption_with=added, objects=image.positives, extra=extra,
        other=others[0] if others else "", source_id=image.cluster, start=pixels,
    )  # fmt: skip


def make_pairs(
    plans: Mapping[str, PairPlan | str], tools: PairTools, *, folder: Path, seed: int, attempts: int
) -> list[Concepts]:
    """Records of two images per plan, or of one that says why there is no pair; images below `folder`."""
    problems = {name: plan if isinstance(plan, str) else NOT_MADE for name, plan in plans.items()}
    results = {name: [Concepts(name, problem=problem)] for name, problem in problems.items()}
    pending = [plan for plan in plans.values() if not isinstance(plan, str)]
    for attempt in range(attempts):
        seeds = [sample_seed(seed, f"pair/{plan.id}", attempt) for plan in pending]
        refused = []
        for plan, pair in zip(pending, tools.maker.make(pending, seeds), strict=True):
            problem = pair if isinstance(pair, str) else tools.find_problem(plan, pair)
            if isinstance(pair, str) or problem:
                results[plan.id] = [Concepts(plan.id, problem=NOT_MADE, notes=(problem,))]
                refused.append(plan)
            else:
                results[plan.id] = _write_pair(plan, pair, folder, note=f"made at try {attempt + 1}")
        pending = refused
    return [image for images in results.values() for image in images]


def _write_pair(plan: PairPlan, pair: Pair, folder: Path, *, note: str) -> list[Concepts]:
    """Writes both images; returns their records. note: of the first one, so that it counts once per pair."""
    other = (plan.other,) if plan.other else ()
    without = Concepts(
        f"{plan.id}-without", captions=(plan.caption,), source_id=plan.source_id, notes=(note,),
        positives=plan.objects, negatives=(plan.extra, *other),
    )  # fmt: skip
    with_extra = Concepts(
        f"{plan.id}-with", captions=(plan.caption_with,), source_id=plan.source_id,
        positives=(*plan.objects, plan.extra), negatives=other,
    )  # fmt: skip
    images = []
    for image, pixels in zip((without, with_extra), pair, strict=True):
        path = f"pictures/{image.id.replace('/', '_')}.png"
        write_png(folder / path, pixels)
        images.append(replace(image, path=path))
    return images
