"""Drawn twins of other tests: files in exactly their form, about drawn scenes whose truth is known."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from nein.datasets.negbench import drawn, registry
from nein.datasets.negbench.drawn import scene
from nein.datasets.negbench.other_tests import SUFFIXES
from nein.datasets.negbench.registry import MCQ, REPHRASED, RETRIEVAL, ROWS, SCOPE
from nein.engine.images import write_png
from nein.nano import data, scope
from nein.nano.draw import CATEGORIES, LOOKS
from nein.nano.scenes import Item, Scene, box, place, render, rng_for
from nein.nano.sentences import PLACES, plural
from nein.wording.languages.base import DENIES
from nein.wording.languages.table import LANGUAGES
from nein.wording.nouns import with_article

SCENES = 300
VERSION = 3  # of what is drawn: part of the name of the folder in the cache
NEAT = registry.NEAT_COCO
_ABSENT = 4  # things that BEAF's twin asks about and no picture shows


def folder(name: str, split: str = "val", scenes: int | None = None) -> Path:
    """The folder of the twin of a row of `registry.ROWS`, drawn on first use."""
    count, (write, proof) = scenes or SCENES, WRITERS[name]
    folder_name, last = f"{name}-{split}-{count}-{VERSION}", proof.format(split=split)
    return data.drawn(folder_name, lambda draft: write(draft, split, count), proof=last)


def valse(root: Path, split: str, count: int) -> None:
    """One item a scene, in turns with a right denial and a wrong one; every tenth found no valid foil."""
    items: dict[str, dict[str, Any]] = {}
    for index, picture, rng in _scenes(split, count, "valse"):
        denied = index % 2 == 0
        things = plural(_absent(picture, rng) if denied else rng.choice(picture.categories))
        texts = [f"There are no {things} in the picture.", f"There are {things} in the picture."]
        caption, foil = texts if denied else texts[::-1]
        name = f"v7w_{index}.jpg"
        _save(root / name, picture)
        items[f"existence_visual7w_{index}"] = {
            "dataset": "visual7w", "dataset_idx": str(index), "image_file": name,
            "linguistic_phenomena": "existence", "caption": caption, "answer": 0 if denied else 1,
            "classes": 0 if denied else 1, "split": "test", "original_split": "test",
            "classes_foil": [1, 2] if denied else [0], "declarative_statement": caption,
            "declarative_statement_foils": [foil],
            "provenance_of_foils": "zero_to_something" if denied else "something_to_zero",
            "mturk": {"foil": 0, "caption": 1 if index % 10 == 9 else 3, "other": 2 * (index % 10 == 9)},
            "foil": foil,
        }  # fmt: skip
    _write_json(root / "existence.json", items)


def cc_neg(root: Path, split: str, count: int) -> None:
    """Scenes with two things, of which the negation denies the second."""
    import torch

    paths, notes = [], []
    for index, picture, rng in _scenes(split, count, "cc-neg", things=2):
        first, second = rng.sample(picture.categories, 2)
        where = rng.choice(PLACES[picture.background][1])
        _save(root / "cc3m_subset_images_extracted_final" / f"image{index}.jpg", picture)
        paths.append(f"/workspace/datasets/cc3m/cc3m_subset_images_extracted_final/image{index}.jpg")
        caption = f"{with_article(first)} and {with_article(second)} {where}"
        negation = f"{with_article(first)}, and no {second}, {where}"
        notes.append({"json": {"caption": caption}, "sop_data": {"negative-prompt": negation}})
    torch.save({"image_paths": paths, "annotations": notes}, root / "ccneg_preprocessed.pt")


def sugarcrepe(root: Path, split: str, count: int) -> None:
    """Scenes with two things; every other wrong caption denies nothing, as most of SugarCrepe's."""
    items = {}
    for index, picture, rng in _scenes(split, count, "sugarcrepe", things=2):
        first, second = rng.sample(picture.categories, 2)
        head, where = with_article(first).capitalize(), rng.choice(PLACES[picture.background][1])
        other = with_article(_absent(picture, rng)) if index % 2 else with_article(second)
        name = f"{index:012d}.jpg"
        _save(root / name, picture)
        items[str(index)] = {
            "filename": name,
            "caption": f"{head} with {with_article(second)} {where}.",
            "negative_caption": f"{head} {'with' if index % 2 else 'without'} {other} {where}.",
        }
    _write_json(root / "replace_rel.json", items)


