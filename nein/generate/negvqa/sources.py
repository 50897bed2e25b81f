"""Multiple-choice questions with images: a file in VMCBench's layout, by other names with a column map.

A record holds a question, options A, B, ... (two or more), the right letter, a subset, and an image: the name
of a file, its bytes in base64, or (hub) an image cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nein.datasets import hub
from nein.datasets.negvqa import questions as data
from nein.engine import atomic, images
from nein.engine.errors import UserError, unknown
from nein.generate import sources
from nein.generate.negvqa.config import ConversionConfig
from nein.generate.sources import Listing
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
NEGATED = "negated_question"  # of drawn questions alone
NUMBERS = ("1", "2", "3", "4", "5", "6")


@dataclass(frozen=True, slots=True)
class Choice:
    """One multiple-choice question.

    options  Texts behind A, B, ...; `right` is the place of the right one.
    problem  Why it cannot be used; empty if nothing is known.
    negated  The negated question, where it was drawn with the question.
    """

    id: str
    subset: str
    picture: Path | None
    question: str
    options: tuple[str, ...]
    right: int
    problem: str = ""
    negated: str = ""

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


def load(config: ConversionConfig) -> Listing[Choice]:
    """The questions of `--source`: nano, hub:OWNER/NAME[@REVISION], or a .jsonl, .json, .csv or .tsv file.
    Raises UserError for one that cannot be read, and when no record can be used."""
    for key in config.columns:
        if key not in FIELDS and key not in LETTERS:
            raise unknown("field of --columns", key, [*FIELDS, "A", "B", "C", "D"])
    rows: Iterable[Mapping[str, Any]]
    folder, file = None, expanded(config.source)
    if config.source == "nano":
        folder, origin = _drawn(config.questions), {"kind": "nano", "questions": config.questions}
        rows = atomic.checked_lines(folder / FILE)
    elif reference := hub.reference(config.source):
        rows = hub.read(reference, config.split)
        origin = {"kind": "hub", **reference._asdict(), "split": config.split}
    elif file.is_file():
        folder, rows, origin = file.parent, sources.read_table(file), {"kind": "file", "file": file.name}
    else:
        raise UserError(
            f"--source '{file}' is neither nano, hub:{HUB}, nor a .jsonl, .json, .csv or .tsv file."
        )
    if config.images is not None:
        folder = sources.image_folder(config.images, Path())
    names = {**FIELDS, **{letter: letter for letter in LETTERS}, **config.columns}
    records = [*_records(rows, names, folder)]
    if all(record.problem for record in records):
        why = f" ({records[0].problem} in the first record)" if records else ""
        raise UserError(
            f"'{config.source}' has no usable question{why}; map its columns, for example "
            "--columns.question prompt --columns.A option_a."
        )
    return Listing(records, origin)


def _records(
    rows: Iterable[Mapping[str, Any]], names: Mapping[str, str], folder: Path | None
) -> Iterator[Choice]:
    taken: set[str] = set()
    for number, row in enumerate(rows, start=1):
        cells = {key: _text(row.get(name)) for key, name in names.items() if key != "image"}
        texts = [cells[letter] for letter in LETTERS]
        options = tuple(texts[: texts.index("")] if "" in texts else texts)
        answer, name, picture = cells["answer"].upper(), cells["index"] or str(number), None
        right = LETTERS.find(answer) if len(answer) == 1 else -1
        try:
            picture, problem = data.read_picture(row.get(names["image"]), folder), ""
            if not picture.is_file():
                problem = "the picture is not there"
        except ValueError as error:
            problem = str(error).removeprefix("whose ")
        if not cells["question"]:
            problem = f"no {names['question']}"
        elif len(options) < 2:
            problem = "fewer than two options"
        elif not 0 <= right < len(options):
            problem = f"no letter of an option in {names['answer']}"
        elif name in taken:
            problem = f"an {names['index']} that occurs twice"
        taken.add(name)
        choice = Choice(name, cells["category"] or "all", picture, cells["question"], options, max(right, 0))
        if not problem and not choice.wrong:
            problem = "no wrong option differs from the right one"
        yield replace(choice, problem=problem, negated=_text(row.get(NEGATED)))


def _text(cell: Any) -> str:
    return "" if cell is None or cell != cell else str(cell).strip()


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _drawn(count: int) -> Path:
    """A folder of the cache with `count` drawn questions in VMCBench's layout, of two to four options."""

    def draw(draft: Path) -> None:
        rows = []
        for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count)):
            name = f"{index:05d}.png"
            if not (draft / name).exists():  # up to four questions are about one scene
                images.write_png(draft / name, render(scene))
            rng = rng_for(SPLIT, number, "choices")
            options = [question.right, question.wrong]
            spare = sorted(_wrong(scene, question) - set(options))
            options += rng.sample(spare, min(2, len(spare)))
            rng.shuffle(options)
            facts = {"index": str(number), "image": name, "category": question.kind}
            facts |= {"question": question.question, NEGATED: question.negated}
            facts["answer"] = "ABCD"[options.index(question.right)]
            rows.append({**facts, **dict(zip("ABCD", options, strict=False))})
        atomic.write_lines(draft / FILE, rows)

    return nano.drawn(f"choices-{count}", draw, proof=FILE)


def _wrong(scene: Scene, question: Question) -> set[str]:
    """Further answers that are wrong whatever the question is exactly."""
    if question.right in PALETTE:
        return set(PALETTE)
    if question.right in NUMBERS:
        return set(NUMBERS)
    if question.right in CATEGORIES:
        return set(CATEGORIES) - set(scene.categories)
    return set()  # left or right, top or bottom
