"""The record of a run: process group, manifest, log, trackers, and the words said on the way.

OUT/manifest.json       options, data, base, invocations, status
OUT/log.jsonl           a line per `--log-every` steps
OUT/validation.jsonl    a line per validation
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock, Timeout

from nein.benchmarks.nein.runs import COMPLETE, INCOMPLETE, first_difference
from nein.engine import atomic, environment, journal
from nein.engine.errors import UserError, unknown
from nein.engine.world import World

FORMAT = 1


class RunConfig(Protocol):
    """What a run's options must have for `Session` and `Record`, whatever is trained."""

    base: str
    batch_size: Any
    precision: Any
    device: Any
    trackers: Any
    out: str
    overwrite: bool

    @property
    def out_dir(self) -> Path: ...

    def identity(self) -> dict[str, Any]: ...

    def as_dict(self) -> dict[str, Any]: ...


class Session:
    """The process group of the launcher (one process without one), and the run folder, locked.

        with Session(config) as session: ...

    Raises UserError for what this machine cannot do, and while another command is at work in --out.
    """

    def __init__(self, config: RunConfig) -> None:
        from accelerate import Accelerator, InitProcessGroupKwargs

        _check_trackers(config.trackers)
        if config.precision == "fp16" and (config.device == "cpu" or not torch.cuda.is_available()):
            raise UserError("--precision fp16 needs a GPU; use bf16 or fp32 on a CPU.")
        self._lock: FileLock | None = None
        self.accelerator: Any = Accelerator(
            mixed_precision={"fp32": "no", "bf16": "bf16", "fp16": "fp16"}[config.precision],
            cpu=config.device == "cpu",
            log_with=list(config.trackers) or None,
            project_dir=config.out,
            # Ranks wait for each other during validation and the making of features.
            kwargs_handlers=[InitProcessGroupKwargs(timeout=datetime.timedelta(days=1))],
        )
        several = self.accelerator.num_processes > 1
        self.world = World(
            rank=self.accelerator.process_index,
            size=self.accelerator.num_processes,
            local_rank=self.accelerator.local_process_index,
            _state=self.accelerator.state if several else None,
        )
        try:
            if self.world.is_main:
                self._lock = _lock(config.out_dir)
        except UserError:
            self._close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *about: Any) -> None:
        self._close()

    def _close(self) -> None:
        """Closes trackers, process group and lock; a later run in this process begins anew."""
        from accelerate.state import AcceleratorState, GradientState

        self.accelerator.end_training()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if self._lock is not None:
            self._lock.release()


def _lock(out: Path) -> FileLock:
    atomic.check_writable(out)
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"Another command is at work in '{out}'; wait for it, or choose another --out."
        ) from None
    return lock


def _check_trackers(wanted: list[str]) -> None:
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known = [str(getattr(key, "value", key)) for key in LOGGER_TYPE_TO_CLASS]
    usable = [str(getattr(key, "value", key)) for key in get_available_trackers()]
    for name in wanted:
        if name not in known:
            raise unknown("tracker", name, [*sorted(known), "none"])
        if name not in usable:
            hint = "pip install 'nein[train]'" if name == "tensorboard" else f"pip install {name}"
            raise UserError(f"The tracker '{name}' is not installed: {hint}, or say --trackers none.")


