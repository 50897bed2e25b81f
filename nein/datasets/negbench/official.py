"""Reads and writes NegBench's CSV files in the form of the released code (github.com/m1k2zoo/negbench):

    retrieval        filepath, captions (the text of a Python list of strings)
    multiple choice  correct_answer, caption_0 .. caption_3, correct_answer_template, image_path
    binary           correct_answer, caption_0, caption_1, image_path
    NegCap           filepath and one caption per row: the released training code does not parse a cell

Ours have further columns, which the released code ignores: `id`, `source`, `template_0` .. (each option's
own), `positive_objects`, `negative_objects`."""

from __future__ import annotations

import ast
import contextlib
import csv
import hashlib
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nein.datasets.negbench import records
from nein.datasets.negbench.media import split_path
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION, Option, Question, RetrievalItem
from nein.engine import atomic
from nein.engine.atomic import Row
from nein.loading.errors import UserError

MODIFIED = "modified_positive"  # a training question that affirms the only object of its image
#: The file's word for a template -> ours, and back.
TEMPLATE_OF = {"positive": AFFIRMATION, "negative": NEGATION, "hybrid": HYBRID, MODIFIED: AFFIRMATION}
WORD_OF = {AFFIRMATION: "positive", NEGATION: "negative", HYBRID: "hybrid"}
#: Layout -> template of each wrong option by position, as in the released files. None: unknown, or the place
#: of the right option, which is always at 0 in files about photographs ("real").
POSITIONS: Mapping[str, tuple[str | None, ...]] = {
    "real": (None, HYBRID, AFFIRMATION, NEGATION),
    "synthetic": (AFFIRMATION, HYBRID, HYBRID, NEGATION),
    "control": (None, None, None, None),
}
_OUR_COLUMNS = ("id", "source", "positive_objects", "negative_objects")


# --- reading files -----------------------------------------------------------------------------
CELL_LIMIT = 1 << 28  # characters: a cell may be an image in base64


