"""Which block comes next: over all steps of a command, without a lock, a claim or a list of what there is.

A walk goes through the steps in their order, a segment of blocks at a time: one listing says what a thousand
blocks lack. Every worker takes segments and blocks in an order of its own, and passes over what others have
made or are at. A block whose inputs are not there yet is come back to, so that there is no barrier between
stages but where one reads another as a whole: whoever finds nothing to edit judges what is edited. When
nothing is left but what others are at, that is made as well, rather than waited for: its worker may be dead
and nobody know it yet.

A block that a worker died at is made last, with nothing beside it, so that the next death has one cause;
after three of those it is set aside: its rows say so, and the rest goes on.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Container, Iterator, Sequence
from typing import TypeVar

from nein.engine.attendance import DEATHS, Attendance, forget_dead
from nein.engine.blocks import SEGMENT
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.engine.stages import Step, Task, made_elsewhere, open_task, put

Item = TypeVar("Item")

OPEN, TAKEN, OVER = 0, 1, 2
ASIDE = "aside"


class Order:
    """The order in which one of several workers takes things.

    Of those that are numbered, each begins with its own share, every size-th, and goes on with the shares of
    the others, from the last, to which they come late. One that was started by itself may share the folder
    with others of which it knows nothing: it takes the things in an order of its own.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self._rank, self._size = rank, size
        self._random = random.Random(os.getpid())

    def of(self, items: Sequence[Item]) -> list[Item]:
        if self._size == 1:
            return self._random.sample(items, len(items))
        rest = [items[other :: self._size] for other in range(self._size) if other != self._rank]
        return [*items[self._rank :: self._size], *reversed([item for share in rest for item in share])]


class AsTheyAre(Order):
    """One after the other, for who wants to look on."""

    def of(self, items: Sequence[Item]) -> list[Item]:
        return list(items)


