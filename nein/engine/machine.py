"""The machine: processes, devices, memory and threads; what a manifest says about machine and code (no names,
no secrets); and how a command ends."""

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

#: The devices by their names, as PyTorch has them, or "auto"; and in words.
DEVICES = r"auto|cpu|mps|cuda(:\d+)?"
DEVICES_SAID = "auto, cpu, cuda, cuda:N or mps"
Item = TypeVar("Item")


@dataclass
class Processes:
    """`rank` of `size` processes. `barrier()` waits for all of them: training often, other commands once,
    when their folders are open. A single process does not wait."""

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

            # gloo also on GPUs: we only synchronize, and it needs no device memory.
            try:
                torch.distributed.barrier()
            except RuntimeError as error:
                raise UserError(
                    f"Process {self.rank} of {self.size} timed out waiting for the others to start "
                    f"({str(error).splitlines()[0]}); rerun the command."
                ) from None

    def device(self, name: str) -> str:
        """The device of this process: `auto` is its GPU if there is one (cuda: NVIDIA or AMD; mps: Apple),
        else cpu; the main process prints which. Raises UserError for one that is absent."""
        if not re.fullmatch(DEVICES, name):
            raise UserError(f"--device is '{name}'; it must be {DEVICES_SAID}.")
        if name == "cpu":
            return name
        import torch

        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        kind = name.partition(":")[0]
        if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
            maker = "Apple GPU" if kind == "mps" else "GPU of NVIDIA or AMD"
            raise UserError(f"--device is '{name}', but this PyTorch sees no {maker}; use --device cpu.")
        device = name if name != "auto" else "cuda" if cuda else "mps" if mps else "cpu"
        if device == "cuda" and self.size > 1:
            device = f"cuda:{self.local_rank}"
        if self.rank == 0:
            say_device(name, device)
        return device


def join_processes() -> Processes:
    """Joins the process group announced by the launcher's environment."""
    from accelerate import PartialState

    # Processes meet once, before the work: the main process checks the data, and nobody waits later.
    state = PartialState(cpu=True, timeout=timedelta(minutes=30))
    return Processes(state.process_index, state.num_processes, state.local_process_index, state)


# --- cores and threads ---------------------------------------------------------------------------


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int = 1) -> None:
    """Sets PyTorch's threads for the work of the calling thread; 0: PyTorch's default. Does not import
    PyTorch where the environment already says the same."""
    limits = os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS", str(count))
    if count and ("torch" in sys.modules or limits != (str(count),) * 2):
        import torch

        torch.set_num_threads(count)


def read_ahead(
    work: Callable[[Item], Any],
    items: Iterable[Item],
    ahead: int = 2,
    start_thread: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Any]]:
    """(item, work(item)) in order; threads compute up to `ahead` of them in advance."""
    remaining = iter(items)
    with ThreadPoolExecutor(max(1, ahead), "ahead", start_thread) as pool:
        waiting = deque[tuple[Item, Future[Any]]]()
        try:
            for count in itertools.chain([ahead + 1], itertools.repeat(1)):
                waiting.extend((item, pool.submit(work, item)) for item in itertools.islice(remaining, count))
                if not waiting:
                    return
                item, future = waiting.popleft()
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def side_by_side(
    work: Callable[[Item], Any], items: Iterable[Item], on_cpu: bool, threads: int | None = None
) -> Iterator[tuple[Item, Any]]:
    """(item, work(item)) in order; on a CPU `threads` of them at once (default: one per core), each on one
    thread."""
    set_threads(1 if on_cpu else threads or 0)
    if not on_cpu:
        return ((item, work(item)) for item in items)
    return read_ahead(work, items, threads or cores(), set_threads)


