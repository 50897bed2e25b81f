"""The training loop of everything that learns here, and its checkpoints: resume, step, log, save, terminate.

OUT/checkpoints/step-00000500 is whole or not at all, safetensors and JSON only: the parameters that learn,
their moving average, modules that follow without learning, the optimiser's tensors by parameter number, and
state.json. There is no random state to keep: every number drawn is a function of the seed and the step.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.machine import Terminated, read_ahead
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
    step      Forward and backward, to be seeded by the number of the step.
    validate  Figures by name; called before the first step, every `validate_every` steps, and at the end.
    stop      Leave after so many steps, though the schedule goes on.
    skipped   What could not be read so far: its number is logged.

    Every process calls it. Raises Terminated after a SIGTERM, once all is saved; UserError.
    """
    config, world, accelerator = record.config, record.session.processes, record.session.accelerator
    last = min(record.steps, stop or record.steps)

    # ------------------------------------------------------------------------------------------------ resume
    modules = {**state.modules, "mean loss": record.mean_loss}
    checkpoints = Checkpoints(config.out_dir, config.keep, replace(state, modules=modules))
    newest = checkpoints.latest()
    done = checkpoints.restore(newest) if newest is not None else 0
    record.resume(done, newest)
    world.barrier()

    # ------------------------------------------------------------------------------------------------- steps
    if done == 0 and validate is not None and validate_every:
        record.validated(0, validate(0))
    bar = tqdm(total=record.steps, initial=done, desc=title, unit="step", disable=not world.is_main)
    pending: list[tuple[int, torch.Tensor]] = []  # still on the device: reading one at once would stall it
    with terminable() as arrivals, contextlib.closing(bar):
        for number, inputs in read_ahead(read, range(done, last), config.workers):
            loss, figures = step(number, inputs)
            norm = accelerator.clip_grad_norm_(state.parameters, config.clip or math.inf)
            rate = state.schedule.get_last_lr()[0]
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            state.schedule.step()
            if after is not None:
                after(number)
            tally = torch.stack([loss, norm.to(loss), loss.new_tensor(float(bool(arrivals)))])
            pending.append((number, accelerator.reduce(tally, "mean")))
            done = number + 1
            ends, saves = done == last, done % config.save_every == 0
            validates = validate_every and (done % validate_every == 0 or ends)
            logs = done % config.log_every == 0 or ends
            stops = False
            while len(pending) > (0 if logs or saves or validates or stops else 1):
                stops |= record.tally(*pending.pop(0), checkpoints.latest())
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
def terminable() -> Iterator[list[int]]:
    """While this lasts SIGTERM is only noted, in the list."""
    arrivals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: arrivals.append(number))
    try:
        yield arrivals
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class State:
    """All that a next step depends on, beside the data and the number of the step."""

    names: Sequence[str]  # of the parameters that learn
    parameters: Sequence[torch.nn.Parameter]
    optimizer: Any  # its state is flat per parameter
    schedule: Any
    average: Any = None  # has `shadow_params` and `optimization_step`, as diffusers' EMAModel
    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)  # change without learning


