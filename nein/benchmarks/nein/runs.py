"""The files of one run: one editor on one instruction track.

    OUT/<editor>/<track>/
      manifest.json            status, configuration, data, selection: see `nein.engine.folder`
      edit/000/000012.jsonl    a block of edits
      scores/<metric>/000/000012.jsonl         a block of scores
      scores/<metric>/000/000012.safetensors   beside it, of a corpus metric: what samples add to the whole
      images/<id>.png          the edits
      maps/<id>.png            intermediate pictures of an edit, where they were asked for
      corpus.json              FID of the selection, which takes minutes: kept for the same features
      figures.csv              figures with intervals

Blocks are the record. The identity of the folder decides the images, that of `scores/<metric>` one metric.
Stages, limits and metrics may be added at any time; another identity is refused with the key that differs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nein.engine import atomic, shapes
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row, runs_below
from nein.engine.shapes import Shape
from nein.metrics import METRICS
from nein.wording.languages.base import DEPTH, OTHERS

EDIT, SCORES = "edit", "scores"
#: In a row of scores: an endpoint gave no answer, and the same command asks it again.
AGAIN = "again"
EDIT_ROW = {
    "id": str, "image": (str, None), "error": (str, None), "source_id": str, "object": str,
    "instruction": str, "template": (int, None), "note?": str, "family?": str, "stays?": bool,
    "difficulty?": {f"{axis}?": int for axis in (OTHERS, DEPTH)},
}  # fmt: skip
_TEXTS = ("annotations", "source_images", "nein_images", "split", "records_sha256", "kind")
MANIFEST = {
    "config?": {"preset?": str, "protocol?": str, "align?": str, "article?": str, "threshold?": float},
    "data?": {**{f"{name}?": str for name in _TEXTS}, "columns?": ({}, None)},
    "selected?": {f"{EDIT}?": {"size": int, "records": [[int]]}},
}
_REPLIES: Shape = (None, {})
SCORE_ROW = {
    "id": str,
    "value": (float, None),
    "reason": str,
    "again?": bool,
    "detail?": {
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
_BLOCKS: Mapping[str, Shape] = {EDIT: EDIT_ROW, SCORES: SCORE_ROW}


def scores_of(metric: str) -> str:
    return f"{SCORES}/{metric}"


class RunDir(Folder):
    benchmark = "nein"
    facts = MANIFEST

    def __init__(self, out: Path, editor: str, track: str) -> None:
        super().__init__(out / editor / track, "edits", _BLOCKS)
        self.out, self.editor, self.track, self.label = out, editor, track, f"{editor}/{track}"

    def image_path(self, sample_id: str) -> Path:
        """Where the edit is. Raises UserError for an id that leads out of the folder."""
        return self.inside(self.path / "images" / f"{sample_id}.png")

    def sheet_path(self, sample_id: str) -> Path:
        return self.path / "maps" / f"{sample_id}.png"

    def feature_path(self, metric: str, block: int) -> Path:
        return self.block_path(scores_of(metric), block).with_suffix(".safetensors")

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Name -> identity of the metrics that this or an earlier command has begun."""
        return self.outputs(SCORES)

    def selection(self) -> Blocks:
        """The selected samples, cut into blocks. Raises UserError for a run of another version."""
        told = self.manifest().get("selected", {}).get(EDIT)
        if told is None:
            raise UserError(
                f"'{self.path}' does not say which samples it is of: another version wrote it. Give its nein "
                "eval again, which makes no picture and no score twice."
            )
        ranges = [range(first, end) for first, end in told["records"]]
        wanted: Sequence[int] = ranges[0] if len(ranges) == 1 else [*itertools.chain(*ranges)]
        return Blocks(max((part.stop for part in ranges), default=0), told["size"], wanted)

    def whole_metrics(self, blocks: Blocks) -> list[str]:
        """The metrics that are there for the whole selection, by this or an earlier command."""
        needed, begun = set(blocks.numbers), self.metrics()
        return [name for name in METRICS if name in begun and needed <= self.done(scores_of(name))]

    def chosen(self, output: str, number: int, blocks: Blocks) -> list[Row]:
        """The rows of the selected samples in a block. Raises UserError where it is not of these samples."""
        rows, first = self.read(output, number), number * blocks.size
        wanted = blocks.wanted if isinstance(blocks.wanted, range) else frozenset(blocks.wanted)
        places = [index - first for index in blocks.members(number) if index in wanted]
        if len(rows) <= max(places) or len({row["id"] for row in rows}) != len(rows):
            raise UserError(
                f"'{self.block_path(output, number)}' must have one row for each of its samples; remove it "
                "and give the same command again."
            )
        return [rows[place] for place in places]

    def read_edits(self) -> list[Row]:
        """The edits of the selection, in data order; of a run under way those that are there."""
        blocks = self.selection()
        there = self.done(EDIT)
        numbers = [number for number in blocks.numbers if number in there]
        return [row for number in numbers for row in self.chosen(EDIT, number, blocks)]

    def scores(self) -> Iterator[Row]:
        """The scores of the selection, in data order, by every metric that has them all: `id`, `metric` and
        what its block says. One at a time: a row with what judges said is a kilobyte."""
        blocks = self.selection()
        names = [name for name in self.whole_metrics(blocks) if METRICS[name].kind != "corpus"]
        for number in blocks.numbers:
            yield from self.scores_in(number, names, blocks)

    def scores_in(self, number: int, names: Sequence[str], blocks: Blocks) -> Iterator[Row]:
        """The same of one block."""
        columns = [self.chosen(scores_of(name), number, blocks) for name in names]
        for rows in zip(*columns, strict=True):
            for name, row in zip(names, rows, strict=True):
                if row["id"] != rows[0]["id"]:
                    path = self.block_path(scores_of(name), number)
                    raise UserError(
                        f"'{path}' has a row of '{row['id']}' where other metrics have '{rows[0]['id']}'; "
                        "remove it and give the same command again."
                    )
                yield {"id": row["id"], "metric": name, "detail": {}, **row}

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
    """Every run at or below `out`, ordered by editor, then track."""
    return [of_folder(Folder(path)) for path in runs_below(out)]


def identity_hash(identity: Mapping[str, Any]) -> str:
    """16 hex digits of SHA-256 over the canonical JSON of an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
