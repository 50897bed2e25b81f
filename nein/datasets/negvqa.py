"""Reads NegVQA's questions from the hub or a file, or draws miniature ones; reads existing answers to them.

Images in records (base64, or image cells of the hub) go into the user's cache, not into memory. Parts: the
data set, its records, answers and export for other harnesses, drawn questions.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nein.datasets import harness, hub, interleave_sources, read_records
from nein.datasets.negbench.official import iter_rows
from nein.engine import atomic, images
from nein.engine.folder import Row
from nein.loading.errors import Problems, UserError, fold_name, unknown
from nein.loading.references import expand_user
from nein.metrics.letters import LETTERS
from nein.nano import data as nano
from nein.nano.scenes import NANO, World, find_world, is_nano, render, rng_for
from nein.nano.sentences import KINDS, iter_questions

VARIANTS = ("original", "negated")  # of a question, as NegVQA's files name them
#: Fields of a record besides the options A, B, ...
FIELDS = ("index", "image", "category", "original_question", "negated_question", "original_answer",
          "negated_answer")  # fmt: skip
HUB = "yuhuizhang/NegVQA"
AVERAGE, OTHER = "Average", "Other"  # names beside the categories: all questions; unknown subsets
#: Category -> its subsets: NegVQA (arXiv:2505.22946), section 4 and its notebook; nano kinds are ours.
CATEGORIES: dict[str, list[str]] = {
    "General": "A-OKVQA VQAv2 SEEDBench OKVQA MMStar VizWiz MMVet presence colour".split(),
    "Reasoning": "MathVista MMMU MathVision GQA RealWorldQA ScienceQA count position".split(),
    "OCR": "OCRVQA TextVQA".split(),
    "DocChart": "DocVQA ChartQA InfoVQA TableVQABench AI2D".split(),
}
TITLES = {"DocChart": "Doc & Chart"}  # category -> its name in tables


_CATEGORY_OF = {fold_name(subset): category for category, names in CATEGORIES.items() for subset in names}


def category_of(subset: str) -> str:
    """The category of a subset, in any case and punctuation; `OTHER` for an unknown one."""
    return _CATEGORY_OF.get(fold_name(subset), OTHER)


# --- the data set --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Item:
    """One question with its negation."""

    id: str
    subset: str
    image: Path
    source: str  # the image's name: intervals cluster by it
    options: tuple[str, ...]
    questions: Mapping[str, str]  # variant -> text
    answers: Mapping[str, str]  # variant -> right letter

    @property
    def category(self) -> str:
        return category_of(self.subset)


@dataclass(frozen=True)
class Questions:
    """Items in the order of `interleave_sources`, their origin, and a hash of all that decides an answer."""

    items: tuple[Item, ...]
    origin: Row = field(hash=False)
    sha256: str


def load(
    source: str,
    *,
    negated: str | None = None,
    image_folder: str | None = None,
    split: str = "test",
    columns: Mapping[str, str] | Iterable[tuple[str, str]] | None = None,
    questions: int = 640,
) -> Questions:
    """Reads "nano" or "nano:WORLD", "hub:OWNER/NAME[@REVISION]", or a JSON-lines file. Raises UserError.

    negated       The second of two files that hold `question` and `answer` only; joined by `index`.
    image_folder  By default the file's own.
    columns       Our field (of `FIELDS`, or A, B, ...) -> its name; options beyond B are read if named here.
    questions     How many are drawn for "nano".
    """
    columns = dict(columns or {})
    for key in columns:
        if key not in FIELDS and key not in LETTERS:
            raise unknown("field of --columns", key, [*FIELDS, "A", "B", "C", "D"])
    names = {name: columns.get(name, name) for name in (*FIELDS, *LETTERS)}  # our field -> the record's
    if is_nano(source):
        rows, _, folder = read_source(str(ensure_drawn(questions, find_world(source)) / FILE), split)
        origin: Row = {"kind": "nano", "world": source, "questions": questions}
    else:
        rows, origin, folder = read_source(source, split)
    if negated is not None and origin["kind"] == "file":
        rows = _join_files(rows, atomic.read_lines(expand_user(negated)), names, negated)
        origin["negated"] = Path(negated).name
    if columns:
        origin["columns"] = columns
    # A file may still have C and D of its four-choice source: only A and B are options by default.
    letters = [letter for letter in LETTERS if letter in "AB" or letter in columns]
    folder = expand_user(image_folder) if image_folder else folder
    make_item = functools.partial(_make_item, names=names, letters=letters, folder=folder)
    items = interleave_sources(read_records(rows, make_item, f"'{source}'"), lambda item: item.source)
    digest = hashlib.sha256()  # over ids, words, letters and the names (or bytes) of images
    for item in items:
        facts = [item.id, item.subset, item.source, item.options, dict(item.questions), dict(item.answers)]
        digest.update(json.dumps(facts, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return Questions(items, origin, digest.hexdigest())


def read_source(source: str, split: str) -> tuple[Iterable[Row], Row, Path | None]:
    """(rows, origin, image folder) of "hub:OWNER/NAME[@REVISION]" or of a .jsonl, .csv or .tsv file. Yields
    rows one at a time, since they may hold images. Raises UserError."""
    if reference := hub.parse(source):
        return hub.read(reference, split), {"kind": "hub", **reference._asdict(), "split": split}, None
    file = expand_user(source)
    if not file.is_file():
        raise UserError(f"There is no file '{file}'; pass nano, hub:{HUB}, or a .jsonl file.")
    lines = iter_rows(file, ()) if file.suffix in (".csv", ".tsv") else atomic.iter_lines(file)
    return (row for _, row in lines), {"kind": "file", "file": file.name}, file.parent


# --- records -------------------------------------------------------------------------------------
def _make_item(row: Row, names: Mapping[str, str], letters: Sequence[str], folder: Path | None) -> Item:
    """The question of a record. names: our field -> the record's. Raises ValueError, for `read_records`."""
    cells = {key: row.get(names[key]) for key in (*FIELDS, *letters)}
    if absent := [key for key in (*FIELDS, "A", "B") if cells[key] in (None, "")]:
        raise ValueError(f"without {', '.join(absent)}")
    texts = [cells[letter] for letter in letters if cells[letter] not in (None, "")]  # options A, B, ...
    questions = {variant: cells[f"{variant}_question"] for variant in VARIANTS}
    if any(isinstance(text, (list, dict, bool)) for text in (*texts, *questions.values())):
        raise ValueError("whose questions or options are no texts")
    answers = {variant: str(cells[f"{variant}_answer"]).strip().upper() for variant in VARIANTS}
    if not {*answers.values()} <= {*LETTERS[: len(texts)]}:
        raise ValueError("whose answer is no letter of its options")
    if answers["original"] == answers["negated"]:
        raise ValueError("with one answer to both questions")
    image = read_image(cells["image"], folder)
    return Item(
        id=str(cells["index"]), subset=str(cells["category"]), image=image, answers=answers,
        source=_name_source(image, cells["image"]), options=tuple(str(text).strip() for text in texts),
        questions={variant: str(text).strip() for variant, text in questions.items()},
    )  # fmt: skip


