"""Which block comes next, over all steps of a command: the folder is the queue.

Numbered workers (ranks, Slurm's array, Ray) begin with a static share: every size-th segment of a thousand
blocks, or every size-th block where there are few; then they take the rest, from the end of the others'
shares. A command started by hand shares everything, in a random order. An attempt (`nein.engine.attempts`)
is on disk before a block is read, so that nobody begins what another worker is at. A block that a worker died
at is made last, with nothing beside it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

from nein.engine.attempts import FOLDER, Attempts, forget
from nein.engine.blocks import SEGMENT
from nein.engine.errors import UserError
from nein.engine.stages import Step, Task, open_task

OPEN, TAKEN, OVER = 0, 1, 2
LOOK = (0.05, 5.0)  # seconds between two looks at what others do: at first, and at most
MANY = 4  # segments per worker from which on they are shared, and not blocks


class Scheduler:
    """The open blocks of `steps`, one after the other, for one worker.

        task = scheduler.next()   # None: nothing at this moment; ask again when a block is finished, or later
        ...; scheduler.finished(task)

    share     (rank, size): which worker this is, of how many.
    in_order  Sequential order, for debugging.
    group     As of `Attempts`.

    Raises UserError for a block that needs one which nobody makes.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        share: tuple[int, int] = (0, 1),
        *,
        in_order: bool = False,
        group: str = "",
    ) -> None:
        self.steps = steps
        self._rank, self._size = share
        self._random = None if in_order else random.Random()
        self._segments = [step.stage.blocks.segments for step in steps]
        self._left = [{key: len(numbers) for key, numbers in parts.items()} for parts in self._segments]
        self._states = [bytearray(max(step.stage.blocks.numbers, default=-1) + 1) for step in steps]
        self.totals = [sum(left.values()) for left in self._left]
        makers = {
            (step.folder.path, output): index
            for index, step in reversed([*enumerate(steps)])
            for output in step.stage.outputs
        }
        self._before = [makers.get((step.folder.path, step.stage.depends_on)) for step in steps]
        self._all_before = [
            [
                makers[key]
                for output in step.stage.depends_on_all
                if (key := (step.folder.path, output)) in makers
            ]
            for step in steps
        ]
        paths = {step.folder.path for step in steps}
        self._attempts = {path: Attempts(path / FOLDER, group) for path in paths}
        self._busy: dict[tuple[int, int], float] = {}  # (step, block) -> when to look again
        self._taken = 0
        self._pause = LOOK[0]
        self._lonely: Task | None = None
        self._source = self._tasks()

    def over(self) -> bool:
        """Whether every wanted block is there. Then what the dead left is cleared away."""
        if any(any(left.values()) for left in self._left):
            return False
        for path in self._attempts:
            forget(path)
        return True

    def look(self) -> bool:
        """Whether every wanted block is there by now, whoever makes them."""
        for index in range(len(self.steps)):
            for segment in [key for key, left in self._left[index].items() if left]:
                for _ in self._open(index, segment, self._segments[index][segment]):
                    pass
        return self.over()

    def next(self) -> Task | None:
        """The next block, which no other worker begins until it is `finished`; None where there is none at
        this moment."""
        if self._lonely is not None:
            return None
        task = next(self._source)
        if task is not None:
            self._taken += 1
            self._pause = LOOK[0]
            self._set(task.index, task.number, TAKEN)
        return task

    def finished(self, task: Task) -> None:
        """Says that a block that was taken is there."""
        self._taken -= 1
        self._lonely = None
        self._pause = LOOK[0]
        self._done(task)

    def close(self) -> None:
        """Gives back what was taken and is not finished."""
        for attempts in self._attempts.values():
            attempts.close()

    def unfinished(self, step: int) -> int:
        """How many blocks of a step are still to be made, as far as this worker has looked."""
        return sum(self._left[step].values())

    def own_left(self) -> int:
        """About how many blocks of this worker's share are still to be made."""
        return sum(map(self.unfinished, range(len(self.steps)))) // self._size

    def _set(self, step: int, number: int, state: int) -> None:
        segment, states = number // SEGMENT, self._states[step]
        self._left[step][segment] += (states[number] == OVER) - (state == OVER)
        states[number] = state

    # --- the order ---------------------------------------------------------------------------

    def _tasks(self) -> Iterator[Task | None]:
        """Endless: None where a look at everything that is open gave nothing."""
        again = 0.0
        while True:
            if time.monotonic() < again:  # looking costs: not again at once
                yield None
                continue
            began, gave = time.monotonic(), False
            suspects: list[tuple[int, Task]] = []
            for own in (True, False):
                for index, all_before in enumerate(self._all_before):
                    if any(map(self.unfinished, all_before)):
                        continue
                    for segment, numbers in self._part(index, own):
                        for task in self._open(index, segment, numbers):
                            deaths = self._take(task)
                            if deaths == 0:
                                gave = True
                                yield task
                            elif deaths is not None:
                                self._attempts[task.step.folder.path].leave(task.name, done=False)
                                suspects.append((deaths, task))
                if gave:
                    break
            if not gave and self._taken == 0:
                for _, task in sorted(suspects, key=lambda pair: pair[0]):
                    if self._take(task) is None:
                        continue
                    gave = True
                    self._lonely = task
                    yield task
                    break
            if gave:
                continue
            again = time.monotonic() + max(self._pause, 10 * (time.monotonic() - began))
            self._pause = min(1.5 * self._pause, LOOK[1])
            yield None

    def _part(self, index: int, own: bool) -> Iterator[tuple[int, Sequence[int]]]:
        """(segment, blocks of it) that are still open, of this worker's share of a step or of the others'."""
        open_ = [segment for segment, left in self._left[index].items() if left]
        if self._size == 1:
            mixed = self._random.sample if self._random else lambda items, count: items
            for segment in mixed(open_, len(open_)) if own else ():
                numbers = self._segments[index][segment]
                yield segment, mixed(numbers, len(numbers))
        elif len(self._segments[index]) >= MANY * self._size:
            for segment in self._shared(open_, own):
                yield segment, self._segments[index][segment]
        else:
            for segment in open_:
                yield segment, self._shared(self._segments[index][segment], own)

    def _shared(self, numbers: Sequence[int], own: bool) -> list[int]:
        """This worker's part of some numbers; or the others', of which each begins with another one's end."""
        if own:
            return [n for n in numbers if n % self._size == self._rank]
        others = [n for n in numbers if n % self._size != self._rank]
        return sorted(others, key=lambda n: ((n - self._rank) % self._size, -n))

    def _open(self, index: int, segment: int, numbers: Sequence[int]) -> Iterator[Task]:
        """Those of the blocks that can be made; what proves to be done is marked so."""
        step, states = self.steps[index], self._states[index]
        stage, folder, now = step.stage, step.folder, time.monotonic()
        numbers = [n for n in numbers if states[n] == OPEN and self._busy.get((index, n), 0.0) <= now]
        if not numbers:
            return
        ready = folder.done(stage.depends_on, [segment]) if stage.depends_on else set(numbers)
        # Before the listing: a block that this one needs, made again meanwhile, takes what is listed with it.
        numbers = [n for n in numbers if self._is_ready(index, n, ready)]
        found = {output: folder.done(output, [segment]) for output in stage.outputs}
        for number in numbers:
            if states[number] != OPEN:
                continue
            if not self._is_ready(index, number, ready):
                continue
            elif (task := open_task(step, index, number, found)) is None:
                self._set(index, number, OVER)
            else:
                yield task

    def _is_ready(self, index: int, number: int, ready: set[int]) -> bool:
        """Whether the block that this one needs is there and done with."""
        before = self._before[index]
        if before is None or number >= len(self._states[before]):
            if number not in ready:
                step = self.steps[index]
                raise UserError(
                    f"'{step.folder.path}' lacks block {number} of {step.stage.depends_on}, of which "
                    f"{step.stage.name} is made; give the command again with all its stages."
                )
            return True
        if self._states[before][number] == OVER and number not in ready:
            self._set(before, number, OPEN)  # it has vanished since, say because it is tried again
        return self._states[before][number] == OVER

    # --- attempts ----------------------------------------------------------------------------

    def _take(self, task: Task) -> int | None:
        """How many workers died at a block that is now ours; None where another is at it, or has made it."""
        deaths = self._attempts[task.step.folder.path].take(task.name)
        if deaths is None:
            self._busy[task.index, task.number] = time.monotonic() + self._pause
        elif task.made_elsewhere():
            self._done(task)
            return None
        return deaths

    def _done(self, task: Task) -> None:
        self._set(task.index, task.number, OVER)
        self._attempts[task.step.folder.path].leave(task.name, done=True)
