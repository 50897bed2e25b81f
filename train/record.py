"""A run: its processes, its locked folder, and its record: manifest, log, trackers, words said on the way.

OUT/manifest.json       options, data, base, invocations, status
OUT/log.jsonl           a line per `--log-every` steps
OUT/validation.jsonl    a line per validation
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torchmetrics.aggregation import MeanMetric
from tqdm import tqdm

from nein.engine import atomic, machine
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder
from nein.engine.machine import Processes
from nein.engine.run import Executor
from nein.reporting import tracking
from nein.train.options import RunOptions

LOG, VALIDATION = "log.jsonl", "validation.jsonl"
#: Of PyTorch, on any machine there is.
MOST_THREADS = 4096
CALMER = "Try a lower learning rate, a longer warm-up, --clip 1, or --precision fp32, in another folder."


class RunFolder(Folder):
    content_name = "a run"


class Record:
    """What one run writes about itself, in the main process. Its identity: options, data (with
    `records_sha256`), the weights at the beginning, and the steps of the whole run."""

    def __init__(
        self, config: RunOptions, session: Session, data: Mapping[str, Any], base_sha256: str, steps: int
    ) -> None:
        self.config, self.session, self.steps = config, session, steps
        self._data, self._base_sha256 = dict(data), base_sha256
        self._out = config.out_dir
        self._folder = RunFolder(self._out)
        self._began = self._since = time.perf_counter()
        self._spent = 0.0
        #: Of the steps that the log lacks; in the checkpoints. `tally` gets means over processes already.
        self.mean_loss = MeanMetric(sync_on_compute=False).set_dtype(torch.float64)
        self.mean_loss.persistent(True)
        self._steps = 0  # of these, those of this process
        self._norm = math.nan
        self._last_finite = -1

    def open(self) -> None:
        """Begins or continues the run. Raises UserError for another run."""
        if self.session.processes.is_main:
            identity = {
                **self.config.identity(),
                "base weights": self._base_sha256,
                "data records": self._data["records_sha256"],
                "images": self._data.get("images"),
                "total steps": self.steps,
            }
            invocation = {
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "command": machine.command_line(),
                "processes": self.session.processes.size,
                "environment": machine.describe(str(self.session.accelerator.device)),
            }
            config = dataclasses.asdict(self.config)
            self._folder.open(
                json.loads(json.dumps(identity)),
                {"config": config, "data": self._data, "invocation": invocation},
                overwrite=self.config.overwrite,
                anew=self.config.overwrite,
            )
        self.session.processes.barrier()

    def resume(self, done: int, checkpoint: Path | None) -> None:
        """Cuts what was logged after the checkpoint, which stands at `done` steps."""
        if not self.session.processes.is_main:
            return
        for name in (LOG, VALIDATION):
            if (self._out / name).exists():
                lines = (self._out / name).read_bytes().splitlines(keepends=True)
                rows = [json.loads(line) for line in lines if line.endswith(b"\n")]  # no line of a kill
                rows = [row for row in rows if row["step"] <= done]
                atomic.write_lines(self._out / name, rows)
        logged = self._rows(LOG)
        self._spent = logged[-1]["seconds"] if logged else 0.0
        if checkpoint is not None:
            self.say(f"Going on from '{checkpoint}'.")

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self._out / name
        return atomic.read_lines(path) if path.exists() else []

    def complete(self) -> None:
        if self.session.processes.is_main:
            self._folder.update(status=COMPLETE)

    def facts(self) -> dict[str, Any]:
        """What a model card says about how the model came about."""
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
        """Spent on the run, earlier parts included."""
        return self._spent + time.perf_counter() - self._began

    def tally(self, step: int, tally: torch.Tensor, checkpoint: Path | None) -> bool:
        """Takes a step's (loss, gradient norm, stop wanted), averaged over processes; whether to stop. Raises
        UserError when the loss is not finite."""
        loss, norm, stop = tally.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = "loss" if not math.isfinite(loss) else "gradient"
            last = f"the last good checkpoint is '{checkpoint}'" if checkpoint else "there is no checkpoint"
            raise UserError(
                f"The {what} is not finite between steps {self._last_finite + 1} and {step + 1}; {last}. "
                f"{CALMER}"
            )
        self._last_finite, self._norm = step, norm
        self.mean_loss.update(loss)
        self._steps += 1
        return stop > 0

    def log(self, step: int, rate: float, bar: Any, figures: Mapping[str, Any], skipped: int) -> None:
        """Figures of the steps since the last call, after `step` steps; `figures` of the last alone."""
        now, peaks = time.perf_counter(), machine.peak_memory()
        row = {
            "step": step,
            "loss": float(self.mean_loss.compute()),
            **{name: float(value) for name, value in figures.items()},
            "gradient_norm": self._norm,
            "learning_rate": rate,
            "pairs_per_second": self._steps * self.config.batch_size / max(now - self._since, 1e-9),
            "memory_gib": peaks.get("device", peaks["host"]) / 2**30,
            "skipped": skipped,
            "seconds": round(self.seconds(), 2),
        }
        self.mean_loss.reset()
        self._steps, self._since = 0, now
        postfix = {"loss": f"{row['loss']:.4f}", "lr": f"{rate:.1e}", "mem": f"{row['memory_gib']:.1f}G"}
        bar.set_postfix(postfix, refresh=False)
        self._append(LOG, "train", row)

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        self.say(f"step {step}: {', '.join(f'{key} {value:.3f}' for key, value in figures.items())}")
        self._append(VALIDATION, "validation", {"step": step, **figures})
        self._since = time.perf_counter()

    def _append(self, name: str, prefix: str, row: Mapping[str, Any]) -> None:
        """Writes a row into a file and to the trackers, which the first row starts."""
        accelerator = self.session.accelerator
        if self.session.processes.is_main:
            if self.config.trackers and not accelerator.trackers:
                options = tracking.plain(dataclasses.asdict(self.config))
                accelerator.init_trackers(tracking.FOLDER, config=options)
            with (self._out / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        figures = {f"{prefix}/{key}": value for key, value in row.items() if key != "step"}
        accelerator.log(figures, step=row["step"])

    def say(self, sentence: str) -> None:
        if self.session.processes.is_main:
            tqdm.write(sentence, file=sys.stderr)


class Session(contextlib.ExitStack):
    """The process group of the launcher (one process without one), and the run folder, locked.

    Raises UserError for what this machine cannot do, and while another command is at work in the folder.
    """

    def __init__(self, config: RunOptions) -> None:
        from accelerate import Accelerator, InitProcessGroupKwargs

        super().__init__()
        machine.tune_process()
        if config.threads is not None:
            if config.threads > MOST_THREADS:
                raise UserError(f"--threads is {config.threads}; at most {MOST_THREADS} can be had.")
            torch.set_num_threads(config.threads)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        tracking.check(config.trackers)
        self.accelerator: Any = Accelerator(
            mixed_precision="no" if config.precision == "fp32" else config.precision,
            cpu=config.device == "cpu",
            log_with=list(config.trackers) or None,
            project_dir=config.out,
            # Ranks wait for each other during validation and the making of features.
            kwargs_handlers=[InitProcessGroupKwargs(timeout=datetime.timedelta(days=1))],
        )
        self.callback(self._end)
        several = self.accelerator.num_processes > 1
        self.processes = Processes(
            rank=self.accelerator.process_index,
            size=self.accelerator.num_processes,
            local_rank=self.accelerator.local_process_index,
            _state=self.accelerator.state if several else None,
        )
        if self.processes.is_main:
            try:
                self.enter_context(Executor("cpu", self.processes).locked([Folder(config.out_dir)]))
                machine.say_device(config.device, str(self.accelerator.device))
            except UserError:
                self.close()
                raise
        self._smaller = config.SMALLER

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, torch.OutOfMemoryError):
            raise UserError(f"The device's memory ran out; {self._smaller}. Checkpoints are kept.") from None

    def forget(self) -> None:
        """Closes the trackers and frees what one run has prepared, so that another may follow."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
        self.accelerator.free_memory()

    def _end(self) -> None:
        """Closes trackers and process group; a later run in this process begins anew."""
        from accelerate.state import AcceleratorState, GradientState

        self.accelerator.end_training()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