def iter_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (last line, cells) per CSV row, split at tabs if the header has one. Raises UserError."""
    csv.field_size_limit(CELL_LIMIT)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            delimiter = "\t" if "\t" in header else ","
            reader = csv.DictReader(itertools.chain([header], file), strict=True, delimiter=delimiter)
            columns = reader.fieldnames or ()
            if missing := [name for name in needed if name not in columns]:
                existing = ", ".join(columns) or "none"
                rule = f"it needs {', '.join(needed)} and has {existing}"
                raise UserError(f"'{path}' has no column '{missing[0]}'; {rule}.")
            is_empty = True
            for row in reader:
                if None in row or None in row.values():  # as csv marks a row of another length
                    length = f"{'more' if None in row else 'fewer'} cells than the header's {len(columns)}"
                    raise UserError(f"'{path}', line {reader.line_num}: the row has {length}.")
                yield reader.line_num, row
                is_empty = False
            if is_empty:
                raise UserError(f"'{path}' has a header but no rows.")
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"'{path}' is not a CSV file in UTF-8: {error}.") from None


def read_retrieval(path: Path, kind: str = records.ORIGINAL) -> tuple[RetrievalItem, ...]:
    """Reads a retrieval file; captions may be missing, as in the released paraphrases. Raises UserError."""
    items = []
    for location, row, fields in _iter_records(path, ("filepath", "captions")):
        captions = parse_strings(row["captions"], f"{location}, captions")
        items.append(RetrievalItem(captions=captions, kind=kind, **fields))
    records.check_ids(items, str(path))
    return tuple(items)


def read_questions(path: Path, layout: str = "real") -> tuple[Question, ...]:
    """Reads a multiple-choice or binary file. layout: a key of `POSITIONS` for files without `template_0`."""
    questions = []
    columns = ("image_path", "correct_answer", "caption_0", "caption_1")
    for location, row, fields in _iter_records(path, columns):
        texts: list[str] = []
        while f"caption_{len(texts)}" in row:
            texts.append(row[f"caption_{len(texts)}"])
        while texts and not texts[-1]:  # a question with fewer options than others
            texts.pop()
        correct = parse_index(row["correct_answer"], len(texts), f"{location}, correct_answer")
        type_ = _parse_template(row.get("correct_answer_template", ""), location)
        if "template_0" in row:
            templates = [_parse_template(row.get(f"template_{k}", ""), location) for k in range(len(texts))]
        else:
            as_released = type_ is not None and len(texts) == 4 and (correct == 0 or layout == "synthetic")
            templates = list(POSITIONS[layout]) if as_released else [None] * len(texts)
            templates[correct] = type_
        options = tuple(map(Option, texts, templates))
        questions.append(Question(options=options, correct=correct, type=type_, **fields))
    records.check_records(questions, str(path))
    return tuple(questions)


def _iter_records(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, dict[str, str], Row]]:
    """Yields (file and line, cells, fields that all records share). The default id is the image's name, for
    its second row with "#2". needed: the columns, that of the image first."""
    rows = []
    for line, cells in iter_rows(path, needed):
        location = f"'{path}', line {line}"
        rows.append((location, cells, get_cell(cells, needed[0], location)))
    names, counts = shorten_names(image for *_, image in rows), Counter[str]()
    for location, cells, image in rows:
        name = names[image]
        counts[name] += 1
        record_id = cells.get("id") or (name if counts[name] == 1 else f"{name}#{counts[name]}")
        fields: Row = {"id": record_id, "image": image, "source": cells.get("source") or name}
        for field_name, column in (("positives", "positive_objects"), ("negatives", "negative_objects")):
            text = cells.get(column, "")
            fields[field_name] = parse_strings(text, f"{location}, {column}") if text.strip() else None
        yield location, cells, fields


# --- writing files -----------------------------------------------------------------------------
@dataclass
class Table:
    """A CSV file of captions, or of questions with up to `options` options, written record by record; it gets
    its name when `files` closes without an error.

    training  One caption per row (`ID/c0`, `ID/c1`, ..), which the released training code reads with
              `--csv-img-key filepath --csv-caption-key caption --csv-separator ,`; a question that affirms
              the only object of its image (or none) has the type MODIFIED."""

    path: Path
    files: contextlib.ExitStack
    options: int = 0  # most options of a question; 0: captions
    training: bool = False
    # Written so far:
    rows: int = 0
    captions: int = 0  # texts of captions and options
    ids: set[str] = field(default_factory=set)
    digest: Any = field(default_factory=hashlib.sha256)
    _file: IO[bytes] | None = None  # None: nothing

    def add(self, record: RetrievalItem | Question) -> None:
        """Writes a record. Raises UserError for an id that occurred before, or a record without texts."""
        if record.id in self.ids:
            raise UserError(f"{self.path}: the id '{record.id}' occurs more than once; rename an image.")
        self.ids.add(record.id)
        records.check_records([record], str(self.path))
        rows, text = self._make_rows(record), io.StringIO()
        writer = csv.DictWriter(text, self._columns(), restval="", lineterminator="\n")
        if self._file is None:
            self._file = self.files.enter_context(atomic.write_file(self.path))
            writer.writeheader()
        writer.writerows(rows)
        self.rows += len(rows)
        self.captions += len(record.texts)
        self.digest.update(text.getvalue().encode())
        self._file.write(text.getvalue().encode())

    def _columns(self) -> list[str]:
        if not self.options:
            return ["filepath", "caption" if self.training else "captions", *_OUR_COLUMNS]
        captions = [f"caption_{k}" for k in range(self.options)]
        templates = [f"template_{k}" for k in range(self.options)]
        columns = ["correct_answer", *captions, "correct_answer_template", "image_path"]
        return [*columns, *_OUR_COLUMNS[:2], *templates, *_OUR_COLUMNS[2:]]

    def _make_rows(self, record: RetrievalItem | Question) -> list[Row]:
        row: Row = {"id": record.id, "source": record.source}
        row["positive_objects"] = None if record.positives is None else repr(list(record.positives))
        row["negative_objects"] = None if record.negatives is None else repr(list(record.negatives))
        if isinstance(record, RetrievalItem):
            row["filepath"] = record.image
            if not self.training:
                return [{**row, "captions": repr(list(record.captions))}]
            texts = enumerate(record.texts)
            return [{**row, "caption": text, "id": f"{record.id}/c{k}"} for k, text in texts]
        word = WORD_OF.get(record.type or "", "")
        has_one_object = record.positives is not None and len(record.positives) < 2
        if self.training and record.type == AFFIRMATION and has_one_object:
            word = MODIFIED
        row |= {"correct_answer": record.correct, "correct_answer_template": word}
        for k, option in enumerate(record.options):
            row |= {f"caption_{k}": option.text, f"template_{k}": WORD_OF.get(option.template or "", "")}
        return [{**row, "image_path": record.image}]


def write(
    path: Path, records: Sequence[RetrievalItem] | Sequence[Question], *, training: bool = False
) -> None:
    """Writes a file of captions, or of questions. training: see `Table`."""
    counts = [len(record.options) for record in records if isinstance(record, Question)]
    with contextlib.ExitStack() as files:
        table = Table(path, files, options=max(counts, default=0), training=training)
        for record in records:
            table.add(record)


# --- names and cells ---------------------------------------------------------------------------
def shorten_names(references: Iterable[str]) -> dict[str, str]:
    """Reference -> the shortest unique end of its path: "dog.jpg", or "patient7/study1/view1_frontal.jpg"."""
    ends: dict[str, list[str]] = {}
    for name in dict.fromkeys(references):
        parts = split_path(name) or (name,)
        ends[name] = ["/".join(parts[-count:]) for count in range(1, len(parts) + 1)]
    counts = Counter(itertools.chain(*ends.values()))
    names = {}
    for name, candidates in ends.items():
        unique = [end for end in candidates if counts[end] == 1]
        names[name] = unique[0] if unique else candidates[-1]
    return names


def get_cell(row: Mapping[str, str], column: str, location: str) -> str:
    """A cell without white space around it. Raises UserError if it is empty."""
    if not row[column].strip():
        raise UserError(f"{location}: the column '{column}' is empty.")
    return row[column].strip()


#: Columns that may hold captions; the first is read. Lists (as released), or one text each (open_clip).
LISTS = ("negative_captions", "captions")
CAPTIONS = (*LISTS, "caption", "title")


def find_caption_column(columns: Sequence[str], path: Path, requested: str | None = None) -> str:
    """The column that holds captions: `requested`, else the first of CAPTIONS. Raises UserError."""
    allowed = (requested,) if requested else CAPTIONS
    for name in allowed:
        if name in columns:
            return name
    advice = "Name the column of captions with --caption-column."
    raise UserError(f"'{path}' has no column {' or '.join(allowed)}; it has {', '.join(columns)}. {advice}")


def parse_captions(text: str, column: str, location: str) -> tuple[str, ...]:
    """The captions of a cell: the strings of a list, else its text. A column of LISTS must hold lists."""
    if column in LISTS:
        return parse_strings(text, location)
    try:
        return parse_strings(text, location) if text.strip().startswith("[") else (text,)
    except UserError:  # "[object] on a table": a caption may begin so
        return (text,)


def parse_index(text: str, count: int, location: str) -> int:
    """The number of one of `count` options. Raises UserError."""
    try:
        value = float(text)  # a file that went through pandas may say "0.0"
    except ValueError:
        value = -1.0
    if not (value.is_integer() and 0 <= value < count):
        raise UserError(f"{location}: '{text}' is not the number of an option, 0 to {count - 1}.")
    return int(value)


def _parse_template(word: str, location: str) -> str | None:
    """Our name for a template, from the file's name or ours."""
    word = word.strip().lower()
    template = TEMPLATE_OF.get(word, word)
    if template and template not in records.TEMPLATES:
        raise UserError(f"{location}: unknown template '{word}'; allowed: {', '.join(TEMPLATE_OF)}.")
    return template or None


_ADJACENT_STRINGS = re.compile(r"""['"]\s*\w{0,2}['"]""")  # maybe two strings without a comma


def parse_strings(text: str, location: str) -> tuple[str, ...]:
    """Parses a list cell, "['a', 'b']". Refuses NumPy's form without commas: Python would join strings."""
    value: Any = None
    literals = None  # how many strings the text has, counted if it may have two without a comma
    try:
        value = ast.literal_eval(text.strip())
        if _ADJACENT_STRINGS.search(text):
            tokens = tokenize.generate_tokens(io.StringIO(text.strip()).readline)
            literals = sum(token.type == tokenize.STRING for token in tokens)
    except (ValueError, tokenize.TokenError, SyntaxError, MemoryError, RecursionError):
        value = None
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        if literals in (None, len(value)):
            return tuple(value)
    excerpt = text if len(text) <= 60 else f"{text[:57]}..."
    raise UserError(f"{location}: {excerpt!r} is not a list of strings, such as ['a dog', 'a cat'].")
