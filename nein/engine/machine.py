"""What a command needs of its machine, in four parts: processes and devices; cores and threads; the facts on
machine and code that a manifest notes (no names, no secrets); and the end of the command."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import io
import itertools
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from nein.loading.digests import Json
from nein.loading.errors import UserError, out_of_memory

# --- processes and devices -----------------------------------------------------------------------

#: The values of --device, PyTorch's names or "auto": as a pattern, and in words.
DEVICES = r"auto|cpu|mps|cuda(:\d+)?"
DEVICE_NAMES = "auto, cpu, cuda, cuda:N or mps"
Item = TypeVar("Item")


@dataclass
class Processes:
    """The processes of a command; this one is the `rank`-th of `size`. `barrier()` waits for all of them:
    training calls it often, other commands once, when their folders are open. One process does not wait."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    _state: Any = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        if self._state is not None:
            import torch

            # gloo also on GPUs: we only synchronize, and gloo needs no device memory.
            try:
                torch.distributed.barrier()
            except RuntimeError as error:
                raise UserError(
                    f"Process {self.rank} of {self.size} timed out waiting for the others to start "
                    f"({str(error).splitlines()[0]}); rerun the command."
                ) from None

    def device(self, name: str) -> str:
        """The device of this process: `auto` is its GPU if there is one (cuda: NVIDIA or AMD; mps: Apple),
        else cpu; the main process prints which. Raises UserError for an absent device."""
        if not re.fullmatch(DEVICES, name):
            raise UserError(f"--device is '{name}'; it must be {DEVICE_NAMES}.")
        if name == "cpu":
            return name
        import torch

        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        kind = name.partition(":")[0]
        if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
            gpu = "Apple GPU" if kind == "mps" else "GPU of NVIDIA or AMD"
            raise UserError(f"--device is '{name}', but this PyTorch sees no {gpu}; use --device cpu.")
        device = name if name != "auto" else "cuda" if cuda else "mps" if mps else "cpu"
        if device == "cuda" and self.size > 1:
            device = f"cuda:{self.local_rank}"
        if self.rank == 0:
            print_device(name, device)
        return device


def join_processes() -> Processes:
    """Joins the process group announced by the launcher's environment."""
    from accelerate import PartialState

    # Long, because the other processes wait while the main process checks the data.
    state = PartialState(cpu=True, timeout=timedelta(minutes=30))
    return Processes(state.process_index, state.num_processes, state.local_process_index, state)


# --- cores and threads ---------------------------------------------------------------------------


