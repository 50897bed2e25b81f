"""The training loop of everything that learns here: resume, step, log, save, terminate."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from tqdm import tqdm

from nein.engine.errors import Terminated
from nein.engine.processes import read_ahead
from nein.train.checkpoints import Checkpoints, State
from nein.train.record import Record

#: () float32, without its graph, and further numbers for the log.
Loss = tuple[torch.Tensor, Mapping[str, Any]]


def run(
    record: Record,
    state: State,
    *,
    read: Callable[[int], Any],
    step: Callable[[int, Any], Loss],
    after: Callable[[int], None] | None = None,
    validate: Callable[[int], Mapping[str, float]] | None = None,
    validate_every: int = 0,
    stop: int | None = None,
    skipped: Collection[str] = (),
    title: str = "train",
) -> int:
    """Takes the steps that are left of a run, from its newest checkpoint on; returns how many are done.

    read      Number of a step -> what `step` takes; called in threads, ahead of training.
    step      Forward and backward, to be seeded by the number of the step. The gradients stay where they are.
    after     Called when the weights have moved.
    validate  Figures by name; called before the first step, every `validate_every` steps, and at the end.
    stop      Leave after so many steps, though the schedule goes on.
    skipped   What could not be read so far: its number is logged.

    Every process calls it. Raises Terminated after a SIGTERM, once all is saved; UserError for an infinite
    loss.
    """
    config, world, accelerator = record.config, record.session.processes, record.session.accelerator
    last = min(record.steps, stop or record.steps)

    # ------------------------------------------------------------------------------------------------ resume
    checkpoints = Checkpoints(config.out_dir, config.keep, state)
    newest = checkpoints.latest()
    done = checkpoints.restore(newest) if newest is not None else 0
    record.resume(done, newest)
    world.barrier()

    # ------------------------------------------------------------------------------------------------- steps
    if done == 0 and validate is not None and validate_every:
        record.validated(0, validate(0))
    bar = tqdm(total=record.steps, initial=done, desc=title, unit="step", disable=not world.is_main)
    pending: list[tuple[int, torch.Tensor]] = []  # still on the device: reading one at once would stall it
    with terminable() as asked, contextlib.closing(bar):
        for number, inputs in read_ahead(read, range(done, last), config.workers):
            loss, figures = step(number, inputs)
            norm = accelerator.clip_grad_norm_(state.parameters, config.clip or math.inf)
            rate = state.schedule.get_last_lr()[0]
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            if not accelerator.optimizer_step_was_skipped:
                state.schedule.step()
                if after is not None:
                    after(number)
            # --------------------------------------------------------------------------------------- tallies
            tally = torch.stack([loss, norm.to(loss), loss.new_tensor(float(asked()))])
            pending.append((number, accelerator.reduce(tally, "mean")))
            done = number + 1
            ends, saves = done == last, done % config.save_every == 0
            validates = validate_every and (done % validate_every == 0 or ends)
            logs = done % config.log_every == 0 or ends
            stops = False
            while len(pending) > (0 if logs or saves or validates else 1):
                stops |= record.tally(*pending.pop(0), checkpoints.latest())
            while stops and pending:
                record.tally(*pending.pop(0), checkpoints.latest())
            # ------------------------------------------------------------------------ log, save and terminate
            if logs:
                record.log(done, rate, bar, figures, len(skipped))
            bar.update()
            if saves or ends or stops:
                if world.is_main:
                    checkpoints.save(done)
                world.barrier()
            if stops and not ends:
                raise Terminated
            if validates and validate is not None:
                record.validated(done, validate(done))
    return done


def make_schedule(kind: str, warmup: int, optimizer: Any, steps: int) -> Any:
    """Linear warm-up, then "constant", "linear" to 0 or "cosine" to 0 at `steps`."""
    from diffusers.optimization import get_scheduler

    # diffusers' own "constant" ignores the warm-up without a word.
    name = "constant_with_warmup" if kind == "constant" else kind
    return get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps)


@contextlib.contextmanager
def terminable() -> Iterator[Callable[[], bool]]:
    """While this lasts SIGTERM is only noted; the value tells whether it has come."""
    arrivals: list[float] = []
    try:
        before = signal.signal(signal.SIGTERM, lambda number, frame: arrivals.append(time.time()))
    except ValueError:  # not in the main thread, where no signal arrives
        yield lambda: False
        return
    try:
        yield lambda: bool(arrivals)
    finally:
        signal.signal(signal.SIGTERM, before)
