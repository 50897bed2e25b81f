"""A piece of work of the engine, small enough to see through: squares of numbers. Run as a script, it is
killed by whoever started it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from nein.engine.blocks import Blocks
from nein.engine.executors import Model, Stage, Threads
from nein.engine.folder import Folder
from nein.engine.processes import Processes

COUNT, SIZE = 23, 4


class Squarer:
    fingerprint = "squarer-1"

    def describe(self) -> dict[str, Any]:
        return {"class": "Squarer"}


def squares(folder: Folder, *, pause: float = 0.0, **changed: Any) -> Stage:
    """`halves` of what `squares` gives: the second output of one stage."""
    blocks = changed.pop("blocks", Blocks.first(COUNT, SIZE))

    def work(model: Squarer, numbers: range, missing: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
        time.sleep(pause)
        rows = {
            "squares": [{"id": n, "value": n * n} for n in numbers],
            "halves": [{"id": n, "value": n / 2} for n in numbers],
        }
        return {name: rows[name] for name in missing}

    model = Model("squarer", Squarer, lambda made: {"model": (made.fingerprint, made.describe())})
    parts = {"outputs": ("squares",), "read": blocks.members, "work": work, "model": model, **changed}
    return Stage("square", blocks=blocks, **parts)


def results(path: Path) -> dict[str, bytes]:
    """Everything in a folder that has to be the same whoever made it, and when."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for output in ("squares", "halves")
        for file in sorted((path / output).glob("*.jsonl"))
    }


def main(path: str, rank: str, size: str, pause: str) -> None:
    folder = Folder(Path(path))
    world = Processes(int(rank), int(size))
    if world.is_main:
        folder.open({"numbers": COUNT}, {}, overwrite=False)
    Threads(world, "cpu").compute(folder, squares(folder, pause=float(pause)))


if __name__ == "__main__":
    main(*sys.argv[1:])
