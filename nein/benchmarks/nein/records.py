"""A run as its blocks say, read once: the edits of the selection, and beside each its scores."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nein.benchmarks.nein import paper_numbers
from nein.benchmarks.nein.runs import AGAIN, RunDir, find
from nein.datasets.nein.samples import TRACKS
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Row
from nein.statistics.estimates import Columns, cluster_columns
from nein.wording.families import CELLS

REMOVALS = {"removal_vqa": "VQA", "removal_ovd": "OVD"}
REMOVAL = (*REMOVALS, "auc_removal")
#: Cells of minimal pairs in which Removal says nothing.
_NO_REMOVAL = frozenset(label for label, cell in CELLS.items() if cell != CELLS["denied, there"])


@dataclass
class Records:
    """One run.

    name     What it is called in tables: its editor, with the folder in front where two folders are compared.
    edits    Of the selection, in data order.
    every    Metric -> the value of every edit, NaN where it has none, (n,) float64.
    reasons  Metric -> why edits have none.
    before   Metric -> whether the judge saw the object in the unedited picture: 1.0, 0.0, or NaN, (n,).
    unanswered  How many edits an endpoint did not answer about.
    """

    run: RunDir
    name: str
    edits: list[Row]
    every: dict[str, np.ndarray] = field(default_factory=dict)
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    before: dict[str, np.ndarray] = field(default_factory=dict)
    unanswered: int = 0
    _last: tuple[int, dict[str, list[Row]]] = field(default=(-1, {}), repr=False)

    @property
    def track(self) -> str:
        return self.run.track

    @property
    def label(self) -> str:
        return f"{self.name}/{self.track}"

    @cached_property
    def manifest(self) -> Mapping[str, Any]:
        return self.run.manifest() or {}

    @cached_property
    def place(self) -> dict[str, int]:
        """Sample id -> its place among the edits."""
        return {edit["id"]: place for place, edit in enumerate(self.edits)}

    def edit(self, sample: str) -> Row | None:
        """The edit of a sample, if there is one."""
        return self.edits[self.place[sample]] if sample in self.place else None

    @cached_property
    def sources(self) -> dict[str, str]:
        """Sample id -> its source image."""
        return {edit["id"]: edit["source_id"] for edit in self.edits}

    @cached_property
    def clusters(self) -> Columns:
        """The source images of the edits."""
        return cluster_columns([edit["source_id"] for edit in self.edits])

    @cached_property
    def must_go(self) -> np.ndarray:
        """Whether the object of an edit must go, (n,) bool: only there does Removal say something."""
        return np.array(
            [not (edit.get("stays") or edit.get("family") in _NO_REMOVAL) for edit in self.edits], dtype=bool
        )

    def asked(self, metric: str) -> np.ndarray:
        """The edits that the metric says something of, (n,) bool."""
        return self.must_go if metric in REMOVAL else np.ones(len(self.edits), dtype=bool)

    @cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """As `every`, NaN also where the metric says nothing."""
        return {metric: np.where(self.asked(metric), each, np.nan) for metric, each in self.every.items()}

    def values(self, metric: str) -> dict[str, float | None]:
        """Sample id -> value or None, of the samples that the metric says something of."""
        if metric not in self.numbers:
            return {}
        shown = [None if value != value else value for value in self.numbers[metric].tolist()]
        return dict(itertools.compress(zip(self.place, shown, strict=True), self.asked(metric)))

    @cached_property
    def whole(self) -> dict[str, Row]:
        """What corpus.json says of the metrics that have a value."""
        return {name: entry for name, entry in self.run.read_corpus().items() if entry["value"] is not None}

    def model(self, kind: str) -> Mapping[str, Any]:
        """What the manifest says about a loaded model: "editor", "vqa", ...; empty when it was not needed."""
        return self.manifest.get("models", {}).get(kind, {})

    # --- what judges said --------------------------------------------------------------------

    @cached_property
    def _blocks(self) -> Blocks:
        return self.run.selection()

    def said(self, sample: str) -> list[Row]:
        """The rows of the scores of a sample, read again from its block, of which the last one is kept."""
        if sample not in self.place:
            return []
        number = self._blocks.wanted[self.place[sample]] // self._blocks.size
        if self._last[0] != number:
            rows: dict[str, list[Row]] = {}
            for row in self.run.scores_in(number, list(self.every), self._blocks):
                rows.setdefault(row["id"], []).append(row)
            self._last = number, rows
        return self._last[1].get(sample, [])


def of_rows(run: RunDir, name: str, edits: list[Row], scores: Iterable[Row]) -> Records:
    """The records of edits, and of rows of scores that name their metric. Raises UserError for a score of a
    sample that has no edit."""
    made = Records(run, name, edits)
    silent = set()
    for row in scores:
        metric, place = row["metric"], made.place.get(row["id"])
        if place is None:
            raise UserError(
                f"'{run.path}' has scores of the sample '{row['id']}' and no edit of it; remove its scores "
                "and give its nein eval again."
            )
        if metric not in made.every:
            made.every[metric] = np.full(len(edits), np.nan)
            made.reasons[metric] = Counter()
        if row["value"] is None:
            made.reasons[metric][row["reason"]] += 1
        else:
            made.every[metric][place] = row["value"]
        if row.get(AGAIN):
            silent.add(row["id"])
        if (seen := row.get("detail", {}).get("present_before")) is not None:
            made.before.setdefault(metric, np.full(len(edits), np.nan))[place] = seen
    made.unanswered = len(silent)
    return made


def read(run: RunDir, name: str = "") -> Records:
    """The records of one run, complete or under way."""
    return of_rows(run, name or run.editor, run.read_edits(), run.scores())


def load(paths: Sequence[Path]) -> tuple[list[Records], list[str]]:
    """(complete runs at or below the paths, labels of the others). All must be on the same data.

    Raises UserError when there is none, or when two were made on different records.
    """
    complete, unfinished = finished(paths)
    several = len({run.out.resolve() for run in complete}) > 1
    loaded = [read(run, f"{run.out.name}/{run.editor}" if several else run.editor) for run in complete]
    names = Counter(run.label for run in loaded)
    for run in loaded:
        if names[run.label] > 1:
            run.name = str(run.run.out / run.run.editor)
    check_same_data(loaded, "report them apart")
    order = list(dict.fromkeys(run.name for run in loaded))
    loaded.sort(key=lambda run: (order.index(run.name), TRACKS.index(run.track)))
    return loaded, unfinished


def finished(paths: Sequence[Path]) -> tuple[list[RunDir], list[str]]:
    """(complete runs at or below the paths as tables have them, labels of the others). Raises UserError when
    there is none."""
    found = below(paths)
    complete = [run for run in found if (run.manifest() or {}).get("status") == COMPLETE]
    unfinished = [run.label for run in found if run not in complete]
    if not complete:
        raise UserError(
            f"None of the {len(found)} runs there is complete ({', '.join(unfinished)}); "
            "run the stages edit and score first."
        )
    return sorted(complete, key=table_order), unfinished


def below(paths: Sequence[Path]) -> list[RunDir]:
    """Every run at or below the paths, once. Raises UserError for a path without one."""
    runs: dict[Path, RunDir] = {}
    for path in paths:
        there = find(path)
        if not there:
            raise UserError(f"'{path}' holds no run (no manifest.json); give the folder passed to --out.")
        for run in there:
            runs.setdefault(run.path.resolve(), run)
    return list(runs.values())


def check_same_data(loaded: Sequence[Records], advice: str) -> None:
    """Raises UserError where two runs were made on different records."""
    for other in loaded[1:]:
        if _data(other) != _data(loaded[0]):
            raise UserError(
                f"'{loaded[0].run.path}' and '{other.run.path}' were made on different data; {advice}."
            )


def table_order(run: RunDir) -> tuple[int, str, int]:
    """Of runs in tables: editors as in the paper, the instruction under test first."""
    names = list(paper_numbers.ROW_OF)
    place = names.index(run.editor) if run.editor in names else len(names)
    return place, run.editor, TRACKS.index(run.track)


def shared(first: Records, second: Records) -> tuple[np.ndarray, np.ndarray]:
    """The places, among the edits of either run, of the samples that both have, (m,) int64 each."""
    both = [(place, second.place[name]) for name, place in first.place.items() if name in second.place]
    one, other = np.array(both, dtype=np.int64).reshape(-1, 2).T
    return one, other


def _data(run: Records) -> Any:
    return run.manifest.get("data", {}).get("records_sha256")
