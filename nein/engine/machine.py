"""Uses and describes the machine of a command: processes and devices; cores and threads; and the facts that a
manifest notes about hardware, versions and command line (no user or host names, no secrets)."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from nein.loading.digests import Json
from nein.loading.errors import UserError
from nein.loading.references import hide_credentials

# --- processes and devices -----------------------------------------------------------------------
#: The values of --device, PyTorch's names or "auto": as a pattern, and in words.
DEVICES = r"auto|cpu|mps|cuda(:\d+)?"
DEVICE_NAMES = "auto, cpu, cuda, cuda:N or mps"


@dataclass
class Processes:
    """The processes that a launcher started for a command; this one is number `rank` of `size`."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this node: the number of its GPU
    _state: Any = None  # accelerate's PartialState, whose process group lives with it; None: no group

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Waits until all processes have called this; a single process does not wait."""
        if self._state is not None:
            import torch

            try:
                torch.distributed.barrier()
            except RuntimeError as error:
                raise UserError(
                    f"Process {self.rank} of {self.size} timed out waiting for the others to start "
                    f"({str(error).splitlines()[0]}); rerun the command."
                ) from None

    def device(self, name: str) -> str:
        """PyTorch's name of this process's device, from a value of --device. "auto" is a GPU if there is one
        (cuda: NVIDIA or AMD; mps: Apple), else cpu. Raises UserError for an absent device."""
        if not re.fullmatch(DEVICES, name):
            raise UserError(f"--device is '{name}'; it must be {DEVICE_NAMES}.")
        if name == "cpu":
            return name
        import torch

        has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        kind = name.partition(":")[0]
        if (kind == "cuda" and not has_cuda) or (kind == "mps" and not has_mps):
            gpu = "Apple GPU" if kind == "mps" else "GPU of NVIDIA or AMD"
            raise UserError(f"--device is '{name}', but this PyTorch sees no {gpu}; use --device cpu.")
        device = name
        if name == "auto":
            device = "cuda" if has_cuda else "mps" if has_mps else "cpu"
        if device == "cuda" and self.size > 1:
            device = f"cuda:{self.local_rank}"
        if self.rank == 0:
            print_device(name, device)
        return device


def join_processes() -> Processes:
    """Joins the process group that the environment of accelerate or torchrun announces."""
    from accelerate import PartialState

    # cpu: gloo, which needs no device memory; processes only synchronize. The timeout is long because the
    # other processes wait while the main process checks the data.
    state = PartialState(cpu=True, timeout=timedelta(minutes=30))
    return Processes(state.process_index, state.num_processes, state.local_process_index, state)


# --- cores and threads ---------------------------------------------------------------------------
Item = TypeVar("Item")


def count_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int = 1) -> None:
    """Sets the number of PyTorch's threads for the calling thread; 0 keeps PyTorch's default."""
    # PyTorch takes the number from these variables: if they say the same, there is no need to import it.
    numbers = {os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS", str(count))}
    if count and ("torch" in sys.modules or numbers != {str(count)}):
        import torch

        torch.set_num_threads(count)


def read_ahead(
    work: Callable[[Item], Any],
    items: Iterable[Item],
    ahead: int = 2,
    init_thread: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Any]]:
    """Yields (item, work(item)) in order; `ahead` threads (at least one) compute results in advance."""
    with ThreadPoolExecutor(max(1, ahead), "ahead", init_thread) as pool:
        pending = deque[tuple[Item, Future[Any]]]()  # at most ahead + 1: the caller's next item, and others
        try:
            for new_item in items:
                pending.append((new_item, pool.submit(work, new_item)))
                if len(pending) > ahead:
                    item, future = pending.popleft()
                    yield item, future.result()
            while pending:
                item, future = pending.popleft()
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def map_parallel(
    work: Callable[[Item], Any], items: Iterable[Item], on_cpu: bool, threads: int | None = None
) -> Iterator[tuple[Item, Any]]:
    """Yields (item, work(item)) in order. On a CPU, `threads` items are computed at once (default: one per
    core), each on one thread; elsewhere one after the other."""
    set_threads(1 if on_cpu else threads or 0)
    if not on_cpu:
        return ((item, work(item)) for item in items)
    return read_ahead(work, items, threads or count_cores(), set_threads)


def tune_process() -> None:
    """Sets threads, garbage collection and malloc for speed. Call it before the first large allocation."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads leave the core to others
    # Garbage collection takes a third of the CPU time of importing model libraries: raise the threshold, and
    # skip the final collection. `nein.engine.run` collects models that are in reference cycles.
    young, *older = gc.get_threshold()  # new objects before a collection, then two counts of collections
    gc.set_threshold(max(young, 10_000), *older)
    atexit.unregister(gc.freeze)  # several commands may run in one process
    atexit.register(gc.freeze)
    # glibc keeps freed blocks: a model on a CPU reuses the same large buffers in every step, and faulting
    # their pages in again can take longer than the arithmetic.
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # M_* of malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20)):
            mallopt(option, value)


