"""The files of one run: one editor on one instruction track.

    OUT/<editor>/<track>/
      manifest.json            status, configuration, data, counts: see `nein.engine.folder`
      edit/000/000012.jsonl    a block of edits
      scores/<metric>/000/000012.jsonl         a block of scores
      scores/<metric>/000/000012.safetensors   beside it, of a corpus metric: what samples add to the whole
      images/<id>.png          the edits
      maps/<id>.png            intermediate pictures of an edit, where they were asked for
      edits.jsonl              canonical: the selection in data order
      scores.jsonl             canonical: a line per sample and metric
      corpus.json              figures that exist only for the whole (FID)
      figures.csv              figures with intervals

The identity of the folder decides the images, that of `scores/<metric>` one metric. Stages, limits and
metrics may be added to a run at any time; a change of an identity is refused with the key that differs.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nein.engine import atomic, shapes
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.engine.shapes import Shape
from nein.wording.languages.base import DEPTH, OTHERS

EDIT, SCORES = "edit", "scores"
#: In a row of scores: an endpoint gave no answer, and the same command asks it again.
AGAIN = "again"
#: What edits.jsonl, scores.jsonl and corpus.json hold, as far as it is read back.
EDIT_ROW = {
    "id": str, "image": (str, None), "error": (str, None), "source_id": str, "object": str,
    "instruction": str, "template": (int, None), "note?": str, "family?": str, "stays?": bool,
    "difficulty?": {f"{axis}?": int for axis in (OTHERS, DEPTH)},
}  # fmt: skip
_TEXTS = ("annotations", "source_images", "nein_images", "split", "records_sha256", "kind")
MANIFEST = {
    "config?": {"preset?": str, "protocol?": str, "align?": str, "article?": str, "threshold?": float},
    "counts?": {"unanswered?": int},
    "data?": {**{f"{name}?": str for name in _TEXTS}, "columns?": ({}, None)},
}
_REPLIES: Shape = (None, {})
SCORE_ROW = {
    "id": str,
    "metric": str,
    "value": (float, None),
    "reason": str,
    "again?": bool,
    "detail": {
        "p_yes?": (float, None), "p_no?": (float, None), "score?": float, "before?": _REPLIES,
        "after?": _REPLIES, "question?": (str, None), "present_before?": (bool, None),
    },
}  # fmt: skip
_ENDS = {f"{name}?": (float, None) for name in ("low", "high", "standard_error", "n", "clusters")}
CORPUS_ENTRY = {"value": (float, None), "reasons": {}, "n_unscored": int, **_ENDS}
#: What an entry with a value has besides.
_DISTANCE = {
    "n": int, "clusters": int, "columns": int, "left_out": [float], "reference": str, "sources": str,
}  # fmt: skip
_SCORE = {"id": str, "value": (float, None), "reason": str, "again?": bool, "detail?": dict}
_BLOCKS: Mapping[str, Shape] = {EDIT: EDIT_ROW, SCORES: _SCORE}


def scores_of(metric: str) -> str:
    """The output of a metric."""
    return f"{SCORES}/{metric}"


class RunDir(Folder):
    """The folder OUT/<editor>/<track>."""

    benchmark = "nein"
    facts = MANIFEST

    def __init__(self, out: Path, editor: str, track: str) -> None:
        super().__init__(out / editor / track, "edits", _BLOCKS)

    @property
    def out(self) -> Path:
        return self.path.parents[1]

    @property
    def editor(self) -> str:
        return self.path.parent.name

    @property
    def track(self) -> str:
        return self.path.name

    @property
    def label(self) -> str:
        return f"{self.editor}/{self.track}"

    def image_path(self, sample_id: str) -> Path:
        return self.path / "images" / f"{sample_id}.png"

    def sheet_path(self, sample_id: str) -> Path:
        """Where the intermediate pictures of an edit are drawn, when that was asked for."""
        return self.path / "maps" / f"{sample_id}.png"

    def feature_path(self, metric: str, block: int) -> Path:
        return self.block_path(scores_of(metric), block).with_suffix(".safetensors")

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Name -> identity of the metrics that this or an earlier command has begun."""
        return self.outputs(SCORES)

    def read_edits(self) -> list[Row]:
        return atomic.read_lines(self.path / "edits.jsonl", EDIT_ROW)

    def scores(self, places: dict[str, int] | None = None) -> Iterator[Row]:
        """One at a time: rows with what judges said are a kilobyte each.

        places  Is given, of every sample, the byte at which its rows begin: they stand one after the other.
        """
        for start, row in atomic.placed_lines(self.path / "scores.jsonl", SCORE_ROW):
            if places is not None:
                places.setdefault(row["id"], start)
            yield row

    @contextlib.contextmanager
    def scores_at(self, places: Mapping[str, int]) -> Iterator[Callable[[str], list[Row]]]:
        """What gives the rows of a sample; `places` and shapes are as `scores` has found them."""
        path, read = self.path / "scores.jsonl", atomic.reader(dict)
        name = f"'{path}'"
        ends = dict(itertools.pairwise([*places.values(), path.stat().st_size]))
        with path.open("rb") as file:

            def rows(sample: str) -> list[Row]:
                if sample not in places:
                    return []
                start = places[sample]
                file.seek(start)
                lines = file.read(ends[start] - start).splitlines(keepends=True)
                every = (read(line, name) for line in lines if not line.isspace())
                return [row for row in every if row["id"] == sample]

            yield rows

    def read_corpus(self) -> dict[str, Row]:
        """Metric -> its figure of the whole; {} where there is none."""
        path = self.path / "corpus.json"
        corpus: dict[str, Row] = atomic.read_json(path, dict) if path.exists() else {}
        for metric, entry in corpus.items():
            said = shapes.fault(entry, CORPUS_ENTRY, metric)
            if not said and entry["value"] is not None:
                said = shapes.fault(entry, _DISTANCE, metric)
            if said:
                raise UserError(f"'{path}': {said}; score the run again with nein eval.")
        return corpus


def of_folder(folder: Folder) -> RunDir:
    """The run that lies in `folder`."""
    return RunDir(folder.path.parents[1], folder.path.parent.name, folder.path.name)


def find(out: Path) -> list[RunDir]:
    """Every run below `out` (an output folder, or an editor's folder in it), or the one that `out` itself is;
    ordered by editor, then track."""
    manifests = sorted(out.glob("*/*/manifest.json")) or sorted(out.glob("*/manifest.json"))
    if (out / "manifest.json").is_file():
        manifests = [out / "manifest.json"]
    return [RunDir(path.parents[2], path.parents[1].name, path.parent.name) for path in manifests]


def identity_hash(identity: Mapping[str, Any]) -> str:
    """16 hex digits of SHA-256 over the canonical JSON of an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
