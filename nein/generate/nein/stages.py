"""The stages of `nein generate`, from captioned images to accepted samples (docs/benchmarks/nein-data.md).

clauses   image and captions -> objects that are absent, and a negative sentence about each: the candidates
generate  an editor adds the object to the image
match     filter 1: does the generated image match the caption and the object?
ask       filter 2: does a judge answer yes to both?

Parts: the sources, what the stages share, stage 1 (clauses), stage 2 (generation), stages 3 and 4 (filters).
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

from nein.datasets import coco
from nein.editors import Editor, EditRequest, EditResult
from nein.engine import atomic, images
from nein.engine.folder import Row, sample_seed
from nein.generate import maker
from nein.generate.config import BuildConfig
from nein.generate.maker import BAD_NAME, COCO_CATEGORIES, NO_CAPTION, ImageOrReason, Listing, ShardStage
from nein.loading.digests import pixel_digest
from nein.loading.errors import UserError, isolate_answers
from nein.loading.references import expand_user, parse_reference
from nein.metrics.judges.base import Answer, find_template, parse_yes_no
from nein.models import judges, references
from nein.wording import families

# --- the sources ---------------------------------------------------------------------------------
SAME_NAME = "another image has this name"
NANO_SPLIT = "build"  # scenes of their own: no model was trained or judged on them


@dataclass(frozen=True)
class Source:
    """An image with captions."""

    id: str  # `COCO_<12 digits>` for a file of COCO, else the file's stem
    path: Path
    captions: tuple[str, ...]
    problem: str = ""  # why the image cannot be used, as far as the list tells; "" if it can


def load_sources(config: BuildConfig) -> Listing[Source]:
    """The images of `--source`. Raises UserError for an unreadable list, and if none of the images exists."""
    if config.source == "nano":
        return _draw_sources(config.scenes)
    path = expand_user(config.source or "")
    if not path.exists():
        raise UserError(f"--source '{path}' is neither nano, a .json or .jsonl file, nor a folder.")
    folder = maker.image_folder(config.images, path if path.is_dir() else path.parent)
    listing = _make_listing(maker.iter_captioned(path), folder, {"kind": "list", "list": path.name})
    if not any(source.path.is_file() for source in listing.records if not source.problem):
        first = listing.records[0].path if listing.records else folder
        raise UserError(f"No image of '{path}' exists (first: '{first}'); pass --images FOLDER.")
    return listing


def _make_listing(entries: Iterable[coco.CaptionedImage], folder: Path, origin: Row) -> Listing[Source]:
    """The images in `folder`. A file listed twice is one image with all its captions; another file with the
    same stem has a problem."""
    captions: dict[str, list[str]] = {}  # file name -> captions
    repeats = 0  # entries of a file that an earlier entry named
    for entry in entries:
        if entry.file_name in captions:
            repeats += 1
        captions.setdefault(entry.file_name, []).extend(entry.captions)
    records, ids = list[Source](), set[str]()  # ids: without "COCO_", which a sample's id leaves out
    for name, texts in captions.items():
        # NeIn's id of a file of COCO has no split: "COCO_train2014_000000000009" -> "COCO_000000000009".
        stem = re.sub(r"^(?:COCO_(?:(?:train|val|test)\d{4}_)?)?(\d{12})$", r"COCO_\1", Path(name).stem)
        key = stem.removeprefix("COCO_")
        sentences = maker.clean_texts(texts)
        problem = "" if sentences else NO_CAPTION
        is_outside = Path(name).is_absolute() or ".." in Path(name).parts
        if is_outside or not re.fullmatch(r"[\w-][\w .,+()-]*", stem):
            problem = BAD_NAME
        elif key in ids:
            problem = SAME_NAME
        ids.add(key)
        records.append(Source(stem, folder / name, sentences, problem))
    return Listing(records, origin, {"image listed again; captions added": repeats} if repeats else {})


def _draw_sources(scenes: int) -> Listing[Source]:
    """Images of drawn scenes, kept in the user's cache, with captions."""
    from nein.nano import data
    from nein.nano.scenes import render, rng_for
    from nein.nano.sentences import write_captions

    names = [f"COCO_{index + 1:012d}.png" for index in range(scenes)]
    drawn = [data.source_scene(NANO_SPLIT, index) for index in range(scenes)]

    def draw(draft: Path) -> None:
        for name, scene in zip(names, drawn, strict=True):
            images.write_png(draft / name, render(scene))

    folder = data.draw_once(f"captioned-{scenes}", draw, proof=names[-1])
    texts = [write_captions(scene, rng_for(NANO_SPLIT, k, "captions")) for k, scene in enumerate(drawn)]
    entries = [coco.CaptionedImage(name, tuple(lines)) for name, lines in zip(names, texts, strict=True)]
    return _make_listing(entries, folder, {"kind": "nano", "scenes": scenes, "world": data.world_version()})


