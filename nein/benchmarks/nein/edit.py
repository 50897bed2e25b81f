"""Stage 1: the images. Every sample gets a picture or a sentence saying why there is none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.benchmarks.nein.runs import AGAIN, EDIT, REFUSED, RESHAPED, SCORES, RunDir
from nein.datasets.nein.samples import Dataset, Sample
from nein.engine import atomic, images
from nein.engine.blocks import Blocks, sample_seed
from nein.engine.folder import Row
from nein.engine.stages import Functions, Model, Stage
from nein.models.editor_choice import ExternalEdits

log = logging.getLogger(__name__)
#: Pixels of a map in its sheet.
CELL = 144
UNUSABLE = "the NeIn image is unusable"
#: How far an aspect ratio may be from another: editors round sides to multiples.
ASPECT = 1.05


@dataclass(frozen=True)
class Member:
    """A sample of a block: its place in the data, and its image, or why it has none."""

    index: int
    sample: Sample
    image: Any


def idle(mended: Sequence[Row], plain: Sequence[Row]) -> int:
    """How many pictures of a remedy that changed requests equal those of the editor without it; 0 where any
    picture differs."""
    from nein.models.remedies.editors import AFFIRMED, AS_IT_IS

    changed = [row for row in mended if not (row.get("note") or "").startswith((AFFIRMED, AS_IT_IS))]
    before = {row["id"]: row.get("sha256") for row in plain}
    same = [
        row["sha256"] == before[row["id"]] for row in changed if row.get("sha256") and before.get(row["id"])
    ]
    return len(same) if all(same) else 0


def editing(
    run: RunDir, dataset: Dataset, blocks: Blocks, editor: Model, *, run_seed: int, maps: bool = False,
    retry_refused: bool = False, without: RunDir | None = None,
) -> Stage:  # fmt: skip
    """The stage that makes the images of a run.

    blocks         Of one sample each where the editor makes them one by one (`EditorChoice.place`): what a
                   service did not answer is asked for again alone, and a kill loses what is in work.
    maps           Also draw the editor's intermediate images.
    retry_refused  Also send again what a service refused.
    without        The run of the same editor without this one's remedy: the first block is compared with it.
    """
    compared: list[int] = []  # the block that was compared with the run without the remedy

    def vanished(index: int, row: Row) -> bool:
        """Whether a picture or sheet is not on disk, or empty; or what could not be read can be read now."""
        if row["image"] is None:
            unread = (row["error"] or "").startswith(UNUSABLE)
            return unread and not isinstance(_decode(dataset.samples[index]), str)
        paths = [run.image_path(row), *([run.sheet_path(row["id"])] if maps else [])]
        return not all(map(atomic.holds_something, paths))

    def read(number: int) -> tuple[int, list[Member]]:
        indices = blocks.needed(number)
        samples = zip(indices, dataset.members(indices), strict=True)
        return number, [Member(index, sample, _decode(sample)) for index, sample in samples]

    def work(editor: Any, block: Any, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        number, members = block
        rows = [_row(item.sample, run.track, run_seed) for item in members]
        sent = [k for k, item in enumerate(members) if not isinstance(item.image, str)]
        for row, item in zip(rows, members, strict=True):
            row["error"] = item.image if isinstance(item.image, str) else None
        pictures: list[tuple[Path, np.ndarray]] = []
        results = _edited(editor, [members[k] for k in sent], run, run_seed, maps)
        for k, (result, turned) in zip(sent, results, strict=True):
            item, row = members[k], rows[k]
            row |= {"sample_sha256": images.pixel_hash(item.image), "note": result.note}
            row |= {} if getattr(editor, "seeded", True) else {"seed": None}
            if maps:
                write_sheet(run.sheet_path(item.sample.id), row["instruction"], result)
            if result.image is None:
                row["error"] = result.error or "the editor gave no picture and no reason"
                row |= {REFUSED: True} if result.refused else {AGAIN: True} if result.transient else {}
                continue
            height, width = result.image.shape[:2]
            row |= {"image": run.image_name(item.index, item.sample.id), "width": width, "height": height}
            row["sha256"] = images.pixel_hash(result.image)
            row |= {"orientation": turned} if turned != 1 else {}
            row |= {RESHAPED: True} if _reshaped(result.image, item.image) else {}
            pictures.append((run.image_path(row), result.image))
        atomic.parallel_map(lambda picture: images.write_png(*picture), pictures)
        if without is not None and not compared and number in without.done(EDIT):
            compared.append(number)
            if count := idle(rows, without.read(EDIT, number)):
                log.warning(
                    "%s: the remedy did not act on the first block: its %d pictures are those of %s.",
                    run.label, count, without.label,
                )  # fmt: skip
        return {EDIT: rows}

    def usable(output: str, number: int, rows: list[Row]) -> bool:
        return not any(
            row.get(AGAIN) or (retry_refused and row.get(REFUSED)) or vanished(index, row)
            for index, row in zip(blocks.members(number), rows, strict=False)
        )

    def ids(records: range) -> list[str]:
        return [sample.id for sample in dataset.members(records)]

    def files(records: range) -> list[Path]:
        return [sample.sample_path for sample in dataset.members(records)]

    return Functions(
        EDIT, (EDIT,), blocks, read, work, editor, usable,
        invalidates=(SCORES,), ids=ids, files=files, cut=True,
    )  # fmt: skip


def _edited(
    editor: Any, members: Sequence[Member], run: RunDir, run_seed: int, maps: bool
) -> list[tuple[editors.EditResult, int]]:
    """What came of each member, and the EXIF orientation of an image that was made elsewhere."""
    if isinstance(editor, ExternalEdits):
        return [editor.read(member.sample.id) for member in members]
    requests = []
    for member in members:
        seed = sample_seed(run_seed, member.sample.id)
        rest = member.sample.instruction(run.track), seed
        requests.append(editors.EditRequest(member.sample.id, member.image, *rest, maps))
    results = editor.edit(requests) if requests else []
    if [result.id for result in results] != [request.id for request in requests]:
        raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
    return [(result, 1) for result in results]


def _row(sample: Sample, track: str, run_seed: int) -> dict[str, Any]:
    return {
        "id": sample.id, "source_id": sample.source_id, "object": sample.object,
        **({"family": sample.family} if sample.family else {}),
        **({"stays": True} if sample.stays else {}),
        **({"difficulty": dict(sample.difficulty)} if sample.difficulty else {}),
        "instruction": sample.instruction(track),
        "template": sample.template if track == "negative" else None,
        "seed": sample_seed(run_seed, sample.id),
        **dict.fromkeys(("sample_sha256", "image", "width", "height", "sha256", "error")),
        "note": "",
    }  # fmt: skip


def _reshaped(edited: np.ndarray, sent: np.ndarray) -> bool:
    (height, width), (high, wide) = edited.shape[:2], sent.shape[:2]
    return not 1 / ASPECT <= width * high / (height * wide) <= ASPECT


def _decode(sample: Sample) -> np.ndarray | str:
    try:
        return images.decode(sample.sample_path)
    except images.ImageError as error:
        return f"{UNUSABLE}: {error}"


def write_sheet(path: Path, instruction: str, result: editors.EditResult) -> None:
    """Draws the maps of `result` side by side, with its note and error; nothing when it has none."""
    if not result.maps:
        return
    # It loads matplotlib, which most runs never need.
    from nein.reporting.contact_sheet import RED, Cell, Row, draw

    columns, maps = list(result.maps), result.maps.values()
    cells = [Cell(np.repeat(array[..., None], 3, axis=2) if array.ndim == 2 else array) for array in maps]
    if result.image is None:
        columns.append("no picture")
        cells.append(Cell(None, result.error or "", color=RED))
    sheet = draw(columns, [Row(f"{result.id}: {instruction}", result.note, cells)], size=CELL, smooth=False)
    atomic.write_bytes(path, sheet)