class Record:
    """What one run writes about itself; files are written by the main process only."""

    def __init__(
        self, config: RunConfig, world: World, about: Mapping[str, Any], base_sha256: str, steps: int
    ) -> None:
        self._config, self._world, self._steps = config, world, steps
        self._about, self._base_sha256 = dict(about), base_sha256
        self._out = config.out_dir
        self._began = self._since = time.perf_counter()
        self._spent = 0.0
        self._losses: list[float] = []
        self._norm = math.nan
        self._finite = -1
        self.finished = False

    # --- manifest ----------------------------------------------------------------------------

    def open(self) -> None:
        """Begins or continues the run; `finished` says whether nothing is left to do.

        Raises UserError where an earlier part of it was another run.
        """
        config = self._config
        identity = {
            **config.identity(),
            "base weights": self._base_sha256,
            "data records": self._about["records_sha256"],
            "total steps": self._steps,
        }
        identity = json.loads(json.dumps(identity))
        if self._world.is_main:
            found = self._manifest()
            difference = first_difference(found["identity"], identity) if found else None
            if difference and not config.overwrite:
                raise UserError(
                    f"'{self._out}' holds a run with {difference}; choose another --out, or --overwrite to "
                    "discard it."
                )
            if found and config.overwrite:
                for name in ("checkpoints", "validation", "model", "tracking"):
                    shutil.rmtree(self._out / name, ignore_errors=True)
                for name in ("manifest.json", "log.jsonl", "validation.jsonl"):
                    (self._out / name).unlink(missing_ok=True)
                found = None
            invocation = {
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "command": list(sys.argv[1:]),
                "processes": self._world.size,
                "environment": environment.describe("cuda" if torch.cuda.is_available() else "cpu"),
            }
            atomic.write_json(
                self._out / "manifest.json",
                {
                    "format": FORMAT,
                    "status": found["status"] if found else INCOMPLETE,
                    "identity": identity,
                    "config": config.as_dict(),
                    "data": self._about,
                    "seconds": found["seconds"] if found else 0.0,
                    "invocations": [*(found["invocations"] if found else []), invocation],
                },
            )
        self._world.barrier()
        self.finished = (self._manifest() or {}).get("status") == COMPLETE

    def _manifest(self) -> dict[str, Any] | None:
        path = self._out / "manifest.json"
        return atomic.read_json(path) if path.exists() else None

    def resume(self, done: int, checkpoint: Path | None) -> None:
        """Cuts what was logged after the checkpoint, starts the trackers."""
        if not self._world.is_main:
            return
        for name in ("log.jsonl", "validation.jsonl"):
            path = self._out / name
            if path.exists():
                kept = [row for row in journal.intact(path) if row["step"] <= done]
                atomic.write_lines(path, iter(kept))
        rows = atomic.read_lines(self._out / "log.jsonl") if (self._out / "log.jsonl").exists() else []
        self._spent = rows[-1]["seconds"] if rows else 0.0
        if checkpoint is not None:
            self.say(f"Going on from '{checkpoint}'.")

    def complete(self) -> None:
        found = self._manifest() or {}
        atomic.write_json(
            self._out / "manifest.json", {**found, "status": COMPLETE, "seconds": round(self._seconds(), 1)}
        )

    def facts(self) -> dict[str, Any]:
        """What a model card says about how the model came about."""
        rows = []
        if (self._out / "validation.jsonl").exists():
            rows = atomic.read_lines(self._out / "validation.jsonl")
        return {
            "base": self._config.base,
            "base_weights_sha256": self._base_sha256,
            "steps": self._steps,
            "pairs_seen": self._steps * self._config.batch_size,
            "seconds": round(self._seconds()),
            "processes": self._world.size,
            "data": self._about,
            "options": self._config.identity(),
            "validation": rows,
            "torch": torch.__version__,
        }

    def _seconds(self) -> float:
        return self._spent + time.perf_counter() - self._began

    # --- steps -------------------------------------------------------------------------------

    def tally(self, step: int, tally: Any, checkpoint: Path | None) -> bool:
        """Takes a step's (loss, gradient norm, stop asked), averaged over processes; whether to stop.

        Raises UserError when the loss is not finite.
        """
        loss, norm, asked = tally.tolist()
        # Under fp16 a gradient may overflow now and then: that step is skipped and the loss scale lowered.
        sound = math.isfinite(loss) and (math.isfinite(norm) or self._config.precision == "fp16")
        if not sound:
            what = "loss" if not math.isfinite(loss) else "gradient"
            good = (
                f"the last good checkpoint is '{checkpoint}'" if checkpoint else "no checkpoint was written"
            )
            raise UserError(
                f"The {what} is not finite between steps {self._finite + 1} and {step + 1}; {good}. "
                "Try a lower --learning-rate, a longer --warmup, --clip 1, or --precision bf16 or fp32, "
                "in another --out."
            )
        self._finite = step
        self._losses.append(loss)
        self._norm = norm
        return asked > 0

    def log(self, step: int, rate: float, bar: Any, accelerator: Any, skipped: set[str]) -> None:
        """Figures of the steps since the last call, after `step` steps."""
        now = time.perf_counter()
        row = {
            "step": step,
            "loss": sum(self._losses) / len(self._losses),
            "gradient_norm": self._norm,
            "learning_rate": rate,
            "pairs_per_second": len(self._losses) * self._config.batch_size / max(now - self._since, 1e-9),
            "memory_gib": memory_gib(),
            "skipped": len(skipped),
            "seconds": round(self._seconds(), 2),
        }
        self._losses, self._since = [], now
        if self._world.is_main:
            self._start_trackers(accelerator)
            with (self._out / "log.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            bar.set_postfix(
                loss=f"{row['loss']:.4f}", lr=f"{rate:.1e}", mem=f"{row['memory_gib']:.1f}G", refresh=False
            )
        figures = {key: value for key, value in row.items() if key != "step"}
        accelerator.log({f"train/{key}": value for key, value in figures.items()}, step=step)

    def _start_trackers(self, accelerator: Any) -> None:
        if self._config.trackers and not accelerator.trackers:
            plain = {k: v for k, v in self._config.as_dict().items() if isinstance(v, int | float | str)}
            accelerator.init_trackers("tracking", config=plain)

    def validated(self, step: int, figures: Mapping[str, float], accelerator: Any) -> None:
        if self._world.is_main:
            self._start_trackers(accelerator)
            with (self._out / "validation.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **figures}) + "\n")
            shown = ", ".join(f"{key} {value:.3f}" for key, value in figures.items())
            self.say(f"step {step}: {shown}")
        accelerator.log({f"validation/{key}": value for key, value in figures.items()}, step=step)
        self._since = time.perf_counter()

    def say(self, sentence: str) -> None:
        if self._world.is_main:
            from tqdm import tqdm

            tqdm.write(sentence, file=sys.stderr)


@contextlib.contextmanager
def terminable() -> Iterator[Any]:
    """While this lasts SIGTERM is only noted; the value tells whether it has come."""
    came: list[float] = []
    try:
        before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(time.time()))
    except ValueError:  # not in the main thread, where no signal arrives
        yield lambda: False
        return
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)


def memory_gib() -> float:
    """Most memory in use so far: the GPU's where there is one, else this process's."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)
