"""What a manifest says about the machine and the code: versions, git state, device. No names, no secrets."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

#: Environment variable: the words that led to this command, as JSON, where they are others than its own.
GIVEN = "NEIN_COMMAND"
PACKAGES = (
    "nein", "torch", "torchvision", "diffusers", "transformers", "accelerate", "safetensors", "numpy",
    "pillow", "scipy", "spacy", "clean-fid", "lpips", "torchmetrics",
)  # fmt: skip


def describe(device: str | None) -> dict[str, Any]:
    """JSON-serialisable facts. `device` is the one in use, or None when no stage needed one."""
    packages, git = _code()
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": packages,
        "git": git,
        "device": device,
        "device_name": _device_name(device),
        "arithmetic": _arithmetic(device),
    }


def say_device(wanted: str, device: str) -> None:
    """On standard error, one line: which device `--device auto` is. Nothing where the device was named."""
    if wanted == "auto":
        facts = [fact for fact in (_device_name(device), _arithmetic(device)) if fact]
        print(f"--device auto: {', '.join([device, *facts])}", file=sys.stderr, flush=True)


def command_line() -> list[str]:
    """The words behind the name of this command, without the credentials of endpoints."""
    from nein.loading import credentials

    words = json.loads(os.environ[GIVEN]) if GIVEN in os.environ else sys.argv[1:]
    return [credentials.without(word) for word in words]


def typed() -> str:
    """This command as it was typed, without credentials; in words where it is no command of the shell."""
    program = Path(sys.argv[0])
    here = program.name == "nein" or program.parts[-2:] == ("nein", "__main__.py")
    return shlex.join(["nein", *command_line()]) if here else "the same command"


def keep_freed_memory() -> bool:
    """Asks glibc to keep freed blocks instead of returning them to the system; whether that worked.

    A model on a CPU frees and takes the same large buffers in every step; faulting their pages in again can
    take longer than the arithmetic. Call before the first large allocation.
    """
    if sys.platform != "linux":
        return False
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # M_* of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # musl has no mallopt
        return False
    wanted = ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20))
    return all(mallopt(option, value) == 1 for option, value in wanted)


def look_for_garbage_seldom() -> None:
    """Raises the garbage collector's threshold and skips the final collection: a third of the CPU seconds of
    importing the libraries of models. Models in cycles are collected by `nein.engine.run`."""
    first, *later = gc.get_threshold()
    gc.set_threshold(max(first, 10_000), *later)
    atexit.unregister(gc.freeze)  # commands may follow each other in one process
    atexit.register(gc.freeze)


def peak_memory(device: str = "cuda") -> dict[str, int]:
    """The most memory this process has held so far, in bytes: `host` (resident), and `device` (allocated on a
    device of CUDA that is in use). Empty where the system does not say (Windows).
    """
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


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None outside a checkout or without git."""
    line = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        commit = subprocess.run(line, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")}


@functools.lru_cache(maxsize=1)
def _code() -> tuple[dict[str, str], dict[str, Any] | None]:
    """Versions, and git state, of what runs in this process: as it was when it was loaded, or soon after."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions, git_state(Path(__file__).resolve().parent)


def _device_name(device: str | None) -> str | None:
    """ "NVIDIA H100 80GB HBM3", "AMD EPYC 9R45"; None where the system does not say."""
    torch = sys.modules.get("torch")  # never the reason to import it
    if device is not None and device.startswith("cuda"):  # PyTorch's name for AMD's GPUs too
        return str(torch.cuda.get_device_name(device)) if torch and torch.cuda.is_available() else None
    if device == "mps":
        return "Apple GPU"
    if name := platform.processor():
        return name
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _arithmetic(device: str | None) -> str | None:
    """What decides the last bits: "CUDA 13.0", "ROCm 6.2", "MPS", or the CPU's instructions, "AVX512". None
    where PyTorch is not loaded."""
    torch = sys.modules.get("torch")
    if device is None or torch is None:
        return None
    if device == "mps":
        return "MPS"
    if device.startswith("cuda"):
        return f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return str(torch.backends.cpu.get_cpu_capability())
