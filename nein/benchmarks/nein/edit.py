"""Stage 1: the images. Every sample gets a picture or a sentence saying why there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.benchmarks.nein.runs import EDIT, SCORES, RunDir
from nein.datasets.nein.samples import Plan, Sample
from nein.engine import atomic, images
from nein.engine.blocks import sample_seed
from nein.engine.folder import Row
from nein.engine.stages import Model, Stage, usage_of

#: Pixels of a map in its sheet.
CELL = 144
UNUSABLE = "the NeIn image is unusable"


def editing(run: RunDir, plan: Plan, editor: Model, *, run_seed: int, maps: bool = False) -> Stage:
    """The stage that makes the images of a run. maps: also draw the editor's intermediate pictures."""

    def read(number: int) -> list[tuple[Sample, np.ndarray | str]]:
        return [(sample, _decode(sample)) for sample in plan.members(number)]

    def work(editor: editors.Editor, members: Any, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        requests = [
            editors.EditRequest(
                sample.id, image, sample.instruction(run.track), sample_seed(run_seed, sample.id),
                sample.object, maps,
            )
            for sample, image in members
            if not isinstance(image, str)
        ]  # fmt: skip
        results = editor.edit(requests) if requests else []
        if [result.id for result in results] != [request.id for request in requests]:
            raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
        by_id = {result.id: result for result in results}
        made = [(run.image_path(result.id), result.image) for result in results if result.image is not None]
        atomic.side_by_side(lambda one: images.write_png(*one), made)
        rows = []
        for sample, image in members:
            row = _row(sample, run.track, run_seed)
            if isinstance(image, str):
                rows.append({**row, "error": image})
                continue
            result = by_id[sample.id]
            row |= {"sample_sha256": images.pixel_hash(image), "note": result.note}
            if maps:
                write_sheet(run.sheet_path(sample.id), row["instruction"], result)
            if result.image is None:
                row["error"] = result.error or "the editor gave no picture and no reason"
            else:
                height, width = result.image.shape[:2]
                row |= {"image": f"images/{sample.id}.png", "width": width, "height": height}
                row["sha256"] = images.pixel_hash(result.image)
                if (turned := getattr(editor, "orientation", lambda _: 1)(sample.id)) != 1:
                    row["orientation"] = turned
            rows.append(row)
        return {EDIT: rows}

    def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        rows = [_row(sample, run.track, run_seed) for sample in plan.members(number)]
        return {EDIT: [{**row, "error": reason} for row in rows]}

    def usable(output: str, number: int, rows: list[Row]) -> bool:
        """Whether every picture and sheet is on disk, and what could not be read still cannot be."""
        unread = {row["id"] for row in rows if (row["error"] or "").startswith(UNUSABLE)}
        again = (sample for sample in plan.members(number) if sample.id in unread)
        if not rows or any(not isinstance(_decode(sample), str) for sample in again):
            return False
        made = [row["id"] for row in rows if row["image"] is not None]
        return all(run.image_path(name).exists() for name in made) and not (
            maps and any(not run.sheet_path(name).exists() for name in made)
        )

    return Stage(EDIT, (EDIT,), plan.blocks, read, work, lost, editor, usable, invalidates=(SCORES,))


def editor_model(
    name: str, load: Callable[[], editors.Editor], *, place: str = "device", fits: bool = False
) -> Model:
    """An editor as the engine loads it. fits: its batch size follows from the memory that is free."""
    return Model(
        name,
        load,
        lambda editor: {"editor": (getattr(editor, "fingerprint", ""), editor.describe())},
        place,
        fits=(lambda editor: (editor,)) if fits else None,
        usage=lambda editor: usage_of({"editor": editor}),
    )


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
    cells = [Cell(np.repeat(one[..., None], 3, axis=2) if one.ndim == 2 else one) for one in maps]
    if result.image is None:
        columns.append("no picture")
        cells.append(Cell(None, result.error or "", color=RED))
    sheet = draw(columns, [Row(f"{result.id}: {instruction}", result.note, cells)], size=CELL, smooth=False)
    atomic.write_bytes(path, sheet.encoded())
