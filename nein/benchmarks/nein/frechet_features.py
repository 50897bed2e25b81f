"""The Frechet features a run has kept, for figures that need no picture any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import safetensors

from nein.benchmarks.nein.runs import RunDir


@dataclass(frozen=True)
class Features:
    """Rows of the scored samples of a run, in data order.

    edited, target  (N, D) float32.
    target_keys     Pixel hash of every target: equal keys, equal pictures.
    source_ids      The source image of every row.
    """

    ids: list[str]
    edited: np.ndarray
    target: np.ndarray
    target_keys: list[str]
    source_ids: list[str]

    def unique_targets(self) -> list[int]:
        """The first row of every distinct target: the reference set of the paper's protocol."""
        first: dict[str, int] = {}
        for index, key in enumerate(self.target_keys):
            first.setdefault(key, index)
        return list(first.values())


def read(run: RunDir) -> Features | None:
    """The features of the samples in edits.jsonl, or None when the run has none."""
    source_of = {row["id"]: row["source_id"] for row in run.read_edits()}
    place = {sample_id: index for index, sample_id in enumerate(source_of)}
    rows: dict[str, tuple[np.ndarray, np.ndarray, str]] = {}
    for path in sorted((run.path / "features").glob("*.safetensors")):
        with safetensors.safe_open(path, framework="numpy") as file:
            edited, target = file.get_tensor("edited"), file.get_tensor("target")
            about = file.metadata() or {}
        ids = [name for name in about.get("ids", "").split("\n") if name]
        for index, (name, key) in enumerate(zip(ids, about.get("target_keys", "").split(","), strict=False)):
            if name in place:
                rows[name] = (edited[index], target[index], key)
    if not rows:
        return None
    ids = sorted(rows, key=place.__getitem__)
    columns = list(zip(*(rows[name] for name in ids), strict=True))
    return Features(
        ids, np.stack(columns[0]), np.stack(columns[1]), list(columns[2]), [source_of[name] for name in ids]
    )
