"""From the records of finished shards to the data set: CSV files in the official layout, counts, a card."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nein.datasets.negbench.concepts import Concepts
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.generate.negbench.files import REPHRASED, Files, every_name
from nein.generate.negbench.work import Job, rephrased

NOTHING = "nothing absent or too few objects"


def finish(job: Job, shards: Sequence[int], out: Path, limit: int | None) -> dict[str, Any]:
    """Writes OUT/dataset and OUT/unusable.jsonl in one pass over the records; returns the facts that the card
    states. Memory holds a chunk of records and 16 bytes per record and file.

    Raises UserError when not one item or question came out.
    """
    done = {stage: job.ledger.done(stage) for stage in job.stages}
    missing = [(stage, shard) for stage in job.stages for shard in shards if shard not in done[stage]]
    if missing:
        stage, shard = missing[0]
        raise UserError(
            f"{len(missing)} shards are not finished (the first: {stage} of shard {shard}); run the command "
            "without --stages, or with the missing stage."
        )
    reasons, notes, refused, types = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    count, folder, form = 0, out / "dataset", job.config.form
    with contextlib.ExitStack() as files:
        plain, other = Files(folder, form, "", files), Files(folder, form, REPHRASED, files)
        unusable = files.enter_context(atomic.writing(out / "unusable.jsonl"))
        for image, row in images(job, shards, limit):
            count += 1
            notes.update(image.notes)
            if job.config.source == "nano":
                _draw(job, folder, image)
            tasks = job.tasks(image)
            problem = image.problem or ("" if tasks.negated or tasks.questions else NOTHING)
            if problem:
                reasons[_kind(problem)] += 1
                line = {"id": image.id, "image": image.path, "problem": problem}
                unusable.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                continue
            plain.add(tasks)
            types.update(str(question.type) for question in tasks.questions)
            if row is not None:
                refused.update(_kind(why) for why in row["refused"])
                other.add(rephrased(tasks, image, row))
        if plain.empty:
            raise UserError(
                f"Not one caption or question came out of {count} images: "
                + "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3))
                + "."
            )
        written = plain.finish() | other.finish()
    for name in every_name() - set(written):
        (folder / name).unlink(missing_ok=True)
    facts = {
        "source": job.config.source,
        "form": form,
        "images": count,
        "unusable": dict(reasons.most_common()),
        "dropped": dict(notes.most_common()),
        "refused_paraphrases": dict(refused.most_common()),
        "questions_by_type": dict(sorted(types.items())),
        "files": written,
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
        members = job.listing.members(shard)
        wanted = {image.id for image in members[: max(0, left)]}
        left -= len(members)
        rows: dict[str, dict[str, Any]] = {}
        if job.config.paraphrase:
            rows = {row["id"]: row for row in job.ledger.record("paraphrase", shard)["rows"]}
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


def _draw(job: Job, folder: Path, image: Concepts) -> None:
    if not (folder / image.path).exists():
        write_png(folder / image.path, job.media.frames(image.path)[0])


def _kind(problem: str) -> str:
    """A reason without its particulars."""
    return problem.partition(":")[0]


def digest_of(value: Any) -> str:
    """16 hex digits over JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
