"""CSV files in the official layout that are written as their records come: memory holds one chunk of each."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from nein.datasets.negbench import official
from nein.datasets.negbench.records import Question, RetrievalItem
from nein.engine import atomic
from nein.engine.answers import Unique
from nein.engine.errors import UserError
from nein.generate.negbench.work import Tasks

CHUNK = 5000  # records in memory per file
#: Names by form: captions that negate, questions. Evaluation has the original captions beside them.
NAMES = {"evaluation": ("negated_retrieval", "mcq"), "training": ("negcap", "negmcq")}
ORIGINALS = "retrieval"
#: Tasks of the medical sets -> their files.
MEDICAL = {"mcq-control": "mcq_control", "binary": "binary_mcq", "binary-control": "binary_mcq_control"}
REPHRASED = "_rephrased"


class Sink:
    """One file. It comes into being with its first record, and under its name when `files` closes well."""

    def __init__(
        self, path: Path, write: Callable[[Path, Sequence[Any]], None], files: contextlib.ExitStack
    ) -> None:
        self.path, self._write, self._files = path, write, files
        self.rows = self.captions = 0
        self._chunk: list[Any] = []
        self._ids = Unique()
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def add(self, record: RetrievalItem | Question | None) -> None:
        """Raises UserError for an id that occurred before."""
        if record is None:
            return
        if not self._ids.add(record.id):
            raise UserError(f"{self.path}: the id '{record.id}' occurs more than once; rename an image.")
        count = len(record.captions if isinstance(record, RetrievalItem) else record.options)
        self.rows += count if self._write is official.write_captions else 1
        self.captions += count
        self._chunk.append(record)
        if len(self._chunk) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        """Writes the chunk by the writer of whole files, and takes over what that has written."""
        if not self._chunk:
            return
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / self.path.name
            self._write(part, self._chunk)
            text = part.read_bytes()
        self._chunk = []
        if self._file is None:
            self._file = self._files.enter_context(atomic.writing(self.path))
        else:
            text = text.partition(b"\n")[2]  # the header is there already
        self._digest.update(text)
        self._file.write(text)


class Files:
    """The files of one wording in a folder: `end` is "" or REPHRASED."""

    def __init__(self, folder: Path, form: str, end: str, files: contextlib.ExitStack) -> None:
        captions, questions = NAMES[form]
        write_captions: Any = official.write_retrieval
        write_questions: Any = official.write_questions
        if form == "training":
            write_captions, write_questions = official.write_captions, official.write_training_questions
        self.negated = Sink(folder / f"{captions}{end}.csv", write_captions, files)
        self.original = Sink(folder / f"{ORIGINALS}{end}.csv", official.write_retrieval, files)
        self.questions = Sink(folder / f"{questions}{end}.csv", write_questions, files)
        self.medical = {
            task: Sink(folder / f"{name}.csv", official.write_questions, files)
            for task, name in MEDICAL.items()
        }
        self._originals = not end  # the same captions as in the templated files

    @property
    def empty(self) -> bool:
        return not (self.negated.rows or self.questions.rows or any(s.rows for s in self.medical.values()))

    def add(self, tasks: Tasks) -> None:
        self.negated.add(tasks.negated)
        if self._originals:
            self.original.add(tasks.original)
        for question in tasks.questions:
            self.questions.add(question)
        for task, question in tasks.medical.items():
            self.medical[task].add(question)

    def write_rest(self) -> dict[str, dict[str, Any]]:
        """Writes what is left; file name -> rows, captions, SHA-256 of every file that has a record."""
        every = (self.negated, self.original, self.questions, *self.medical.values())
        sinks = [sink for sink in every if sink.rows]
        for sink in sinks:
            sink.flush()
        return {
            sink.path.name: {"rows": sink.rows, "captions": sink.captions, "sha256": sink._digest.hexdigest()}
            for sink in sinks
        }


def every_name() -> set[str]:
    """All names a build may write: what an earlier command left and this one has not is out of date."""
    stems = {stem for names in NAMES.values() for stem in names} | {ORIGINALS, *MEDICAL.values()}
    return {f"{stem}{end}.csv" for stem in stems for end in ("", REPHRASED)}
