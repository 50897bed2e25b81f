"""One run, an editor on an instruction track: its files, and what they say, read once.

Files: docs/reference/files.md.

Blocks are the record. The identity of the folder decides the images, that of `scores/<metric>` one metric.
Stages, limits and metrics may be added at any time; another identity is refused with the key that differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from nein.benchmarks.nein import paper_numbers
from nein.benchmarks.runner import selected, selected_blocks
from nein.datasets.nein.samples import TRACKS
from nein.engine import atomic
from nein.engine.atomic import Shape
from nein.engine.blocks import SEGMENT, SELECTION, Blocks
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder, Row, runs_at
from nein.loading.digests import json_digest
from nein.metrics import METRICS
from nein.models.references import slug
from nein.reporting.scores import ScoreTable
from nein.wording.families import CELLS, NEGATIVE_TEMPLATES
from nein.wording.scope import DEPTH, OTHERS

EDIT, SCORES = "edit", "scores"
#: In a row: an endpoint or the machine failed, and the same command tries again. In one of edits also: a
#: service declined the request; the picture came back with another aspect ratio.
AGAIN, REFUSED, RESHAPED = "again", "refused", "reshaped"
EDIT_ROW = {
    "id": str, "image": (str, None), "error": (str, None), "source_id": str, "object": str,
    "instruction": str, "template": (int, None), "note?": str, "family?": str, "stays?": bool,
    "orientation?": int, **{f"{flag}?": bool for flag in (AGAIN, REFUSED, RESHAPED)},
    "difficulty?": {f"{axis}?": int for axis in (OTHERS, DEPTH)},
}  # fmt: skip
_TEXTS = ("annotations", "source_images", "nein_images", "split", "records_sha256", "kind")
MANIFEST = {
    "config?": {"preset?": str, "protocol?": str, "align?": str, "article?": str, "threshold?": float},
    "data?": {**{f"{name}?": str for name in _TEXTS}, "columns?": ({}, None)},
    "selected?": {f"{EDIT}?": SELECTION},
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


NOT_EDITED, DECLINED = "not edited: ", "refused: "


def why_not(edit: Row) -> str:
    """Why an edit has no picture, as the reason of its scores."""
    return f"{DECLINED if edit.get(REFUSED) else NOT_EDITED}{edit['error']}"


def scores_of(metric: str) -> str:
    return f"{SCORES}/{metric}"


REMOVALS = {"removal_vqa": "VQA", "removal_ovd": "OVD"}
REMOVAL = (*REMOVALS, "auc_removal")
#: Cells of minimal pairs in which Removal says nothing.
_NO_REMOVAL = frozenset(label for label, cell in CELLS.items() if cell != CELLS["denied, there"])
#: The negative instructions, as tables name them: "No X in the image."
TEMPLATES = [template.replace("{S}", "X") for template in NEGATIVE_TEMPLATES]
#: Columns of the table of scores, besides the usual. stays: Removal says nothing of the sample; before:
#: whether the judge saw the object in the unedited picture; failed: an endpoint gave no answer; refused: a
#: service declined the edit.
DETAILS = ("object", "template", "family", "stays", OTHERS, DEPTH, "before", "failed", REFUSED)


class RunDir(Folder):
    """One run in OUT/<editor>/<track>. What its blocks hold is read when it is first wanted, and kept.

    name  The editor in tables: another one where several runs have it (`in_order`).
    """

    benchmark = "nein"
    content_name = "edits"
    row_types = _BLOCKS
    facts = MANIFEST

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        parents = path.parents if len(path.parts) > 2 else path.absolute().parents
        self.out, self.name = parents[1], parents[0].name
        self.editor, self.track = self.name, path.name or path.absolute().name
        self._last: tuple[int, dict[str, list[Row]]] = (-1, {})

    @property
    def label(self) -> str:
        return f"{self.name}/{self.track}"

    @staticmethod
    def image_name(index: int, sample_id: str) -> str:
        """Of the edit of a sample, whose place in the data is `index`."""
        return f"images/{index // SEGMENT:03d}/{sample_id}.png"

    def image_path(self, edit: Row) -> Path:
        """Where the picture of an edit is. Raises UserError for a place outside of the folder."""
        return self.inside(self.path / edit["image"])

    def sheet_path(self, sample_id: str) -> Path:
        return self.path / "maps" / f"{sample_id}.png"

    def feature_path(self, metric: str, block: int) -> Path:
        return self.block_path(scores_of(metric), block).with_suffix(".safetensors")

    def pixels(self, number: int, ids: Sequence[str]) -> str:
        """12 digits over the edited images of samples of a block."""
        edited = {row["id"]: row.get("sha256") for row in self.read(EDIT, number)}
        return json_digest({"images": [edited.get(name) for name in ids]})[:12]

    @cached_property
    def about(self) -> dict[str, Any]:
        """The manifest, as it was when it was first read."""
        return self.manifest()

    @cached_property
    def blocks(self) -> Blocks:
        """The selected samples, cut into blocks. Raises UserError for a run of another version."""
        if EDIT not in self.about.get("selected", {}):
            raise UserError(
                f"'{self.path}' does not say which samples it is of: another version wrote it. Give its nein "
                "eval again, which makes no picture and no score twice."
            )
        return selected_blocks(self.about, EDIT)

    def whole_metrics(self, blocks: Blocks) -> list[str]:
        """The metrics that have scores of all these samples."""
        units = blocks.units
        return [
            name
            for name in METRICS
            if self.done(output := scores_of(name)).issuperset(units.numbers)
            and all(self.records(output, n, units) >= len(units.needed(n)) for n in units.numbers)
        ]

    @cached_property
    def edits(self) -> list[Row]:
        """The edits of the selection, in data order; of a run under way those that are there."""
        done = self.done(EDIT)
        numbers = [number for number in self.blocks.numbers if number in done]
        return [*selected(self, EDIT, self.blocks, numbers)]

    @cached_property
    def index(self) -> dict[str, int]:
        """Sample id -> its index among the edits."""
        return {edit["id"]: index for index, edit in enumerate(self.edits)}

    def edit(self, sample: str) -> Row | None:
        """The edit of a sample, if there is one."""
        return self.edits[self.index[sample]] if sample in self.index else None

    @cached_property
    def sources(self) -> dict[str, str]:
        """Sample id -> its source image."""
        return {edit["id"]: edit["source_id"] for edit in self.edits}

    def score_rows(self, number: int | None = None) -> Iterator[Row]:
        """The scores of the selection (of one block), in data order, by every metric that has them all: `id`,
        `metric` and what its block says. One at a time: a row with a judge's replies is a kilobyte."""
        names = [name for name in self.whole_metrics(self.blocks) if METRICS[name].kind != "corpus"]
        numbers = None if number is None else [number]
        columns = [selected(self, scores_of(name), self.blocks.units, numbers) for name in names]
        for rows in zip(*columns, strict=True):
            for name, row in zip(names, rows, strict=True):
                if row["id"] != rows[0]["id"]:
                    raise UserError(
                        f"'{self.path / scores_of(name)}' has a row of '{row['id']}' where other metrics "
                        f"have '{rows[0]['id']}'; remove it and give the same command again."
                    )
                yield {"id": row["id"], "metric": name, "detail": {}, **row}

    @cached_property
    def every(self) -> ScoreTable:
        """All scores of a finished run, also those of Removal that say nothing, because the object need not
        go; of another one none."""
        path = self.path / "scores.csv"
        return ScoreTable.read(path, DETAILS) if path.exists() else ScoreTable.of((), DETAILS)

    def scored(self) -> ScoreTable:
        """`every`, from the blocks. Raises UserError for a score without an edit or out of its range."""

        def rows() -> Iterator[Row]:
            for row in self.score_rows():
                if (edit := self.edit(row["id"])) is None:
                    raise UserError(
                        f"'{self.path}' has scores of the sample '{row['id']}' and no edit of it; remove its "
                        "scores and give its nein eval again."
                    )
                metric, value = METRICS[row["metric"]], row["value"]
                low, high = metric.range if metric.span is not None else (-math.inf, math.inf)
                if value is not None and not low <= value <= high:
                    raise UserError(
                        f"'{self.path}' gives the sample '{row['id']}' {value} by {metric.name}, which is no "
                        "such score; remove its scores and give its nein eval again."
                    )
                yield of_edit(edit, self.track) | {
                    "metric": row["metric"], "value": row["value"], "reason": row["reason"] or None,
                    "before": row["detail"].get("present_before"),
                    "failed": row.get(AGAIN) or edit.get(AGAIN),
                }  # fmt: skip

        return ScoreTable.of(rows(), DETAILS)

    @cached_property
    def table(self) -> ScoreTable:
        """The scores, those of Removal only where the object must go."""
        return without_stays(self.every)

    @cached_property
    def metrics(self) -> list[str]:
        return self.every.names("metric")

    def of(self, metric: str) -> ScoreTable:
        return self.table.where(metric=metric)

    def values(self, metric: str, every: bool = False) -> dict[str, float | None]:
        """Sample id -> value or None, of the samples that the metric says something of, or of every one."""
        rows = (self.every if every else self.table).where(metric=metric)
        numbers = (None if value != value else value for value in rows.values.tolist())
        return dict(zip(rows.frame["id"].tolist(), numbers, strict=True))

    def corpus(self) -> dict[str, Row]:
        """Metric -> its figure of the whole; {} where there is none."""
        path = self.path / "corpus.json"
        corpus: dict[str, Row] = atomic.read_json(path, dict) if path.exists() else {}
        for metric, entry in corpus.items():
            fault = atomic.fault(entry, CORPUS_ENTRY, metric)
            if not fault and entry["value"] is not None:
                fault = atomic.fault(entry, _DISTANCE, metric)
            if fault:
                raise UserError(f"'{path}': {fault}; score the run again with nein eval.")
        return corpus

    def model(self, kind: str) -> Mapping[str, Any]:
        """The manifest's description of a model: "editor", "vqa", ...; empty when it was not needed."""
        found: Mapping[str, Any] = self.about.get("models", {}).get(kind, {})
        return found

    def replies(self, sample: str) -> list[Row]:
        """The rows of the scores of a sample, read again from its block, of which the last one is kept."""
        if sample not in self.index:
            return []
        number = self.blocks.wanted[self.index[sample]] // self.blocks.units.size
        if self._last[0] != number:
            rows: dict[str, list[Row]] = {}
            for row in self.score_rows(number):
                rows.setdefault(row["id"], []).append(row)
            self._last = number, rows
        return self._last[1].get(sample, [])