def tune_process() -> None:
    """Tunes threads, garbage collection and malloc. Call it before the first large allocation."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads leave the core to others
    # Garbage collection is a third of the CPU time of importing model libraries: a higher threshold, and no
    # final collection. `nein.engine.run` collects models in cycles.
    first, *later = gc.get_threshold()
    gc.set_threshold(max(first, 10_000), *later)
    atexit.unregister(gc.freeze)  # several commands may run in one process
    atexit.register(gc.freeze)
    # glibc keeps freed blocks: a model on a CPU reuses the same large buffers in every step, and faulting
    # their pages in again can take longer than the arithmetic.
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # M_* of malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20)):
            mallopt(option, value)


# --- what a manifest says ------------------------------------------------------------------------

#: Environment variable: the words that the user typed, as JSON, where a Slurm job runs another command.
GIVEN = "NEIN_COMMAND"
PACKAGES = [*"nein torch torchvision diffusers transformers accelerate safetensors numpy".split()]
PACKAGES += [*"pillow scipy spacy clean-fid lpips torchmetrics".split()]


def describe(device: str | None) -> Json:
    """JSON-serializable facts: versions; `git`, the commit and whether tracked files differ from it (None
    outside a checkout); hardware. device: the one in use, None when no stage needed one."""
    name, arithmetic = hardware(device)
    return {**_describe_software(), "device": device, "device_name": name, "arithmetic": arithmetic}


@functools.cache  # as this process loaded it
def _describe_software() -> Json:
    packages = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[package] = metadata.version(package)
    line = ["git", "-C", str(Path(__file__).resolve().parent), "describe"]
    line += ["--always", "--dirty", "--abbrev=40", "--exclude=*"]
    git = None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(line, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
        git = {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")}
    system = f"{platform.system()} {platform.machine()}"
    return {"python": platform.python_version(), "platform": system, "packages": packages, "git": git}


def hardware(device: str | None) -> tuple[str | None, str | None]:
    """The name of a device ("NVIDIA H100 80GB HBM3", "AMD EPYC 9R45"), and what decides its last bits: "CUDA
    13.0", "ROCm 6.2", "MPS", or the CPU's instructions, "AVX512". None where unknown, or PyTorch is not
    loaded."""
    torch = sys.modules.get("torch")  # never the reason to import it
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
    used = device is not None and torch is not None
    return name, str(torch.backends.cpu.get_cpu_capability()) if used else None  # type: ignore[union-attr]


def say_device(name: str, device: str) -> None:
    """Prints on standard error which device `--device auto` is."""
    if name == "auto":
        facts = ", ".join(filter(None, [device, *hardware(device)]))
        print(f"--device auto: {facts}", file=sys.stderr, flush=True)


def peak_memory(device: str = "cuda") -> dict[str, int]:
    """Peak memory of this process so far, in bytes: `host` (resident) and `device` (allocated by CUDA, if in
    use). Empty where the system does not say (Windows)."""
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

    words = json.loads(os.environ[GIVEN]) if GIVEN in os.environ else sys.argv[1:]
    return [hide_credentials(word) for word in words]


def shell_command() -> str:
    """This command as the user typed it, without credentials; "the same command" in a call from Python."""
    program = Path(sys.argv[0])
    is_nein = program.name == "nein" or program.parts[-2:] == ("nein", "__main__.py")
    return shlex.join(["nein", *command_line()]) if is_nein else "the same command"


# --- how a command ends --------------------------------------------------------------------------

USER_MISTAKE, UNSCORED, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Terminated(BaseException):
    """SIGTERM arrived. Finished blocks are on disk, so nothing is left to do."""


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and ends the process; an error of the user becomes one sentence on standard error."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # letters that the encoding lacks become "?"
    handlers = {signal.SIGTERM: _terminate, signal.SIGINT: _interrupt}
    if threading.current_thread() is not threading.main_thread():  # only it can catch signals
        handlers = {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = command() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _say("Interrupted; rerun the command to resume.", INTERRUPTED)
    except Terminated:
        code = _say("Terminated; rerun the command to resume.", TERMINATED)
    except BrokenPipeError:  # the reader of our output is gone, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (RuntimeError, MemoryError, ValueError, OSError) as error:
        message = sentence(error)
        if message is None:
            raise
        code = _say(f"error: {message}", USER_MISTAKE)
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is handlers[number]:  # a second Ctrl-C ends at once
                signal.signal(number, handler)
    sys.exit(code)


def sentence(error: BaseException) -> str | None:
    """The message for the user, or None for a bug of ours, which deserves its traceback."""
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


def printable(text: str) -> str:
    """Text that is safe for a terminal: control characters and marks of direction become "?"."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


def _say(text: str, code: int) -> int:
    from nein.loading.references import hide_credentials

    rank = os.environ.get("RANK", "0")
    text = text if rank == "0" else f"process {rank}: {text}"
    print(printable(hide_credentials(text)), file=sys.stderr, flush=True)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Threads in native code would abort an exit of the interpreter.
    signal.signal(number, lambda *_: os._exit(INTERRUPTED))
    os.write(2, b"\nEnding after the current batch (Ctrl-C again: at once).\n")  # print is not reentrant
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
