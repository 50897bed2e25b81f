"""From the rows of finished shards to the data set: CSV files in the official layout, counts, a card."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from nein.datasets.negbench import official
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.records import Question, RetrievalItem, check_items, check_questions
from nein.engine import atomic
from nein.engine.answers import Unique
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.generate.negbench import sources
from nein.generate.negbench.config import MEDICAL_SOURCES
from nein.generate.negbench.work import Job, Tasks, rephrased

#: Names by form: captions that negate, questions. Evaluation has the original captions beside them.
NAMES = {"evaluation": ("negated_retrieval", "mcq"), "training": ("negcap", "negmcq")}
ORIGINALS = "retrieval"
#: Tasks of the medical sets -> their files.
MEDICAL = {"mcq-control": "mcq_control", "binary": "binary_mcq", "binary-control": "binary_mcq_control"}
REPHRASED = "_rephrased"
NOTHING = "nothing absent or too few objects"
UNSAID = (
    "How the published medical questions were drawn is not known: sizes and sentences differ from theirs; "
    "tasks and columns do not."
)


class Sink:
    """A file, written as its records come; it gets its name when `files` closes well."""

    def __init__(self, path: Path, form: official.Form, files: contextlib.ExitStack) -> None:
        self.path, self._form, self._files = path, form, files
        self.rows = self.captions = 0
        self._ids = Unique()
        self._digest = hashlib.sha256()
        self._file: IO[bytes] | None = None

    def add(self, record: RetrievalItem | Question | None) -> None:
        """Raises UserError for an id that occurred before, or a record that no file may hold."""
        if record is None:
            return
        if not self._ids.add(record.id):
            raise UserError(f"{self.path}: the id '{record.id}' occurs more than once; rename an image.")
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


def _sinks(folder: Path, form: str, end: str, files: contextlib.ExitStack) -> dict[str, Sink]:
    """Stem -> file, of one wording; `end`: "" or REPHRASED."""
    captions, questions = NAMES[form]
    training = form == "training"
    forms = {
        captions: official.TRAINING_CAPTIONS if training else official.RETRIEVAL,
        ORIGINALS: official.RETRIEVAL,
        questions: official.questions_of(4, *([official.MODIFIED] if training else [])),
        **{stem: official.questions_of(2 if "binary" in stem else 4) for stem in MEDICAL.values()},
    }
    return {stem: Sink(folder / f"{stem}{end}.csv", layout, files) for stem, layout in forms.items()}


def _add(sinks: dict[str, Sink], form: str, tasks: Tasks, original: RetrievalItem | None) -> None:
    captions, questions = NAMES[form]
    sinks[captions].add(tasks.negated)
    sinks[ORIGINALS].add(original)
    for question in tasks.questions:
        sinks[questions].add(question)
    for task, question in tasks.medical.items():
        sinks[MEDICAL[task]].add(question)


def write(job: Job) -> dict[str, Any]:
    """Writes OUT/dataset and OUT/unusable.jsonl in one pass over the rows; returns the facts that the card
    states. Memory holds a record of each file.

    Raises UserError when not one item or question came out.
    """
    job.require(job.stages)
    out = job.folder.path
    reasons, notes, refused, types = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    count, folder, form = 0, job.dataset, job.config.form
    with contextlib.ExitStack() as files:
        plain, other = (_sinks(folder, form, end, files) for end in ("", REPHRASED))
        unusable = files.enter_context(atomic.writing(out / "unusable.jsonl"))
        for image, row in images(job):
            count += 1
            notes.update(image.notes)
            if job.config.source == "nano":
                path = folder / image.path
                if not path.exists():
                    write_png(path, job.media.frames(image.path)[0])
            tasks = job.tasks(image)
            any_task = tasks.negated or tasks.questions or tasks.medical
            problem = image.problem or ("" if any_task else NOTHING)
            if problem:
                reasons[problem.partition(":")[0]] += 1
                line = {"id": image.id, "image": image.path, "problem": problem}
                unusable.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                continue
            _add(plain, form, tasks, tasks.original)
            types.update(str(question.type) for question in tasks.questions)
            if row is not None:
                refused.update(why.partition(":")[0] for why in row["refused"])
                _add(other, form, rephrased(tasks, image, row), None)  # original captions are the same
        if not any(sink.rows for stem, sink in plain.items() if stem != ORIGINALS):
            raise UserError(
                f"Not one caption or question came out of {count} images: "
                + "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3))
                + "."
            )
        sinks = (*plain.values(), *other.values())
        written = {sink.path.name: sink.facts() for sink in sinks if sink.rows}
    stems = {stem for names in NAMES.values() for stem in names} | {ORIGINALS, *MEDICAL.values()}
    # what an earlier command left and this one has not is out of date
    for name in {f"{stem}{end}.csv" for stem in stems for end in ("", REPHRASED)} - set(written):
        (folder / name).unlink(missing_ok=True)
    facts = {
        "source": job.config.source, "form": form, "images": count,
        "unusable": dict(reasons.most_common()), "dropped": dict(notes.most_common()),
        "refused_paraphrases": dict(refused.most_common()), "questions_by_type": dict(sorted(types.items())),
        "files": written, "listing": job.listing.notes,
    }  # fmt: skip
    atomic.write_json(out / "card.json", facts)
    atomic.write_text(folder / "README.md", card(job, facts))
    return facts


def images(job: Job) -> Iterator[tuple[Concepts, dict[str, Any] | None]]:
    """Every wanted image in order, with its paraphrases where there are any."""
    wanted_count = len(job.blocks.wanted)
    for shard in job.blocks.numbers:
        start = job.blocks.members(shard).start
        listed = sources.members(job.folder, shard)
        wanted = {image.id for image in listed[: wanted_count - start]}
        rows: dict[str, dict[str, Any]] = {}
        if job.config.paraphrase:
            rows = {row["id"]: row for row in job.rows("paraphrase", shard)}
        for image in job.concepts(shard):
            origins = {image.id}
            if job.config.source == "pairs":  # an id may itself end so: then both are looked up
                origins.add(image.id.removesuffix("-without").removesuffix("-with"))
            if origins & wanted:
                yield image, rows.get(image.id)


def card(job: Job, facts: dict[str, Any]) -> str:
    """README.md of the data set: what it is, how it was made, what was lost on the way."""
    config = job.config
    lines = [
        "---", "tags: [negbench, negation, nein]", "---", "# NegBench data built with nein", "",
        f"Source: {config.source}; form: {config.form}; wording: {config.wording}. Layout: the CSV files of "
        "NegBench (Alhamoud et al., CVPR 2025), with the columns `id`, `source`, `template_K`, "
        "`positive_objects` and `negative_objects` added.",
        "",
    ]  # fmt: skip
    if config.source in MEDICAL_SOURCES:
        lines += [UNSAID, ""]
    if config.source == "nano":
        lines += ["Scenes of the nano world: figures on them say nothing about the published sets.", ""]
    lines += ["| file | rows | captions | SHA-256 |", "|---|---|---|---|"]
    lines += [
        f"| {n} | {f['rows']} | {f['captions']} | {f['sha256'][:16]} |" for n, f in facts["files"].items()
    ]
    sections = (
        ("Questions by type", facts["questions_by_type"]),
        (f"Unusable, of {facts['images']} images", facts["unusable"]),
        ("Dropped or noted", facts["dropped"]),
        ("Paraphrases refused", facts["refused_paraphrases"]),
        ("The source", facts["listing"]),
    )
    for title, counts in sections:
        if counts:
            lines += ["", f"## {title}", "", "| what | count |", "|---|---|"]
            lines += [f"| {what} | {count} |" for what, count in counts.items()]
    return "\n".join(lines) + "\n"


def summary(facts: dict[str, Any], out: Path) -> str:
    """What the command says at its end."""
    lines = [f"{facts['images']} images."]
    lines += [f"  {f['rows']:7d} rows, {f['captions']} captions: {n}" for n, f in facts["files"].items()]
    for what, key in (("unusable", "unusable"), ("noted", "dropped"), ("refused", "refused_paraphrases")):
        lines += [f"  {count:7d} {what}: {reason}" for reason, count in facts[key].items()]
    lines.append(f"Data set: {out / 'dataset'}")
    return "\n".join(lines) + "\n"
