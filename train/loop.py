"""Train a model: take steps, log, validate, save checkpoints and resume; the loop of editors and of CLIP.

In this order: `Record` (run folder and logs), `Session` (processes), `run` (the loop). A run folder holds

    OUT/manifest.json       options, data, base, invocations, status
    OUT/log.jsonl           a line per `--log-every` steps
    OUT/validation.jsonl    a line per validation
    OUT/checkpoints/        see `train.checkpoints`
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from tqdm import tqdm

from nein.engine import atomic, machine
from nein.engine.folder import COMPLETE, Folder
from nein.engine.machine import Processes, read_ahead
from nein.engine.run import Executor
from nein.loading.errors import UserError
from nein.reporting import tracking
from nein.train.checkpoints import Checkpoints, State
from nein.train.export import cut_paths
from nein.train.options import RunOptions

#: Result of a step: the detached loss, () float32, and further numbers for the log.
Loss = tuple[torch.Tensor, Mapping[str, SupportsFloat]]
LOG, VALIDATION = "log.jsonl", "validation.jsonl"  # files of a run folder
DIVERGED_HINT = "Try a lower learning rate, a longer warm-up, --clip 1, or --precision fp32, in a new folder."


# --- run folder and logs ---------------------------------------------------------------------------------
class RunFolder(Folder):
    content_name = "a run"  # in error messages of `Folder`


class Record:
    """Manifest and logs of one run, written by the main process. Options, data (`records_sha256`), initial
    weights and total steps identify it: a command resumes only a folder with the same identity."""

    def __init__(
        self,
        config: RunOptions,
        session: Session,
        *,
        data: Mapping[str, object],
        base_sha256: str,
        steps: int,
    ) -> None:
        self.config, self.session, self.steps = config, session, steps
        self._data, self._base_sha256 = dict(data), base_sha256
        self._folder = RunFolder(config.out_dir)
        self._command_start = self._entry_start = time.perf_counter()
        self._earlier_seconds = 0.0  # spent by earlier commands
        self.losses = torch.zeros(2, dtype=torch.float64)  # [sum, steps] since the last entry; checkpointed
        self._entry_steps = 0  # steps of this command since the last log entry
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
            identity = json.loads(json.dumps(identity))  # tuples become lists, as in the stored one
            # overwrite: remove a run of another identity; anew: also an earlier one of this identity.
            self._folder.open(identity, facts, overwrite=config.overwrite, anew=config.overwrite)
        processes.barrier()

    def resume(self, step: int, checkpoint: Path | None) -> None:
        """Drop the log entries after `step`, the number of steps in the checkpoint."""
        if not self.session.processes.is_main:
            return
        for file in (self.config.out_dir / LOG, self.config.out_dir / VALIDATION):
            if file.exists():
                lines = file.read_bytes().splitlines(keepends=True)
                rows = [json.loads(line) for line in lines if line.endswith(b"\n")]  # a kill cuts the last
                atomic.write_lines(file, [row for row in rows if row["step"] <= step])
        logged = self._read_rows(LOG)
        self._earlier_seconds = logged[-1]["seconds"] if logged else 0.0
        if checkpoint is not None:
            self.say(f"Resuming from '{checkpoint}'.")

    def _read_rows(self, name: str) -> list[dict[str, Any]]:
        file = self.config.out_dir / name
        return atomic.read_lines(file) if file.exists() else []

    def complete(self) -> None:
        """Mark the run as finished."""
        if self.session.processes.is_main:
            self._folder.update(status=COMPLETE)

    def facts(self) -> dict[str, Any]:
        """Origin of the model, for its card and training.json; without folders of this machine."""
        facts = {
            "base": self.config.base,
            "base_weights_sha256": self._base_sha256,
            "steps": self.steps,
            "pairs_seen": self.steps * self.config.batch_size,
            "seconds": round(self.seconds()),
            "processes": self.session.processes.size,
            "data": self._data,
            "options": self.config.identity(),
            "validation": self._read_rows(VALIDATION),
            "torch": torch.__version__,
        }
        return cut_paths(facts)

    def seconds(self) -> float:
        """Time spent on the run, earlier commands included."""
        return self._earlier_seconds + time.perf_counter() - self._command_start

    def add_step(self, step: int, loss_and_norm: torch.Tensor, checkpoint: Path | None) -> None:
        """Add a step's loss to the next log entry. loss_and_norm: (2,) [loss, gradient norm], averaged over
        processes. Raises UserError if one of them is NaN or infinite."""
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
        self, step: int, numbers: Mapping[str, SupportsFloat], *, rate: float, skipped: int, bar: Any
    ) -> None:
        """Write a log entry: the mean loss since the last one, `numbers` of the last step alone, the learning
        rate, the number of unreadable examples so far. Update the progress bar."""
        now, peaks = time.perf_counter(), machine.peak_memory()  # seconds, bytes
        pairs, seconds = self._entry_steps * self.config.batch_size, max(now - self._entry_start, 1e-9)
        loss_sum, count = self.losses.tolist()
        row = {
            "step": step,
            "loss": loss_sum / count,
            **{name: float(value) for name, value in numbers.items()},
            "gradient_norm": self._gradient_norm,
            "learning_rate": rate,
            "pairs_per_second": pairs / seconds,
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
        self._entry_start = time.perf_counter()  # the time of a validation is not training time

    def _write_row(self, name: str, prefix: str, row: Mapping[str, float]) -> None:
        """Append a row to the file `name` and send it to the trackers; the first row starts them."""
        accelerator = self.session.accelerator
        if self.session.processes.is_main:
            if self.config.trackers and not accelerator.trackers:
                options = tracking.select_plain(dataclasses.asdict(self.config))
                accelerator.init_trackers(tracking.FOLDER, config=options)
            with (self.config.out_dir / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        numbers = {f"{prefix}/{key}": value for key, value in row.items() if key != "step"}
        accelerator.log(numbers, step=row["step"])

    def say(self, sentence: str) -> None:
        if self.session.processes.is_main:
            tqdm.write(sentence, file=sys.stderr)


# --- processes -------------------------------------------------------------------------------------------
class Session(contextlib.ExitStack):
    """The launcher's process group (one process without a launcher), and a lock on the run folder. Raises
    UserError for options that do not suit this machine, and while another command uses the folder."""

    def __init__(self, config: RunOptions) -> None:
        from accelerate import Accelerator, InitProcessGroupKwargs

        super().__init__()
        machine.tune_process()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # faster
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
        size = self.accelerator.num_processes
        self.processes = Processes(
            rank=self.accelerator.process_index,
            size=size,
            local_rank=self.accelerator.local_process_index,
            _state=self.accelerator.state if size > 1 else None,
        )
        if self.processes.is_main:
            try:
                self.enter_context(Executor("cpu", self.processes).lock([Folder(config.out_dir)]))
                machine.print_device(config.device, str(self.accelerator.device))
            except UserError:
                self.close()
                raise
        self._memory_hint = config.MEMORY_ADVICE

    def __exit__(self, error_type: Any, error: Any, trace: Any) -> None:
        super().__exit__(error_type, error, trace)
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
    validate  Number of steps done -> estimates by name; called before the first step, every `validate_every`
              steps, and at the end.
    stop      Last step of this call, if not that of the run; the learning rate schedule is the run's.
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

            # What is due after this step: log entry, checkpoint, validation.
            is_last = steps_done == last
            log_due = is_last or steps_done % config.log_every == 0
            save_due = is_last or steps_done % config.save_every == 0
            validation_due = validate_every and (is_last or steps_done % validate_every == 0)
            unread = 0 if log_due or save_due or validation_due else 1
            while len(pending) > unread:
                record.add_step(*pending.pop(0), checkpoints.latest())
            if log_due:
                record.log(steps_done, numbers, rate=rate, skipped=len(skipped), bar=bar)
            bar.update()
            if save_due:
                if processes.is_main:
                    checkpoints.save(steps_done)
                processes.barrier()
            if validation_due and validate is not None:
                record.log_validation(steps_done, validate(steps_done))
    return steps_done


def make_schedule(kind: str, warmup: int, optimizer: Any, steps: int) -> Any:
    """Linear warm-up, then "constant", "linear" to 0 or "cosine" to 0 at `steps`."""
    from diffusers.optimization import get_scheduler

    # diffusers' own "constant" silently ignores the warm-up.
    name = "constant_with_warmup" if kind == "constant" else kind
    return get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps)