def without_stays(every: ScoreTable) -> ScoreTable:
    """The scores without those of Removal where the object need not go."""
    nothing = every.frame["metric"].isin(REMOVAL) & every.frame["stays"].notna()
    return ScoreTable(every.frame[~nothing])


def of_edit(edit: Row, track: str) -> Row:
    """What the table says of a sample."""
    stays = edit.get("stays") or edit.get("family") in _NO_REMOVAL
    return {
        "id": edit["id"], "source": edit["source_id"], "variant": track, "object": edit.get("object"),
        "template": None if edit.get("template") is None else TEMPLATES[edit["template"]],
        "family": edit.get("family"),
        "stays": stays or None, REFUSED: edit.get(REFUSED), **edit.get("difficulty", {}),
    }  # fmt: skip


def load(paths: Sequence[Path]) -> list[RunDir]:
    """The complete runs below the paths. Raises UserError: none, or of different data."""
    return in_order([run for path in runs_at(paths) if (run := RunDir(path)).about["status"] == COMPLETE])


def in_order(loaded: Sequence[RunDir], same_data: bool = True) -> list[RunDir]:
    """Runs as in tables, told apart by name: editors as in the paper, then as in their command, then by
    name; of an editor the instruction under test first. Raises UserError for runs of different data."""
    if same_data:
        check_same_data(loaded)
    editors = list(paper_numbers.ROW_OF)
    several = len({run.out.resolve() for run in loaded}) > 1
    for run in loaded:
        run.name = f"{run.out.name}/{run.editor}" if several else run.editor
    names = Counter(run.label for run in loaded)
    for run in loaded:
        if names[run.label] > 1:
            run.name = str(run.out / run.editor)
    seen = list(dict.fromkeys(run.name for run in loaded))

    def order(run: RunDir) -> tuple[int, str, int, int]:
        given = [slug(name) for name in run.about.get("config", {}).get("editor", [])]
        known = [*editors, *given, run.editor.partition("+")[0]]
        rank = known.index(run.editor if run.editor in editors else known[-1])
        return rank, run.editor, seen.index(run.name), TRACKS.index(run.track)

    return sorted(loaded, key=order)


def check_same_data(loaded: Sequence[RunDir]) -> None:
    """Raises UserError where two runs were made on different records."""
    data = [run.about.get("data", {}).get("records_sha256") for run in loaded]
    for run, sha256 in zip(loaded, data, strict=True):
        if sha256 != data[0]:
            raise UserError(
                f"'{loaded[0].path}' and '{run.path}' were made on different data; name them one by one."
            )
