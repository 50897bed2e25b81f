"""From records to a data set: every candidate's way, split and hash; the official layout, and parquet."""

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
from nein.generate.nein import algorithms
from nein.generate.nein.config import STAGES
from nein.generate.nein.work import Job

SPLITS = ("train", "val")


@dataclass(frozen=True)
class Way:
    """A candidate and what every stage said of it; `verdict`: "accepted", or the first objection."""

    index: int  # of the source image in the list
    source_sha256: str
    candidate: dict[str, Any]
    generated: dict[str, Any]
    match: dict[str, Any] | None
    ask: dict[str, Any] | None
    verdict: str

    @property
    def accepted(self) -> bool:
        return self.verdict == algorithms.ACCEPTED

    def line(self) -> dict[str, Any]:
        """For candidates.jsonl; no times, no hosts."""
        facts = {k: v for k, v in self.generated.items() if k not in ("id", "verdict")}
        match, ask = (row and {k: v for k, v in row.items() if k != "id"} for row in (self.match, self.ask))
        fields = {"verdict": self.verdict, "generated_picture": facts, "match": match, "ask": ask}
        return {**self.candidate, **fields}


def ways(job: Job) -> Iterator[tuple[int, dict[str, Any], list[Way]]]:
    """(index, clauses record, candidates) of every wanted source image, in order."""
    wanted = min(len(job.sources.sources), job.config.limit or len(job.sources.sources))
    for shard in job.blocks.numbers:
        rows_of = {stage: job.rows(stage, shard) for stage in STAGES}
        by_id = {stage: {row["id"]: row for row in rows_of[stage]} for stage in STAGES[1:]}
        for index, row in zip(job.blocks.members(shard), rows_of["clauses"], strict=True):
            if index >= wanted:
                return
            candidates = []
            for candidate in row["candidates"]:
                rows = [by_id[stage].get(candidate["id"]) for stage in STAGES[1:]]
                verdicts = [r["verdict"] for r in rows if r]
                verdict = next((v for v in verdicts if v != algorithms.ACCEPTED), algorithms.ACCEPTED)
                generated = by_id["generate"][candidate["id"]]
                candidates.append(Way(index, row["sha256"], candidate, generated, rows[1], rows[2], verdict))
            yield index, row, candidates


def split_of(way: Way, seed: int, share: float) -> str:
    """ "val" for `share` of all pictures, else "train": by the hash of their pixels, whatever their names."""
    digest = hashlib.sha256(f"nein-build/{seed}/{way.source_sha256}/split".encode()).digest()
    return "val" if int.from_bytes(digest[:8], "big") / 2**64 < share else "train"


def fields(job: Job, way: Way) -> dict[str, str]:
    """The record of NeIn's annotation file, and the family of negation if the set has several."""
    c = way.candidate
    record = {
        "COCO": c["source"], "T_original": c["caption"], "T_negative": c["negative"],
        "T_generated": c["generated"], "NeIn": c["id"],
    }  # fmt: skip
    return {**record, "family": c["family"]} if job.with_family else record


def dataset_hash(job: Job, splits: Mapping[str, Sequence[Way]]) -> str:
    """SHA-256 hex over split, record and pixels (of source and sample) of every sample, in order."""
    digest = hashlib.sha256()
    for split in SPLITS:
        for way in splits.get(split, ()):
            row = [split, fields(job, way), way.source_sha256, way.generated["sha256"]]
            digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def write_candidates(job: Job, rows: Sequence[tuple[int, dict[str, Any], list[Way]]]) -> None:
    """OUT/candidates.jsonl: per image what was asked and what is missing, then its candidates."""

    def lines() -> Iterator[dict[str, Any]]:
        for _, record, candidates in rows:
            yield {"image": record["id"], **{k: record[k] for k in ("problem", "queried", "lost")}}
            for way in candidates:
                yield way.line()

    atomic.write_lines(job.folder.path / "candidates.jsonl", lines())