# --- facts for a manifest ------------------------------------------------------------------------
#: Packages whose versions a manifest notes.
PACKAGES = ["nein", "torch", "torchvision", "diffusers", "transformers", "accelerate", "safetensors"]
PACKAGES += ["numpy", "pillow", "scipy", "spacy", "clean-fid", "lpips", "torchmetrics"]


def describe_environment(device: str | None) -> Json:
    """JSON-serializable facts: hardware; versions; `git`, the commit and whether tracked files differ from it
    (None outside a checkout). device: the device in use, None if no stage needed one."""
    device_name, arithmetic = find_hardware(device)
    return {**_describe_software(), "device": device, "device_name": device_name, "arithmetic": arithmetic}


@functools.cache  # the versions that this process loaded
def _describe_software() -> Json:
    packages = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[package] = metadata.version(package)
    call = ["git", "-C", str(Path(__file__).resolve().parent), "describe"]
    call += ["--always", "--dirty", "--abbrev=40", "--exclude=*"]  # the full commit, no tag, maybe "-dirty"
    git = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(call, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
        git = {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")}
    system = f"{platform.system()} {platform.machine()}"
    return {"python": platform.python_version(), "platform": system, "packages": packages, "git": git}


def find_hardware(device: str | None) -> tuple[str | None, str | None]:
    """(name, arithmetic) of a device: ("NVIDIA H100 80GB HBM3", "CUDA 13.0"), ("AMD EPYC 9R45", "AVX512").
    The arithmetic decides the last bits of results. None: unknown, or PyTorch is not loaded."""
    torch = sys.modules.get("torch")  # a description is no reason to import it
    if device == "mps":
        return "Apple GPU", "MPS"
    if device is not None and device.startswith("cuda"):  # PyTorch's name for AMD's GPUs, too
        if torch is None or not torch.cuda.is_available():
            return None, None
        version = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return torch.cuda.get_device_name(device), version
    name = platform.processor() or None
    if name is None and (cpuinfo := Path("/proc/cpuinfo")).is_file():
        match = re.search(r"^model name\s*: (.*)", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        name = match[1] if match else None
    if device is None or torch is None:
        return name, None
    return name, str(torch.backends.cpu.get_cpu_capability())


def print_device(name: str, device: str) -> None:
    """Prints on standard error which `device` was chosen, if the value `name` of --device is "auto"."""
    if name == "auto":
        facts = [fact for fact in (device, *find_hardware(device)) if fact]
        print(f"--device auto: {', '.join(facts)}", file=sys.stderr, flush=True)


def peak_memory(device: str = "cuda") -> dict[str, int]:
    """Peak bytes of this process: `host` (resident), `device` (allocated by CUDA); {} on Windows."""
    try:
        import resource
    except ImportError:
        return {}
    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and device.startswith("cuda"):
        peaks["device"] = int(torch.cuda.max_memory_allocated(device))
    return peaks


#: Environment variable of a Slurm job: the words that the user typed, as JSON. The job runs other words.
COMMAND_VARIABLE = "NEIN_COMMAND"


def command_line() -> list[str]:
    """The words that the user typed after the program's name, without credentials of endpoints."""
    words = json.loads(os.environ[COMMAND_VARIABLE]) if COMMAND_VARIABLE in os.environ else sys.argv[1:]
    return [hide_credentials(word) for word in words]


def shell_command() -> str:
    """This command as the user typed it, without credentials; "the same command" in a call from Python."""
    program = Path(sys.argv[0])
    is_nein = program.name == "nein" or program.parts[-2:] == ("nein", "__main__.py")
    return shlex.join(["nein", *command_line()]) if is_nein else "the same command"
