"""`nein negbench generate`: from an image's objects to CSV files in the official layout, and their card.

OUT/dataset/          CSV files in the official layout, a card, and images that were drawn or made
OUT/unusable.jsonl    images that yield nothing, with the reason

Everything is written in one pass: memory holds the ids of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, ClassVar

from nein import metrics
from nein.datasets.negbench import drawn, official
from nein.datasets.negbench.records import Drawn, Files, Media, Question, RetrievalItem, check_records
from nein.datasets.negbench.sentences import Concepts
from nein.engine import atomic
from nein.engine.folder import Row
from nein.engine.images import write_png
from nein.engine.run import Executor
from nein.generate.config import NegbenchConfig
from nein.generate.maker import BuildFolder, Maker, llm_identity, losses, make, section
from nein.generate.negbench import sources, stages
from nein.generate.negbench.stages import Reworded
from nein.loading.errors import UserError
from nein.models import editor_choice, llm, references

NOTHING = "nothing absent or too few objects"
UNSAID = (
    "How the published medical questions were drawn is not known: sizes and sentences differ from theirs; "
    "tasks and columns do not."
)
NANO = "Scenes of the nano world: figures on them say nothing about the published sets."


def build(config: NegbenchConfig, executor: Executor) -> str | None:
    """`nein negbench generate`."""
    return make(NegbenchMaker, config, executor)


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
        check_records([record], str(self.path))
        rows = self.form.rows(record)
        data = official.text(self.form.columns, rows, header=self.file is None).encode()
        self.file = self.file or self.files.enter_context(atomic.writing(self.path))
        self.rows += len(rows)
        self.captions += len(record.texts)
        self.digest.update(data)
        self.file.write(data)


class NegbenchFolder(BuildFolder):
    row_types: ClassVar[Any] = {"work": Concepts, "work/paraphrase": Reworded}


class NegbenchMaker(Maker):
    """A build of NegBench. media: reads images by their path; dataset: the folder of finished files."""

    config: NegbenchConfig
    folder_type = NegbenchFolder
    decides = (
        "source form protocol concepts absent verify validate detector query threshold wording thing order "
        "captions_per_image asked mcq paraphrase affneg maker attempts steps seed shard_size dtype"
    )

    def __init__(self, config: NegbenchConfig) -> None:
        super().__init__(config, config.shard_size)
        is_pairs, verifies = config.source == "pairs", config.verify != "none"
        if config.asks_llm:  # models are looked at, not loaded: hours may pass before one is needed
            llm.check(str(config.llm.model))
        if is_pairs or verifies:
            metrics.check_reference(references.resolve(config.detector))
        if editor := config.made_by("editor"):
            editor_choice.choose_editor(editor, config.preset, {})
        needed = {
            stages.MakePairs: is_pairs,
            stages.ExtractConcepts: config.concepts == "llm" and not is_pairs,
            stages.Verify: verifies and not is_pairs,
            stages.Validate: config.validate,
            stages.Paraphrase: config.paraphrase,
        }
        self.stages = [stage for stage, is_needed in needed.items() if is_needed]
        self.dataset = self.folder.path / "dataset"
        self.root = sources.root(config)
        self.media: Media = Drawn(drawn.picture) if self.root is None else Files(self.root)
        self.listing = sources.load(config)

    def identity(self, device: str) -> Row:
        asked = llm_identity(self.config.llm) if self.config.asks_llm else None
        return {**super().identity(device), "llm": asked}

    def concepts(self, shard: int, before: str = "paraphrase") -> list[Concepts]:
        """The images of a shard as the stages before `before` left them."""
        names = [stage.name for stage in self.stages]
        done = names[: names.index(before)] if before in names else names
        if not done:
            return self.members(shard)
        return self.rows(done[-1], shard)

    def finish(self) -> tuple[str, Row]:
        facts = self.write()
        atomic.write_json(self.folder.path / "card.json", facts)
        atomic.write_text(self.dataset / "README.md", card(self.config, facts))
        lines = [f"{facts['images']} images."]
        lines += [f"  {f['rows']:6d} rows, {f['captions']} captions: {n}" for n, f in facts["files"].items()]
        for what, key in (("unusable", "unusable"), ("noted", "dropped"), ("refused", "refused_paraphrases")):
            lines += losses(what, facts[key])
        lines.append(f"Data set: {self.dataset}")
        if self.root is not None and self.config.source != "pairs":
            where = self.root
            lines.append(f"Image paths are relative to '{where}': evaluate with --image-root {where}.")
        return "\n".join(lines) + "\n", {"facts": facts}

    def write(self) -> Row:
        """Writes OUT/dataset and OUT/unusable.jsonl; returns the facts that the card states. Raises UserError
        when not one item or question came out."""
        config, number = self.config, 0
        counts = {key: Counter[str]() for key in ("unusable", "dropped", "refused_paraphrases")}
        types = Counter[str]()
        with contextlib.ExitStack() as files:
            tables = {
                f"{stem}{end}": Table(self.dataset / f"{stem}{end}.csv", form, files)
                for end in ("", "_rephrased")
                for stem, form in stages.FILES.items()
            }
            unusable = files.enter_context(atomic.writing(self.folder.path / "unusable.jsonl"))
            for image, row in self.images():
                number += 1
                counts["dropped"].update(image.notes)
                if config.source == "nano" and not (path := self.dataset / image.path).exists():
                    write_png(path, self.media.frames(image.path)[0])
                found = stages.of_image(image, config)
                if problem := image.problem or ("" if found.keys() - {stages.ORIGINALS} else NOTHING):
                    counts["unusable"][problem.partition(":")[0]] += 1
                    line = {"id": image.id, "image": image.path, "problem": problem}
                    unusable.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                    continue
                written = dict(found)
                if row is not None:
                    counts["refused_paraphrases"].update(why.partition(":")[0] for why in row.refused)
                    written |= stages.rephrased(found, row.texts)
                for stem, records in written.items():
                    for record in records:
                        tables[stem].add(record)
                asked = (*found.get("mcq", ()), *found.get("negmcq", ()))
                types.update(str(record.type) for record in asked if isinstance(record, Question))
            if not any(table.rows for stem, table in tables.items() if stem != stages.ORIGINALS):
                most = "; ".join(f"{n} x {reason}" for reason, n in counts["unusable"].most_common(3))
                raise UserError(f"Not one caption or question came out of {number} images: {most}.")
        written_files = {}
        for table in tables.values():
            if table.rows:
                facts = {"rows": table.rows, "captions": table.captions, "sha256": table.digest.hexdigest()}
                written_files[table.path.name] = facts
            else:  # what an earlier command left is out of date
                table.path.unlink(missing_ok=True)
        return {
            "source": config.source,
            "form": config.form,
            "images": number,
            **{key: dict(counter.most_common()) for key, counter in counts.items()},
            "questions_by_type": dict(sorted(types.items())),
            "files": written_files,
            "listing": dict(self.listing.notes),
        }

    def images(self) -> Iterator[tuple[Concepts, Reworded | None]]:
        """Every wanted image in order, with its paraphrases where there are any; both of a pair with their
        source."""
        wanted = {self.listing.records[index].id for index in self.blocks.wanted}
        for shard in self.blocks.numbers:
            rows = {}
            if self.config.paraphrase:
                rows = {row.id: row for row in self.rows("paraphrase", shard)}
            for image in self.concepts(shard):
                if ((self.config.source == "pairs" and image.source_id) or image.id) in wanted:
                    yield image, rows.get(image.id)


def card(config: NegbenchConfig, facts: Row) -> str:
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
