"""One run, an editor on an instruction track: its files, and what they say, read once.

Files: docs/reference/files.md.

Blocks are the record. The identity of the folder decides the images, that of `scores/<metric>` one metric.
Stages, limits and metrics may be added at any time; another identity is refused with the key that differs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nein.benchmarks.nein import paper_numbers
from nein.datasets.nein.samples import TRACKS
from nein.engine import atomic, shapes
from nein.engine.blocks import SEGMENT, Blocks
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder, Row, runs_at, runs_below
from nein.engine.shapes import Shape
from nein.metrics import METRICS
from nein.models.references import slug
from nein.reporting.scores import ScoreTable
from nein.wording.families import CELLS, NEGATIVE_TEMPLATES
from nein.wording.languages.base import DEPTH, OTHERS

EDIT, SCORES = "edit", "scores"
#: In a row: an endpoint or the machine failed, and the same command tries again. In one of edits also: a
#: service declined the request; it was not sent, since the sample was not selected and edits cost money; the
#: picture came back with another aspect ratio.
AGAIN, REFUSED, SKIPPED, RESHAPED = "again", "refused", "skipped", "reshaped"
EDIT_ROW = {
    "id": str, "image": (str, None), "error": (str, None), "source_id": str, "object": str,
    "instruction": str, "template": (int, None), "note?": str, "family?": str, "stays?": bool,
    "orientation?": int, **{f"{flag}?": bool for flag in (AGAIN, REFUSED, SKIPPED, RESHAPED)},
    "difficulty?": {f"{axis}?": int for axis in (OTHERS, DEPTH)},
}  # fmt: skip
_TEXTS = ("annotations", "source_images", "nein_images", "split", "records_sha256", "kind")
MANIFEST = {
    "config?": {"preset?": str, "protocol?": str, "align?": str, "article?": str, "threshold?": float},
    "data?": {**{f"{name}?": str for name in _TEXTS}, "columns?": ({}, None)},
    "selected?": {f"{EDIT}?": {"size": int, "records": [[int, int]]}},
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


class RunDir(Folder):
    benchmark = "nein"
    facts = MANIFEST

    def __init__(self, out: Path, editor: str, track: str) -> None:
        super().__init__(out / editor / track, "edits", _BLOCKS)
        self.out, self.editor, self.track, self.label = out, editor, track, f"{editor}/{track}"

    @property
    def is_complete(self) -> bool:
        return self.manifest().get("status") == COMPLETE

    @staticmethod
    def image_name(index: int, sample_id: str) -> str:
        """Of the edit of a sample, whose place in the data is `index`."""
        return f"images/{index // SEGMENT:03d}/{sample_id}.png"

    def image_path(self, edit: Row) -> Path:
        """Where the picture of an edit is. Raises UserError for a place outside of the folder."""
        return self.inside(self.path / edit["image"])

    def part_path(self, block: int) -> Path:
        """Rows of a block of edits that is not whole, of an editor that costs money."""
        return self.block_path(EDIT, block).with_suffix(".part")

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


@dataclass
class Records:
    """One run. name: in tables. edits: of the selection, in data order. every: also scores of Removal that
    say nothing, because the object need not go."""

    run: RunDir
    name: str
    edits: list[Row]
    every: ScoreTable
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

    @property
    def data_sha256(self) -> str | None:
        return self.manifest.get("data", {}).get("records_sha256")

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
    def blocks(self) -> Blocks:
        return self.run.selection()

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

    def said(self, sample: str) -> list[Row]:
        """The rows of the scores of a sample, read again from its block, of which the last one is kept."""
        if sample not in self.place:
            return []
        number = self.blocks.wanted[self.place[sample]] // self.blocks.size
        if self._last[0] != number:
            rows: dict[str, list[Row]] = {}
            for row in self.run.scores_in(number, self.metrics, self.blocks):
                rows.setdefault(row["id"], []).append(row)
            self._last = number, rows
        return self._last[1].get(sample, [])


def asked(every: ScoreTable) -> ScoreTable:
    """The scores without those of Removal where the object need not go."""
    nothing = every.frame["metric"].isin(REMOVAL) & every.frame["stays"].notna()
    return ScoreTable(every.frame[~nothing])


def read(run: RunDir, scores: ScoreTable | None = None) -> Records:
    """The records of one run, complete or under way. scores: those that were read already. Raises UserError
    for a score without an edit."""
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
                "before": row["detail"].get("present_before"), "failed": row.get(AGAIN) or edit.get(AGAIN),
            }  # fmt: skip

    return Records(run, run.editor, edits, ScoreTable.of(rows(), DETAILS) if scores is None else scores)


def of_edit(edit: Row, track: str) -> Row:
    """What the table says of a sample."""
    stays = edit.get("stays") or edit.get("family") in _NO_REMOVAL
    return {
        "id": edit["id"], "source": edit["source_id"], "variant": track, "object": edit.get("object"),
        "template": None if edit.get("template") is None else TEMPLATES[edit["template"]],
        "family": edit.get("family"),
        "stays": stays or None, REFUSED: edit.get(REFUSED), **edit.get("difficulty", {}),
    }  # fmt: skip


def load(paths: Sequence[Path]) -> tuple[list[Records], list[str]]:
    """(complete runs below the paths, labels of the others). Raises UserError: none, or of different data."""
    there = below(paths)
    complete = [run for run in there if run.is_complete]
    loaded = in_order([read(run) for run in complete])
    check_same_data(loaded, "report them apart")
    return loaded, [run.label for run in there if run not in complete]


def below(paths: Sequence[Path]) -> list[RunDir]:
    """Every run at or below the paths, once. Raises UserError without any."""
    return [of_folder(Folder(path)) for path in runs_at(paths)]


def in_order(loaded: Sequence[Records]) -> list[Records]:
    """Runs as in tables, told apart by name: editors as in the paper, then as in their command, then by
    name; of an editor the instruction under test first."""
    editors = list(paper_numbers.ROW_OF)
    several = len({one.run.out.resolve() for one in loaded}) > 1
    for one in loaded:
        one.name = f"{one.run.out.name}/{one.run.editor}" if several else one.run.editor
    names = Counter(one.label for one in loaded)
    for one in loaded:
        if names[one.label] > 1:
            one.name = str(one.run.out / one.run.editor)

    seen = list(dict.fromkeys(one.name for one in loaded))

    def order(one: Records) -> tuple[int, str, int, int]:
        asked = [slug(name) for name in one.manifest.get("config", {}).get("editor", [])]
        known = [*editors, *asked, one.run.editor.partition("+")[0]]
        place = known.index(one.run.editor if one.run.editor in editors else known[-1])
        return place, one.run.editor, seen.index(one.name), TRACKS.index(one.track)

    return sorted(loaded, key=order)


def check_same_data(loaded: Sequence[Records], advice: str) -> None:
    """Raises UserError where two runs were made on different records."""
    for other in loaded[1:]:
        if other.data_sha256 != loaded[0].data_sha256:
            raise UserError(
                f"'{loaded[0].run.path}' and '{other.run.path}' were made on different data; {advice}."
            )
