"""What the builds of NeIn and NegBench share: stages that write the rows of one shard at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.engine.stages import Model, Stage


def output(stage: str) -> str:
    """The folder of a stage's rows, below the build's."""
    return f"work/{stage}"


def require(folder: Folder, blocks: Blocks, stages: Iterable[str]) -> None:
    """Raises UserError while a wanted shard lacks one of `stages`."""
    wanted = set(blocks.numbers)
    for stage in stages:
        if missing := wanted - folder.done(output(stage)):
            raise UserError(
                f"'{folder.path}' lacks stage {stage} of {len(missing)} of {len(wanted)} shards; "
                "run the same command again with all stages."
            )


def make_stage(
    name: str,
    order: Sequence[str],
    blocks: Blocks,
    model: Model,
    work: Callable[[int, Any], list[Row]],
    lost: Callable[[int, str], list[Row]],
    usable: Callable[[str, int, list[Row]], bool] | None,
) -> Stage:
    """Stage `name` of the stages `order`, each of which reads the rows of the one before it.

    work   The rows of (shard, loaded model); lost: those of (shard, reason) that could not be finished.
    """
    place = order.index(name)
    return Stage(
        name,
        (output(name),),
        blocks,
        read=lambda shard: shard,
        work=lambda loaded, shard, missing: {output(name): work(shard, loaded)},
        on_quarantine=lambda shard, reason, missing: {output(name): lost(shard, reason)},
        model=model,
        is_valid=usable,
        depends_on=output(order[place - 1]) if place else "",
        invalidates=tuple(map(output, order[place + 1 :])),
    )
