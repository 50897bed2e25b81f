"""Reads the folder of a NeIn run, an editor on an instruction track: its rows, and their table of scores.

Parts: the rows in its files (docs/reference/files.md); `RunDir`, the folder; helpers of rows; questions about
the edits, for other harnesses; the order and names of several runs in reports.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import NotRequired

from nein.benchmarks.nein import paper_numbers
from nein.benchmarks.runner import SCORES_CSV, select_rows
from nein.datasets.harness import Question
from nein.datasets.nein import TRACKS
from nein.engine import atomic, images
from nein.engine.folder import MANIFEST_FIELDS, SEGMENT, Blocks, Folder, Row, collect_runs
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.metrics import METRICS
from nein.models.references import slugify
from nein.reporting.scores import ScoreTable
from nein.wording.families import CELLS, DEPTH, NEGATIVE_TEMPLATES, OTHERS

EDIT, SCORES, CORPUS = "edit", "scores", "corpus.json"  # outputs of the two stages, file of FID
NOT_EDITED, DECLINED = "not edited: ", "refused: "  # how the reason of an unscored sample begins
REMOVAL_JUDGES = {"removal_vqa": "VQA", "removal_ovd": "OVD"}  # metric -> its judge
REMOVAL_METRICS = (*REMOVAL_JUDGES, "auc_removal")
#: The negative instructions, as tables name them: "No X in the image."
TEMPLATES = [template.replace("{S}", "X") for template in NEGATIVE_TEMPLATES]


def score_output(metric: str) -> str:
    """The output, and folder, of the scores by one metric."""
    return f"{SCORES}/{metric}"


# --- rows of the files -----------------------------------------------------------------------
@dataclass
class EditRow:
    """One edit, as a line of edit/000/000012.jsonl."""

    id: str
    source_id: str  # the COCO image: intervals cluster by it
    object: str
    instruction: str
    template: int | None = None  # index in `families.NEGATIVE_TEMPLATES`
    family: str | None = None  # of negation
    stays: bool = False  # the object must stay: the right edit changes nothing
    difficulty: dict[str, int] = field(default_factory=dict)  # axis (`OTHERS`, `DEPTH`) -> level
    seed: int | None = None  # None: the editor takes none
    sample_sha256: str | None = None  # of the pixels that were sent
    image: str | None = None  # below the run's folder
    sha256: str | None = None  # of its pixels
    orientation: int = 1  # of an image made elsewhere, by EXIF
    reshaped: bool = False  # the image has another aspect ratio than the sample
    error: str | None = None  # why there is no image
    again: bool = False  # the service or the machine failed: the same command tries again
    refused: bool = False  # the service declined the request
    note: str = ""  # of the editor
    rewritten: str | None = None  # the instruction that the editor got, if a rewriter worded it

    @property
    def why_not(self) -> str:
        """Why there is no image, as the reason of its scores."""
        return f"{DECLINED if self.refused else NOT_EDITED}{self.error}"


@dataclass
class ScoreRow:
    """One score, as a line of scores/<metric>/000/000012.jsonl."""

    id: str
    value: float | None = None
    reason: str = ""  # why there is no value
    detail: dict[str, Any] = field(default_factory=dict)  # what the judge said
    again: bool = False  # an endpoint gave no answer
    metric: str = ""  # set by `RunDir.score_rows`, not in the file


@dataclass
class CorpusRow:
    """A metric of the whole selection (FID), as an entry of corpus.json."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    standard_error: float | None = None
    n: int = 0
    n_unscored: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    n_target: int = 0
    reference: str = ""  # "unique targets" or "per sample"
    clusters: int = 0  # source images
    columns: int = 0  # width of the features
    left_out: list[float] = field(default_factory=list)  # jackknife: the value without each group of sources
    sources: str = ""  # digest of the source images
    seal: str = ""  # digest of its inputs: with equal inputs, the metric is not computed again


