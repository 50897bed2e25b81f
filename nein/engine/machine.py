"""The machine: which process this is and how many there are, its devices and memory, what a manifest says of
it and of the code (no names, no secrets), and how a command ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
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
    """`rank` of `size` processes. `barrier()` waits for all of them, as training has to and as a command does
    once, when it has opened its folders; without others it does nothing."""

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

            # The gloo group is used also on GPUs: we only ever synchronise, and it needs no device memory.
            try:
                torch.distributed.barrier()
            except RuntimeError as error:
                raise UserError(
                    f"Process {self.rank} of {self.size} timed out waiting for the others to start "
                    f"({str(error).splitlines()[0]}); give the same command again."
                ) from None

    def device(self, wanted: str) -> str:
        """The device of this process: `auto` is its GPU (cuda, which is NVIDIA's or AMD's, or Apple's mps) if
        there is one, else cpu, and the main process says which. Raises UserError for one that is absent."""
        if not re.fullmatch(DEVICES, wanted):
            raise UserError(f"--device is '{wanted}'; it must be {DEVICES_SAID}.")
        if wanted == "cpu":
            return wanted
        import torch

        cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
        kind = wanted.partition(":")[0]
        if (kind == "cuda" and not cuda) or (kind == "mps" and not mps):
            maker = "Apple GPU" if kind == "mps" else "GPU of NVIDIA or AMD"
            raise UserError(f"--device is '{wanted}', but this PyTorch sees no {maker}; use --device cpu.")
        device = wanted if wanted != "auto" else "cuda" if cuda else "mps" if mps else "cpu"
        if device == "cuda" and self.size > 1:
            device = f"cuda:{self.local_rank}"
        if self.rank == 0:
            say_device(wanted, device)
        return device


def from_environment() -> Processes:
    """Joins the process group announced by the launcher's environment."""
    from accelerate import PartialState

    # They meet once, before there is any work: the first looks through the data, and no one waits later.
    state = PartialState(cpu=True, timeout=timedelta(minutes=30))
    return Processes(state.process_index, state.num_processes, state.local_process_index, state)


# --- cores and threads ---------------------------------------------------------------------------


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_threads(count: int = 1) -> None:
    """How many threads PyTorch takes for the work of the thread that calls; 0: as many as it likes. Where the
    environment says the same, PyTorch is not loaded for that."""
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
    """(item, work(item)) in order, doing up to `ahead` of them in threads before they are asked for."""
    rest = iter(items)
    with ThreadPoolExecutor(max(1, ahead), "ahead", start_thread) as pool:
        waiting = deque[tuple[Item, Future[Any]]]()
        try:
            for count in itertools.chain([ahead + 1], itertools.repeat(1)):
                waiting.extend((item, pool.submit(work, item)) for item in itertools.islice(rest, count))
                if not waiting:
                    return
                item, future = waiting.popleft()
                yield item, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def side_by_side(
    work: Callable[[Item], Any], items: Iterable[Item], on_cpu: bool, threads: int | None = None
) -> Iterator[tuple[Item, Any]]:
    """(item, work(item)) in order; on a CPU `threads` at once, by default as many as there are cores, each on
    one thread."""
    set_threads(1 if on_cpu else threads or 0)
    if not on_cpu:
        return ((item, work(item)) for item in items)
    return read_ahead(work, items, threads or cores(), set_threads)


def tune_process() -> None:
    """Call before the first large allocation.

    The garbage collector looks seldom and not at the end: a third of the CPU seconds of importing the
    libraries of models. Models in cycles are collected by `nein.engine.run`. glibc keeps freed blocks: a
    model on a CPU frees and takes the same large buffers in every step, and faulting their pages in again can
    take longer than the arithmetic. Threads that wait for each other leave the core to other processes.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    first, *later = gc.get_threshold()
    gc.set_threshold(max(first, 10_000), *later)
    atexit.unregister(gc.freeze)  # commands may follow each other in one process
    atexit.register(gc.freeze)
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # M_* of malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20)):
            mallopt(option, value)


# --- what a manifest says ------------------------------------------------------------------------

#: Environment variable: the words that led to this command, as JSON, where they are others than its own.
GIVEN = "NEIN_COMMAND"
PACKAGES = (
    "nein", "torch", "torchvision", "diffusers", "transformers", "accelerate", "safetensors", "numpy",
    "pillow", "scipy", "spacy", "clean-fid", "lpips", "torchmetrics",
)  # fmt: skip


def describe(device: str | None) -> Json:
    """JSON-serialisable facts: versions; `git`, the commit and whether tracked files differ from it, None
    outside a checkout; the hardware. device: the one in use, None when no stage needed one."""
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
    name, arithmetic = hardware(device)
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "git": git,
        "device": device,
        "device_name": name,
        "arithmetic": arithmetic,
    }


def hardware(device: str | None) -> tuple[str | None, str | None]:
    """The name of a device ("NVIDIA H100 80GB HBM3", "AMD EPYC 9R45"), and what of it decides the last bits:
    "CUDA 13.0", "ROCm 6.2", "MPS", or the CPU's instructions, "AVX512". None where the system does not say,
    or PyTorch is not loaded."""
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
        found = re.search(r"^model name\s*: (.*)", facts.read_text(encoding="utf-8"), re.MULTILINE)
        name = found[1] if found else None
    used = device is not None and torch is not None
    return name, str(torch.backends.cpu.get_cpu_capability()) if used else None  # type: ignore[union-attr]


def say_device(wanted: str, device: str) -> None:
    """On standard error, one line: which device `--device auto` is. Nothing where the device was named."""
    if wanted == "auto":
        facts = ", ".join(filter(None, [device, *hardware(device)]))
        print(f"--device auto: {facts}", file=sys.stderr, flush=True)


def peak_memory(device: str = "cuda") -> dict[str, int]:
    """The most memory this process has held so far, in bytes: `host` (resident), and `device` (allocated on a
    device of CUDA that is in use). Empty where the system does not say (Windows)."""
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
    """The words behind the name of this command, without the credentials of endpoints."""
    from nein.loading.references import without_credentials

    words = json.loads(os.environ[GIVEN]) if GIVEN in os.environ else sys.argv[1:]
    return [without_credentials(word) for word in words]


def typed() -> str:
    """This command as it was typed, without credentials; in words where it is no command of the shell."""
    program = Path(sys.argv[0])
    here = program.name == "nein" or program.parts[-2:] == ("nein", "__main__.py")
    return shlex.join(["nein", *command_line()]) if here else "the same command"


# --- how a command ends --------------------------------------------------------------------------

USER_MISTAKE, UNSCORED, INTERRUPTED, TERMINATED = 2, 3, 130, 143


class Terminated(BaseException):
    """SIGTERM arrived. Finished blocks are on disk already, so ending is all there is to do."""


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and ends the process; a mistake of the user becomes one sentence on standard error."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:  # closed by `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what an encoding lacks is a "?"
    handlers = {signal.SIGTERM: _terminate, signal.SIGINT: _interrupt}
    if threading.current_thread() is not threading.main_thread():  # only there signals can be caught
        handlers = {}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        code = command() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _say("Interrupted; run the same command again to go on.", INTERRUPTED)
    except Terminated:
        code = _say("Terminated; run the same command again to go on.", TERMINATED)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
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
    """What to tell the user, or None for a defect of ours, which deserves its traceback."""
    from nein.editors import EditorError
    from nein.metrics import MetricError

    if isinstance(error, UserError | EditorError | MetricError):
        return str(error)
    if out_of_memory(error):
        return "Memory ran out; lower --batch-size or choose a smaller --dtype (and another --out)."
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        part = ascii(error.object[max(0, error.start - 30) : error.end + 30])
        return f"The text {part} holds half a character (an unpaired surrogate); mend it where it comes from."
    if isinstance(error, OSError) and error.errno in (28, 122):  # no space left, quota exceeded
        return f"The disk is full ({error.filename or error.strerror}); free space and run the command again."
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
        path = path if len(path) <= 200 else f"{path[:100]}...{path[-60:]}"
        return f"'{path}' cannot be used: {error.strerror}."
    return None


def printable(text: str) -> str:
    """Text for a terminal: what would move its cursor, clear it or turn the writing round is a "?"."""
    return "".join(c if c.isprintable() or c in "\n\t\xa0" else "?" for c in text)


def _say(text: str, code: int) -> int:
    from nein.loading.references import without_credentials

    rank = os.environ.get("RANK", "0")
    text = text if rank == "0" else f"process {rank}: {text}"
    print(printable(without_credentials(text)), file=sys.stderr, flush=True)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Threads in native code would abort an exit of the interpreter.
    signal.signal(number, lambda *_: os._exit(INTERRUPTED))
    os.write(2, b"\nEnding after the current batch (Ctrl-C again: at once).\n")  # print is not reentrant
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