def _name_source(image: Path, cell: Any) -> str:
    """The image's name: the path in the record; of an absolute path the last part, with a hash of the path.
    Without a path: the name of the image's file in the cache, a hash of its content."""
    named = _find_file_name(cell)
    if named is None:
        return image.name[:20]
    name = posixpath.normpath(named)
    if not Path(name).is_absolute():
        return name
    return f"{posixpath.basename(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def read_image(cell: Any, folder: Path | None) -> Path:
    """The image's file below `folder`, or in the cache if the record holds bytes. Raises ValueError."""
    if (name := _find_file_name(cell)) is not None:
        if folder is None:
            raise ValueError("whose image is a file name; pass the folder of the images as --images")
        root = folder.absolute()  # ".." is resolved by name: a folder may be a link of the user's
        if not Path(posixpath.normpath(root / name)).is_relative_to(posixpath.normpath(root)):
            raise ValueError(f"whose image lies outside '{folder}'; pass its folder as --images")
        return images.find_file(folder / name)
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    with contextlib.suppress(ValueError):
        data = base64.b64decode(data, validate=True) if isinstance(data, str) else data
    if not isinstance(data, bytes):
        raise ValueError("whose image is neither a file name, bytes nor base64")
    return atomic.store_bytes(data)


def _find_file_name(cell: Any) -> str | None:
    """The file that a cell names; None if the cell holds the image itself, or nothing of use."""
    if isinstance(cell, Mapping):
        path = cell.get("path")
        return path if isinstance(path, str) and not isinstance(cell.get("bytes"), bytes) else None
    # What is longer than any file's name is the image itself.
    return cell if isinstance(cell, str) and len(cell) <= 300 else None


