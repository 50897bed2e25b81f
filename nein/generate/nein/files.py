"""Writes the data set of `nein generate` in NeIn's official layout, with its card.

The rows of all stages become a line per candidate; the accepted ones are split into train and val.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nein.engine import atomic, images
from nein.engine.folder import Row
from nein.generate.config import BuildConfig
from nein.generate.maker import Maker, list_losses, make, make_section, tally
from nein.generate.nein import stages
from nein.generate.nein.stages import ACCEPTED, NOISE, Ask, Clauses, Generate, Match
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.loading.references import parse_reference
from nein.models import editor_choice, judges, references
from nein.reporting import contact_sheet
from nein.reporting.contact_sheet import GREEN, GREY, RED, Badge, Cell
from nein.wording.families import FAMILIES

#: Field of the annotation file, the official five and one of ours -> its name in candidates.jsonl.
FIELDS = {
    "COCO": "source", "T_original": "caption", "T_negative": "negative", "T_generated": "generated",
    "NeIn": "id", "family": "family",
}  # fmt: skip
EXAMPLES, EXAMPLE_SIDE = 4, 144  # of card.png: samples per verdict, pixels of an image's longer side


@dataclass(frozen=True)
class Outcome:
    """A candidate with its results in all stages."""

    line: Row  # of candidates.jsonl
    source: Path  # of the source image
    sha256: str  # of the source image's pixels

    @property
    def verdict(self) -> str:
        return self.line["verdict"]

    @property
    def image(self) -> str | None:
        """File name of the generated image; None if generation failed."""
        return self.line["generated_picture"]["image"]

    def split(self, seed: int, share: float) -> str:
        """The split: "val" for `share` of all images, else "train", by the hash of pixels, not by names."""
        digest = hashlib.sha256(f"nein-build/{seed}/{self.sha256}/split".encode()).digest()
        return "val" if int.from_bytes(digest[:8], "big") / 2**64 < share else "train"  # uniform in [0, 1)


class NeinMaker(Maker):
    """Makes a NeIn data set: `finish` collects the rows of all stages, then writes the files."""

    config: BuildConfig
    stages = (Clauses, Generate, Match, Ask)
    decides = (  # names of options
        "queried kept absent_below image_format match_above protocol seed shard_size batch_size dtype "
        "judge_dtype"
    )

    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config, config.shard_size)
        for kind in ("itm", "vqa"):
            reference = references.resolve(getattr(config.models, kind))
            if parse_reference(reference).kind == "name":
                raise UserError(f"--models.{kind} is '{reference}'; pass nano:NAME, a hub id or a folder.")
            judges.check(reference)
        self.listing = stages.load_sources(config)
        self.objects = stages.load_categories(config.objects, config.queried)
        self.editor = editor_choice.choose_editor(config.editor, config.preset, config.editor_options)
        self.records: list[Row] = []  # rows of stage "clauses", one per image; `collect` fills all of these
        self.lines: list[Row] = []  # of candidates.jsonl: every image, followed by its candidates
        self.outcomes: list[Outcome] = []  # of all candidates
        self.splits: dict[str, list[Outcome]] = {"train": [], "val": []}  # the accepted ones

    def identity(self, device: str) -> Row:
        objects = json_digest({"objects": self.objects})[:16]
        facts = {"families": self.config.family_labels, "objects": objects, "noise": NOISE}
        return {**super().identity(device), **facts, **self.editor.identity(), **vars(self.config.models)}

    def candidates(self, shard: int) -> list[Row]:
        return [candidate for row in self.rows("clauses", shard) for candidate in row["candidates"]]

    def image_path(self, name: str) -> Path:
        """File of a generated image."""
        return self.folder.path / "work" / "pictures" / name

    def finish(self) -> tuple[str, Row]:
        self.collect()
        atomic.write_lines(self.folder.path / "candidates.jsonl", self.lines)
        for split, accepted in self.splits.items():
            self._write_split(split, accepted)
        facts = self.facts()
        self.write_card(facts)
        stage_counts = ", ".join(f"{n} {stage}" for stage, n in facts["stages"].items())
        splits = ", ".join(f"{n} {split}" for split, n in facts["samples"].items())
        lines = [f"{facts['images']} images, {stage_counts} ({splits})."]
        lines += list_losses("rejected", facts["rejected"])
        lines += list_losses("images unusable", facts["image_problems"])
        lines += list_losses("missing candidates", facts["slots_without_candidate"])
        lines.append(f"Data set: {self.folder.path / 'dataset'}")
        entries = {"counts": facts["stages"], "samples": facts["samples"]}
        return "\n".join(lines) + "\n", {"data_sha256": facts["data_sha256"], **entries}

    def collect(self) -> None:
        """Reads the rows of all stages."""
        for shard in self.blocks.numbers:
            edits = {row["id"]: row for row in self.rows("generate", shard)}
            matches = {row["id"]: row for row in self.rows("match", shard)}
            answers = {row["id"]: row for row in self.rows("ask", shard)}
            # Shards are made whole: the last one may hold images beyond `--limit`.
            records = self.rows("clauses", shard)[: len(self.blocks.indices) - len(self.records)]
            self.records += records
            for source, record in zip(self.members(shard), records, strict=False):
                facts = {key: record[key] for key in ("problem", "queried", "lost")}
                self.lines.append({"image": record["id"], **facts})
                for candidate in record["candidates"]:
                    name = candidate["id"]
                    edit, match, ask = edits[name], matches.get(name), answers.get(name)
                    last = ask or match or edit  # a rejected candidate has no row of a later stage
                    line = {
                        **candidate,
                        "verdict": last["verdict"],
                        "generated_picture": _omit(edit, "id", "verdict"),
                        "match": None if match is None else _omit(match, "id"),
                        "ask": None if ask is None else _omit(ask, "id"),
                    }
                    self.lines.append(line)
                    self.outcomes.append(Outcome(line, source.path, record["sha256"]))
        for outcome in self.outcomes:
            if outcome.verdict == ACCEPTED:
                self.splits[outcome.split(self.config.seed, self.config.evaluation_share)].append(outcome)

    # --- the data set ----------------------------------------------------------------------
    def make_annotation(self, outcome: Outcome) -> dict[str, str]:
        """Record of NeIn's annotation file; with the family of negation if there are others than "plain"."""
        annotation = {key: outcome.line[field] for key, field in FIELDS.items()}
        if self.config.family_labels == ["plain"]:
            del annotation["family"]
        return annotation

    def content_hash(self) -> str:
        """SHA-256 hex over split, record and pixels (of source and sample) of every sample, in order."""
        digest = hashlib.sha256()
        for split, outcomes in self.splits.items():
            for outcome in outcomes:
                image_digest = outcome.line["generated_picture"]["sha256"]
                row = [split, self.make_annotation(outcome), outcome.sha256, image_digest]
                digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")
        return digest.hexdigest()

    def _write_split(self, split: str, outcomes: Sequence[Outcome]) -> None:
        """Writes one split in the official layout, `<split>.json` last; hard-links samples if possible."""
        root = atomic.make_folder(self.folder.path / "dataset")
        listing = root / f"{split}.json"
        sources, samples = root / f"coco_for_{split}", root / f"nein_{split}"  # folders of images
        listing.unlink(missing_ok=True)
        for folder in (sources, samples):
            shutil.rmtree(folder, ignore_errors=True)
            if outcomes:
                atomic.make_folder(folder)
        for outcome in outcomes:
            target = sources / f"{outcome.line['source']}{outcome.source.suffix.lower()}"
            if not target.exists():
                shutil.copyfile(outcome.source, target)
            image = self.image_path(str(outcome.image))
            try:
                os.link(image, samples / image.name)
            except OSError:  # another file system, or one without links
                shutil.copyfile(image, samples / image.name)
        if outcomes:
            atomic.write_json(listing, [self.make_annotation(outcome) for outcome in outcomes])

    # --- the card --------------------------------------------------------------------------
    #: Options that the card names.
    LISTED_OPTIONS = (
        "preset source objects queried kept absent_below families editor protocol image_format match_above "
        "seed evaluation_share"
    )

    def facts(self) -> Row:
        """Counts and models for the card, JSON-serializable; no times and no paths."""
        config, records, models = self.config, self.records, self.folder.models()
        accepted = [outcome.line for outcomes in self.splits.values() for outcome in outcomes]
        # A local folder's last part alone: its path would name the machine.
        models_used = {"itm": config.models.itm, "editor": config.editor, "vqa": config.models.vqa}
        names = {kind: Path(name).name if name[0] in "/~." else name for kind, name in models_used.items()}
        fingerprints = {kind: models[kind]["fingerprint"] for kind in names if kind in models}
        return {
            "data_sha256": self.content_hash(), "images": len(records),
            "drawn": self.listing.origin["kind"] == "nano",
            "samples": {split: len(outcomes) for split, outcomes in self.splits.items()},
            "source_images": {split: len({o.source for o in group}) for split, group in self.splits.items()},
            "image_problems": tally(row["problem"].partition(":")[0] for row in records if row["problem"]),
            "list_notes": dict(self.listing.notes),
            "queried": tally(row["fate"] for record in records for row in record["queried"]),
            "slots_without_candidate": tally(why for record in records for why in record["lost"]),
            "stages": {
                "candidates": len(self.outcomes),
                "generated": sum(outcome.line["match"] is not None for outcome in self.outcomes),
                "passed filter 1": sum(outcome.line["ask"] is not None for outcome in self.outcomes),
                "accepted": len(accepted),
            },
            "rejected": tally(outcome.verdict for outcome in self.outcomes if outcome.verdict != ACCEPTED),
            "families": tally(row["family"] for row in accepted),
            "templates": tally(FAMILIES[row["family"]].templates[row["template"]] for row in accepted),
            "objects": tally(row["object"] for row in accepted),
            "configuration": {key: getattr(config, key) for key in self.LISTED_OPTIONS.split()},
            "models": {k: {"name": names[k], "fingerprint": mark} for k, mark in fingerprints.items()},
        }  # fmt: skip

    def write_card(self, facts: Row) -> None:
        """Writes card.json, and the card as README.md and card.png."""
        dataset = self.folder.path / "dataset"
        atomic.write_json(self.folder.path / "card.json", facts)
        atomic.write_text(dataset / "README.md", format_card(facts))
        rows = []
        for verdict in (ACCEPTED, *facts["rejected"]):
            group = [outcome for outcome in self.outcomes if outcome.verdict == verdict]
            if not group:
                continue
            # The smallest hashes of the names: the same examples in every build.
            group.sort(key=lambda outcome: hashlib.sha256(outcome.line["id"].encode()).digest())
            cells: list[Cell] = []
            for outcome in group[:EXAMPLES]:
                cells += self._make_cells(outcome)
            cells += [Cell(np.full((8, 8, 3), 255, np.uint8))] * (2 * EXAMPLES - len(cells))  # rest: white
            rows.append(contact_sheet.Row(f"{verdict}: {len(group)}", "", cells))
        if rows:
            sheet = contact_sheet.draw(["source", "generated"] * EXAMPLES, rows, EXAMPLE_SIDE)
            for folder in (self.folder.path, dataset):
                atomic.write_bytes(folder / "card.png", sheet)

    def _make_cells(self, outcome: Outcome) -> list[Cell]:
        """Cells of the source image and of the generated one, or of its error."""
        if outcome.image is None:
            sample = Cell(None, outcome.line["generated_picture"]["error"], color=RED)
        else:
            badge = Badge(outcome.line["generated"], GREEN if outcome.verdict == ACCEPTED else RED)
            sample = Cell(images.decode(self.image_path(outcome.image)), badges=[badge])
        return [Cell(images.decode(outcome.source), badges=[Badge(outcome.line["caption"], GREY)]), sample]


