"""Training loop of editors and CLIP: its run folder and logs, its processes, its steps, its checkpoints.

OUT/manifest.json       options, data, base, invocations, status
OUT/log.jsonl           a line per `--log-every` steps
OUT/validation.jsonl    a line per validation
OUT/checkpoints/        step-00000500 ..: each whole or not at all

A checkpoint is safetensors and JSON only (`Checkpoints`). It holds no random state: every random number is a
function of the seed and the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, SupportsFloat

import safetensors
import torch
from safetensors.torch import load_file, save_file
from tqdm import tqdm

from nein.engine import atomic, machine
from nein.engine.folder import COMPLETE, Folder
from nein.engine.machine import Processes, read_ahead
from nein.engine.run import Executor
from nein.loading.errors import UserError
from nein.reporting import tracking
from nein.train.options import RunOptions

#: Detached loss, () float32, and further numbers for the log.
Loss = tuple[torch.Tensor, Mapping[str, SupportsFloat]]
Tensors = dict[str, torch.Tensor]  # by name
LOG, VALIDATION = "log.jsonl", "validation.jsonl"
DIVERGED_HINT = "Try a lower learning rate, a longer warm-up, --clip 1, or --precision fp32, in a new folder."


# --- run folder and logs ---------------------------------------------------------------------------------
class RunFolder(Folder):
    content_name = "a run"


class Record:
    """Manifest and logs of one run, written by the main process. Options, data (with `records_sha256`), the
    weights at the beginning and the steps of the whole run identify it: only the same run resumes."""

    def __init__(
        self, config: RunOptions, session: Session, data: Mapping[str, object], base_sha256: str, steps: int
    ) -> None:
        self.config, self.session, self.steps = config, session, steps
        self._data, self._base_sha256 = dict(data), base_sha256
        self._out = config.out_dir
        self._folder = RunFolder(self._out)
        self._command_start = self._entry_start = time.perf_counter()
        self._earlier_seconds = 0.0  # spent by earlier commands
        #: (2,) [sum of losses, steps] since the last log entry; part of a checkpoint.
        self.losses = torch.zeros(2, dtype=torch.float64)
        self._entry_steps = 0  # since the last log entry, by this command
        self._gradient_norm = math.nan  # of the last step with a finite loss
        self._last_finite_step = -1

    def open(self) -> None:
        """Create or reopen the run folder. Raises UserError if it holds another run."""
        config, processes = self.config, self.session.processes
        identity = {
            **config.identity(),
            "base weights": self._base_sha256,
            "data records": self._data["records_sha256"],
            "images": self._data.get("images"),
            "total steps": self.steps,
        }
        invocation = {
            "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": machine.command_line(),
            "processes": processes.size,
            "environment": machine.describe_environment(str(self.session.accelerator.device)),
        }
        facts = {"config": dataclasses.asdict(config), "data": self._data, "invocation": invocation}
        if processes.is_main:
            identity = json.loads(json.dumps(identity))
            self._folder.open(identity, facts, overwrite=config.overwrite, anew=config.overwrite)
        processes.barrier()

    def resume(self, step: int, checkpoint: Path | None) -> None:
        """Drop log entries after `step`, the number of steps in the checkpoint."""
        if not self.session.processes.is_main:
            return
        for name in (LOG, VALIDATION):
            if (self._out / name).exists():
                lines = (self._out / name).read_bytes().splitlines(keepends=True)
                # A kill can truncate the last line.
                rows = [json.loads(line) for line in lines if line.endswith(b"\n")]
                rows = [row for row in rows if row["step"] <= step]
                atomic.write_lines(self._out / name, rows)
        logged = self._rows(LOG)
        self._earlier_seconds = logged[-1]["seconds"] if logged else 0.0
        if checkpoint is not None:
            self.say(f"Resuming from '{checkpoint}'.")

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self._out / name
        return atomic.read_lines(path) if path.exists() else []

    def complete(self) -> None:
        if self.session.processes.is_main:
            self._folder.update(status=COMPLETE)

    def facts(self) -> dict[str, Any]:
        """Origin of the model, for its card and training.json."""
        return {
            "base": self.config.base,
            "base_weights_sha256": self._base_sha256,
            "steps": self.steps,
            "pairs_seen": self.steps * self.config.batch_size,
            "seconds": round(self.seconds()),
            "processes": self.session.processes.size,
            "data": self._data,
            "options": self.config.identity(),
            "validation": self._rows(VALIDATION),
            "torch": torch.__version__,
        }

    def seconds(self) -> float:
        """Time spent on the run, earlier commands included."""
        return self._earlier_seconds + time.perf_counter() - self._command_start

    def add_step(self, step: int, loss_and_norm: torch.Tensor, checkpoint: Path | None) -> None:
        """Add a step. loss_and_norm: (2,), averaged over processes. Raises UserError for NaN."""
        loss, norm = loss_and_norm.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            quantity = "loss" if not math.isfinite(loss) else "gradient"
            newest = f"the last good checkpoint is '{checkpoint}'" if checkpoint else "there is no checkpoint"
            steps = f"{self._last_finite_step + 1} and {step + 1}"
            raise UserError(f"The {quantity} is not finite between steps {steps}; {newest}. {DIVERGED_HINT}")
        self._last_finite_step, self._gradient_norm = step, norm
        self.losses += torch.tensor([loss, 1.0], dtype=torch.float64)
        self._entry_steps += 1

    def log(
        self, step: int, rate: float, bar: Any, numbers: Mapping[str, SupportsFloat], skipped: int
    ) -> None:
        """Write a log entry: means since the last one; `numbers` of the last step alone."""
        now, peaks = time.perf_counter(), machine.peak_memory()
        total, count = self.losses.tolist()
        row = {
            "step": step,
            "loss": total / count,
            **{name: float(value) for name, value in numbers.items()},
            "gradient_norm": self._gradient_norm,
            "learning_rate": rate,
            "pairs_per_second": self._entry_steps
            * self.config.batch_size
            / max(now - self._entry_start, 1e-9),
            "memory_gib": peaks.get("device", peaks["host"]) / 2**30,
            "skipped": skipped,
            "seconds": round(self.seconds(), 2),
        }
        self.losses.zero_()
        self._entry_steps, self._entry_start = 0, now
        postfix = {"loss": f"{row['loss']:.4f}", "lr": f"{rate:.1e}", "mem": f"{row['memory_gib']:.1f}G"}
        bar.set_postfix(postfix, refresh=False)
        self._write_row(LOG, "train", row)

    def log_validation(self, step: int, estimates: Mapping[str, float]) -> None:
        self.say(f"step {step}: {', '.join(f'{key} {value:.3f}' for key, value in estimates.items())}")
        self._write_row(VALIDATION, "validation", {"step": step, **estimates})
        self._entry_start = time.perf_counter()  # a validation is no training time

    def _write_row(self, name: str, prefix: str, row: Mapping[str, float]) -> None:
        """Append a row to a file and send it to the trackers; the first row starts them."""
        accelerator = self.session.accelerator
        if self.session.processes.is_main:
            if self.config.trackers and not accelerator.trackers:
                options = tracking.plain(dataclasses.asdict(self.config))
                accelerator.init_trackers(tracking.FOLDER, config=options)
            with (self._out / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        numbers = {f"{prefix}/{key}": value for key, value in row.items() if key != "step"}
        accelerator.log(numbers, step=row["step"])

    def say(self, sentence: str) -> None:
        if self.session.processes.is_main:
            tqdm.write(sentence, file=sys.stderr)


# --- processes -------------------------------------------------------------------------------------------
class Session(contextlib.ExitStack):
    """The launcher's process group (without a launcher: one process), and a lock on the run folder. Raises
    UserError for options that this machine cannot serve, and while another command uses the folder."""

    def __init__(self, config: RunOptions) -> None:
        from accelerate import Accelerator, InitProcessGroupKwargs

        super().__init__()
        machine.tune_process()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        tracking.check(config.trackers)
        self.accelerator: Any = Accelerator(
            mixed_precision="no" if config.precision == "fp32" else config.precision,
            cpu=config.device == "cpu",
            log_with=list(config.trackers) or None,
            project_dir=config.out,
            # Other ranks wait while the main one validates or encodes features.
            kwargs_handlers=[InitProcessGroupKwargs(timeout=datetime.timedelta(days=1))],
        )
        self.callback(self._shut_down)
        is_distributed = self.accelerator.num_processes > 1
        self.processes = Processes(
            rank=self.accelerator.process_index,
            size=self.accelerator.num_processes,
            local_rank=self.accelerator.local_process_index,
            _state=self.accelerator.state if is_distributed else None,
        )
        if self.processes.is_main:
            try:
                self.enter_context(Executor("cpu", self.processes).lock([Folder(config.out_dir)]))
                machine.print_device(config.device, str(self.accelerator.device))
            except UserError:
                self.close()
                raise
        self._memory_hint = config.SMALLER

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, torch.OutOfMemoryError):
            raise UserError(f"Out of memory; {self._memory_hint}. Checkpoints are kept.") from None

    def free_models(self) -> None:
        """Close the trackers and free the prepared models, before the next run of this session."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
        self.accelerator.free_memory()

    def _shut_down(self) -> None:
        """Close trackers and process group; a later session in this process starts fresh."""
        from accelerate.state import AcceleratorState, GradientState

        self.accelerator.end_training()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