def negrefcocog(root: Path, split: str, count: int) -> None:
    """Two things of one kind in two colours, and a phrase that denies the colour of one of them."""
    items = []
    kinds = [name for name in CATEGORIES if len(LOOKS[name].colours) > 1]
    for index, backdrop, rng in _scenes(split, count, "negrefcocog"):
        kind = rng.choice(kinds)
        pair = [item for _ in range(40) if (item := place(rng, kind, ())) is not None]
        first = pair[0]
        a, apart = box(first), list[Item]()
        for item in pair[1:]:
            b = box(item)
            if item.colour != first.colour and (a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]):
                apart.append(item)
        if not apart:
            continue
        picture = Scene(backdrop.background, backdrop.background_seed, (first, apart[0]))
        boxes = [[x0, y0, x1 - x0, y1 - y0] for x0, y0, x1, y1 in map(box, picture.items)]
        name, order = f"COCO_train2014_{index:012d}.jpg", rng.sample((0, 1), 2)
        _save(root / name, picture)
        phrase = f"the {kind} that is not {apart[0].colour}"
        listed = [boxes[k] for k in order]
        items.append({"image": name, "phrase": phrase, "ref_bbox": boxes[0], "bbox_list": listed})
    _write_json(root / "NegRefCOCOg.json", items)


def neat(root: Path, split: str, count: int) -> None:
    """The negated captions of NegBench's own twin, each with an inversion."""
    task = drawn.retrieval(split, count)
    rows = []
    for plain, item in zip(task.original, task.negated, strict=True):
        _save(root / item.image, scene(split, int(Path(item.image).stem)))
        wrong = [f"There is {with_article((item.negatives or ('',))[0])} in the image."] * len(plain.captions)
        inverted = [f"{no} {_denied(text)}" for no, text in zip(wrong, plain.captions, strict=True)]
        rows.append((item.image, item.captions, plain.captions, wrong, inverted))
    columns = ["filepath", "captions", "pos_captions", "neg_captions", "inverted_captions"]
    written = [[image, *(repr(list(texts)) for texts in lists)] for image, *lists in rows]
    pd.DataFrame(written, columns=columns).to_csv(root / NEAT, index=False, lineterminator="\n")


def coco(root: Path, split: str, count: int) -> None:
    """NegBench's own twin in the files of its COCO part."""
    parts = {part.task: part for part in ROWS["coco"].parts if part.variant == REPHRASED}
    files = (parts[RETRIEVAL].files[0], parts[RETRIEVAL].negated[0], parts[MCQ].files[0])
    for path, name in zip(drawn.write(root, split, count), files, strict=True):
        path.rename(root / name)


def beaf(root: Path, split: str, count: int) -> None:
    """Scenes with two or more things, copies without one, questions about all and four absent ones."""
    items: list[dict[str, Any]] = []
    for index, full, rng in _scenes(split, count, "beaf", things=2):
        gone = full.categories[:2]
        absent = [name for name in CATEGORIES if name not in full.categories]
        things = [*full.categories, *rng.sample(absent, _ABSENT)]
        stem = f"COCO_val2014_{index:012d}"
        copies = [
            (f"{stem}.jpg", full),
            *((f"{stem}_{k:02d}.png", full.without(x)) for k, x in enumerate(gone)),
        ]
        for name, picture in copies:
            _save(root / name, picture)
            items += [
                {
                    "id": len(items) + k, "image": name, "orig_img": picture is full,
                    "question": f"Is there {with_article(thing)} in the image?", "removed_q": thing in gone,
                    "gt": "yes" if thing in picture.categories else "no",
                }
                for k, thing in enumerate(things)
            ]  # fmt: skip
    _write_json(root / "beaf_qna.json", items)


