"""Multiple-choice questions with pictures: a file in VMCBench's layout, by other names with a column map.

A record holds a question, options A, B, ... (two or more), the right letter, a subset, and a picture: the
name of a file, its bytes in base64, or (hub) an image cell. A record that cannot be used stays in the list
with its problem, so that it is counted.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nein.datasets import hub
from nein.datasets.negvqa import questions as data
from nein.engine import atomic, images
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError, unknown
from nein.loading.references import expanded
from nein.metrics.letters import LETTERS
from nein.nano import data as nano
from nein.nano.draw import CATEGORIES, PALETTE
from nein.nano.scenes import Scene, render, rng_for
from nein.nano.sentences import Question, iter_questions

#: Our name of a field -> its name in VMCBench's files. Source: https://huggingface.co/datasets/suyc21/VMCBench.
FIELDS = {name: name for name in ("index", "image", "question", "answer", "category")}
HUB = "suyc21/VMCBench"
SPLIT = "build"  # scenes of their own: no model was trained or judged on them
FILE = "choices.jsonl"
NUMBERS = ("1", "2", "3", "4", "5", "6")


@dataclass(frozen=True, slots=True)
class Choice:
    """One multiple-choice question.

    options  Texts behind A, B, ...; `right` is the place of the right one.
    problem  Why it cannot be used; empty if nothing is known.
    """

    id: str
    subset: str
    picture: Path | None
    question: str
    options: tuple[str, ...]
    right: int
    problem: str = ""

    @property
    def answer(self) -> str:
        return self.options[self.right]

    @property
    def wrong(self) -> list[str]:
        """The options that differ from the right one, each once, case and white space aside."""
        first: dict[str, str] = {}
        for text in self.options:
            first.setdefault(_plain(text), text)
        return [text for plain, text in first.items() if plain != _plain(self.answer)]


@dataclass(frozen=True)
class Choices:
    """All records in file order, where they come from, and a hash over everything that decides a negation."""

    items: tuple[Choice, ...]
    origin: dict[str, Any]
    sha256: str


def load(
    source: str, *, pictures: str | None = None, split: str = "dev", columns: Mapping[str, str] = FIELDS,
    questions: int = 200,
) -> Choices:  # fmt: skip
    """Reads "nano", "hub:OWNER/NAME[@REVISION]", or a .jsonl, .json (a list), .csv or .tsv file.

    pictures   Folder of the pictures; beside the file by default.
    columns    Our field (a key of `FIELDS`, or A, B, ...) -> its name in the file.
    questions  How many are drawn for "nano".

    Raises UserError for a file that cannot be read, and when no record can be used.
    """
    names = {**FIELDS, **{letter: letter for letter in LETTERS}, **columns}
    for key in columns:
        if key not in FIELDS and key not in LETTERS:
            raise unknown("field of --columns", key, [*FIELDS, "A", "B", "C", "D"])
    rows: Iterable[Mapping[str, Any]]
    origin: dict[str, Any]
    if source == "nano":
        folder = _drawn(questions)
        rows = atomic.checked_lines(folder / FILE)
        origin = {"kind": "nano", "questions": questions}
    elif reference := hub.reference(source):
        folder, rows = None, hub.read(reference, split)
        origin = {"kind": "hub", **reference._asdict(), "split": split}
    else:
        file = expanded(source)
        if not file.is_file():
            raise UserError(
                f"--source '{source}' is neither nano, hub:{HUB}, nor a .jsonl, .json, .csv or .tsv file."
            )
        folder, rows = file.parent, _rows(file)
        origin = {"kind": "file", "file": file.name}
    if pictures is not None:
        folder = expanded(pictures)
        if not folder.is_dir():
            raise UserError(f"--images '{pictures}' is not a folder.")
    items = tuple(_items(rows, names, folder))
    if all(item.problem for item in items):
        why = f" ({items[0].problem} in the first record)" if items else ""
        raise UserError(
            f"'{source}' has no usable question{why}; map its columns, for example "
            "--columns.question prompt --columns.A option_a."
        )
    digest = hashlib.sha256()
    for item in items:
        name = item.picture.name if item.picture is not None else ""
        facts = [item.id, item.subset, name, item.question, item.options, item.right, item.problem]
        digest.update(json.dumps(facts, ensure_ascii=False).encode() + b"\n")
    return Choices(items, origin, digest.hexdigest())


def _items(
    rows: Iterable[Mapping[str, Any]], names: Mapping[str, str], folder: Path | None
) -> Iterator[Choice]:
    taken: set[str] = set()
    for number, row in enumerate(rows, start=1):
        cell = {key: row.get(name) for key, name in names.items()}
        texts = [_text(cell[letter]) for letter in LETTERS]
        count = next((k for k, text in enumerate(texts) if not text), len(texts))
        options = tuple(texts[:count])
        answer = _text(cell["answer"]).upper()
        right = LETTERS.find(answer) if len(answer) == 1 else -1
        identity = _text(cell["index"]) or str(number)
        problem, picture = "", None
        if not _text(cell["question"]):
            problem = f"no {names['question']}"
        elif count < 2:
            problem = "fewer than two options"
        elif not 0 <= right < count:
            problem = f"no letter of an option in {names['answer']}"
        elif identity in taken:
            problem = f"an {names['index']} that occurs twice"
        else:
            try:
                picture = data.read_picture(cell["image"], folder)
            except ValueError as error:
                problem = str(error).removeprefix("whose ")
            if picture is not None and not picture.is_file():
                problem = "the picture is not there"
        taken.add(identity)
        subset = _text(cell["category"]) or "all"
        choice = Choice(identity, subset, picture, _text(cell["question"]), options, max(right, 0), problem)
        if not problem and not choice.wrong:
            choice = replace(choice, problem="no wrong option differs from the right one")
        yield choice


def _rows(file: Path) -> Iterable[Mapping[str, Any]]:
    if file.suffix in (".csv", ".tsv"):
        csv.field_size_limit(1 << 30)  # pictures in base64
        try:
            with file.open(encoding="utf-8", newline="") as opened:
                yield from csv.DictReader(opened, delimiter="\t" if file.suffix == ".tsv" else ",")
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"'{file}' cannot be read as a table: {error}.") from None
    elif file.suffix == ".json":
        rows = atomic.read_json(file)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"'{file}' must hold a list of objects, one per question.")
        yield from rows
    else:
        yield from (row for _, row in atomic.iter_lines(file))


def _text(cell: Any) -> str:
    return "" if cell is None or cell != cell else " ".join(str(cell).split(" ")).strip()


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _drawn(count: int) -> Path:
    """A folder of the cache with `count` drawn questions in VMCBench's layout, of two to four options."""

    def rows(draft: Path) -> Iterator[dict[str, Any]]:
        for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count)):
            name = f"{index:05d}.png"
            if not (draft / name).exists():  # up to four questions are about one scene
                images.write_png(draft / name, render(scene))
            rng = rng_for(SPLIT, number, "choices")
            options = [question.right, question.wrong]
            spare = sorted(_wrong(scene, question) - set(options))
            options += rng.sample(spare, min(2, len(spare)))
            rng.shuffle(options)
            yield {
                "index": str(number), "image": name, "category": question.kind,
                "question": question.question, "answer": "ABCD"[options.index(question.right)],
                **dict(zip("ABCD", options, strict=False)),
            }  # fmt: skip

    def draw(draft: Path) -> None:
        atomic.write_lines(draft / FILE, rows(draft))

    return nano.drawn(f"choices-{count}", draw, proof=FILE)