def _join_files(
    originals: Iterable[Row], negations: Iterable[Row], names: Mapping[str, str], file: str
) -> Iterator[Row]:
    """Records of two files with `question` and `answer`, joined by index; the second one is `file`."""
    by_index = {str(row.get(names["index"])): row for row in negations}
    for row in originals:
        twin = by_index.get(str(row.get(names["index"])))
        if twin is None:
            raise UserError(f"'{file}' lacks question {row.get(names['index'])} of the first file; add it.")
        joined = dict(row)
        for variant, record in zip(VARIANTS, (row, twin), strict=True):
            for key in ("question", "answer"):
                joined[names[f"{variant}_{key}"]] = record.get(key)
        yield joined


# --- answers and export --------------------------------------------------------------------------
def read_answers(path: Path, items: Iterable[Item]) -> dict[str, dict[str, str]]:
    """Id -> variant -> answer ("": none), of a .csv or of another harness's log. Raises UserError."""
    texts: dict[str, dict[str, str]] = {}
    if path.suffix in harness.LOGS:
        for key, text in harness.read_answers(path, export_questions(items)).items():
            name, _, variant = key.rpartition("/")
            texts.setdefault(name, dict.fromkeys(VARIANTS, ""))[variant] = text
        return texts
    ids = {item.id for item in items}
    problems = Problems()
    for number, row in atomic.read_csv(path, ("index", *VARIANTS)):
        name = row["index"].strip()
        if name not in ids:
            problems.add("of no question", f"line {number}")
        elif name in texts:
            problems.add("of a question that has one already", f"line {number}")
        else:
            texts[name] = {variant: row[variant].strip() for variant in VARIANTS}
    problems.raise_if_any(f"'{path}'")
    return texts


def export_questions(items: Iterable[Item]) -> Iterator[harness.Question]:
    """The questions for another harness."""
    for item in items:
        for variant in VARIANTS:
            yield harness.Question(
                key=f"{item.id}/{variant}", read_image=item.image.read_bytes, text=item.questions[variant],
                options=item.options, answer=item.answers[variant], category=item.subset,
            )  # fmt: skip


# --- drawn questions -----------------------------------------------------------------------------
SPLIT, FILE = "val", "questions.jsonl"  # of the miniature world; of its questions in the cache


def ensure_drawn(count: int, world: World = NANO) -> Path:
    """A folder of the cache with `count` drawn questions in NegVQA's layout."""
    name = f"negvqa-{world.name.replace(':', '-')}-{count}"
    return nano.draw_once(name, lambda draft: write_drawn(draft, count, world), proof=FILE)


def write_drawn(root: Path, count: int, world: World) -> None:
    """Draws questions; the order of options is random, each letter right for half of a kind's questions."""
    rows = []
    counts = dict.fromkeys(KINDS, 0)  # questions so far
    for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count, world)):
        name = f"images/{index:05d}.png"
        if not (root / name).exists():  # up to four questions are about one scene
            images.write_png(root / name, render(scene, world.style))
        # Pairs of questions of a kind get one right "A" and one right "B", in random order.
        pair, half = divmod(counts[question.kind], 2)
        counts[question.kind] += 1
        starts_with_b = rng_for(SPLIT, pair, f"letters/{question.kind}").random() < 0.5
        letter = "BA"[half] if starts_with_b else "AB"[half]
        row = {"index": number, "image": name, "category": question.kind}
        answers = {"right": question.right, "wrong": question.wrong, "letter": letter}
        rows.append(row | format_record(question.question, question.negated, **answers))
    atomic.write_lines(root / FILE, rows)


def format_record(question: str, negated: str, *, right: str, wrong: str, letter: str) -> Row:
    """Fields of a record in NegVQA's layout. letter: A or B, right for the original question."""
    first, second, other = (right, wrong, "B") if letter == "A" else (wrong, right, "A")
    row = {"original_question": question, "negated_question": negated, "A": first, "B": second}
    return {**row, "original_answer": letter, "negated_answer": other}
