"""Stage 1: the images. Every sample gets an image or a sentence saying why there is none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.benchmarks.nein.runs import EDIT, SCORES, EditRow, RunDir, read_image
from nein.datasets.nein import Dataset, Sample
from nein.engine import atomic, images
from nein.engine.folder import Blocks, sample_seed
from nein.engine.stages import Model, Stage
from nein.models.editor_choice import ExternalEdits

log = logging.getLogger(__name__)
#: Pixels of a map in its sheet.
CELL = 144
#: How far an aspect ratio may be from another: editors round sides to multiples.
ASPECT = 1.05


def idle(mended: Sequence[EditRow], plain: Sequence[EditRow]) -> int:
    """How many images of a remedy that changed requests equal those of the editor without it; 0 where any
    image differs."""
    from nein.models.remedies.editors import AFFIRMED, AS_IT_IS

    before = {row.id: row.sha256 for row in plain}
    changed = (row for row in mended if not row.note.startswith((AFFIRMED, AS_IT_IS)))
    same = [row.sha256 == before[row.id] for row in changed if row.sha256 and before.get(row.id)]
    return len(same) if all(same) else 0


@dataclass(kw_only=True, eq=False)
class Edit(Stage):
    """Sample image and instruction -> edited image, by one editor.

    A block is of one sample where the editor makes them one by one (`EditorChoice.place`): what a service did
    not answer is asked for again alone, and a kill loses what is in work.

    maps           Also draw the editor's intermediate images.
    retry_refused  Also send again what a service refused.
    without        The run of the same editor without this one's remedy: the first block is compared with it.
    given          Images made elsewhere, which the editor stands for.
    """

    name, outputs, invalidates, cut = EDIT, (EDIT,), (SCORES,), True

    run: RunDir
    dataset: Dataset
    blocks: Blocks
    model: Model
    seed: int
    maps: bool = False
    retry_refused: bool = False
    without: RunDir | None = None
    given: Mapping[str, Path] = field(default_factory=dict)
    asks: Mapping[str, int] = field(default_factory=dict)

    def read(self, number: int) -> tuple[int, list[tuple[Sample, Any]]]:
        """The samples of a block, each with its image (H, W, 3) uint8, or why it has none."""
        samples = self.dataset.members(self.blocks.needed(number))
        return number, [(sample, read_image(sample.sample_path, "NeIn")) for sample in samples]

    def work(self, editor: Any, inputs: Any, missing: tuple[str, ...]) -> dict[str, list[EditRow]]:
        number, members = inputs
        readable = [(sample, image) for sample, image in members if not isinstance(image, str)]
        results = iter(self._results(editor, readable))
        rows: list[EditRow] = []
        made: list[tuple[Path, np.ndarray]] = []
        for index, (sample, image) in zip(self.blocks.needed(number), members, strict=True):
            rows.append(row := self._row(sample))
            if isinstance(image, str):
                row.error = image
                continue
            result, row.orientation = next(results)
            row.sample_sha256, row.note = images.pixel_hash(image), result.note
            row.seed = row.seed if getattr(editor, "seeded", True) else None
            if self.maps:
                write_sheet(self.run.sheet_path(sample.id), row.instruction, result)
            if result.image is None:
                row.error = result.error or "the editor gave no image and no reason"
                row.refused, row.again = result.refused, result.transient and not result.refused
                continue
            row.image, row.sha256 = self.run.image_name(index, sample.id), images.pixel_hash(result.image)
            (height, width), (high, wide) = result.image.shape[:2], image.shape[:2]
            row.reshaped = not 1 / ASPECT <= width * high / (height * wide) <= ASPECT
            made.append((self.run.image_path(row), result.image))
        atomic.parallel_map(lambda image: images.write_png(*image), made)
        if (
            self.without is not None
            and number == self.blocks.numbers[0]
            and number in self.without.done(EDIT)
        ):
            if count := idle(rows, self.without.read(EDIT, number)):
                said = "%s: the remedy did not act on the first block: its %d images are those of %s."
                log.warning(said, self.run.label, count, self.without.label)
        return {EDIT: rows}

    def _results(self, editor: Any, members: Sequence[Any]) -> list[tuple[editors.EditResult, int]]:
        """What came of each sample, and the EXIF orientation of an image that was made elsewhere."""
        if isinstance(editor, ExternalEdits):
            return [editor.read(sample.id) for sample, _ in members]
        requests = [
            editors.EditRequest(
                sample.id,
                image,
                sample.instruction(self.run.track),
                sample_seed(self.seed, sample.id),
                self.maps,
            )
            for sample, image in members
        ]
        results = editor.edit(requests) if requests else []
        if [result.id for result in results] != [request.id for request in requests]:
            raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
        return [(result, 1) for result in results]

    def _row(self, sample: Sample) -> EditRow:
        track = self.run.track
        return EditRow(
            sample.id,
            sample.source_id,
            sample.object,
            sample.instruction(track),
            template=sample.template if track == "negative" else None,
            family=sample.family,
            stays=sample.stays,
            difficulty=dict(sample.difficulty),
            seed=sample_seed(self.seed, sample.id),
        )

    def is_valid(self, output: str, number: int, rows: list[EditRow]) -> bool:
        """Nothing is worth another try, and no image or sheet has vanished, or is empty."""
        if any(row.again or (self.retry_refused and row.refused) for row in rows):
            return False
        made = [row for row in rows if row.image is not None]
        sheets = [self.run.sheet_path(row.id) for row in made if self.maps]
        return all(map(atomic.holds_something, [*map(self.run.image_path, made), *sheets]))

    def ids(self, records: range) -> list[str]:
        return [sample.id for sample in self.dataset.members(records)]

    def files(self, records: range) -> list[Path]:
        samples = self.dataset.members(records)
        made = [self.given[sample.id] for sample in samples if sample.id in self.given]
        return [*(sample.sample_path for sample in samples), *made]


def write_sheet(path: Path, instruction: str, result: editors.EditResult) -> None:
    """Draws the maps of `result` side by side, with its note and error; nothing when it has none."""
    if not result.maps:
        return
    # It loads matplotlib, which most runs never need.
    from nein.reporting.contact_sheet import RED, Cell, Row, draw

    columns, maps = list(result.maps), result.maps.values()
    cells = [Cell(np.repeat(array[..., None], 3, axis=2) if array.ndim == 2 else array) for array in maps]
    if result.image is None:
        columns.append("no image")
        cells.append(Cell(None, result.error or "", color=RED))
    sheet = draw(columns, [Row(f"{result.id}: {instruction}", result.note, cells)], size=CELL, smooth=False)
    atomic.write_bytes(path, sheet)