def _wrong(scene: Scene, question: Question) -> set[str]:
    """Further answers that are wrong whatever the question is exactly."""
    if question.right in PALETTE:
        return set(PALETTE)
    if question.right in NUMBERS:
        return set(NUMBERS)
    if question.right in CATEGORIES:
        return {category for category in CATEGORIES if category not in scene.categories}
    return set()  # left or right, top or bottom


def wrong_option(item: Choice, seed: int) -> str:
    """One of the wrong options that differ from the right one, drawn with the item's own seed."""
    rng = np.random.default_rng(sample_seed(seed, f"wrong/{item.id}"))
    return item.wrong[int(rng.integers(len(item.wrong)))]


def letters(items: Sequence[Choice], seed: int, rule: str) -> list[str]:
    """The letter, A or B, that is right for each original question (the other is right for the negated one).

    rule  "balanced": in every subset as many A as B, or one more of either; which items get which depends on
          their ids and the seed, not on their order. "drawn": each by itself, as in the paper, so that a
          share of A far from one half can happen.
    """
    if rule == "drawn":
        return ["AB"[sample_seed(seed, f"letter/{item.id}") >> 62] for item in items]
    subsets: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        subsets[item.subset].append(index)
    drawn = [""] * len(items)
    for subset, places in subsets.items():
        first = sample_seed(seed, f"letters/{subset}") >> 62
        ranked = sorted(places, key=lambda index: sample_seed(seed, f"letter/{items[index].id}"))
        for rank, index in enumerate(ranked):
            drawn[index] = "AB"[(rank + first) % 2]
    return drawn


def notebook(items: Sequence[Choice], seed: int) -> tuple[dict[str, str], list[str]]:
    """(id -> wrong option, letters) of negated questions in file order, by the one random sequence of the
    authors' notebook. Source: https://github.com/yuhui-zh15/NegVQA (0e4218b), add_negation.ipynb."""
    rng = random.Random(seed)
    wrong, drawn = {}, []
    for item in items:
        others = [text for number, text in enumerate(item.options) if number != item.right]
        [wrong[item.id]] = rng.sample(others, 1)
        order = [0, 1]
        rng.shuffle(order)
        drawn.append("AB"[order.index(0)])
    return wrong, drawn


def record(item: Choice, picture: str, negated: str, wrong: str, letter: str) -> dict[str, Any]:
    """One line of NegVQA's layout: two options, and both questions with the letters that are right."""
    options = (item.answer, wrong) if letter == "A" else (wrong, item.answer)
    return {
        "index": item.id, "image": picture, "category": item.subset,
        "original_question": item.question, "negated_question": negated,
        "A": options[0], "B": options[1],
        "original_answer": letter, "negated_answer": "B" if letter == "A" else "A",
    }  # fmt: skip


def chosen(ids: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` of the ids at random for the check sheet (all, if fewer), whatever their order.

    In random order, so that whoever stops early has checked a random sample too.
    """
    ranked = sorted(ids, key=lambda identity: sample_seed(seed, f"sheet/{identity}"))
    return ranked[:count]
