"""A run as its blocks say, read once: the edits of the selection, and the table of their scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nein.benchmarks.nein import paper_numbers
from nein.benchmarks.nein.runs import AGAIN, RunDir, find
from nein.datasets.nein.samples import TRACKS
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Row
from nein.reporting.scores import ScoreTable
from nein.wording.families import CELLS
from nein.wording.languages.base import DEPTH, OTHERS
from nein.wording.templates import NEGATIVE_TEMPLATES

REMOVALS = {"removal_vqa": "VQA", "removal_ovd": "OVD"}
REMOVAL = (*REMOVALS, "auc_removal")
#: Cells of minimal pairs in which Removal says nothing.
_NO_REMOVAL = frozenset(label for label, cell in CELLS.items() if cell != CELLS["denied, there"])
#: The negative instructions, as tables name them: "No X in the image."
TEMPLATES = [template.replace("{S}", "X") for template in NEGATIVE_TEMPLATES]
#: Columns of the table of scores, besides the usual. stays: Removal says nothing of the sample; before:
#: whether the judge saw the object in the unedited picture; failed: an endpoint gave no answer.
DETAILS = ("object", "template", "family", "stays", OTHERS, DEPTH, "before", "failed")


@dataclass
class Records:
    """One run. name: in tables. edits: of the selection, in data order. every: also scores of Removal that
    say nothing, because the object need not go."""

    run: RunDir
    name: str
    edits: list[Row]
    every: ScoreTable
    _last: tuple[int, dict[str, list[Row]]] = field(default=(-1, {}), repr=False)

    def __post_init__(self) -> None:
        self.track = self.run.track

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
    def table(self) -> ScoreTable:
        """The scores, those of Removal only where the object must go."""
        return asked(self.every)

    @cached_property
    def metrics(self) -> list[str]:
        return self.every.names("metric")

    def of(self, metric: str) -> ScoreTable:
        return self.table.where(metric=metric)

    def values(self, metric: str, every: bool = False) -> dict[str, float | None]:
        """Sample id -> value or None, of the samples that the metric says something of, or of every one."""
        rows = (self.every if every else self.table).where(metric=metric)
        shown = (None if value != value else value for value in rows.values.tolist())
        return dict(zip(rows.frame["id"].tolist(), shown, strict=True))

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
            for row in self.run.scores_in(number, self.metrics, self._blocks):
                rows.setdefault(row["id"], []).append(row)
            self._last = number, rows
        return self._last[1].get(sample, [])


def asked(every: ScoreTable) -> ScoreTable:
    """The scores without those of Removal where the object need not go."""
    nothing = every.frame["metric"].isin(REMOVAL) & every.frame["stays"].notna()
    return ScoreTable(every.frame[~nothing])


def read(run: RunDir, name: str = "") -> Records:
    """The records of one run, complete or under way. Raises UserError for a score without an edit."""
    edits = run.read_edits()
    by_id = {edit["id"]: edit for edit in edits}

    def rows() -> Iterator[Row]:
        for row in run.scores():
            if (edit := by_id.get(row["id"])) is None:
                raise UserError(
                    f"'{run.path}' has scores of the sample '{row['id']}' and no edit of it; remove its "
                    "scores and give its nein eval again."
                )
            yield of_edit(edit, run.track) | {
                "metric": row["metric"], "value": row["value"], "reason": row["reason"] or None,
                "before": row["detail"].get("present_before"), "failed": row.get(AGAIN),
            }  # fmt: skip

    return Records(run, name or run.editor, edits, ScoreTable.of(rows(), DETAILS))


def of_edit(edit: Row, track: str) -> Row:
    """What the table says of a sample."""
    stays = edit.get("stays") or edit.get("family") in _NO_REMOVAL
    return {
        "id": edit["id"], "source": edit["source_id"], "variant": track, "object": edit.get("object"),
        "template": None if edit.get("template") is None else TEMPLATES[edit["template"]],
        "family": edit.get("family"),
        "stays": stays or None, **edit.get("difficulty", {}),
    }  # fmt: skip


def load(paths: Sequence[Path]) -> tuple[list[Records], list[str]]:
    """(complete runs below the paths, labels of the others). Raises UserError: none, or of different data."""
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
    """(complete runs below the paths in the order of tables, labels of the others). Raises UserError."""
    found = below(paths)
    complete = [run for run in found if (run.manifest() or {}).get("status") == COMPLETE]
    unfinished = [run.label for run in found if run not in complete]
    if not complete:
        raise UserError(
            f"None of the {len(found)} runs there is complete ({', '.join(unfinished)}); "
            "run the stages edit and score first."
        )
    editors = list(paper_numbers.ROW_OF)  # as in the paper, then by name; the instruction under test first

    def order(run: RunDir) -> tuple[int, str, int]:
        place = editors.index(run.editor) if run.editor in editors else len(editors)
        return place, run.editor, TRACKS.index(run.track)

    return sorted(complete, key=order), unfinished


def below(paths: Sequence[Path]) -> list[RunDir]:
    """Every run at or below the paths, once. Raises UserError."""
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
    hashes = [run.manifest.get("data", {}).get("records_sha256") for run in loaded]
    for other, sha in zip(loaded, hashes, strict=True):
        if sha != hashes[0]:
            raise UserError(
                f"'{loaded[0].run.path}' and '{other.run.path}' were made on different data; {advice}."
            )