# --- steps -----------------------------------------------------------------------------------------------
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
    """Train from the newest checkpoint to the last step; returns the number of steps done.

    read      Step number -> inputs of `step`; called in threads, ahead of training.
    step      (step number, inputs) -> loss: forward and backward, seeded by the step number.
    after     Called with the step number after each optimizer step.
    validate  Estimates by name; called before the first step, every `validate_every` steps, and at the end.
    stop      Leave after so many steps; the schedule still covers all.
    skipped   Unreadable examples so far: their count is logged.

    Every process calls it. Raises UserError.
    """
    config, processes, accelerator = record.config, record.session.processes, record.session.accelerator
    last = min(record.steps, stop or record.steps)
    checkpoints = Checkpoints(config.out_dir, config.keep, state, record.losses)
    newest = checkpoints.latest()
    steps_done = checkpoints.restore(newest) if newest is not None else 0
    record.resume(steps_done, newest)
    processes.barrier()

    if steps_done == 0 and validate is not None and validate_every:
        record.log_validation(0, validate(0))
    bar = tqdm(total=record.steps, initial=steps_done, desc=title, unit="step", disable=not processes.is_main)
    # Losses still on the device. They are read one step late, so that the GPU never waits for the CPU; before
    # a log entry, a checkpoint or a validation all of them are read.
    pending: list[tuple[int, torch.Tensor]] = []  # (step number, (2,) [loss, gradient norm])
    with contextlib.closing(bar):
        for number, inputs in read_ahead(read, range(steps_done, last), config.workers):
            loss, numbers = step(number, inputs)
            norm = accelerator.clip_grad_norm_(state.parameters, config.clip or math.inf)
            rate = state.schedule.get_last_lr()[0]
            state.optimizer.step()
            state.optimizer.zero_grad(set_to_none=True)
            state.schedule.step()
            if after is not None:
                after(number)
            loss_and_norm = torch.stack([loss, norm.to(loss)])  # (), () => (2,)
            pending.append((number, accelerator.reduce(loss_and_norm, "mean")))
            steps_done = number + 1
            ends, saves = steps_done == last, steps_done % config.save_every == 0
            validates = validate_every and (steps_done % validate_every == 0 or ends)
            logs = steps_done % config.log_every == 0 or ends
            while len(pending) > (0 if logs or saves or validates else 1):
                record.add_step(*pending.pop(0), checkpoints.latest())
            if logs:
                record.log(steps_done, rate, bar, numbers, len(skipped))
            bar.update()
            if saves or ends:
                if processes.is_main:
                    checkpoints.save(steps_done)
                processes.barrier()
            if validates and validate is not None:
                record.log_validation(steps_done, validate(steps_done))
    return steps_done


