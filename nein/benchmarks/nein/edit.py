"""Stage 1: the images. Every sample gets a picture or a sentence saying why there is none."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.benchmarks.nein.runs import AGAIN, EDIT, EDIT_ROW, REFUSED, RESHAPED, SCORES, SKIPPED, RunDir
from nein.datasets.nein.samples import Dataset, Sample
from nein.engine import atomic, images
from nein.engine.blocks import Blocks, sample_seed
from nein.engine.folder import Row, head
from nein.engine.stages import Model, Stage
from nein.models.editor_choice import ExternalEdits

log = logging.getLogger(__name__)
#: Pixels of a map in its sheet.
CELL = 144
UNUSABLE = "the NeIn image is unusable"
#: How far an aspect ratio may be from another: editors round sides to multiples.
ASPECT = 1.05


@dataclass(frozen=True)
class Member:
    """A sample of a block: its place in the data; its picture, or why it has none; and its row of an earlier
    command, if that still counts."""

    index: int
    sample: Sample
    image: Any
    kept: Row | None


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

    maps           Also draw the editor's intermediate pictures.
    retry_refused  Also send again what a service refused.
    without        The run of the same editor without this one's remedy: the first block is compared with it.

    A batch has the same members whatever the selection, and a block that lacks a picture is made again as a
    whole. Not so with an editor that costs money (`paid`): it gets the selected samples that lack a picture.
    Of a block where only some requests failed for a reason of the service, these alone are sent again. What
    an editor gives as it comes (`as_made`) is kept at once: a block that is cut short is not paid twice.
    """
    selected = blocks.wanted if isinstance(blocks.wanted, range) else frozenset(blocks.wanted)
    compared: list[int] = []  # the block that was compared with the run without the remedy

    def failed(index: int, row: Row) -> bool:
        """Whether its request has to be sent (again)."""
        if row.get(SKIPPED):
            return index in selected
        return bool(row.get(AGAIN) or (retry_refused and row.get(REFUSED)))

    def vanished(index: int, row: Row) -> bool:
        """Whether a picture or sheet is not on disk, or empty; or what could not be read can be read now."""
        if row["image"] is None:
            unread = (row["error"] or "").startswith(UNUSABLE)
            return unread and not isinstance(_decode(dataset.samples[index]), str)
        paths = [run.image_path(row), *([run.sheet_path(row["id"])] if maps else [])]
        return not all(map(atomic.holds_something, paths))

    def read(number: int) -> tuple[int, bool, list[Member]]:
        """The block's number, whether it lacks a row or a picture, and its members."""
        earlier: dict[str, list[Row]] = {}
        part = run.part_path(number)
        known = run.read(EDIT, number) if run.head(EDIT, number).items() >= head(EDIT, number).items() else []
        for row in [*known, *(atomic.read_lines(part, EDIT_ROW) if part.exists() else ())]:
            earlier.setdefault(row["id"], []).append(row)
        lacking, members = False, []
        indices = blocks.members(number)
        for index, sample in zip(indices, dataset.members(indices), strict=True):
            image = _decode(sample)
            rows = [row for row in earlier.get(sample.id, ()) if not vanished(index, row)]
            rows = [row for row in rows if not replaced(row, image)]
            lacking |= not rows
            kept = next((row for row in rows if not failed(index, row)), None)
            members.append(Member(index, sample, image, kept))
        return number, lacking, members

    def work(editor: Any, block: Any, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        number, lacking, members = block
        paid, rows, sent = getattr(editor, "paid", False), {}, []
        for item in members:
            kept = item.kept if paid or not lacking or (item.kept or {}).get(REFUSED) else None
            if kept is None and paid and item.index not in selected:
                kept = {**_row(item.sample, run.track, run_seed), "error": "not selected", SKIPPED: True}
            elif kept is None and isinstance(item.image, str):
                kept = {**_row(item.sample, run.track, run_seed), "error": item.image}
            if kept is None:
                sent.append(item)
            else:
                rows[item.sample.id] = kept
        pictures: list[tuple[Path, np.ndarray]] = []
        for position, result, turned in _edited(editor, sent, run, run_seed, maps):
            item = sent[position]
            row = _row(item.sample, run.track, run_seed)
            row |= {"sample_sha256": images.pixel_hash(item.image), "note": result.note}
            row |= {} if getattr(editor, "seeded", True) else {"seed": None}
            if maps:
                write_sheet(run.sheet_path(item.sample.id), row["instruction"], result)
            if result.image is None:
                row["error"] = result.error or "the editor gave no picture and no reason"
                row |= {REFUSED: True} if result.refused else {AGAIN: True} if result.transient else {}
            else:
                height, width = result.image.shape[:2]
                row |= {"image": run.image_name(item.index, item.sample.id), "width": width, "height": height}
                row["sha256"] = images.pixel_hash(result.image)
                row |= {"orientation": turned} if turned != 1 else {}
                row |= {RESHAPED: True} if _reshaped(result.image, item.image) else {}
                pictures.append((run.image_path(row), result.image))
            rows[item.sample.id] = row
            if paid and hasattr(editor, "as_made"):
                _write(pictures)
                atomic.write_lines(run.part_path(number), rows.values())
        _write(pictures)
        of_block = [rows[item.sample.id] for item in members]
        if without is not None and not compared and number in without.done(EDIT):
            compared.append(number)
            if count := idle(of_block, without.read(EDIT, number)):
                log.warning(
                    "%s: the remedy did not act on the first block: its %d pictures are those of %s.",
                    run.label, count, without.label,
                )  # fmt: skip
        return {EDIT: of_block}

    def usable(output: str, number: int, rows: list[Row]) -> bool:
        members = zip(blocks.members(number), rows, strict=True)
        return not any(failed(*pair) or vanished(*pair) for pair in members)

    def ids(number: int) -> list[str]:
        return [sample.id for sample in dataset.members(blocks.members(number))]

    def state(number: int) -> list[int | None]:
        return atomic.sizes(sample.sample_path for sample in dataset.members(blocks.members(number)))

    return Stage(
        EDIT, (EDIT,), blocks, read, work, editor, usable, invalidates=(SCORES,), ids=ids, state=state
    )


def replaced(row: Row, image: np.ndarray | str) -> bool:
    """Whether the edit was made of another image than is there now."""
    known = row["sample_sha256"]
    return known is not None and not isinstance(image, str) and images.pixel_hash(image) != known


def _write(pictures: list[tuple[Path, np.ndarray]]) -> None:
    """Writes the pictures, which the list holds no longer then."""
    atomic.parallel_map(lambda picture: images.write_png(*picture), pictures)
    pictures.clear()


def _edited(
    editor: Any, members: Sequence[Member], run: RunDir, run_seed: int, maps: bool
) -> Iterator[tuple[int, editors.EditResult, int]]:
    """(place among the members, what came of it, EXIF orientation of a picture that was made elsewhere)."""
    if isinstance(editor, ExternalEdits):
        for position, member in enumerate(members):
            yield position, *editor.read(member.sample.id)
        return
    requests = []
    for member in members:
        seed = sample_seed(run_seed, member.sample.id)
        rest = member.sample.instruction(run.track), seed
        requests.append(editors.EditRequest(member.sample.id, member.image, *rest, maps))
    results = []
    if hasattr(editor, "as_made"):
        yield from ((position, result, 1) for position, result in editor.as_made(requests))
    elif requests:
        results = editor.edit(requests)
        if [result.id for result in results] != [request.id for request in requests]:
            raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
    yield from ((position, result, 1) for position, result in enumerate(results))


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
