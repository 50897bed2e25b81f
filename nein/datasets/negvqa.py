"""NegVQA's questions: the embedded miniature ones, a data set on the hub, or a JSON-lines file.

Images in records (base64, or image cells of the hub) go into the user's cache, not into memory.
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
from nein.nano.scenes import NANO, World, is_nano, render, rng_for, world
from nein.nano.sentences import KINDS, iter_questions

VARIANTS = ("original", "negated")  # in NegVQA's files
FIELDS = ("index", "image", "category", *(f"{v}_{k}" for k in ("question", "answer") for v in VARIANTS))
HUB = "yuhuizhang/NegVQA"
SPLIT = "val"
FILE = "questions.jsonl"
AVERAGE = "Average"
OTHER = "Other"
#: Category -> its subsets: NegVQA (arXiv:2505.22946), section 4 and its notebook; nano kinds are ours.
CATEGORIES: dict[str, list[str]] = {
    "General": "A-OKVQA VQAv2 SEEDBench OKVQA MMStar VizWiz MMVet presence colour".split(),
    "Reasoning": "MathVista MMMU MathVision GQA RealWorldQA ScienceQA count position".split(),
    "OCR": "OCRVQA TextVQA".split(),
    "DocChart": "DocVQA ChartQA InfoVQA TableVQABench AI2D".split(),
}
TITLES = {"DocChart": "Doc & Chart"}  # category -> its name in tables


@functools.lru_cache
def category_of(subset: str) -> str:
    """The category of a subset, whatever its case and punctuation; `OTHER` for an unknown one."""
    category_by_name = {fold_name(name): key for key, names in CATEGORIES.items() for name in names}
    return category_by_name.get(fold_name(subset), OTHER)


@dataclass(frozen=True, slots=True)
class Item:
    """One question with its negation. source: the image's name; questions, answers (letters): by variant."""

    id: str
    subset: str
    picture: Path
    source: str
    options: tuple[str, ...]
    questions: Mapping[str, str]
    answers: Mapping[str, str]

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
    pictures: str | None = None,
    split: str = "test",
    columns: Mapping[str, str] | Iterable[tuple[str, str]] | None = None,
    questions: int = 640,
) -> Questions:
    """Reads "nano" or "nano:WORLD", "hub:OWNER/NAME[@REVISION]", or a JSON-lines file. Raises UserError.

    negated   The second of two files that hold `question` and `answer` only; joined by `index`.
    images  Folder of the images; beside the file by default.
    columns   Our field (a key of `FIELDS`, or A, B, ...) -> its name; one named "C" becomes an option.
    questions How many are drawn for "nano".
    """
    columns, names = dict(columns or {}), {name: name for name in (*FIELDS, *LETTERS)}
    for key in columns:
        if key not in names:
            raise unknown("field of --columns", key, [*FIELDS, "A", "B", "C", "D"])
    names |= columns
    if is_nano(source):
        rows, _, folder = read_source(str(ensure_drawn(questions, world(source)) / FILE), split)
        origin: Row = {"kind": "nano", "world": source, "questions": questions}
    else:
        rows, origin, folder = read_source(source, split)
    if negated is not None and origin["kind"] == "file":
        rows = _join_files(rows, atomic.read_lines(expand_user(negated)), names, negated)
        origin["negated"] = Path(negated).name
    if columns:
        origin["columns"] = columns
    # Fields of the four-choice source may be left in a file: only A and B are options unless said otherwise.
    letters = [k for k in LETTERS if k in "AB" or k in columns]
    folder = expand_user(pictures) if pictures else folder
    make = functools.partial(_item, names=names, letters=letters, folder=folder)
    items = interleave_sources(read_records(rows, make, f"'{source}'"), lambda item: item.source)
    digest = hashlib.sha256()  # over ids, words, letters and the names (or bytes) of images
    for item in items:
        facts = [item.id, item.subset, item.source, item.options, dict(item.questions), dict(item.answers)]
        digest.update(json.dumps(facts, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return Questions(items, origin, digest.hexdigest())


def read_source(source: str, split: str) -> tuple[Iterable[Row], Row, Path | None]:
    """(rows, origin, image folder) of "hub:OWNER/NAME[@REVISION]" or of a .jsonl, .csv or .tsv file. Yields
    rows one at a time, since they may hold images. Raises UserError."""
    if reference := hub.reference(source):
        return hub.read(reference, split), {"kind": "hub", **reference._asdict(), "split": split}, None
    file = expand_user(source)
    if not file.is_file():
        raise UserError(f"There is no file '{file}'; pass nano, hub:{HUB}, or a .jsonl file.")
    lines = iter_rows(file, ()) if file.suffix in (".csv", ".tsv") else atomic.iter_lines(file)
    return (row for _, row in lines), {"kind": "file", "file": file.name}, file.parent


def answers(path: Path, items: Iterable[Item]) -> dict[str, dict[str, str]]:
    """Question id -> variant -> answer, of a .csv (index, original, negated; empty: no answer) or of another
    harness's log. Raises UserError."""
    if path.suffix in harness.LOGS:
        return _read_log(path, items)
    columns, ids, texts = ("index", *VARIANTS), {item.id for item in items}, {}
    problems = Problems()
    for number, row in atomic.read_csv(path, columns):
        name, *cells = (row[column].strip() for column in columns)
        if name not in ids:
            problems.add("of no question", f"line {number}")
        elif name in texts:
            problems.add("of a question that has one already", f"line {number}")
        else:
            texts[name] = dict(zip(VARIANTS, cells, strict=True))
    problems.raise_if_any(f"'{path}'")
    return texts


def _read_log(path: Path, items: Iterable[Item]) -> dict[str, dict[str, str]]:
    texts: dict[str, dict[str, str]] = {}
    for key, text in harness.read_answers(path, export_questions(items)).items():
        name, _, variant = key.rpartition("/")
        texts.setdefault(name, dict.fromkeys(VARIANTS, ""))[variant] = text
    return texts


def export_questions(items: Iterable[Item]) -> Iterator[harness.Question]:
    """The questions for another harness."""
    for item in items:
        for variant in VARIANTS:
            fields = item.questions[variant], item.options, item.answers[variant]
            yield harness.Question(f"{item.id}/{variant}", item.picture.read_bytes, *fields, item.subset)


def _item(row: Row, names: Mapping[str, str], letters: Sequence[str], folder: Path | None) -> Item:
    """names: ours -> the record's. Raises ValueError saying what is wrong."""
    row = {key: row.get(names[key]) for key in (*FIELDS, *letters)}
    if absent := [key for key in (*FIELDS, "A", "B") if row[key] in (None, "")]:
        raise ValueError(f"without {', '.join(absent)}")
    texts = [row[letter] for letter in letters if row[letter] not in (None, "")]  # options A, B, ...
    questions = {variant: row[f"{variant}_question"] for variant in VARIANTS}
    if any(isinstance(text, (list, dict, bool)) for text in (*texts, *questions.values())):
        raise ValueError("whose questions or options are no texts")
    answers = {variant: str(row[f"{variant}_answer"]).strip().upper() for variant in VARIANTS}
    if not {*answers.values()} <= {*LETTERS[: len(texts)]}:
        raise ValueError("whose answer is no letter of its options")
    if answers["original"] == answers["negated"]:
        raise ValueError("with one answer to both questions")
    picture = read_image(row["image"], folder)
    questions = {variant: str(text).strip() for variant, text in questions.items()}
    fields = (str(row["index"]), str(row["category"]), picture, _source(picture, row["image"]))
    return Item(*fields, tuple(str(text).strip() for text in texts), questions, answers)


def _source(picture: Path, cell: Any) -> str:
    """The image's name: the file in the record (an absolute one: last part and hash), else a content hash."""
    if (named := _file_name(cell)) is None:
        return picture.name[:20]
    name = posixpath.normpath(named)
    if not Path(name).is_absolute():
        return name
    return f"{posixpath.basename(name)}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def read_image(cell: Any, folder: Path | None) -> Path:
    """The image's file below `folder`, or in the cache if the record holds bytes. Raises ValueError."""
    if (name := _file_name(cell)) is not None:
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


def _file_name(cell: Any) -> str | None:
    """The file that a cell names; None where it holds the image itself, or nothing of use."""
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
        pair = zip(VARIANTS, (row, twin), strict=True)
        yield {**row, **{names[f"{v}_{key}"]: r.get(key) for v, r in pair for key in ("question", "answer")}}


def ensure_drawn(count: int, world: World = NANO) -> Path:
    """A folder of the cache with `count` drawn questions in NegVQA's layout."""
    name = f"negvqa-{world.name.replace(':', '-')}-{count}"
    return nano.draw_once(name, lambda draft: write_drawn(draft, count, world), proof=FILE)


def write_drawn(root: Path, count: int, world: World) -> None:
    """Options in random order, each letter right for half of a kind's questions."""
    rows = []
    counts = dict.fromkeys(KINDS, 0)
    for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count, world)):
        name = f"images/{index:05d}.png"
        if not (root / name).exists():  # up to four questions are about one scene
            images.write_png(root / name, render(scene, world.style))
        # Pairs of questions of a kind get one right "A" and one right "B", in random order.
        pair, half = divmod(counts[question.kind], 2)
        counts[question.kind] += 1
        first = rng_for(SPLIT, pair, f"letters/{question.kind}").random() < 0.5
        row = {"index": number, "image": name, "category": question.kind}
        texts = question.question, question.negated, question.right, question.wrong
        rows.append(row | format_record(*texts, "AB"[first ^ half]))
    atomic.write_lines(root / FILE, rows)


def format_record(question: str, negated: str, right: str, wrong: str, letter: str) -> Row:
    """Fields of a record in NegVQA's layout: both questions; letter: A or B, right for the original one."""
    options = [right, wrong] if letter == "A" else [wrong, right]
    row = {"original_question": question, "negated_question": negated, "A": options[0], "B": options[1]}
    return {**row, "original_answer": letter, "negated_answer": "AB"[letter == "A"]}
