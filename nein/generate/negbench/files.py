"""NegBench data and their card: CSV files in the official layout, and `nein negbench generate`.

OUT/dataset/          CSV files in the official layout, a card, and images that were drawn or made
OUT/unusable.jsonl    images that yield nothing, with the reason

Everything is written in one pass: memory holds a record of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nein.datasets.negbench import official
from nein.datasets.negbench.records import Question, RetrievalItem, check_items, check_questions
from nein.datasets.negbench.sentences import Concepts
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.engine.run import Executor
from nein.generate.config import NegbenchConfig
from nein.generate.maker import losses, make, section
from nein.generate.negbench import sources, stages
from nein.generate.negbench.stages import NegbenchMaker, Reworded

NOTHING = "nothing absent or too few objects"
UNSAID = (
    "How the published medical questions were drawn is not known: sizes and sentences differ from theirs; "
    "tasks and columns do not."
)
NANO = "Scenes of the nano world: figures on them say nothing about the published sets."


def build(config: NegbenchConfig, executor: Executor) -> str | None:
    """`nein negbench generate`."""
    return make(NegbenchMaker, config, executor, finish)


def finish(maker: NegbenchMaker) -> tuple[str, dict[str, Any]]:
    """Writes data set and card: a summary in words, and what the manifest says of it."""
    facts = write(maker)
    atomic.write_json(maker.folder.path / "card.json", facts)
    atomic.write_text(maker.dataset / "README.md", card(maker.config, facts))
    lines = [f"{facts['images']} images."]
    lines += [f"  {f['rows']:6d} rows, {f['captions']} captions: {n}" for n, f in facts["files"].items()]
    for what, key in (("unusable", "unusable"), ("noted", "dropped"), ("refused", "refused_paraphrases")):
        lines += losses(what, facts[key])
    lines.append(f"Data set: {maker.dataset}")
    where = sources.root(maker.config)
    if where is not None and maker.config.source != "pairs":
        lines.append(f"Image paths are relative to '{where}': evaluate with --image-root {where}.")
    return "\n".join(lines) + "\n", {"facts": facts}


@dataclass
class Table:
    """A CSV file, written as its records come; it gets its name when `files` closes well."""

    path: Path
    form: official.Form
    files: contextlib.ExitStack
    rows: int = 0
    captions: int = 0
    ids: set[str] = field(default_factory=set)
    digest: Any = field(default_factory=hashlib.sha256)
    file: IO[bytes] | None = None

    def add(self, record: RetrievalItem | Question) -> None:
        """Raises UserError for an id that occurred before, or a record that no file may hold."""
        if record.id in self.ids:
            raise UserError(f"{self.path}: the id '{record.id}' occurs more than once; rename an image.")
        self.ids.add(record.id)
        if isinstance(record, RetrievalItem):
            check_items([record], str(self.path))
        else:
            check_questions([record], str(self.path))
        rows = self.form.rows(record)
        data = official.text(self.form.columns, rows, header=self.file is None).encode()
        self.file = self.file or self.files.enter_context(atomic.writing(self.path))
        self.rows += len(rows)
        self.captions += len(stages.parts(record))
        self.digest.update(data)
        self.file.write(data)


def write(maker: NegbenchMaker) -> dict[str, Any]:
    """Writes OUT/dataset and OUT/unusable.jsonl; returns the facts that the card states. Raises UserError
    when not one item or question came out."""
    config, folder = maker.config, maker.dataset
    counts = {key: Counter[str]() for key in ("unusable", "dropped", "refused_paraphrases")}
    types, number = Counter[str](), 0
    with contextlib.ExitStack() as files:
        tables = {
            f"{stem}{end}": Table(folder / f"{stem}{end}.csv", form, files)
            for end in ("", "_rephrased")
            for stem, form in stages.FILES.items()
        }
        unusable = files.enter_context(atomic.writing(maker.folder.path / "unusable.jsonl"))
        for image, row in images(maker):
            number += 1
            counts["dropped"].update(image.notes)
            if config.source == "nano" and not (path := folder / image.path).exists():
                write_png(path, maker.media.frames(image.path)[0])
            found = stages.of_image(image, config)
            if problem := image.problem or ("" if found.keys() - {stages.ORIGINALS} else NOTHING):
                counts["unusable"][problem.partition(":")[0]] += 1
                line = {"id": image.id, "image": image.path, "problem": problem}
                unusable.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                continue
            others = stages.rephrased(found, row.texts) if row else {}
            refused = row.refused if row else []
            counts["refused_paraphrases"].update(why.partition(":")[0] for why in refused)
            for end, written in (("", found), ("_rephrased", others)):
                for stem, records in written.items():
                    for record in records:
                        tables[f"{stem}{end}"].add(record)
            asked = (*found.get("mcq", ()), *found.get("negmcq", ()))
            types.update(str(record.type) for record in asked if isinstance(record, Question))
        if not any(table.rows for stem, table in tables.items() if stem != stages.ORIGINALS):
            most = "; ".join(f"{n} x {reason}" for reason, n in counts["unusable"].most_common(3))
            raise UserError(f"Not one caption or question came out of {number} images: {most}.")
    for table in tables.values():
        if not table.rows:  # what an earlier command left is out of date
            table.path.unlink(missing_ok=True)
    return {
        "source": config.source,
        "form": config.form,
        "images": number,
        **{key: dict(counter.most_common()) for key, counter in counts.items()},
        "questions_by_type": dict(sorted(types.items())),
        "files": {
            table.path.name: {
                "rows": table.rows,
                "captions": table.captions,
                "sha256": table.digest.hexdigest(),
            }
            for table in tables.values()
            if table.rows
        },
        "listing": dict(maker.listing.notes),
    }


def images(maker: NegbenchMaker) -> Iterator[tuple[Concepts, Reworded | None]]:
    """Every wanted image in order, with its paraphrases where there are any; both of a pair with their
    source."""
    wanted = {maker.listing.records[index].id for index in maker.blocks.wanted}
    for shard in maker.blocks.numbers:
        rows = {}
        if maker.config.paraphrase:
            rows = {row.id: row for row in maker.rows("paraphrase", shard)}
        for image in maker.concepts(shard):
            if ((maker.config.source == "pairs" and image.source_id) or image.id) in wanted:
                yield image, rows.get(image.id)


def card(config: NegbenchConfig, facts: dict[str, Any]) -> str:
    """What the data set is, how it was made, what was lost on the way, as Markdown."""
    about = [UNSAID] * config.medical + [NANO] * (config.source == "nano")
    parts = {
        "Files": {k: f"{f['rows']} rows, SHA-256 {f['sha256'][:16]}" for k, f in facts["files"].items()},
        "Questions by type": facts["questions_by_type"],
        f"Unusable, of {facts['images']} images": facts["unusable"],
        "Dropped or noted": facts["dropped"],
        "Paraphrases refused": facts["refused_paraphrases"],
        "The source": facts["listing"],
    }
    return (
        "---\ntags: [negbench, negation, nein]\n---\n# NegBench data built with nein\n\n"
        f"Source: {config.source}; form: {config.form}; wording: {config.wording}. Layout: the CSV files of "
        "NegBench (Alhamoud et al., CVPR 2025), with the columns `id`, `source`, `template_K`, "
        "`positive_objects` and `negative_objects` added.\n"
        + "".join(f"\n{text}\n" for text in about)
        + "".join(section(title, counts) for title, counts in parts.items())
    )