def load_categories(name: str, queried: int) -> tuple[str, ...]:
    """The objects of "coco", "nano" or a text file. Raises UserError, also for fewer than `queried`."""
    from nein.nano.scenes import CATEGORIES

    names = {"coco": COCO_CATEGORIES, "nano": CATEGORIES}.get(name, ())
    if not names:
        if not Path(name).exists():
            raise UserError(f"--objects is '{name}'; pass coco, nano or a text file.")
        lines = atomic.read_text_lines(Path(name))
        names = tuple(dict.fromkeys(families.strip_article(line) for line in lines if line.strip()))
    if len(names) < queried:
        raise UserError(f"--queried is {queried}, but '{name}' has {len(names)} categories; lower --queried.")
    return names


# --- what the stages share -----------------------------------------------------------------------
#: Verdicts on a candidate. A stage reads those that the stage before it accepted.
ACCEPTED = "accepted"
EDITOR_FAILED, FAILED = "the editor failed", "the judge failed"  # FAILED: of clauses, match and ask
LOW_MATCH = "match at or below the threshold"
NOT_CAPTION, NOT_BOTH = 'answered "no" to the caption', 'answered "no" to both'
REJECTED_OBJECT, UNPARSABLE = 'answered "no" to the object', "unparsable answer"


class NeinStage(ShardStage):
    """A stage whose model is one of `--models`, unless it loads another."""

    def load(self) -> Any:
        reference = references.resolve(getattr(self.config.models, self.kind))
        options: Row = {"device": self.device, "dtype": self.config.judge_dtype}
        if parse_reference(reference).has_files:
            options["batch_size"] = self.config.batch_size
            if self.kind == "vqa":
                options["quantization"] = self.config.models.vqa_quantization
        return judges.load(self.kind, reference, services=self.maker.services(), **options)


