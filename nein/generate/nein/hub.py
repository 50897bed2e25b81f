"""The data set as parquet files that `datasets.load_dataset` reads, images inside, with a hub card."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.generate.nein.dataset import Way, drafts_of, fields
from nein.generate.nein.work import Job

ROWS_PER_FILE = 2000


def check() -> None:
    """Raises UserError when the library that writes the files is missing."""
    if importlib.util.find_spec("datasets") is None:
        raise UserError(
            "--formats parquet needs 'datasets': pip install 'nein[hub]', or say --formats official."
        )


def write(job: Job, splits: Mapping[str, Sequence[Way]]) -> None:
    """OUT/hub/data/<split>-00000-of-00001.parquet, ...; columns as `nein eval --data hub:` reads them."""
    import datasets

    names = ["COCO", "T_original", "T_negative", "T_generated", "NeIn"]
    names += [*(["family"] if job.with_family else []), "object", "other_object"]
    features = datasets.Features({
        **dict.fromkeys(names, datasets.Value("string")), "seed": datasets.Value("int64"),
        "match": datasets.Value("float32"), "source_image": datasets.Image(),
        "sample_image": datasets.Image(),
    })  # fmt: skip
    root = atomic.make_folder(job.folder.path / "hub" / "data")
    written = set[Path]()
    for split, samples in splits.items():
        count = -(-len(samples) // ROWS_PER_FILE)
        for number in range(count):
            part = samples[number * ROWS_PER_FILE : (number + 1) * ROWS_PER_FILE]
            rows = [_row(job, way) for way in part]
            path = root / f"{split}-{number:05d}-of-{count:05d}.parquet"
            draft = drafts_of(job) / f"{os.getpid()}-{path.name}"
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


def _row(job: Job, way: Way) -> dict[str, Any]:
    source = job.sources.sources[way.index].path
    sample = job.picture(way.generated["image"])
    name = f"{way.candidate['source']}{source.suffix.lower()}"
    return {
        **fields(job, way),
        "object": way.candidate["object"],
        "other_object": way.candidate["other"],
        "seed": way.candidate["seed"],
        "match": None if way.match is None else way.match["cosine"],
        "source_image": {"bytes": source.read_bytes(), "path": name},
        "sample_image": {"bytes": sample.read_bytes(), "path": sample.name},
    }
