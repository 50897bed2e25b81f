"""From rows to a data set: every candidate's way, its split and hash; the official layout, and parquet."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.engine import atomic
from nein.generate.nein.algorithms import ACCEPTED
from nein.generate.nein.stages import NeinMaker

SPLITS = ("train", "val")
ROWS_PER_FILE = 2000  # of parquet


@dataclass(frozen=True)
class Way:
    """A candidate and what every stage said of it; `verdict`: "accepted", or the first objection."""

    source: Path
    source_sha256: str
    candidate: dict[str, Any]
    generated: dict[str, Any]
    match: dict[str, Any] | None
    ask: dict[str, Any] | None
    verdict: str

    @property
    def accepted(self) -> bool:
        return self.verdict == ACCEPTED

    def line(self) -> dict[str, Any]:
        """For candidates.jsonl; no times, no hosts."""
        facts = {k: v for k, v in self.generated.items() if k not in ("id", "verdict")}
        match, ask = (row and {k: v for k, v in row.items() if k != "id"} for row in (self.match, self.ask))
        fields = {"verdict": self.verdict, "generated_picture": facts, "match": match, "ask": ask}
        return {**self.candidate, **fields}

    def split(self, seed: int, share: float) -> str:
        """ "val" for `share` of all images, else "train": by the hash of their pixels, not by names."""
        digest = hashlib.sha256(f"nein-build/{seed}/{self.source_sha256}/split".encode()).digest()
        return "val" if int.from_bytes(digest[:8], "big") / 2**64 < share else "train"


@dataclass(frozen=True)
class Made:
    """What came out of a build. records: of the source images, of stage "clauses"; splits: accepted ones."""

    records: list[dict[str, Any]]
    ways: list[list[Way]]  # of every record
    splits: dict[str, list[Way]]


def read(maker: NeinMaker) -> Made:
    """Every wanted source image in order, with its candidates."""
    records, ways = [], []
    for shard in maker.blocks.numbers:
        generated, match, ask = (
            {row["id"]: row for row in maker.rows(stage, shard)} for stage in ("generate", "match", "ask")
        )
        for source, record in zip(maker.members(shard), maker.rows("clauses", shard), strict=True):
            found = []
            for candidate in record["candidates"]:
                rows = [stage.get(candidate["id"]) for stage in (generated, match, ask)]
                verdicts = (row["verdict"] for row in rows if row and row["verdict"] != ACCEPTED)
                verdict = next(verdicts, ACCEPTED)
                facts = source.path, record["sha256"], candidate, rows[0] or {}
                found.append(Way(*facts, match=rows[1], ask=rows[2], verdict=verdict))
            records.append(record)
            ways.append(found)
    wanted = len(maker.blocks.wanted)
    splits: dict[str, list[Way]] = {split: [] for split in SPLITS}
    for way in (way for found in ways[:wanted] for way in found if way.accepted):
        splits[way.split(maker.config.seed, maker.config.evaluation_share)].append(way)
    return Made(records[:wanted], ways[:wanted], splits)


def write(maker: NeinMaker, made: Made) -> None:
    """OUT/candidates.jsonl (per image what was asked and what is missing, then its candidates), and the
    formats that are asked for."""
    atomic.write_lines(maker.folder.path / "candidates.jsonl", _lines(made))
    if "official" in maker.config.formats:
        _write_official(maker, made.splits)
    if "parquet" in maker.config.formats:
        _write_parquet(maker, made.splits)


def _lines(made: Made) -> Iterator[dict[str, Any]]:
    for record, ways in zip(made.records, made.ways, strict=True):
        yield {"image": record["id"], **{k: record[k] for k in ("problem", "queried", "lost")}}
        yield from (way.line() for way in ways)


def official(maker: NeinMaker, way: Way) -> dict[str, str]:
    """The record of NeIn's annotation file, and the family of negation if the set has several."""
    keys = {"COCO": "source", "T_original": "caption", "T_negative": "negative", "T_generated": "generated"}
    keys |= {"NeIn": "id"} if maker.config.family_labels == ["plain"] else {"NeIn": "id", "family": "family"}
    return {key: way.candidate[name] for key, name in keys.items()}


def content_hash(maker: NeinMaker, splits: Mapping[str, Sequence[Way]]) -> str:
    """SHA-256 hex over split, record and pixels (of source and sample) of every sample, in order."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for way in splits[split]:
            row = [split, official(maker, way), way.source_sha256, way.generated["sha256"]]
            digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def _write_official(maker: NeinMaker, splits: Mapping[str, Sequence[Way]]) -> None:
    """OUT/dataset: `<split>.json`, `coco_for_<split>/`, `nein_<split>/`; other files there are removed.

    Source images are copied byte for byte, samples linked where the file system allows it. The annotation
    file of a split is written last.
    """
    root = maker.folder.path / "dataset"
    for split, ways in splits.items():
        sources = {f"{way.candidate['source']}{way.source.suffix.lower()}": way.source for way in ways}
        samples = {name: maker.image_path(name) for name in (way.generated["image"] for way in ways)}
        for folder, files in ((f"coco_for_{split}", sources), (f"nein_{split}", samples)):
            if not files:
                shutil.rmtree(root / folder, ignore_errors=True)
                continue
            for old in atomic.make_folder(root / folder).iterdir():
                if old.name not in files:
                    old.unlink()
            for name, path in files.items():
                _put(path, root / folder / name, link=files is samples)
        listing = root / f"{split}.json"
        if ways:
            atomic.write_json(listing, [official(maker, way) for way in ways])
        else:
            listing.unlink(missing_ok=True)


def _put(source: Path, target: Path, *, link: bool) -> None:
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    draft = target.with_name(f".{target.name}")
    draft.unlink(missing_ok=True)
    try:
        if not link:
            raise OSError
        os.link(source, draft)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, draft)
    draft.replace(target)


def _write_parquet(maker: NeinMaker, splits: Mapping[str, Sequence[Way]]) -> None:
    """OUT/hub/data/<split>-00000-of-00001.parquet, ...; columns as `nein eval --data hub:` reads them."""
    import datasets

    root = atomic.make_folder(maker.folder.path / "hub" / "data")
    written = set[Path]()
    for split, ways in splits.items():
        count = -(-len(ways) // ROWS_PER_FILE)
        for number in range(count):
            part = ways[number * ROWS_PER_FILE : (number + 1) * ROWS_PER_FILE]
            rows = [_parquet_row(maker, way) for way in part]
            kinds = {"seed": "int64", "match": "float32"}
            features = {
                name: datasets.Image()
                if name.endswith("_image")
                else datasets.Value(kinds.get(name, "string"))
                for name in rows[0]
            }
            path = root / f"{split}-{number:05d}-of-{count:05d}.parquet"
            draft = path.with_name(f".{path.name}")
            datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(draft)
            draft.replace(path)
            written.add(path)
    for old in root.iterdir():
        if old not in written:
            old.unlink()


def _parquet_row(maker: NeinMaker, way: Way) -> dict[str, Any]:
    facts, sample = way.candidate, maker.image_path(way.generated["image"])
    name = f"{facts['source']}{way.source.suffix.lower()}"
    return {
        **official(maker, way), "object": facts["object"], "other_object": facts["other"],
        "seed": facts["seed"], "match": None if way.match is None else way.match["cosine"],
        "source_image": {"bytes": way.source.read_bytes(), "path": name},
        "sample_image": {"bytes": sample.read_bytes(), "path": sample.name},
    }  # fmt: skip
