"""From rows to CSV files in the official layout, in one pass: memory holds a record of each file."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from nein.datasets.negbench import official
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.records import Question, RetrievalItem, check_items, check_questions
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.generate.negbench import tasks
from nein.generate.negbench.stages import NegbenchMaker
from nein.generate.negbench.tasks import Tasks

#: Names by form: captions that negate, questions. Evaluation has the original captions beside them.
NAMES = {"evaluation": ("negated_retrieval", "mcq"), "training": ("negcap", "negmcq")}
ORIGINALS = "retrieval"
#: Tasks of the medical sets -> their files.
MEDICAL = {"mcq-control": "mcq_control", "binary": "binary_mcq", "binary-control": "binary_mcq_control"}
REPHRASED = "_rephrased"
NOTHING = "nothing absent or too few objects"


class Sink:
    """A file, written as its records come; it gets its name when `files` closes well."""

    def __init__(self, path: Path, form: official.Form, files: contextlib.ExitStack) -> None:
        self.path, self._form, self._files = path, form, files
        self.rows = self.captions = 0
        self._ids = set[str]()
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def add(self, record: RetrievalItem | Question) -> None:
        """Raises UserError for an id that occurred before, or a record that no file may hold."""
        if record.id in self._ids:
            raise UserError(f"{self.path}: the id '{record.id}' occurs more than once; rename an image.")
        self._ids.add(record.id)
        if isinstance(record, RetrievalItem):
            check_items([record], str(self.path))
            self.captions += len(record.captions)
        else:
            check_questions([record], str(self.path))
            self.captions += len(record.options)
        rows = self._form.rows(record)
        data = official.text(self._form.columns, rows, header=self._file is None).encode()
        if self._file is None:
            self._file = self._files.enter_context(atomic.writing(self.path))
        self.rows += len(rows)
        self._digest.update(data)
        self._file.write(data)

    def facts(self) -> dict[str, Any]:
        return {"rows": self.rows, "captions": self.captions, "sha256": self._digest.hexdigest()}


class Sinks:
    """The files of one wording, by stem."""

    def __init__(self, folder: Path, form: str, end: str, files: contextlib.ExitStack) -> None:
        """end: of their names, "" or REPHRASED."""
        training = form == "training"
        self._captions, self._questions = NAMES[form]
        forms = {
            self._captions: official.TRAINING_CAPTIONS if training else official.RETRIEVAL,
            ORIGINALS: official.RETRIEVAL,
            self._questions: official.questions_of(4, *([official.MODIFIED] if training else [])),
            **{stem: official.questions_of(2 if "binary" in stem else 4) for stem in MEDICAL.values()},
        }
        self.of = {stem: Sink(folder / f"{stem}{end}.csv", layout, files) for stem, layout in forms.items()}

    def add(self, found: Tasks, original: RetrievalItem | None = None) -> None:
        if found.negated is not None:
            self.of[self._captions].add(found.negated)
        if original is not None:
            self.of[ORIGINALS].add(original)
        for question in found.questions:
            self.of[self._questions].add(question)
        for task, question in found.medical.items():
            self.of[MEDICAL[task]].add(question)


def write(maker: NegbenchMaker) -> dict[str, Any]:
    """Writes OUT/dataset and OUT/unusable.jsonl; returns the facts that the card states. Raises UserError
    when not one item or question came out."""
    config, folder = maker.config, maker.dataset
    reasons, notes, refused, types = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    count = 0
    with contextlib.ExitStack() as files:
        plain, other = (Sinks(folder, config.form, end, files) for end in ("", REPHRASED))
        unusable = files.enter_context(atomic.writing(maker.folder.path / "unusable.jsonl"))
        for image, row in images(maker):
            count += 1
            notes.update(image.notes)
            if config.source == "nano" and not (path := folder / image.path).exists():
                write_png(path, maker.media.frames(image.path)[0])
            found = tasks.of_image(image, config)
            is_useful = found.negated or found.questions or found.medical
            if problem := image.problem or ("" if is_useful else NOTHING):
                reasons[problem.partition(":")[0]] += 1
                line = {"id": image.id, "image": image.path, "problem": problem}
                unusable.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                continue
            plain.add(found, found.original)
            types.update(str(question.type) for question in found.questions)
            if row is not None:
                refused.update(why.partition(":")[0] for why in row["refused"])
                other.add(tasks.rephrased(found, row["texts"]))  # original captions are the same
        if not any(sink.rows for stem, sink in plain.of.items() if stem != ORIGINALS):
            most = "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3))
            raise UserError(f"Not one caption or question came out of {count} images: {most}.")
        sinks = (*plain.of.values(), *other.of.values())
        written = {sink.path.name: sink.facts() for sink in sinks if sink.rows}
    _remove_others(folder, written)
    return {
        "source": config.source,
        "form": config.form,
        "images": count,
        "unusable": dict(reasons.most_common()),
        "dropped": dict(notes.most_common()),
        "refused_paraphrases": dict(refused.most_common()),
        "questions_by_type": dict(sorted(types.items())),
        "files": written,
        "listing": dict(maker.listing.notes),
    }


def _remove_others(folder: Path, written: Mapping[str, Any]) -> None:
    """What an earlier command left and this one has not is out of date."""
    stems = (*NAMES["evaluation"], *NAMES["training"], ORIGINALS, *MEDICAL.values())
    for name in {f"{stem}{end}.csv" for stem in stems for end in ("", REPHRASED)} - set(written):
        (folder / name).unlink(missing_ok=True)


def images(maker: NegbenchMaker) -> Iterator[tuple[Concepts, dict[str, Any] | None]]:
    """Every wanted image in order, with its paraphrases where there are any."""
    wanted = {maker.listing.records[index].id for index in maker.blocks.wanted}
    for shard in maker.blocks.numbers:
        rows = {}
        if maker.config.paraphrase:
            rows = {row["id"]: row for row in maker.rows("paraphrase", shard)}
        for image in maker.concepts(shard):
            origins = {image.id}
            if maker.config.source == "pairs":  # an id may itself end so: then both are looked up
                origins.add(image.id.removesuffix("-without").removesuffix("-with"))
            if origins & wanted:
                yield image, rows.get(image.id)