def make_stream(seed: int, source_id: str, purpose: str) -> random.Random:
    """The random stream of one image and purpose: SHA-256 over (run seed, id, purpose)."""
    digest = hashlib.sha256(f"nein-build/{seed}/{source_id}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def name_object(noun: str, protocol: str) -> str:
    """The object as it is added and asked for: "a cat"; "a skis" (paper) or "some skis" (fixed)."""
    return families.a_or_an(noun) if protocol == "paper" else families.add_article(noun, some=True)


def measure_cosines(matcher: Any, pixels: Sequence[Any], texts: Sequence[Sequence[str]]) -> list[Any]:
    """Per image, (H, W, 3) uint8, the cosine (head "itc") of each of its texts, or why there is none."""
    return isolate_answers(lambda some, words: matcher.match(some, words, head="itc"), pixels, texts)


# --- stage 1: clauses ----------------------------------------------------------------------------
#: Fates of the sampled objects: not absent; absent, without a candidate; absent, with a candidate.
TOO_SIMILAR, NOT_LOWEST, KEPT = "cosine not below the threshold", "not among the lowest", "kept"
#: Why an image gave fewer candidates than `kept`.
NO_OBJECT, NO_CAPTION_LEFT = "no absent object left", "no caption left"
NO_FAMILY = "no family of negation fits"
NOISE = "generation"  # start of the name under which stage 2's seeds are drawn; part of a build's identity


class Clauses(NeinStage):
    """Algorithm 1: image and captions -> objects that are absent, and a sentence that says so for each."""

    name, kind = "clauses", "itm"  # of the stage; of its model

    def read(self, shard: int) -> list[tuple[Source, ImageOrReason]]:
        """Every image, (H, W, 3) uint8, or why it cannot be used."""
        return [(source, source.problem or _decode(source.path)) for source in self.maker.members(shard)]

    def make(self, model: Any, inputs: list[tuple[Source, ImageOrReason]]) -> list[Row]:
        usable = [(source, pixels) for source, pixels in inputs if not isinstance(pixels, str)]
        categories = [draw_categories(self.maker.objects, self.config, source.id) for source, _ in usable]
        results = measure_cosines(model, [pixels for _, pixels in usable], categories)
        result_by_id = {source.id: result for (source, _), result in zip(usable, results, strict=True)}
        rows = []
        for source, pixels in inputs:
            if isinstance(pixels, str):
                rows.append(_make_unusable_record(source, pixels))
                continue
            cosines = result_by_id[source.id]  # (queried,)
            if isinstance(cosines, str):
                rows.append(_make_unusable_record(source, f"{FAILED}: {cosines}"))
            else:
                record = make_record(source, cosines, self.maker.objects, self.config)
                rows.append({**record, "sha256": pixel_digest(pixels)})
        return rows


def _decode(path: Path) -> ImageOrReason:
    try:
        return images.decode(path)
    except images.ImageError as error:
        return f"{maker.UNREADABLE}: {error}".replace(f"{path}: ", "")  # a row names no path


def draw_categories(objects: Sequence[str], config: BuildConfig, source_id: str) -> list[str]:
    """The random categories asked for about an image, in the order drawn."""
    return make_stream(config.seed, source_id, "objects").sample(list(objects), config.queried)


def make_record(source: Source, cosines: np.ndarray, objects: Sequence[str], config: BuildConfig) -> Row:
    """The record of one image: sampled categories with their fates, candidates, and why others are lost.
    Categories with a cosine below `absent_below` are absent; the `kept` lowest become a candidate each."""
    categories = draw_categories(objects, config, source.id)
    below = [(float(cosine), k) for k, cosine in enumerate(cosines) if float(cosine) < config.absent_below]
    absent = [categories[k] for _, k in sorted(below)]  # equal ones in the order asked
    chosen = absent[: config.kept]  # one candidate each, the least similar object first
    present = families.find_named(source.captions, objects)  # named by a caption

    rng = make_stream(config.seed, source.id, "templates")
    # Family -> what else its sentences name: nothing "", a second absent object "T", a present one "A".
    needs = {label: families.FAMILIES[label].needs for label in config.family_labels}
    candidates: list[Row] = []
    lost = [NO_OBJECT] * (config.kept - len(chosen))  # a reason per candidate that is missing
    for k, noun in enumerate(chosen):
        if config.protocol == "paper" and k >= len(source.captions):
            lost.append(NO_CAPTION_LEFT)
            continue

        # The sentence: a family whose needs can be met, one of its templates.
        further = [other for other in absent if other != noun]
        second = further[-1] if further else ""  # the most similar one
        other_present = rng.choice([other for other in present if other != noun] or [""])
        others = {"": "", "T": second, "A": other_present}  # need -> the object that meets it
        possible = [label for label, need in needs.items() if not need or others[need]]
        if not possible:
            lost.append(NO_FAMILY)
            continue
        label = rng.choice(possible)
        template = rng.choice(families.list_templates(label, noun, config.protocol))
        named = {"second": second, "present": other_present, "protocol": config.protocol}

        # The seed: an editor that is evaluated on the sample must start from other noise.
        sample_id = f"NeIn_{source.id.removeprefix('COCO_')}_{k + 1}"
        noise = f"{NOISE}/{source.id if config.protocol == 'paper' else sample_id}"
        candidates.append({
            "id": sample_id, "source": source.id, "object": noun,
            "caption": source.captions[k % len(source.captions)],
            "negative": families.write_sentence(label, template, noun, **named),
            "family": label, "template": template, "other": others[needs[label]] or None,
            "generated": f"Add {name_object(noun, config.protocol)}.",
            "seed": sample_seed(config.seed, noise),
        })  # fmt: skip

    fate = {noun: KEPT if noun in chosen else NOT_LOWEST for noun in absent}  # of others: TOO_SIMILAR
    queried = [
        {"object": noun, "cosine": round(float(cosine), 6), "fate": fate.get(noun, TOO_SIMILAR)}
        for noun, cosine in zip(categories, cosines, strict=True)
    ]
    return {"id": source.id, "problem": "", "queried": queried, "candidates": candidates, "lost": lost}


def _make_unusable_record(source: Source, problem: str) -> Row:
    return {"id": source.id, "problem": problem, "queried": [], "candidates": [], "lost": []}


# --- stage 2: generation -------------------------------------------------------------------------
class Generate(NeinStage):
    """Source image and "Add a cat." -> the sample, by an editor."""

    name, kind = "generate", "editor"

    def load(self) -> Any:
        options: Row = {"dtype": self.config.dtype, "batch_size": self.config.batch_size}
        return self.maker.editor.load(services=self.maker.services, device=self.device, **options)

    def read(self, shard: int) -> list[EditRequest]:
        candidates = self.maker.candidates(shard)
        ids = {candidate["source"] for candidate in candidates}
        sources = [source for source in self.maker.members(shard) if source.id in ids and not source.problem]
        pixels = {source.id: images.decode(source.path) for source in sources}
        return [EditRequest(c["id"], pixels[c["source"]], c["generated"], c["seed"]) for c in candidates]

    def make(self, model: Editor, inputs: list[EditRequest]) -> list[Row]:
        results = model.edit(inputs) if inputs else []
        if [result.id for result in results] != [request.id for request in inputs]:
            raise AssertionError(f"editor {model.name!r} did not answer every request, in order")
        return [self._write_image(result) for result in results]

    def _write_image(self, result: EditResult) -> Row:
        """Writes the image of a result; returns the candidate's row."""
        if result.image is None:
            error = result.error or "the editor gave no picture and no reason"
            return {"id": result.id, "image": None, "verdict": EDITOR_FAILED, "error": error}
        name = f"{result.id}.{self.config.image_format}"
        path = self.maker.image_path(name)
        write = images.write_jpeg if self.config.image_format == "jpg" else images.write_png
        write(path, result.image)
        height, width = result.image.shape[:2]
        facts = {"id": result.id, "image": name, "width": width, "height": height}
        stored = pixel_digest(images.decode(path))  # a JPEG has other pixels than the result
        return {**facts, "sha256": stored, "verdict": ACCEPTED, "note": result.note}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        """Images that have vanished are made again."""
        paths = [self.maker.image_path(row["image"]) for row in rows if row["image"] is not None]
        return all(map(atomic.is_nonempty_file, paths))


# --- stages 3 and 4: filters ---------------------------------------------------------------------
class Filter(NeinStage):
    """Reads the candidates that the stage `after` accepted, and their generated images, (H, W, 3) uint8."""

    after = "generate"  # name of the stage before

    def read(self, shard: int) -> tuple[list[Row], list[np.ndarray]]:
        accepted = {row["id"] for row in self.maker.rows(self.after, shard) if row["verdict"] == ACCEPTED}
        chosen = [candidate for candidate in self.maker.candidates(shard) if candidate["id"] in accepted]
        names = {row["id"]: row["image"] for row in self.maker.rows("generate", shard)}
        return chosen, [images.decode(self.maker.image_path(names[row["id"]])) for row in chosen]


class Match(Filter):
    """Filter 1 (algorithm 2): the cosine with "CAPTION. This image has a X." must be above the threshold."""

    name, kind = "match", "itm"

    def make(self, model: Any, inputs: tuple[list[Row], list[np.ndarray]]) -> list[Row]:
        candidates, pixels = inputs
        protocol = self.config.protocol
        texts = []
        for item in candidates:
            caption = item["caption"]
            # To the released code ("paper") a dot anywhere in a caption ends it.
            is_ended = "." in caption if protocol == "paper" else caption.rstrip().endswith((".", "!", "?"))
            has_object = f"This image has {name_object(item['object'], protocol)}."
            texts.append(f"{caption}{' ' if is_ended else '. '}{has_object}")
        rows = []
        results = measure_cosines(model, pixels, [[text] for text in texts])
        for item, text, result in zip(candidates, texts, results, strict=True):
            row = {"id": item["id"], "text": text, "cosine": None}
            if isinstance(result, str):
                rows.append({**row, "verdict": FAILED, "error": result})
            else:
                cosine = float(result[0])  # the verdict is on the unrounded one
                verdict = ACCEPTED if cosine > self.config.match_above else LOW_MATCH
                rows.append({**row, "cosine": round(cosine, 6), "verdict": verdict})
        return rows


class Ask(Filter):
    """Filter 2: the judge must answer yes when asked about the caption and about the object."""

    name, kind, after = "ask", "vqa", "match"

    def make(self, model: Any, inputs: tuple[list[Row], list[np.ndarray]]) -> list[Row]:
        candidates, pixels = inputs
        protocol = self.config.protocol
        template = find_template(model.template)  # of this judge's prompts
        prompts = []  # two questions per image, which the judge looks at once
        for item in candidates:
            noun = name_object(item["object"], protocol)
            prompts.append([template.ask_caption(item["caption"]), template.ask_presence(noun)])
        rows = []
        for item, result in zip(candidates, isolate_answers(model.ask, pixels, prompts), strict=True):
            if isinstance(result, str):
                rows.append({"id": item["id"], "verdict": FAILED, "error": result})
            else:
                on_caption, on_object = result
                answers = {"caption_answer": _make_entry(on_caption), "object_answer": _make_entry(on_object)}
                verdict = decide(on_caption.text, on_object.text, protocol)
                rows.append({"id": item["id"], **answers, "verdict": verdict})
        return rows


def _make_entry(answer: Answer) -> Row:
    p_yes, p_no = (None if p is None else round(p, 6) for p in (answer.p_yes, answer.p_no))
    return {"text": answer.text, "p_yes": p_yes, "p_no": p_no}


def decide(about_caption: str, about_object: str, protocol: str) -> str:
    """The verdict on a sample by both answers; a "no" outweighs an unparsable answer."""
    texts = about_caption, about_object
    if protocol == "paper":
        answers = [{"Yes": True, "No": False}.get(text.strip()) for text in texts]
    else:
        answers = [parse_yes_no(text) for text in texts]  # None: neither yes nor no
    if answers == [True, True]:
        return ACCEPTED
    if False not in answers:
        return UNPARSABLE
    if answers == [False, False]:
        return NOT_BOTH
    return NOT_CAPTION if answers[0] is False else REJECTED_OBJECT