# --- the folder ------------------------------------------------------------------------------
#: Columns of the table of scores, besides `nein.reporting.scores.COLUMNS`. The first six are of `EditRow`;
#: before: whether the judge saw the object in the unedited image; failed: an endpoint gave no answer;
#: refused: a service declined the edit; outcome: what a rewritten instruction says of the object, a key of
#: `nein.wording.denials.OUTCOMES`, or `UNREAD` if the rule cannot tell.
DETAILS = ("object", "template", "family", "stays", OTHERS, DEPTH, "before", "failed", "refused", "outcome")
UNREAD = "unread"
# Entries of the manifest that are checked when it is read, besides `MANIFEST_FIELDS`.
_CONFIG = dict.fromkeys(("preset", "protocol", "align", "article"), NotRequired[str])
_DATA = dict.fromkeys(("annotations", "split", "records_sha256", "kind"), NotRequired[str])
MANIFEST = {
    "config": NotRequired[atomic.record({**_CONFIG, "threshold": NotRequired[float]})],
    "data": NotRequired[atomic.record({**_DATA, "columns": NotRequired[Row | None]})],
}


class RunDir(Folder):
    """One run in OUT/<editor>/<track>. Its rows are read on first use and kept.

    The identity of the folder decides the images, that of the output `scores/<metric>` the scores by one
    metric. `name` is the editor in tables; `order_runs` changes it if two runs have the same.
    """

    # Explained at `Folder`.
    benchmark = "nein"
    content_name = "edits"
    row_types: ClassVar = {EDIT: EditRow, SCORES: ScoreRow}
    manifest_type: ClassVar = atomic.record({**MANIFEST_FIELDS, **MANIFEST})

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        parents = path.parents if len(path.parts) > 2 else path.absolute().parents  # <editor>, OUT
        self.out = parents[1]
        self.editor = self.name = parents[0].name
        self.track = path.name or path.absolute().name
        self._last_block: int | None = None  # that `replies` read
        self._last_rows: list[ScoreRow] = []

    @property
    def label(self) -> str:
        return f"{self.name}/{self.track}"

    @staticmethod
    def image_name(index: int, sample_id: str) -> str:
        """The file of a sample's edited image; index: the sample's position in the data."""
        return f"images/{index // SEGMENT:03d}/{sample_id}.png"

    def image_path(self, edit: EditRow) -> Path:
        """The image file of an edit. Raises UserError for a path outside of the folder."""
        return self.check_inside(self.path / str(edit.image))

    def feature_path(self, metric: str, block: int) -> Path:
        return self.block_path(score_output(metric), block).with_suffix(".safetensors")

    def pixels(self, number: int, ids: Sequence[str]) -> str:
        """12 hex digits: a digest of the edited images of these samples of a block."""
        edited = {row.id: row.sha256 for row in self.read(EDIT, number)}
        return json_digest({"images": [edited.get(name) for name in ids]})[:12]

    @cached_property
    def about(self) -> dict[str, Any]:
        """The manifest, read once."""
        return self.manifest()

    @cached_property
    def blocks(self) -> Blocks:
        """The selected samples, cut into blocks."""
        return Blocks.read(self.about, EDIT)

    @cached_property
    def edits(self) -> dict[str, EditRow]:
        """Sample -> edit, for the selected samples in data order; of an unfinished run, the finished ones."""
        done = self.list_blocks(EDIT)
        numbers = [number for number in self.blocks.numbers if number in done]
        return {row.id: row for row in select_rows(self, EDIT, self.blocks, numbers)}

    @cached_property
    def sources(self) -> dict[str, str]:
        """Sample id -> its source image."""
        return {name: edit.source_id for name, edit in self.edits.items()}

    def list_complete_metrics(self, blocks: Blocks) -> list[str]:
        """The metrics with scores of all these samples."""
        units = blocks.units
        complete = []
        for name in METRICS:
            output = score_output(name)
            are_full = (self.count_records(output, n, units) >= len(units.needed(n)) for n in units.numbers)
            if self.list_blocks(output).issuperset(units.numbers) and all(are_full):
                complete.append(name)
        return complete

    def score_rows(self, names: Sequence[str] | None = None, number: int | None = None) -> Iterator[ScoreRow]:
        """Yields the scores by these metrics in data order; lazily, since a row takes a kilobyte. names=None:
        the metrics of scores.csv; number: of one block; None: of all selected samples."""
        names = self.metrics if names is None else names
        numbers = None if number is None else [number]
        columns = [select_rows(self, score_output(name), self.blocks.units, numbers) for name in names]
        for rows in zip(*columns, strict=True):
            for name, row in zip(names, rows, strict=True):
                if row.id != rows[0].id:
                    others = f"where other metrics have '{rows[0].id}'; remove it and rerun the command."
                    raise UserError(f"'{self.path / score_output(name)}' has a row of '{row.id}' {others}")
                row.metric = name
                yield row

    def make_scores(self) -> ScoreTable:
        """The table of scores, from the blocks. Raises UserError: a score without an edit or out of range."""
        names = [name for name in self.list_complete_metrics(self.blocks) if METRICS[name].kind != "corpus"]
        return ScoreTable.from_rows(map(self._make_table_row, self.score_rows(names)), DETAILS)

    def _make_table_row(self, row: ScoreRow) -> Row:
        """The table row of a score."""
        if (edit := self.edits.get(row.id)) is None:
            advice = "delete its scores/ and rerun nein eval."
            raise UserError(f"'{self.path}' has scores of the sample '{row.id}' but no edit of it; {advice}")
        metric = METRICS[row.metric]
        low, high = metric.range if metric.span is not None else (-math.inf, math.inf)
        if row.value is not None and not low <= row.value <= high:
            raise UserError(
                f"'{self.path}' scores the sample '{row.id}' with {row.value} by {metric.name}, which is out "
                f"of range ({low:g} to {high:g}); delete its scores/ and rerun nein eval."
            )
        return {
            **label_edit(edit, self.track),
            "metric": row.metric,
            "value": row.value,
            "outcome": None if edit.rewritten is None else self._outcomes[edit.id],
            "reason": row.reason or None,
            "before": row.detail.get("present_before"),
            "failed": row.again or edit.again or None,
        }

    @cached_property
    def _outcomes(self) -> dict[str, str]:
        """Sample with a rewritten instruction -> what this says of the object (column "outcome")."""
        from nein.wording.denials import find_outcome

        edits = [edit for edit in self.edits.values() if edit.rewritten is not None]
        return {edit.id: find_outcome(edit.rewritten or "", edit.object)[0] or UNREAD for edit in edits}

    @cached_property
    def all_scores(self) -> ScoreTable:
        """All scores of a finished run, including Removal of objects that must stay; empty if unfinished."""
        path = self.path / SCORES_CSV
        return ScoreTable.read(path, DETAILS) if path.exists() else ScoreTable.from_rows((), DETAILS)

    @cached_property
    def table(self) -> ScoreTable:
        """The scores without Removal of objects that must stay."""
        return drop_stays(self.all_scores)

    @cached_property
    def metrics(self) -> list[str]:
        return self.all_scores.names("metric")

    def scores_by(self, metric: str) -> ScoreTable:
        return self.table.where(metric=metric)

    def values(self, metric: str, all_scores: bool = False) -> dict[str, float | None]:
        """Sample id -> value or None (unscored), from `table` or `all_scores`."""
        rows = (self.all_scores if all_scores else self.table).where(metric=metric)
        values = (None if math.isnan(value) else value for value in rows.values.tolist())
        return dict(zip(rows.frame["id"].tolist(), values, strict=True))

    def corpus(self) -> dict[str, CorpusRow]:
        """Metric -> its entry of corpus.json; {} without the file."""
        path = self.path / CORPUS
        return atomic.read_json(path, dict[str, CorpusRow]) if path.exists() else {}

    @cached_property
    def _block_of_sample(self) -> dict[str, int]:
        """Sample -> the block of its scores."""
        size = self.blocks.units.size
        return {name: index // size for name, index in zip(self.edits, self.blocks.indices, strict=False)}

    def replies(self, sample: str) -> list[ScoreRow]:
        """The scores of a sample with the judges' replies. The block that was read last is kept."""
        number = self._block_of_sample.get(sample)
        if number is not None and number != self._last_block:
            self._last_block, self._last_rows = number, [*self.score_rows(number=number)]
        return [row for row in self._last_rows if row.id == sample]


# --- helpers of rows -------------------------------------------------------------------------
def read_image(path: Path, role: str, plain: bool = False) -> np.ndarray | str:
    """(H, W, 3) uint8 RGB, or the reason why there is none. plain: as `images.decode` takes it."""
    try:
        return images.decode(path, plain=plain)
    except images.ImageError as error:
        return f"the {role} image is unusable: {error}"


def drop_stays(scores: ScoreTable) -> ScoreTable:
    """The scores without Removal of objects that must stay."""
    is_undefined = scores.frame["metric"].isin(REMOVAL_METRICS) & scores.frame["stays"].notna()
    return ScoreTable(scores.frame[~is_undefined])


#: Cells of minimal pairs for which Removal is undefined: all but the denied object that is there.
_NO_REMOVAL = frozenset(label for label, cell in CELLS.items() if cell != CELLS["denied, there"])


def label_edit(edit: EditRow, track: str) -> Row:
    """The columns of the table that describe a sample."""
    return {
        "id": edit.id,
        "source": edit.source_id,
        "variant": track,
        "object": edit.object,
        "template": None if edit.template is None else TEMPLATES[edit.template],
        "family": edit.family,
        "stays": edit.stays or edit.family in _NO_REMOVAL or None,
        "refused": edit.refused or None,
        **edit.difficulty,
    }


# --- questions for other harnesses -----------------------------------------------------------
YES_NO = ("yes", "no")  # the options A and B of a presence question


def question_key(run: RunDir, sample_id: str) -> str:
    """The key of the presence question about one edit."""
    return f"{run.editor}/{run.track}/{sample_id}"


def export_questions(run: RunDir) -> Iterator[Question]:
    """Yields, for each edit, whether the object is in its image. The answer is no, unless it must stay."""
    for edit in run.edits.values():
        if edit.image:
            yield Question(
                key=question_key(run, edit.id),
                read_image=run.image_path(edit).read_bytes,
                text=f"Does this image contain {edit.object}?",
                options=YES_NO,
                answer="A" if edit.stays else "B",
                category=edit.family or run.track,
            )


# --- several runs ----------------------------------------------------------------------------
def load_complete(paths: Sequence[Path]) -> list[RunDir]:
    """The complete runs below the paths. Raises UserError: none, or of different data."""
    return order_runs([run for run in map(RunDir, collect_runs(paths)) if run.is_complete])


def order_runs(runs: Sequence[RunDir], same_data: bool = True) -> list[RunDir]:
    """The runs in the order of tables, with distinct names: editors of the paper first, then in the order of
    their command, then by name; an editor's track under test first. Raises UserError for different data."""
    digests = [run.about.get("data", {}).get("records_sha256") for run in runs]
    for run, digest in zip(runs, digests, strict=True) if same_data else ():
        if digest != digests[0]:
            raise UserError(f"'{runs[0].path}' and '{run.path}' have different data; pass runs of one set.")
    # Distinct names: with the name of OUT if there are several; where that does not help, with its path.
    several = len({run.out.resolve() for run in runs}) > 1
    for run in runs:
        run.name = f"{run.out.name}/{run.editor}" if several else run.editor
    names = Counter(run.label for run in runs)
    for run in runs:
        if names[run.label] > 1:
            run.name = str(run.out / run.editor)
    names_in_order = [run.name for run in runs]

    def make_key(run: RunDir) -> tuple[int, str, int, int]:
        plain = run.editor.partition("+")[0]  # without a remedy
        of_command = [slugify(name) for name in run.about.get("config", {}).get("editor", [])]
        rank = [*paper_numbers.ROW_OF, *of_command, plain].index(plain)  # its first place; the last fits all
        return rank, run.editor, names_in_order.index(run.name), TRACKS.index(run.track)

    return sorted(runs, key=make_key)
