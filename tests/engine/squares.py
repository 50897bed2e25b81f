"""A piece of work of the engine, small enough to see through: squares of numbers."""

import time

from nein.engine.folder import Blocks, Folder
from nein.engine.run import Executor
from nein.engine.stages import Model, Stage, Step
from tests.helpers import killing

COUNT, SIZE = 23, 4
BLOCKS = -(-COUNT // SIZE)


class Squarer:
    fingerprint = "squarer-1"

    def describe(self):
        return {"class": "Squarer"}


class Squares(Stage):
    """The squares of numbers, or their halves; parts of it may be given."""

    name, outputs = "square", ("squares",)
    model = Model("squarer", Squarer, lambda made: {"model": (made.fingerprint, made.describe())})

    def __init__(self, folder=None, *, pause=0.0, **changed):
        self.blocks, self.pause = Blocks.first(COUNT, SIZE), pause
        vars(self).update(changed)

    def read(self, number):
        return self.blocks.members(number)

    def work(self, model, numbers, missing):
        time.sleep(self.pause)
        rows = {
            "squares": [{"id": n, "value": n * n} for n in numbers],
            "halves": [{"id": n, "value": n / 2} for n in numbers],
        }
        return {name: rows[name] for name in missing}


squares = Squares


def two_stages(folder, **changed):
    def read(number):
        return [row["id"] for row in folder.read("squares", number)]

    halves = squares(folder, name="halve", outputs=("halves",), read=read)
    return [Step(folder, squares(folder, **changed)), Step(folder, halves)]


def totals(folder):
    """Three times the sum of all squares."""

    def read(number):
        return sum(row["value"] for row in folder.rows("squares", range(BLOCKS)))

    def work(model, total, missing):
        return {"totals": [{"value": total}]}

    parts = {"name": "total", "outputs": ("totals",), "depends_on_all": ("squares",)}
    return Squares(**parts, blocks=Blocks.first(3, 1), read=read, work=work)


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


def compute(path, share=(0, 1), **changed):
    folder, executor = Folder(path), Executor("cpu", share=share)
    with executor.lock([folder]):
        executor.compute(two_stages(folder, **changed))


def start(path, *of, **changed):
    return killing.start(lambda words: compute(path, *of, **changed), [])
