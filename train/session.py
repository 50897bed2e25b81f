"""The processes of a training run, one or those of `accelerate launch`; one command at a time in a folder."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from nein.engine import atomic, environment
from nein.engine.errors import UserError
from nein.engine.processes import Processes
from nein.reporting import tracking
from nein.train.options import RunOptions

#: Of PyTorch, on any machine there is.
MOST_THREADS = 4096


class Session:
    """The process group of the launcher (one process without one), and the run folder, locked.

    Raises UserError for what this machine cannot do, and while another command is at work in the folder.
    """

    def __init__(self, config: RunOptions) -> None:
        from accelerate import Accelerator, InitProcessGroupKwargs

        environment.keep_freed_memory()
        if config.threads is not None:
            if config.threads > MOST_THREADS:
                raise UserError(f"--threads is {config.threads}; at most {MOST_THREADS} can be had.")
            torch.set_num_threads(config.threads)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        tracking.check(config.trackers)
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
        self.processes = Processes(
            rank=self.accelerator.process_index,
            size=self.accelerator.num_processes,
            local_rank=self.accelerator.local_process_index,
            _state=self.accelerator.state if several else None,
        )
        try:
            if self.processes.is_main:
                self._lock = _lock(config.out_dir)
                environment.say_device(config.device, str(self.accelerator.device))
        except UserError:
            self.__exit__()
            raise

    def __enter__(self) -> Session:
        return self

    def forget(self) -> None:
        """Closes the trackers and lets go of what one run has prepared, so that another may follow."""
        for tracker in self.accelerator.trackers:
            tracker.finish()
        self.accelerator.trackers = []
        self.accelerator.free_memory()

    def __exit__(self, *_: object) -> None:
        """Closes trackers, process group and lock; a later run in this process begins anew."""
        from accelerate.state import AcceleratorState, GradientState

        self.accelerator.end_training()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        if self._lock is not None:
            self._lock.release()


def _lock(out: Path) -> FileLock:
    atomic.check_writable(out)
    # Not a lock that is a mere file: one that a killed process leaves would be held for ever.
    lock = FileLock(out / ".lock", fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"Another command is at work in '{out}'; wait for it, or choose another folder."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise UserError(
            f"'{out}' lies on a file system that cannot lock files ({error}), so nothing could keep two "
            "trainings apart; choose a folder on another disk."
        ) from None
    return lock