class Checkpoints:
    """The checkpoints of a run folder. Writing is for the main process."""

    def __init__(self, out: Path, keep: int, state: State) -> None:
        self.folder = out / "checkpoints"
        self._keep, self._state = keep, state

    def latest(self) -> Path | None:
        return max(self.folder.glob("step-*"), default=None)

    def save(self, step: int) -> Path:
        """Writes the state after `step` steps, then removes the oldest beyond the number to keep. Raises
        UserError when there is no room; earlier checkpoints are then untouched."""
        target = self.folder / f"step-{step:08d}"
        draft = self.folder / f".draft-{step:08d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for torn in self.folder.glob(".draft-*"):
                shutil.rmtree(torn)
            draft.mkdir()
            self._write(step, draft)
            draft.replace(target)
        except (OSError, safetensors.SafetensorError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            last, text = self.latest(), " ".join(str(error).split())
            safe = f"the last good checkpoint is '{last}'" if last else "there is no earlier checkpoint"
            raise UserError(
                f"The checkpoint at step {step} was not written to '{self.folder}' ({text}), {safe}; "
                "free some space, or make it writable, and run the same command again."
            ) from None
        for old in sorted(self.folder.glob("step-*"))[: -self._keep]:
            shutil.rmtree(old)
        return target

    def _write(self, step: int, folder: Path) -> None:
        state = self._state
        facts: dict[str, Any] = {"step": step, "schedule": state.schedule.state_dict()}
        _save(dict(zip(state.names, state.parameters, strict=True)), folder / "weights.safetensors")
        if state.average is not None:
            shadows = dict(zip(state.names, state.average.shadow_params, strict=True))
            _save(shadows, folder / "average.safetensors")
            facts["average_steps"] = state.average.optimization_step
        tensors = {f"{m}/{n}": t for m, part in state.modules.items() for n, t in part.state_dict().items()}
        _save(tensors, folder / "modules.safetensors")
        tensors, facts["optimizer"] = _flatten(_plain(state.optimizer).state_dict())
        _save(tensors, folder / "optimizer.safetensors")
        facts["bytes"] = {file.name: file.stat().st_size for file in folder.glob("*.safetensors")}
        atomic.write_json(folder / "state.json", facts)

    def restore(self, folder: Path) -> int:
        """Puts everything back as `save` met it; returns the number of steps done. Raises UserError."""
        state, kind = self._state, atomic.record({"step": int, "bytes": dict[str, int]})
        facts = atomic.read_json(folder / "state.json", kind)
        for name, size in facts["bytes"].items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != size:
                raise UserError(
                    f"'{folder / name}' is damaged; remove '{folder}' to go on from the checkpoint before it."
                )
        weights = load_file(folder / "weights.safetensors")
        if set(weights) != set(state.names):
            raise UserError(
                f"'{folder}' holds other weights than those that now learn; choose another folder."
            )
        with torch.no_grad():
            for name, parameter in zip(state.names, state.parameters, strict=True):
                parameter.copy_(weights[name])
            if state.average is not None:
                shadows = load_file(folder / "average.safetensors")
                for name, value in zip(state.names, state.average.shadow_params, strict=True):
                    value.copy_(shadows[name])
                state.average.optimization_step = facts["average_steps"]
            tensors = load_file(folder / "modules.safetensors")
            for name, module in state.modules.items():
                module.load_state_dict({key: tensors[f"{name}/{key}"] for key in module.state_dict()})
        plain, groups = facts["optimizer"]["plain"], facts["optimizer"]["groups"]
        entries: dict[int, dict[str, Any]] = {int(k): dict(v) for k, v in plain.items()}
        for name, value in load_file(folder / "optimizer.safetensors").items():
            number, _, key = name.partition("/")
            entries.setdefault(int(number), {})[key] = value
        groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in groups]
        _plain(state.optimizer).load_state_dict({"state": entries, "param_groups": groups})
        state.schedule.load_state_dict(facts["schedule"])
        return facts["step"]


def _plain(optimizer: Any) -> Any:
    """The optimiser within accelerate's, or the optimiser."""
    return getattr(optimizer, "optimizer", optimizer)


def _save(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, file)
    with file.open("rb") as written:  # a full disk may show only now
        os.fsync(written.fileno())


def _flatten(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimiser's state_dict as named tensors and JSON; for any whose state is flat per parameter."""
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for number, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                # A copy: 8-bit optimisers share a table among parameters, which safetensors refuses.
                tensors[f"{number}/{key}"] = value.detach().cpu().contiguous().clone()
            else:
                plain.setdefault(str(number), {})[key] = value
    return tensors, {"plain": plain, "groups": state["param_groups"]}
