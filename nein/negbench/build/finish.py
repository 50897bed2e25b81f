"""From the records of finished shards to the data set: CSV files in the official layout, counts, a card."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nein import atomic, journal
from nein.errors import UserError
from nein.images import write_png
from nein.negbench import official
from nein.negbench.build.concepts import Concepts
from nein.negbench.build.work import Job, Tasks, rephrased
from nein.negbench.data import Question, RetrievalItem


def finish(job: Job, shards: Sequence[int], out: Path, limit: int | None) -> dict[str, Any]:
    """Writes OUT/dataset and OUT/unusable.jsonl; returns the facts that the card states.

    Raises UserError when not one item or question came out.
    """
    missing = [
        (stage, shard) for stage in job.stages for shard in shards if shard not in job.ledger.done(stage)
    ]
    if missing:
        stage, shard = missing[0]
        raise UserError(
            f"{len(missing)} shards are not finished (the first: {stage} of shard {shard}); run the command "
            "without --stages, or with the missing stage."
        )
    counts, reasons, notes, refused = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    types: Counter[str] = Counter()
    unusable: list[dict[str, Any]] = []
    plain, other = Files(), Files()
    for image, row in images(job, shards, limit):
        counts["images"] += 1
        notes.update(image.notes)
        if image.problem:
            counts["unusable"] += 1
            reasons[_kind(image.problem)] += 1
            unusable.append({"id": image.id, "image": image.path, "problem": image.problem})
            continue
        tasks = job.tasks(image)
        if tasks.negated is None and not tasks.questions:
            reasons["nothing absent or too few objects"] += 1
            unusable.append(
                {"id": image.id, "image": image.path, "problem": "nothing absent or too few objects"}
            )
        plain.add(tasks)
        types.update(str(question.type) for question in tasks.questions)
        if row is not None:
            refused.update(_kind(why) for why in row["refused"])
            other.add(rephrased(tasks, image, row))
    if plain.empty:
        raise UserError(
            f"Not one caption or question came out of {counts['images']} images: "
            + "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3))
            + "."
        )
    folder = out / "dataset"
    files = plain.write(folder, job.config.form, "")
    if job.config.paraphrase and not other.empty:
        files |= other.write(folder, job.config.form, "_rephrased")
    if job.config.source == "nano":
        _draw(job, folder, shards, limit)
    journal.write_lines(out / "unusable.jsonl", iter(unusable))
    facts = {
        "source": job.config.source,
        "form": job.config.form,
        "images": counts["images"],
        "unusable": dict(reasons.most_common()),
        "dropped": dict(notes.most_common()),
        "refused_paraphrases": dict(refused.most_common()),
        "questions_by_type": dict(sorted(types.items())),
        "files": files,
        "listing": job.listing.notes,
    }
    atomic.write_json(out / "card.json", facts)
    atomic.write_text(folder / "README.md", card(job, facts))
    return facts


def images(
    job: Job, shards: Sequence[int], limit: int | None
) -> Iterator[tuple[Concepts, dict[str, Any] | None]]:
    """Every image in order, with its paraphrases where there are any."""
    left = job.listing.count if limit is None else limit
    for shard in shards:
        wanted = {image.id for image in job.listing.members(shard)[: max(0, left)]}
        left -= len(job.listing.members(shard))
        rows: dict[str, dict[str, Any]] = {}
        if job.config.paraphrase:
            rows = {row["id"]: row for row in job.ledger.record("paraphrase", shard)["rows"]}
        for image in job.concepts(shard):
            origin = image.id
            if job.config.source == "pairs":
                origin = image.id.removesuffix("-without").removesuffix("-with")
            if origin in wanted:
                yield image, rows.get(image.id)


class Files:
    """What goes into the files of one wording."""

    def __init__(self) -> None:
        self.original: list[RetrievalItem] = []
        self.negated: list[RetrievalItem] = []
        self.questions: list[Question] = []

    @property
    def empty(self) -> bool:
        return not (self.negated or self.questions)

    def add(self, tasks: Tasks) -> None:
        self.original += [tasks.original] if tasks.original else []
        self.negated += [tasks.negated] if tasks.negated else []
        self.questions += tasks.questions

    def write(self, folder: Path, form: str, wording: str) -> dict[str, dict[str, Any]]:
        """Writes what is not empty; file name -> rows, captions, SHA-256."""
        names = ("negcap", "negmcq") if form == "training" else ("negated_retrieval", "mcq")
        written: dict[str, dict[str, Any]] = {}

        def note(path: Path, rows: Sequence[Any], captions: int) -> None:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            written[path.name] = {"rows": len(rows), "captions": captions, "sha256": digest}

        retrieval = [(f"{names[0]}{wording}.csv", self.negated)]
        if not wording:
            retrieval.append(("retrieval.csv", self.original))
        for name, items in retrieval:
            if items:
                official.write_retrieval(folder / name, items)
                note(folder / name, items, sum(len(item.captions) for item in items))
        if self.questions:
            path = folder / f"{names[1]}{wording}.csv"
            official.write_questions(path, self.questions)
            note(path, self.questions, sum(len(question.options) for question in self.questions))
        return written


def card(job: Job, facts: dict[str, Any]) -> str:
    """README.md of the data set: what it is, how it was made, what was lost on the way."""
    config = job.config
    lines = [
        "---",
        "tags: [negbench, negation, nein]",
        "---",
        "# NegBench data built with nein",
        "",
        f"Source: {config.source}; form: {config.form}; wording: {config.wording}. Layout: the CSV files of "
        "NegBench (Alhamoud et al., CVPR 2025), with the columns `id`, `source`, `template_K`, "
        "`positive_objects` and `negative_objects` added.",
        "",
    ]  # fmt: skip
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
    for title, found in sections:
        if found:
            lines += ["", f"## {title}", "", "| what | count |", "|---|---|"]
            lines += [f"| {what} | {count} |" for what, count in found.items()]
    return "\n".join(lines) + "\n"


def summary(facts: dict[str, Any], out: Path) -> str:
    """What the command says at its end."""
    lines = [f"{facts['images']} images."]
    lines += [f"  {f['rows']:7d} rows, {f['captions']} captions: {n}" for n, f in facts["files"].items()]
    for what, key in (("unusable", "unusable"), ("noted", "dropped"), ("refused", "refused_paraphrases")):
        lines += [f"  {count:7d} {what}: {reason}" for reason, count in facts[key].items()]
    lines.append(f"Data set: {out / 'dataset'}")
    return "\n".join(lines) + "\n"


def _draw(job: Job, folder: Path, shards: Sequence[int], limit: int | None) -> None:
    for image, _ in images(job, shards, limit):
        path = folder / image.path
        if not path.exists():
            write_png(path, job.media.frames(image.path)[0])


def _kind(problem: str) -> str:
    """A reason without its particulars."""
    return problem.partition(":")[0]


def digest_of(value: Any) -> str:
    """16 hex digits over JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
