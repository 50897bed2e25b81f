"""How far the work on folders is: bars for who looks on, and what the files tell to anybody, anywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from nein.engine import atomic
from nein.engine.attempts import attempts
from nein.engine.blocks import SEGMENT, spans
from nein.engine.folder import COST, Folder
from nein.engine.scheduler import Scheduler
from nein.engine.stages import Step

STEPS = "steps"
WINDOW = 600.0  # seconds over which the rate is measured
TAIL = 2**16  # bytes of a worker's costs that are read for it


class Bars:
    """One per step from its first block on; and how many blocks of each were made for this command."""

    def __init__(self, scheduler: Scheduler, *, quiet: bool) -> None:
        self.made = [0] * len(scheduler.steps)
        self._scheduler = scheduler
        # Seen as it comes in a terminal, or in a notebook.
        self._quiet = quiet or not (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._bars: dict[int, tqdm[Any]] = {}
        self.show()

    def show(self) -> None:
        """What the scheduler has seen, whoever made it."""
        if self._quiet:
            return
        for index, (step, total) in enumerate(
            zip(self._scheduler.steps, self._scheduler.totals, strict=True)
        ):
            left = self._scheduler.unfinished(index)
            if index not in self._bars:
                if left == total and self._bars:
                    continue
                title = f"{step.stage.name} {step.label}".strip()
                self._bars[index] = tqdm(total=total, desc=title, unit="block")
            bar = self._bars[index]
            bar.update(total - left - bar.n)
            if not left:
                bar.close()

    def close(self) -> None:
        for bar in self._bars.values():
            bar.close()


@dataclass(frozen=True)
class State:
    """A stage of a folder: numbers of blocks.

    rate  Blocks a second of the last ten minutes; None where nobody is at work.
    """

    stage: str
    wanted: int
    done: int
    running: int
    rate: float | None

    @property
    def open(self) -> int:
        return self.wanted - self.done

    @property
    def seconds_left(self) -> float | None:
        return self.open / self.rate if self.rate else None


def announce(steps: Sequence[Step]) -> None:
    """Writes down what is wanted, for `states`."""
    for index, step in enumerate(steps):
        stage, found = step.stage, [(span[0], span[-1]) for span in spans(step.stage.blocks.numbers)]
        note = {"stage": stage.name, "place": index, "outputs": stage.outputs, "blocks": found}
        step.folder.note(STEPS, stage.name, note)


def states(folder: Folder, now: float | None = None) -> list[State]:
    """Of the stages of the latest command, in order. Reads no more than a segment's listing at a time."""
    now = time.time() if now is None else now
    at_work = [attempt.name.rpartition("-")[0] for attempt in attempts(folder.path) if attempt.alive]
    listed = []
    for note in sorted(folder.notes(STEPS).values(), key=lambda note: note["place"]):
        stage, wanted = note["stage"], [range(first, last + 1) for first, last in note["blocks"]]
        done = sum(_count(folder, note["outputs"], span) for span in wanted)
        running = at_work.count(stage.replace("/", "-"))
        rate = _rate(folder, stage, now) if at_work else None
        listed.append(State(stage, sum(map(len, wanted)), done, running, rate))
    return listed


def _count(folder: Folder, outputs: Sequence[str], span: range) -> int:
    """How many blocks of a span have all outputs."""
    count = 0
    for segment in range(span.start // SEGMENT, (span.stop - 1) // SEGMENT + 1):
        done = set.intersection(*(folder.done(output, [segment]) for output in outputs))
        count += sum(number in span for number in done)
    return count


def _rate(folder: Folder, stage: str, now: float) -> float | None:
    times = []
    for path in folder.cost_files():
        rows = atomic.whole_lines(path, COST, TAIL)
        times += [row["at"] for row in rows if row["stage"] == stage]
    times = [at for at in times if at > now - WINDOW]
    return len(times) / max(now - min(times), 1.0) if times else None