def write_official(job: Job, splits: Mapping[str, Sequence[Way]]) -> None:
    """OUT/dataset: `<split>.json`, `coco_for_<split>/`, `nein_<split>/`; other files there are removed.

    Source images are copied byte for byte, samples linked where the file system allows it. The annotation
    file of a split is written last. Two processes may do it at once.
    """
    root, drafts = job.folder.path / "dataset", job.drafts
    for split in SPLITS:
        samples = splits.get(split, ())
        sources = {w.candidate["source"]: job.sources.sources[w.index].path for w in samples}
        wanted = {
            f"coco_for_{split}": {f"{name}{path.suffix.lower()}": path for name, path in sources.items()},
            f"nein_{split}": {w.generated["image"]: job.picture(w.generated["image"]) for w in samples},
        }
        listing = root / f"{split}.json"
        if not samples:
            listing.unlink(missing_ok=True)
        for folder, files in wanted.items():
            target = root / folder
            if not files:
                shutil.rmtree(target, ignore_errors=True)
                continue
            atomic.make_folder(target)
            for old in target.iterdir():
                if old.name not in files:
                    old.unlink(missing_ok=True)
            for name, path in files.items():
                _put(path, target / name, drafts, link=folder.startswith("nein_"))
        if samples:
            atomic.write_json(listing, [fields(job, way) for way in samples])


def _put(source: Path, target: Path, drafts: Path, *, link: bool) -> None:
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    draft = drafts / f"{os.getpid()}-{target.name}"
    draft.unlink(missing_ok=True)
    try:
        if not link:
            raise OSError
        os.link(source, draft)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, draft)
    draft.replace(target)
    draft.unlink(missing_ok=True)  # there still where another process has just linked the same picture


ROWS_PER_FILE = 2000


def write_parquet(job: Job, splits: Mapping[str, Sequence[Way]]) -> None:
    """OUT/hub/data/<split>-00000-of-00001.parquet, ...; columns as `nein eval --data hub:` reads them."""
    import datasets

    names = ["COCO", "T_original", "T_negative", "T_generated", "NeIn"]
    names += [*(["family"] if job.with_family else []), "object", "other_object"]
    features = datasets.Features({
        **dict.fromkeys(names, datasets.Value("string")), "seed": datasets.Value("int64"),
        "match": datasets.Value("float32"), "source_image": datasets.Image(),
        "sample_image": datasets.Image(),
    })  # fmt: skip

    def row(way: Way) -> dict[str, Any]:
        c, source = way.candidate, job.sources.sources[way.index].path
        sample = job.picture(way.generated["image"])
        return {
            **fields(job, way), "object": c["object"], "other_object": c["other"], "seed": c["seed"],
            "match": None if way.match is None else way.match["cosine"],
            "source_image": {"bytes": source.read_bytes(), "path": f"{c['source']}{source.suffix.lower()}"},
            "sample_image": {"bytes": sample.read_bytes(), "path": sample.name},
        }  # fmt: skip

    root = atomic.make_folder(job.folder.path / "hub" / "data")
    written = set[Path]()
    for split, samples in splits.items():
        count = -(-len(samples) // ROWS_PER_FILE)
        for number in range(count):
            part = samples[number * ROWS_PER_FILE : (number + 1) * ROWS_PER_FILE]
            rows = [row(way) for way in part]
            path = root / f"{split}-{number:05d}-of-{count:05d}.parquet"
            draft = job.drafts / f"{os.getpid()}-{path.name}"
            datasets.Dataset.from_list(rows, features=features).to_parquet(draft)
            draft.replace(path)
            written.add(path)
    for old in root.iterdir():
        if old not in written:
            old.unlink(missing_ok=True)


def front_matter(splits: Mapping[str, Sequence[Way]], *, nano: bool) -> str:
    """The YAML head of a hub card: what the files are, and how many samples there are."""
    count = sum(map(len, splits.values()))
    bounds = (1000, 10_000, 100_000, 1_000_000)
    names = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M")
    size = next((name for name, bound in zip(names, bounds, strict=True) if count < bound), "n>1M")
    files = "\n".join(f"  - split: {s}\n    path: data/{s}-*" for s, rows in splits.items() if rows)
    tags = "[negation, image-editing, nein, nano]" if nano else "[negation, image-editing, nein]"
    return (
        "---\npretty_name: NeIn, built anew\nlanguage: [en]\ntask_categories: [image-to-image]\n"
        f"tags: {tags}\nsize_categories: [{size}]\nconfigs:\n- config_name: default\n"
        f"  data_files:\n{files}\n---\n\n"
    )