def naturalbench(root: Path, split: str, count: int) -> None:
    """Pairs of scenes, each with a thing that the other lacks: two questions, in turns with yes or no and
    with two options, and two captions that deny the other's thing."""
    rows: list[list[str]] = []
    pairs: list[dict[str, Any]] = []
    scenes = list(_scenes(split, count, "naturalbench"))
    for (index, left, rng), (_, right, _) in zip(scenes[::2], scenes[1::2], strict=False):
        own = [x for x in left.categories if x not in right.categories]
        other = [x for x in right.categories if x not in left.categories]
        if not own or not other:
            continue
        x, y = rng.choice(own), rng.choice(other)
        names = [f"test_{index + k:05d}.jpg" for k in (0, 1)]
        for name, picture in zip(names, (left, right), strict=True):
            _save(root / "NaturalBench-Retrieval" / "images" / name, picture)
        if len(pairs) % 2:
            form, yes, no, kind = "{}\nOption: A:{}; B:{};" + SUFFIXES[1], "A", "B", "mcq"
            questions = (
                form.format("Which of these is in the picture?", x, y),
                form.format("Which of these is not in the picture?", x, y),
            )
        else:
            form, yes, no, kind = "Is there {} in the picture?" + SUFFIXES[0], "Yes", "No", "yes_no"
            questions = form.format(with_article(x)), form.format(f"no {x}")
        answers = ((yes, no), (no, yes))
        rows += [
            [question, name, answer, kind]
            for question, of_both in zip(questions, answers, strict=True)
            for name, answer in zip(names, of_both, strict=True)
        ]
        pairs.append(
            {
                "index": len(pairs), "image_0": names[0], "image_1": names[1],
                "caption_0": f"A picture with {with_article(x)} and no {y}.",
                "caption_1": f"A picture with {with_article(y)} and no {x}.",
            }
        )  # fmt: skip
    _write_json(root / "dataset_split_for_finetuning" / "test_set.json", rows)
    _write_json(root / "NaturalBench-Retrieval" / "metadata.json", pairs)


def simpleneg(root: Path, split: str, count: int) -> None:
    """A caption per scene, which affirms one thing and denies another; questions the nano judge knows."""
    rows = []
    for index, picture, rng in _scenes(split, count, "simpleneg"):
        _save(root / "images" / f"{index:05d}.png", picture)
        thing, absent = rng.choice(picture.categories), _absent(picture, rng)
        caption = f"{with_article(thing)} {rng.choice(PLACES[picture.background][1])} with no {absent}"
        rows.append([caption, *(f"Does this image contain {name}?" for name in (absent, thing))])
    _write_json(root / "simpleneg.json", rows)


def write_scope(root: Path, split: str, count: int, language: str = "en") -> None:
    """Negation in scope: caption k is true of picture k; `denies`: whether it has a denying word."""
    rows = []
    for number, pair in enumerate(scope.pairs(split, count)):
        captions = LANGUAGES[language].pair(pair.construction, pair.named, pair.depth)
        row: dict[str, str | int | bool] = {}
        for k, (picture, text) in enumerate(zip(pair.scenes, captions, strict=True)):
            row[f"image_{k}"] = f"images/{number:05d}_{k}.png"
            row[f"caption_{k}"] = text
            row[f"denies_{k}"] = bool(pair.depth) or DENIES[pair.construction][k]
            write_png(root / f"images/{number:05d}_{k}.png", render(picture))
        rows.append({**row, "construction": pair.construction, "others": pair.others, "depth": pair.depth})
    _write_json(root / "scope.json", rows)


#: Row of `registry.ROWS` -> what draws its twin, and the file that is written last.
WRITERS: dict[str, tuple[Callable[[Path, str, int], None], str]] = {
    "coco": (coco, "COCO_val_retrieval.csv"),
    "valse": (valse, "existence.json"),
    "cc-neg": (cc_neg, "ccneg_preprocessed.pt"),
    "sugarcrepe": (sugarcrepe, "replace_rel.json"),
    "negrefcocog": (negrefcocog, "NegRefCOCOg.json"),
    "neat-coco": (neat, NEAT),
    "beaf": (beaf, "beaf_qna.json"),
    "naturalbench": (naturalbench, "NaturalBench-Retrieval/metadata.json"),
    "simpleneg": (simpleneg, "simpleneg.json"),
    "nein": (data.write, "{split}.json"),
    **{name: (functools.partial(write_scope, language=code), "scope.json") for name, code in SCOPE.items()},
}


def _scenes(split: str, count: int, test: str, things: int = 1) -> Iterator[tuple[int, Scene, random.Random]]:
    """Scenes with at least so many kinds of things, each with a random stream of the test."""
    for index in range(count):
        picture = scene(split, index)
        if len(picture.categories) >= things:
            yield index, picture, rng_for(split, index, test)


def _absent(one: Scene, rng: random.Random) -> str:
    return rng.choice([name for name in CATEGORIES if name not in one.categories])


def _denied(caption: str) -> str:
    """ "A dog on the grass." -> "No dog on the grass." """
    first, _, rest = caption.partition(" ")
    return f"No {rest}" if first in ("A", "An") else f"It is not true that {caption[:1].lower()}{caption[1:]}"


def _save(path: Path, one: Scene) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"quality": 95, "subsampling": 0} if path.suffix == ".jpg" else {}
    Image.fromarray(render(one)).save(path, **options)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