build = functools.partial(make, NeinMaker)  # runs `nein generate`


def _omit(row: Row, *keys: str) -> Row:
    return {key: value for key, value in row.items() if key not in keys}


# --- the text of the card ------------------------------------------------------------------------
ABOUT = """# A NeIn data set

{total} samples ({splits}) for editing by negative instructions, built from captioned images after Bui et al.,
"NeIn: Telling What You Don't Want" (CVPR Workshops 2025). `T_negative` says of `NeIn`, a generated image,
what should not be in it; the source image `COCO` shows the result to reach. No source image is in both
splits.{drawn}

![Accepted and rejected samples](card.png)
"""
DRAWN = " Images are drawn scenes of 64x64 pixels and miniature models made and checked the samples."
FOOTER = """
Content: SHA-256 `{}` over records and pixels. The license of the source images applies to the samples.
"""


def format_card(facts: Row) -> str:
    """The card as Markdown, without front matter."""
    samples, problems = facts["samples"], facts["image_problems"]
    # "12 in `train` from 5 images", for every split that has samples
    splits = [f"{n} in `{k}` from {facts['source_images'][k]} images" for k, n in samples.items() if n]
    drawn = DRAWN if facts["drawn"] else ""
    about = ABOUT.format(total=sum(samples.values()), splits=", ".join(splits) or "none", drawn=drawn)
    usable = facts["images"] - sum(problems.values())
    origin = {k: f"{m['name']} ({m['fingerprint'][:12]})" for k, m in facts["models"].items()}
    parts = {  # title of a section -> its table
        "Counts": {"source images": facts["images"], "usable source images": usable, **facts["stages"]},
        "Why candidates were rejected": facts["rejected"],
        "Problems of images": problems | facts["list_notes"],
        "Why images gave fewer candidates than requested": facts["slots_without_candidate"],
        "Results of the requested objects": facts["queried"], "Families of negation": facts["families"],
        "Templates": facts["templates"], "Objects": facts["objects"],
        "How it was made": {k: str(v) for k, v in facts["configuration"].items()} | origin,
    }  # fmt: skip
    sections = "".join(make_section(title, counts) for title, counts in parts.items())
    return about + sections + FOOTER.format(facts["data_sha256"])
