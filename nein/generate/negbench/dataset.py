"""From the rows of finished shards to the data set: CSV files in the official layout, counts, a card."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nein.datasets.negbench.concepts import Concepts
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.generate.negbench import listing
from nein.generate.negbench.config import MEDICAL_SOURCES
from nein.generate.negbench.files import REPHRASED, Files, every_name
from nein.generate.negbench.work import Job, rephrased
from nein.generate.shards import require

NOTHING = "nothing absent or too few objects"
TWINS = "A drawn twin of the medical set: figures on it say nothing about medicine."
UNSAID = (
    "How the published medical questions were drawn is not known: sizes and sentences differ from theirs; "
    "tasks and columns do not."
)


def write(job: Job) -> dict[str, Any]:
    """Writes OUT/dataset and OUT/unusable.jsonl in one pass over the rows; returns the facts that the card
    states. Memory holds a chunk of records.

    Raises UserError when not one item or question came out.
    """
    require(job.folder, job.blocks, job.stages)
    out = job.folder.path
    reasons, notes, refused, types = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    count, folder, form = 0, job.dataset, job.config.form
    with contextlib.ExitStack() as files:
        plain, other = Files(folder, form, "", files), Files(folder, form, REPHRASED, files)
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
        written = plain.write_rest() | other.write_rest()
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


def images(job: Job) -> Iterator[tuple[Concepts, dict[str, Any] | None]]:
    """Every wanted image in order, with its paraphrases where there are any."""
    wanted_count = len(job.blocks.wanted)
    for shard in job.blocks.numbers:
        start = job.blocks.members(shard).start
        listed = listing.members(job.folder, shard)
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
    if config.source in MEDICAL_SOURCES:
        lines += [TWINS if config.instances == "nano" else UNSAID, ""]
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


def _kind(problem: str) -> str:
    """A reason without its particulars."""
    return problem.partition(":")[0]