class Walk:
    """The open blocks of `steps`, one after the other, for one worker or for one who hands out.

        walk = Walk(steps, Order())
        while not walk.over():
            task = walk.next()   # None: nothing at this moment; ask again when a block is finished
            ...; walk.finished(task)

    us        Names of workers that are no others (`nein.engine.attendance`).
    together  Whether who asks works at several blocks in one process, which would die together.

    Raises UserError for a block that needs one which nobody makes.
    """

    def __init__(
        self, steps: Sequence[Step], order: Order, us: Container[str] = (), *, together: bool = False
    ) -> None:
        self.steps = steps
        self._order = order
        self._exclusive = together
        self._segments = [step.stage.blocks.segments for step in steps]
        self._left = [{key: len(numbers) for key, numbers in parts.items()} for parts in self._segments]
        self._states = [bytearray(max(step.stage.blocks.numbers, default=-1) + 1) for step in steps]
        self.totals = [sum(left.values()) for left in self._left]
        self._before = [_maker(steps, step, step.stage.needs) for step in steps]
        self._all_before = [[_maker(steps, step, output) for output in step.stage.after] for step in steps]
        self._taken = 0
        self._lonely: Task | None = None
        self._others = {step.folder.path: Attendance(step.folder.path, us) for step in steps}
        self._aside = {step.folder.path: set_aside(step.folder) for step in steps}
        self._sources: dict[frozenset[str] | None, Iterator[Task | None]] = {}

    def over(self) -> bool:
        """Whether every wanted block is there. Then what the dead left is cleared away."""
        if any(any(left.values()) for left in self._left):
            return False
        for path in self._others:
            forget_dead(path)
        return True

    def next(self, places: frozenset[str] | None = None) -> Task | None:
        """The next block, of stages done at some of `places` (`Stage.place`; None: anywhere); None where
        there is none at this moment."""
        if self._lonely is not None:
            return None
        source = self._sources.setdefault(places, self._tasks(places))
        task = next(source, None)
        if task is None:
            return None
        self._taken += 1
        self._mark(task, TAKEN)
        return task

    def finished(self, task: Task) -> None:
        """Says that a block that was taken is there."""
        self._return(task, OVER)

    def failed(self, task: Task) -> None:
        """Says that the worker which took the block died or left; it is open again."""
        self._return(task, OPEN)
        self._others[self.steps[task.step].folder.path].forget()

    def unfinished(self, step: int) -> int:
        """How many blocks of a step are still to be made, as far as this walk has looked."""
        return sum(self._left[step].values())

    def _return(self, task: Task, state: int) -> None:
        self._taken -= 1
        self._lonely = None if self._lonely is task else self._lonely
        self._mark(task, state)

    def _mark(self, task: Task, state: int) -> None:
        self._set(task.step, task.number, state)

    def _set(self, step: int, number: int, state: int) -> None:
        segment, states = number // SEGMENT, self._states[step]
        self._left[step][segment] += (states[number] == OVER) - (state == OVER)
        states[number] = state

    # --- the order ---------------------------------------------------------------------------

    def _tasks(self, places: frozenset[str] | None) -> Iterator[Task | None]:
        """Endless: None where a look at everything that is open gave nothing."""
        mine = [k for k, step in enumerate(self.steps) if places is None or step.stage.place in places]
        pause, last = 0.0, 0.0
        while True:
            if time.monotonic() < last + pause:  # looking costs: not again at once
                yield None
                continue
            began, gave = time.monotonic(), False
            busy: list[Task] = []
            suspects: list[tuple[int, Task]] = []
            for index in filter(self._may_begin, mine):
                for segment in self._order.of(self._open_segments(index)):
                    for task in self._open(index, segment):
                        deaths = self._deaths(task)
                        if sum(deaths) >= DEATHS:
                            self._put_aside(task, sum(deaths))
                        elif self._busy(task):
                            busy.append(task)
                        elif deaths:
                            suspects.append((len(deaths), task))
                        else:
                            gave = True
                            yield task
            if not gave and self._taken == 0:
                for task in [task for _, task in sorted(suspects, key=lambda pair: pair[0])] or busy[:1]:
                    if self._still_open(task):
                        gave = True
                        self._lonely = task if self._exclusive and self._deaths(task) else None
                        yield task
                        break
            last = time.monotonic()
            pause = 0.0 if gave else 10 * (last - began)
            if not gave:
                yield None

    def _may_begin(self, index: int) -> bool:
        """Whether all blocks are there of the steps that this one reads as a whole."""
        return all(before is None or not self.unfinished(before) for before in self._all_before[index])

    def _open_segments(self, index: int) -> list[int]:
        return [segment for segment, left in self._left[index].items() if left]

    def _open(self, index: int, segment: int) -> Iterator[Task]:
        """The blocks of a segment that can be made; what proves to be done is marked so."""
        step, states = self.steps[index], self._states[index]
        stage, folder = step.stage, step.folder
        there = {output: folder.done(output, [segment]) for output in stage.outputs}
        ready = folder.done(stage.needs, [segment]) if stage.needs else set(self._segments[index][segment])
        tasks = []
        for number in self._segments[index][segment]:
            if states[number] != OPEN:
                continue
            if (stage.name, number) in self._aside[folder.path] and all(number in t for t in there.values()):
                self._set(index, number, OVER)
            elif not self._is_ready(index, number, ready):
                continue
            elif (task := open_task(step, index, number, there)) is None:
                self._set(index, number, OVER)
            else:
                tasks.append(task)
        for task in self._order.of(tasks):
            if self._still_open(task):
                yield task

    def _still_open(self, task: Task) -> bool:
        """Whether nobody has made or taken the block since it was seen."""
        if self._states[task.step][task.number] != OPEN:
            return False
        if made_elsewhere(self.steps[task.step].folder, task):
            self._mark(task, OVER)
            return False
        return True

    def _is_ready(self, index: int, number: int, ready: set[int]) -> bool:
        """Whether the block that this one needs is there and done with."""
        before = self._before[index]
        if before is None or number >= len(self._states[before]):
            if number not in ready:
                step = self.steps[index]
                raise UserError(
                    f"'{step.folder.path}' lacks block {number} of {step.stage.needs}, of which "
                    f"{step.stage.name} is made; give the command again with all its stages."
                )
            return True
        if self._states[before][number] == OVER and number not in ready:
            self._set(before, number, OPEN)  # it has vanished since, say because it is tried again
        return self._states[before][number] == OVER

    # --- the others --------------------------------------------------------------------------

    def _busy(self, task: Task) -> bool:
        step = self.steps[task.step]
        return self._others[step.folder.path].busy((step.stage.name, task.number))

    def _deaths(self, task: Task) -> list[bool]:
        step = self.steps[task.step]
        return self._others[step.folder.path].deaths((step.stage.name, task.number))

    def _put_aside(self, task: Task, deaths: int) -> None:
        """Rows that say why there are no results, and a note for `nein status` and `nein retry`."""
        step = self.steps[task.step]
        reason = f"set aside: {deaths} workers died of its block, one after the other"
        rows = step.stage.lost(task.number, reason, task.missing)
        later = [
            output
            for other in self.steps[task.step :]
            if other.folder.path == step.folder.path and _same_cut(other, step)
            for output in other.stage.outputs
        ]
        note = {"stage": step.stage.name, "block": task.number, "reason": reason, "outputs": later}
        step.folder.note(ASIDE, f"{step.stage.name}-{task.number:06d}", note)
        put(step, task.number, rows, task.missing)
        self._aside[step.folder.path].add((step.stage.name, task.number))
        self._mark(task, OVER)


def try_again(folder: Folder) -> int:
    """Opens the blocks that were set aside, and what was made of them; how many they were."""
    notes = folder.notes(ASIDE)
    for name, note in notes.items():
        paths = [folder.inside(folder.block_path(output, note["block"])) for output in note["outputs"]]
        forget_dead(folder.path, {(note["stage"], note["block"])})
        for path in reversed(paths):
            path.unlink(missing_ok=True)
        folder.inside(folder.path / "notes" / ASIDE / f"{name}.json").unlink(missing_ok=True)
    return len(notes)


def set_aside(folder: Folder) -> set[tuple[str, int]]:
    """(stage, block) of what is set aside in a folder."""
    return {(note["stage"], note["block"]) for note in folder.notes(ASIDE).values()}


def _maker(steps: Sequence[Step], step: Step, output: str) -> int | None:
    """The step that makes an output of which another is made."""
    for index, other in enumerate(steps):
        if other.folder.path == step.folder.path and output in other.stage.outputs:
            return index
    return None


def _same_cut(one: Step, other: Step) -> bool:
    """Whether a block is the same records in both."""
    mine, theirs = one.stage.blocks, other.stage.blocks
    return (mine.count, mine.size) == (theirs.count, theirs.size)