def make_schedule(kind: str, warmup: int, optimizer: Any, steps: int) -> Any:
    """Linear warm-up, then "constant", "linear" to 0 or "cosine" to 0 at `steps`."""
    from diffusers.optimization import get_scheduler

    # diffusers' own "constant" silently ignores the warm-up.
    name = "constant_with_warmup" if kind == "constant" else kind
    return get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps)


# --- checkpoints -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class State:
    """All that the next step depends on, except the data and the step number."""

    names: Sequence[str]  # of the trained parameters
    parameters: Sequence[torch.nn.Parameter]
    optimizer: Any  # its state is flat per parameter
    schedule: Any
    average: Any = None  # has `shadow_params` and `optimization_step`, as diffusers' EMAModel
    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)  # change without gradients


class Checkpoints:
    """Checkpoints of a run folder: OUT/checkpoints/step-N/{weights,others,average,optimizer}.safetensors and
    state.json. Only the main process writes. losses: (2,) float64, see `Record`."""

    def __init__(self, out: Path, keep: int, state: State, losses: torch.Tensor) -> None:
        self.folder = out / "checkpoints"
        self._keep, self._state, self._losses = keep, state, losses

    def latest(self) -> Path | None:
        return max(self.folder.glob("step-*"), default=None)

    def _list_tensors(self) -> dict[str, Tensors]:
        """File -> tensor by name: all that a step changes in place, except the optimizer's."""
        state = self._state
        others: Tensors = {"losses": self._losses}
        for name, module in state.modules.items():
            others |= {f"{name}/{key}": tensor for key, tensor in module.state_dict().items()}
        weights: Tensors = dict(zip(state.names, state.parameters, strict=True))
        files = {"weights": weights, "others": others}
        if state.average is not None:
            files["average"] = dict(zip(state.names, state.average.shadow_params, strict=True))
        return files

    def save(self, step: int) -> None:
        """Write the state after `step` steps, then remove the oldest checkpoints. Raises UserError if
        the disk is full; earlier checkpoints are kept."""
        draft = self.folder / f".draft-{step:08d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for old_draft in self.folder.glob(".draft-*"):
                shutil.rmtree(old_draft)
            draft.mkdir()
            self._write(step, draft)
            draft.replace(self.folder / f"step-{step:08d}")
        except (OSError, safetensors.SafetensorError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            newest, cause = self.latest(), " ".join(str(error).split())
            kept = f"the last good checkpoint is '{newest}'" if newest else "there is no earlier checkpoint"
            raise UserError(
                f"The checkpoint at step {step} was not written to '{self.folder}' ({cause}), {kept}; "
                "free some space, or make it writable, then rerun the command."
            ) from None
        for old in sorted(self.folder.glob("step-*"))[: -self._keep]:
            shutil.rmtree(old)

    def _write(self, step: int, folder: Path) -> None:
        state, tensors, scalars = self._state, Tensors(), dict[str, Any]()
        optimizer = _unwrap(state.optimizer).state_dict()
        for number, values in optimizer["state"].items():
            for key, value in values.items():
                # Cloned: 8-bit optimizers share a table among parameters, which safetensors refuses.
                if isinstance(value, torch.Tensor):
                    tensors[f"{number}/{key}"] = value.clone()
                else:
                    scalars.setdefault(str(number), {})[key] = value
        for name, content in {**self._list_tensors(), "optimizer": tensors}.items():
            _save(content, folder / f"{name}.safetensors")
        facts = {
            "step": step,
            "schedule": state.schedule.state_dict(),
            "average_steps": None if state.average is None else state.average.optimization_step,
            "optimizer": {"plain": scalars, "groups": optimizer["param_groups"]},
            # A checkpoint counts only if its files have these sizes.
            "bytes": {file.name: file.stat().st_size for file in folder.glob("*.safetensors")},
        }
        atomic.write_json(folder / "state.json", facts)

    def restore(self, folder: Path) -> int:
        """Load a checkpoint into `state`; returns its number of steps. Raises UserError."""
        state, schema = self._state, atomic.record({"step": int, "bytes": dict[str, int]})
        facts = atomic.read_json(folder / "state.json", schema)
        for name, size in facts["bytes"].items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != size:
                raise UserError(f"'{folder / name}' is damaged; remove '{folder}' and rerun the command.")
        for name, tensors in self._list_tensors().items():
            stored = load_file(folder / f"{name}.safetensors")
            if stored.keys() != tensors.keys():
                raise UserError(f"'{folder}' holds other weights than this run trains; pass another --out.")
            with torch.no_grad():
                for key, tensor in tensors.items():
                    tensor.copy_(stored[key])
        if state.average is not None:
            state.average.optimization_step = facts["average_steps"]
        scalars, groups = facts["optimizer"]["plain"], facts["optimizer"]["groups"]
        entries: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in scalars.items()}
        for name, value in load_file(folder / "optimizer.safetensors").items():
            number, _, key = name.partition("/")
            entries.setdefault(int(number), {})[key] = value
        for group in groups:  # JSON has turned the tuple `betas` into a list
            group |= {"betas": tuple(group["betas"])} if "betas" in group else {}
        _unwrap(state.optimizer).load_state_dict({"state": entries, "param_groups": groups})
        state.schedule.load_state_dict(facts["schedule"])
        return facts["step"]


def _unwrap(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _save(tensors: Tensors, file: Path) -> None:
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, file)
    with file.open("rb") as stream:  # a full disk may show only now
        os.fsync(stream.fileno())
