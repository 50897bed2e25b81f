"""A piece of work of the engine, small enough to see through: squares of numbers."""

import os
import signal
import time

from nein.engine.blocks import Blocks
from nein.engine.executors.threads import Threads
from nein.engine.folder import Folder
from nein.engine.processes import Processes
from nein.engine.stages import Model, Stage, Step
from tests.helpers import killing

COUNT, SIZE = 23, 4
BLOCKS = -(-COUNT // SIZE)


class Squarer:
    fingerprint = "squarer-1"

    def describe(self):
        return {"class": "Squarer"}


def squares(folder, *, pause=0.0, deadly=-1, **changed):
    """`halves` of what `squares` gives: the second output of one stage. The block `deadly` kills."""
    blocks = changed.pop("blocks", Blocks.first(COUNT, SIZE))

    def work(model, numbers, missing):
        if numbers[0] // SIZE == deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(pause)
        rows = {
            "squares": [{"id": n, "value": n * n} for n in numbers],
            "halves": [{"id": n, "value": n / 2} for n in numbers],
        }
        return {name: rows[name] for name in missing}

    model = Model("squarer", Squarer, lambda made: {"model": (made.fingerprint, made.describe())})
    parts = {"outputs": ("squares",), "read": blocks.members, "work": work}
    parts |= {"model": model, **changed}
    return Stage(parts.pop("name", "square"), blocks=blocks, **parts)


def two_stages(folder, **changed):
    def read(number):
        return [row["id"] for row in folder.read("squares", number)]

    halves = squares(folder, name="halve", outputs=("halves",), read=read, depends_on="squares")
    return [Step(folder, squares(folder, **changed)), Step(folder, halves)]


def opened(path):
    folder = Folder(path)
    folder.open({"numbers": COUNT}, {}, overwrite=False)
    return folder


def results(path):
    """Everything in a folder that has to be the same whoever made it, and when."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for output in ("squares", "halves")
        for file in sorted((path / output).rglob("*.jsonl"))
    }


def compute(path, rank=0, size=1, **changed):
    Threads("cpu", Processes(rank, size)).compute(two_stages(Folder(path), **changed))


def start(path, *of, **changed):
    return killing.start(lambda words: compute(path, *of, **changed), [])
