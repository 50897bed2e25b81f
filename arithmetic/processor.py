"""What this processor does in another way than most, as far as it decides which operation is faster."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

import torch

_X86 = ("x86_64", "amd64")


@functools.lru_cache(maxsize=1)
def has_matrix_unit() -> bool:
    """Whether it multiplies bfloat16 matrices in a unit of their own (AMX), at several times the rate of
    float32, and PyTorch's kernels know."""
    asked = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return asked is not None and bool(asked())


@functools.lru_cache(maxsize=1)
def has_narrow_mkl() -> bool:
    """Whether MKL, which PyTorch asks for products in float32, takes narrower instructions than there are, as
    it does on processors of the x86 family that are not Intel's: less than half of the speed."""
    return platform.machine().lower() in _X86 and not _is_intel()


def _is_intel() -> bool:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # Windows has the maker's name in this; Macs of this family are Intel's
        return platform.system() == "Darwin" or "intel" in platform.processor().lower()
    return any(line.startswith("vendor_id") and "GenuineIntel" in line for line in lines)
