"""The four stages of `nein generate`, from captioned images to samples (docs/benchmarks/nein-data.md).

A file listed twice is one image with all its captions; another file with the same stem is left out.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.datasets import coco
from nein.engine import atomic, images
from nein.engine.folder import Row, sample_seed
from nein.generate import maker
from nein.generate.config import BuildConfig
from nein.generate.maker import BAD_NAME, COCO, NO_CAPTION, ImageOrReason, Listing, ShardStage
from nein.loading.digests import pixel_digest
from nein.loading.errors import UserError, isolate_answers
from nein.loading.references import expand_user, parse_reference
from nein.metrics.judges.base import Answer, find_template, parse_yes_no
from nein.models import judges, references
from nein.wording import families

SAME_NAME = "another image has this name"
NANO_SPLIT = "build"  # scenes of their own: no model was trained or judged on them


@dataclass(frozen=True)
class Source:
    """One image.

    id       Its official name without ending: `COCO_<12 digits>` for a file of COCO, else the file's stem.
    problem  Why it cannot be used, known before the file is opened.
    """

    id: str
    path: Path
    captions: tuple[str, ...]
    problem: str = ""


def load_sources(config: BuildConfig) -> Listing[Source]:
    """The images of `--source`. Raises UserError for an unreadable list, and if none of the images exists."""
    if config.source == "nano":
        return _draw_sources(config.scenes)
    path = expand_user(config.source or "")
    if not path.exists():
        raise UserError(f"--source '{path}' is neither nano, a .json or .jsonl file, nor a folder.")
    folder = maker.image_folder(config.images, path if path.is_dir() else path.parent)
    listing = _listing(maker.iter_captioned(path), folder, {"kind": "list", "list": path.name})
    if not any(source.path.is_file() for source in listing.records if not source.problem):
        first = listing.records[0].path if listing.records else folder
        raise UserError(
            f"None of the {len(listing.records)} images of '{path}' exists ('{first}'); pass --images FOLDER."
        )
    return listing


def _listing(pictures: Iterable[coco.CaptionedImage], folder: Path, origin: Row) -> Listing[Source]:
    captions: dict[str, list[str]] = {}
    repeats = 0
    for picture in pictures:
        repeats += picture.file_name in captions
        captions.setdefault(picture.file_name, []).extend(picture.captions)
    records, ids = [], set[str]()
    for name, texts in captions.items():
        # NeIn's name for a file of COCO leaves the split out: "COCO_train2014_000000000009".
        stem = re.sub(r"^(?:COCO_(?:(?:train|val|test)\d{4}_)?)?(\d{12})$", r"COCO_\1", Path(name).stem)
        sentences, key = maker.clean_texts(texts), stem.removeprefix("COCO_")
        problem = "" if sentences else NO_CAPTION
        outside = Path(name).is_absolute() or ".." in Path(name).parts
        if outside or not re.fullmatch(r"[\w-][\w .,+()-]*", stem):
            problem = BAD_NAME
        elif key in ids:
            problem = SAME_NAME
        ids.add(key)
        records.append(Source(stem, folder / name, sentences, problem))
    return Listing(records, origin, {"image listed again; captions added": repeats} if repeats else {})


def _draw_sources(scenes: int) -> Listing[Source]:
    from nein.nano import data
    from nein.nano.scenes import render, rng_for
    from nein.nano.sentences import captions

    names = [f"COCO_{index + 1:012d}.png" for index in range(scenes)]
    drawn = [data.source_scene(NANO_SPLIT, index) for index in range(scenes)]

    def draw(draft: Path) -> None:
        for name, scene in zip(names, drawn, strict=True):
            images.write_png(draft / name, render(scene))

    folder = data.draw_once(f"captioned-{scenes}", draw, proof=names[-1])
    texts = [captions(scene, rng_for(NANO_SPLIT, k, "captions")) for k, scene in enumerate(drawn)]
    pictures = [
        coco.CaptionedImage(name, tuple(sentences)) for name, sentences in zip(names, texts, strict=True)
    ]
    return _listing(pictures, folder, {"kind": "nano", "scenes": scenes, "world": data.world_version()})


def categories(name: str, queried: int) -> tuple[str, ...]:
    """ "coco", "nano", or the lines of a text file. Raises UserError, also for fewer than `queried`."""
    from nein.nano.scenes import CATEGORIES

    names = {"coco": COCO, "nano": CATEGORIES}.get(name, ())
    if not names:
        if not Path(name).exists():
            raise UserError(f"--objects is '{name}'; pass coco, nano or a text file.")
        lines = atomic.read_text_lines(Path(name))
        names = tuple(dict.fromkeys(families.bare(line) for line in lines if line.strip()))
    if len(names) < queried:
        raise UserError(
            f"--queried is {queried}, but '{name}' has {len(names)} categories; pass a lower --queried."
        )
    return names


# --- the stages ------------------------------------------------------------------------------

EDITOR_FAILED = "the editor failed"


class NeinStage(ShardStage):
    def load(self) -> Any:
        reference = references.resolve(getattr(self.config.models, self.kind))
        options: Row = {"device": self.device, "dtype": self.config.judge_dtype}
        if parse_reference(reference).has_files:
            options["batch_size"] = self.config.batch_size
            if self.kind == "vqa":
                options["quantization"] = self.config.models.vqa_quantization
        return judges.load(self.kind, reference, services=self.maker.services(), **options)


class Filter(NeinStage):
    """Reads the candidates that the stage `after` accepted, and their generated images, (H, W, 3) uint8."""

    after = "generate"

    def read(self, shard: int) -> tuple[list[Row], list[np.ndarray]]:
        accepted = {row["id"] for row in self.maker.rows(self.after, shard) if row["verdict"] == ACCEPTED}
        chosen = [candidate for candidate in self.maker.candidates(shard) if candidate["id"] in accepted]
        names = {row["id"]: row["image"] for row in self.maker.rows("generate", shard)}
        return chosen, [images.decode(self.maker.image_path(names[row["id"]])) for row in chosen]


class Clauses(NeinStage):
    """Algorithm 1: image and captions -> objects that are absent, and a sentence that says so for each."""

    name, kind = "clauses", "itm"

    def read(self, shard: int) -> list[tuple[Source, ImageOrReason]]:
        """Every image, (H, W, 3) uint8, or why it cannot be used."""
        return [(source, source.problem or _look(source.path)) for source in self.maker.members(shard)]

    def make(self, model: Any, inputs: list[tuple[Source, ImageOrReason]]) -> list[Row]:
        usable = [(source, pixels) for source, pixels in inputs if not isinstance(pixels, str)]
        names = [draw_categories(self.maker.objects, self.config, source.id) for source, _ in usable]
        results = iter(cosines(model, [pixels for _, pixels in usable], names))
        rows = []
        for source, pixels in inputs:
            if isinstance(pixels, str):
                rows.append(unusable(source, pixels))
            elif isinstance(values := next(results), str):
                rows.append(unusable(source, f"{FAILED}: {values}"))
            else:
                row = clauses(source, values, self.maker.objects, self.config)
                rows.append({**row, "sha256": pixel_digest(pixels)})
        return rows


class Generate(NeinStage):
    """Source image and "Add a cat." -> the sample, by an editor."""

    name, kind = "generate", "editor"

    def load(self) -> Any:
        how = {name: getattr(self.config, name) for name in ("dtype", "batch_size")}
        return self.maker.editor.load(services=self.maker.services, device=self.device, **how)

    def read(self, shard: int) -> list[editors.EditRequest]:
        candidates = self.maker.candidates(shard)
        ids = {candidate["source"] for candidate in candidates}
        sources = [source for source in self.maker.members(shard) if source.id in ids and not source.problem]
        pixels = {source.id: images.decode(source.path) for source in sources}
        return [
            editors.EditRequest(c["id"], pixels[c["source"]], c["generated"], c["seed"]) for c in candidates
        ]

    def make(self, model: editors.Editor, inputs: list[editors.EditRequest]) -> list[Row]:
        results = model.edit(inputs) if inputs else []
        if [result.id for result in results] != [request.id for request in inputs]:
            raise AssertionError(f"editor {model.name!r} did not answer every request, in order")
        return [self._row(result) for result in results]

    def _row(self, result: editors.EditResult) -> Row:
        if result.image is None:
            error = result.error or "the editor gave no picture and no reason"
            return {"id": result.id, "image": None, "verdict": EDITOR_FAILED, "error": error}
        name = f"{result.id}.{self.config.image_format}"
        path = self.maker.image_path(name)
        (images.write_jpeg if self.config.image_format == "jpg" else images.write_png)(path, result.image)
        height, width = result.image.shape[:2]
        facts = {"id": result.id, "image": name, "width": width, "height": height}
        facts |= {"sha256": pixel_digest(images.decode(path)), "verdict": ACCEPTED}
        return {**facts, "note": result.note}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        """Images that have vanished are made again."""
        paths = [self.maker.image_path(row["image"]) for row in rows if row["image"] is not None]
        return all(map(atomic.is_nonempty_file, paths))


class Match(Filter):
    """Filter 1: do image and caption with the object match?"""

    name, kind = "match", "itm"

    def make(self, model: Any, inputs: tuple[list[Row], list[np.ndarray]]) -> list[Row]:
        return match(*inputs, model, above=self.config.match_above, protocol=self.config.protocol)


class Ask(Filter):
    """Filter 2: does the judge say yes to caption and object?"""

    name, kind, after = "ask", "vqa", "match"

    def make(self, model: Any, inputs: tuple[list[Row], list[np.ndarray]]) -> list[Row]:
        return ask(*inputs, model, protocol=self.config.protocol)


def _look(path: Path) -> ImageOrReason:
    try:
        return images.decode(path)
    except images.ImageError as error:
        return f"{maker.UNREADABLE}: {error}".replace(f"{path}: ", "")


#: Fates of the sampled objects, and why an image gave fewer candidates than `kept`.
TOO_SIMILAR, NOT_LOWEST, KEPT = "cosine not below the threshold", "not among the lowest", "kept"
NO_OBJECT, NO_CAPTION_LEFT = "no absent object left", "no caption left"
NOISE = "generation"  # the stream of its seeds; data made before say none, and took that of evaluation
NO_FAMILY = "no family of negation fits"
#: Verdicts of the filters.
ACCEPTED, LOW_MATCH, FAILED = "accepted", "match at or below the threshold", "the judge failed"
NOT_CAPTION, NOT_BOTH = 'answered "no" to the caption', 'answered "no" to both'
REJECTED_OBJECT, UNPARSABLE = 'answered "no" to the object', "unparsable answer"

# --- stage 1: clauses ------------------------------------------------------------------------


def stream(seed: int, source_id: str, purpose: str) -> random.Random:
    """The random stream of one image and purpose: SHA-256 over (run seed, id, purpose)."""
    digest = hashlib.sha256(f"nein-build/{seed}/{source_id}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def draw_categories(objects: Sequence[str], config: BuildConfig, source_id: str) -> list[str]:
    """The random categories asked for about an image, in the order drawn."""
    return stream(config.seed, source_id, "objects").sample(list(objects), config.queried)


def clauses(source: Source, cosines: np.ndarray, objects: Sequence[str], config: BuildConfig) -> Row:
    """The record of one image: every sampled object with its fate, the candidates, and the empty slots.

    Those of the `queried` categories whose cosine is below `absent_below` count as absent, and the `kept`
    lowest become one candidate each, the i-th with the i-th caption.
    """
    categories = draw_categories(objects, config, source.id)
    below = [(float(c), k) for k, c in enumerate(cosines) if float(c) < config.absent_below]
    absent = [categories[k] for _, k in sorted(below)]  # equal ones in the order asked
    chosen = absent[: config.kept]  # one candidate each, the least similar object first
    rng = stream(config.seed, source.id, "templates")
    present = families.find_named(source.captions, objects)  # a caption names them: they stay
    needs = {label: families.FAMILIES[label].needs for label in config.family_labels}  # "", "T" or "A"
    candidates: list[Row] = []
    lost = [NO_OBJECT] * (config.kept - len(chosen))
    for k, noun in enumerate(chosen):
        if config.protocol == "paper" and k >= len(source.captions):
            lost.append(NO_CAPTION_LEFT)
            continue
        second = next((other for other in absent[::-1] if other != noun), "")  # T: the most similar one
        others = {"": "", "T": second, "A": rng.choice([a for a in present if a != noun] or [""])}
        possible = [label for label, need in needs.items() if not need or others[need]]
        if not possible:
            lost.append(NO_FAMILY)
            continue
        label = rng.choice(possible)
        index = rng.choice(families.choices(label, noun, config.protocol))
        named = {"second": second, "present": others["A"], "protocol": config.protocol}
        sample_id = f"NeIn_{source.id.removeprefix('COCO_')}_{k + 1}"
        # A stream of its own: an editor that is evaluated on the sample starts from other noise.
        noise = f"{NOISE}/{source.id if config.protocol == 'paper' else sample_id}"
        candidates.append(
            {
                "id": sample_id,
                "source": source.id,
                "object": noun,
                "caption": source.captions[k % len(source.captions)],
                "negative": families.sentence(label, index, noun, **named),
                "family": label,
                "template": index,
                "other": others[needs[label]] or None,
                "generated": f"Add {name_object(noun, config.protocol)}.",
                "seed": sample_seed(config.seed, noise),
            }
        )
    fate = {noun: KEPT if noun in chosen else NOT_LOWEST for noun in absent}  # of others: TOO_SIMILAR
    rows = [
        {"object": noun, "cosine": round(float(cosine), 6), "fate": fate.get(noun, TOO_SIMILAR)}
        for noun, cosine in zip(categories, cosines, strict=True)
    ]
    return {"id": source.id, "problem": "", "queried": rows, "candidates": candidates, "lost": lost}


def unusable(source: Source, problem: str) -> Row:
    return {"id": source.id, "problem": problem, "queried": [], "candidates": [], "lost": []}


def name_object(noun: str, protocol: str) -> str:
    """The object as it is added and asked for: "a cat"; "a skis" (paper) or "some skis" (fixed)."""
    return families.indefinite(noun) if protocol == "paper" else families.add_article(noun, some=True)


def cosines(matcher: Any, images: Sequence[Any], texts: Sequence[Sequence[str]]) -> list[Any]:
    """Per image the cosine of each of its texts, or why there is none."""
    return isolate_answers(lambda some, words: matcher.match(some, words, head="itc"), images, texts)


# --- stages 3 and 4: filters -----------------------------------------------------------------


def match(
    candidates: Sequence[Row], images: Sequence[np.ndarray], matcher: Any, *, above: float, protocol: str
) -> list[Row]:
    """Filter 1 (algorithm 2): accepts an image whose cosine with "CAPTION. This image has a X." is above
    `above`."""
    texts = []
    for item in candidates:
        caption = item["caption"]
        ended = "." in caption if protocol == "paper" else caption.rstrip().endswith((".", "!", "?"))
        has = f"This image has {name_object(item['object'], protocol)}."
        texts.append(f"{caption}{' ' if ended else '. '}{has}")  # "A dog runs. This image has a cat."
    rows = []
    results = cosines(matcher, images, [[text] for text in texts])
    for item, text, value in zip(candidates, texts, results, strict=True):
        row = {"id": item["id"], "text": text, "cosine": None}
        if isinstance(value, str):
            rows.append({**row, "verdict": FAILED, "error": value})
        else:
            verdict = ACCEPTED if float(value[0]) > above else LOW_MATCH
            rows.append({**row, "cosine": round(float(value[0]), 6), "verdict": verdict})
    return rows


def ask(candidates: Sequence[Row], images: Sequence[np.ndarray], judge: Any, *, protocol: str) -> list[Row]:
    """Filter 2: a row per candidate with both answers and the verdict; questions share an image's prefix."""
    form, rows, prompts = find_template(judge.template), [], []
    for item in candidates:
        noun = name_object(item["object"], protocol)
        prompts.append([form.ask_caption(item["caption"]), form.ask_presence(noun)])  # two per image
    for item, value in zip(candidates, isolate_answers(judge.ask, images, prompts), strict=True):
        if isinstance(value, str):
            rows.append({"id": item["id"], "verdict": FAILED, "error": value})
        else:
            answers = {"caption_answer": _answer(value[0]), "object_answer": _answer(value[1])}
            decided = verdict(value[0].text, value[1].text, protocol)
            rows.append({"id": item["id"], **answers, "verdict": decided})
    return rows


def verdict(about_caption: str, about_object: str, protocol: str) -> str:
    """The verdict on a sample by both answers; a "no" outweighs an unparsable answer."""
    if protocol == "paper":
        read = [{"Yes": True, "No": False}.get(text.strip()) for text in (about_caption, about_object)]
    else:
        read = [parse_yes_no(about_caption), parse_yes_no(about_object)]
    if read == [True, True]:
        return ACCEPTED
    if False not in read:
        return UNPARSABLE
    if read == [False, False]:
        return NOT_BOTH
    return NOT_CAPTION if read[0] is False else REJECTED_OBJECT


def _answer(answer: Answer) -> Row:
    chances = {"p_yes": answer.p_yes, "p_no": answer.p_no}
    return {"text": answer.text, **{k: None if v is None else round(v, 6) for k, v in chances.items()}}
