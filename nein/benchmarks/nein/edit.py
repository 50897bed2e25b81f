"""Stage 1: the images. Every sample gets a picture or a sentence saying why there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

import editors
from nein.benchmarks.nein.maps import write_sheet
from nein.benchmarks.nein.plan import Plan
from nein.benchmarks.nein.runs import RunDir
from nein.datasets.nein.samples import Sample
from nein.engine import images, journal
from nein.engine.environment import peak_memory
from nein.engine.errors import UserError
from nein.engine.executors import one_thread, read_ahead, share
from nein.engine.seeds import sample_seed
from nein.engine.world import World


def run_edits(
    editor: editors.Editor,
    run: RunDir,
    plan: Plan,
    pending: Sequence[int],
    *,
    run_seed: int,
    world: World,
    workers: int = 1,
    maps: bool = False,
) -> None:
    """Edits this process's share of `pending`; a block is journaled once its images are on disk.

    workers: blocks in work at the same time (on a CPU; editors may be called from several threads).
    maps: ask the editor for its intermediate pictures and draw them, one sheet per sample.
    """
    blocks = share(pending, world.rank, world.size)

    def work(block: int) -> tuple[list[dict[str, Any]], float]:
        start = time.perf_counter()
        rows = edit_block(editor, run, decoded(block), run_seed=run_seed, maps=maps)
        return rows, time.perf_counter() - start

    def decoded(block: int) -> list[tuple[Sample, np.ndarray | str]]:
        return [(sample, _decode(sample)) for sample in plan.members(block)]

    def one_after_another() -> Iterator[tuple[int, tuple[list[dict[str, Any]], float]]]:
        for block, members in read_ahead(decoded, blocks):
            start = time.perf_counter()
            rows = edit_block(editor, run, members, run_seed=run_seed, maps=maps)
            yield block, (rows, time.perf_counter() - start)

    total = sum(len(plan.members(block)) for block in blocks)
    with (
        journal.Journal(run.journals, "edits", world.rank) as log,
        tqdm(total=total, desc=f"edit {run.label}", unit="image", disable=not world.is_main) as bar,
    ):
        finished = read_ahead(work, blocks, workers, one_thread) if workers > 1 else one_after_another()
        for block, (rows, seconds) in finished:
            cost = {"seconds": round(seconds, 3), "at": time.time(), "peak_memory": peak_memory()}
            log.append({"block": block, "edits": rows, **cost})
            bar.update(len(rows))


def edit_block(
    editor: editors.Editor,
    run: RunDir,
    members: Sequence[tuple[Sample, np.ndarray | str]],
    *,
    run_seed: int,
    maps: bool = False,
) -> list[dict[str, Any]]:
    """One batch through the editor. `members`: samples with their picture, or the reason why it has none."""
    requests = [
        editors.EditRequest(
            sample.id,
            image,
            sample.instruction(run.track),
            sample_seed(run_seed, sample.id),
            sample.object,
            maps,
        )
        for sample, image in members
        if not isinstance(image, str)
    ]
    results = editor.edit(requests) if requests else []
    if [result.id for result in results] != [request.id for request in requests]:
        raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
    by_id = {result.id: result for result in results}
    rows = []
    for sample, image in members:
        row = _row(sample, run.track, run_seed)
        if isinstance(image, str):
            rows.append({**row, "error": image})
            continue
        row["sample_sha256"] = images.pixel_hash(image)
        result = by_id[sample.id]
        if maps:
            write_sheet(run.sheet_path(sample.id), row["instruction"], result)
        if result.image is None:
            reason = result.error or "the editor gave no picture and no reason"
            rows.append({**row, "error": reason, "note": result.note})
            continue
        images.write_png(run.image_path(sample.id), result.image)
        height, width = result.image.shape[:2]
        row |= {"image": f"images/{sample.id}.png", "width": width, "height": height}
        rows.append({**row, "sha256": images.pixel_hash(result.image), "note": result.note})
    return rows


def finish_edits(run: RunDir, plan: Plan) -> dict[str, int]:
    """Writes the canonical edits.jsonl for the selection; returns its counts. For the main process.

    Raises UserError when a selected sample has no record, which only a process that ended early can cause.
    """
    done = run.edits()
    records = by_sample(done)
    missing = [sample.id for sample in plan.selection() if sample.id not in records]
    if missing:
        raise UserError(
            f"'{run.path}' lacks the edits of {len(missing)} of {len(plan.selected)} samples; "
            "run the same command again to make them."
        )
    run.write_edits(plan.selection(), records)
    failed = sum(records[sample.id]["image"] is None for sample in plan.selection())
    return {"selected": len(plan.selected), "edited": len(plan.selected) - failed, "edit_errors": failed}


def by_sample(blocks: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[str, Mapping[str, Any]]:
    """Sample id -> edit record, from `RunDir.edits()`."""
    return {row["id"]: row for rows in blocks.values() for row in rows}


def _row(sample: Sample, track: str, run_seed: int) -> dict[str, Any]:
    return {
        "id": sample.id,
        "source_id": sample.source_id,
        "object": sample.object,
        **({"family": sample.family} if sample.family else {}),
        "instruction": sample.instruction(track),
        "seed": sample_seed(run_seed, sample.id),
        "sample_sha256": None,
        "image": None,
        "width": None,
        "height": None,
        "sha256": None,
        "error": None,
        "note": "",
    }


def _decode(sample: Sample) -> np.ndarray | str:
    try:
        return images.decode(sample.sample_path)
    except images.ImageError as error:
        return f"the NeIn image is unusable: {error}"