def count_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int = 1) -> None:
    """Sets the number of PyTorch's threads for the calling thread; 0 keeps PyTorch's default. Does not import
    PyTorch if the environment already sets this number."""
    limits = {os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS", str(count))}
    if count and ("torch" in sys.modules or limits != {str(count)}):
        import torch

        torch.set_num_threads(count)


def read_ahead(
    work: Callable[[Item], Any],
    items: Iterable[Item],
    ahead: int = 2,
    init_thread: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Any]]:
    """Yields (item, work(item)) in order; threads compute up to `ahead` of them in advance."""
    remaining = iter(items)
    with ThreadPoolExecutor(max(1, ahead), "ahead", init_thread) as pool:
        pending = deque[tuple[Item, Future[Any]]]()
        try:
            for count in itertools.chain([ahead + 1], itertools.repeat(1)):  # fill, then one in for one out
                pending.extend((item, pool.submit(work, item)) for item in itertools.islice(remaining, count))
                if not pending:
                    return
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
    """Tunes threads, garbage collection and malloc. Call it before the first large allocation."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads leave the core to others
    # Garbage collection takes a third of the CPU time of importing model libraries: raise the threshold, and
    # skip the final collection. `nein.engine.run` collects models that are in reference cycles.
    young, *older = gc.get_threshold()  # allocations, then collections, per generation
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

#: Environment variable with the words that the user typed, as JSON; a Slurm job runs another command.
COMMAND_VARIABLE = "NEIN_COMMAND"
PACKAGES = [*"nein torch torchvision diffusers transformers accelerate safetensors numpy".split()]
PACKAGES += [*"pillow scipy spacy clean-fid lpips torchmetrics".split()]


def describe(device: str | None) -> Json:
    """JSON-serializable facts: versions; `git`, the commit and whether tracked files differ from it (None
    outside a checkout); hardware. device: the device in use, None if no stage needed one."""
    device_name, arithmetic = find_hardware(device)
    return {**_describe_software(), "device": device, "device_name": device_name, "arithmetic": arithmetic}


@functools.cache  # the versions that this process loaded
def _describe_software() -> Json:
    packages = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[package] = metadata.version(package)
    call = ["git", "-C", str(Path(__file__).resolve().parent), "describe"]
    call += ["--always", "--dirty", "--abbrev=40", "--exclude=*"]
    git = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(call, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
        git = {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")}
    system = f"{platform.system()} {platform.machine()}"
    return {"python": platform.python_version(), "platform": system, "packages": packages, "git": git}


def find_hardware(device: str | None) -> tuple[str | None, str | None]:
    """(name, arithmetic) of a device: "NVIDIA H100 80GB HBM3" or "AMD EPYC 9R45"; and what decides the last
    bits of its results: "CUDA 13.0", "ROCm 6.2", "MPS", or the CPU's instructions ("AVX512"). None: unknown,
    or PyTorch is not loaded."""
    torch = sys.modules.get("torch")  # a description is no reason to import it
    if device == "mps":
        return "Apple GPU", "MPS"
    if device is not None and device.startswith("cuda"):  # PyTorch's name for AMD's GPUs too
        if torch is None or not torch.cuda.is_available():
            return None, None
        version = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        return torch.cuda.get_device_name(device), version
    name = platform.processor() or None
    if name is None and (facts := Path("/proc/cpuinfo")).is_file():
        match = re.search(r"^model name\s*: (.*)", facts.read_text(encoding="utf-8"), re.MULTILINE)
        name = match[1] if match else None
    if device is None or torch is None:
        return name, None
    return name, str(torch.backends.cpu.get_cpu_capability())


def print_device(name: str, device: str) -> None:
    """Prints on standard error which device `--device auto` chose."""
    if name == "auto":
        description = ", ".join(filter(None, [device, *find_hardware(device)]))
        print(f"--device auto: {description}", file=sys.stderr, flush=True)


def peak_memory(device: str = "cuda") -> dict[str, int]:
    """Peak memory of this process so far, in bytes: `host` (resident) and `device` (allocated by CUDA, if in
    use). Empty on Windows, which does not tell."""
    try:
        import resource
    except ImportError:
        return {}
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and device.startswith("cuda"):
        peaks["device"] = int(torch.cuda.max_memory_allocated(device))
    return peaks


def command_line() -> list[str]:
    """The words after the name of this command, without credentials of endpoints."""
    from nein.loading.references import hide_credentials

    words = json.loads(os.environ[COMMAND_VARIABLE]) if COMMAND_VARIABLE in os.environ else sys.argv[1:]
    return [hide_credentials(word) for word in words]


def shell_command() -> str:
    """This command as the user typed it, without credentials; "the same command" in a call from Python."""
    program = Path(sys.argv[0])
    is_nein = program.name == "nein" or program.parts[-2:] == ("nein", "__main__.py")
    return shlex.join(["nein", *command_line()]) if is_nein else "the same command"


# --- the end of a command ------------------------------------------------------------------------

USER_MISTAKE, UNSCORED, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Terminated(BaseException):
    """SIGTERM arrived. Finished blocks are on disk, so nothing is left to do."""


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and exits with its code; an error of the user becomes one sentence on standard error."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the encoding lacks become "?"
    handlers = {signal.SIGTERM: _terminate, signal.SIGINT: _interrupt}
    if threading.current_thread() is not threading.main_thread():  # no other thread may set handlers
        handlers = {}
    old_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = command() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _print_end("Interrupted; rerun the command to resume.", INTERRUPTED)
    except Terminated:
        code = _print_end("Terminated; rerun the command to resume.", TERMINATED)
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (RuntimeError, MemoryError, ValueError, OSError) as error:
        message = explain_error(error)
        if message is None:
            raise
        code = _print_end(f"error: {message}", USER_MISTAKE)
    finally:
        for number, handler in old_handlers.items():
            if signal.getsignal(number) is handlers[number]:  # a second Ctrl-C ends at once
                signal.signal(number, handler)
    sys.exit(code)


def explain_error(error: BaseException) -> str | None:
    """The error as a sentence for the user; None for a bug of ours, which keeps its traceback."""
    from nein.editors import EditorError
    from nein.metrics import MetricError

    if isinstance(error, UserError | EditorError | MetricError):
        return str(error)
    if out_of_memory(error):
        return "Out of memory; lower --batch-size, or pass a smaller --dtype (and another --out)."
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        part = ascii(error.object[max(0, error.start - 30) : error.end + 30])
        return f"The text {part} holds an unpaired surrogate (half a character); fix its source."
    if isinstance(error, OSError) and error.errno in (28, 122):  # no space left, quota exceeded
        return f"The disk is full ({error.filename or error.strerror}); free space and rerun the command."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
        path = path if len(path) <= 200 else f"{path[:100]}...{path[-60:]}"
        return f"'{path}' cannot be used: {error.strerror}."
    return None


def make_printable(text: str) -> str:
    """Text that is safe for a terminal: control characters and direction marks become "?"."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


def _print_end(text: str, code: int) -> int:
    """Prints the last message of a process, without credentials; returns the exit code."""
    from nein.loading.references import hide_credentials

    rank = os.environ.get("RANK", "0")
    text = text if rank == "0" else f"process {rank}: {text}"
    print(make_printable(hide_credentials(text)), file=sys.stderr, flush=True)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    # The next Ctrl-C skips the exit of the interpreter, which threads in native code would abort.
    signal.signal(number, lambda *_: os._exit(INTERRUPTED))
    os.write(2, b"\nEnding after the current batch (Ctrl-C again: at once).\n")  # print is not reentrant
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
