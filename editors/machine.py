"""Where and how a model runs: device, number type, memory layout, attention kernel, compilation, offloading.

None of it is meant to change a picture; all but the device and offloading may change its last bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from arithmetic import attention, processor, products
from arithmetic.dtypes import DTYPES
from editors import doubling, gates, inplace
from editors.base import EditorError

# "sdpa" leaves the choice to torch's scaled_dot_product_attention, the last four are its kernels; "tiled" is
# ours; "auto" is tiled where `attention.pays` says so and sdpa elsewhere.
ATTENTIONS = ("auto", "sdpa", "tiled", "flash", "efficient", "cudnn", "math")
OFFLOADS = ("none", "model", "sequential")


@dataclass(frozen=True)
class Machine:
    """The checked choice. Raises EditorError for what is unknown or not available here.

    device         Anything torch.device accepts.
    dtype          Key of `DTYPES`.
    channels_last  Memory layout of convolutions; faster on some GPUs. On a CPU with a matrix unit bfloat16 is
                   always laid out so.
    attention      Key of `ATTENTIONS`.
    compile        Pass the denoiser through torch.compile; the first batch of every size takes minutes.
    offload        "none"; "model": each part is on the device only while it works; "sequential": each layer
                   (pipelines only; slow). Needs a GPU.
    """

    device: torch.device
    dtype: str
    channels_last: bool = False
    attention: str = "auto"
    compile: bool = False
    offload: str = "none"

    @classmethod
    def of(cls, device: str, dtype: str, **options: Any) -> Machine:
        """From the names a user gives."""
        return cls(usable_device(device), dtype, **options)

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("attention", self.attention, ATTENTIONS)
        _one_of("offload", self.offload, OFFLOADS)
        for name in ("channels_last", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise EditorError(f"{name} is {getattr(self, name)!r}; expected true or false")
        if self.offload != "none" and self.device.type == "cpu":
            raise EditorError(f"offload is {self.offload!r}, which needs a GPU, but the device is 'cpu'")
        self._check_kernel()

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    def describe(self) -> dict[str, Any]:
        """What may change the last bits of a picture."""
        return {
            "dtype": self.dtype,
            "channels_last": self.channels_last,
            "attention": self.attention,
            "compile": self.compile,
        }

    def place(self, module: Any) -> Any:
        """The module for inference, in the dtype and layout, on the device unless it is to be offloaded."""
        last = self.channels_last
        if self.device.type == "cpu" and self.dtype == "bfloat16":
            last = last or processor.has_matrix_unit()
        layout = torch.channels_last if last else torch.preserve_format
        device = self.device if self.offload == "none" else "cpu"
        placed = module.to(device=device, dtype=self.torch_dtype, memory_format=layout).eval()
        if not self.compile:  # which finds kernels of its own
            products.install(placed, {**gates.KINDS, **doubling.KINDS, **inplace.KINDS})
        return placed.requires_grad_(False)

    @contextmanager
    def using(self, module: Any) -> Iterator[None]:
        """The module is on the device inside; with offloading it goes back to the CPU afterwards."""
        if self.offload == "none":
            yield
            return
        module.to(self.device)
        try:
            yield
        finally:
            module.to("cpu")

    def attending(self, model: torch.nn.Module) -> AbstractContextManager[Any]:
        """The chosen attention kernel is in force inside, where `model` does most of the work."""
        chosen = self.attention
        if chosen == "auto":
            tiles = not self.compile and attention.pays(self.device, self.torch_dtype, model)
            chosen = "tiled" if tiles else "sdpa"
        if chosen == "sdpa":
            return nullcontext()
        return attention.tiled() if chosen == "tiled" else _only_kernel(chosen)

    def _check_kernel(self) -> None:
        if self.attention in ("auto", "sdpa", "tiled"):
            return
        probe = torch.zeros(1, 1, 8, 8, device=self.device, dtype=self.torch_dtype)
        try:
            with _only_kernel(self.attention):
                torch.nn.functional.scaled_dot_product_attention(probe, probe, probe)
        except RuntimeError as error:
            raise EditorError(
                f"attention {self.attention!r} is not available on {self.device.type} in {self.dtype}; "
                f"use 'sdpa', which lets torch choose"
            ) from error


def _switches() -> dict[str, tuple[Callable[[], bool], Callable[[bool], None]]]:
    """Kernel -> (is it allowed, allow it or not). They are one set per process."""
    cuda = torch.backends.cuda
    return {
        "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        "efficient": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
        "cudnn": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        "math": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    }


class _Users:
    """The threads inside `_only_kernel` now, their kernel, and what was allowed before."""

    lock = threading.Lock()
    count = 0
    kernel = ""
    before: dict[str, bool]


@contextmanager
def _only_kernel(kernel: str) -> Iterator[None]:
    """The first of several threads throws the switches, the last throws them back.

    torch.nn.attention.sdpa_kernel would throw them back as soon as any thread is done.
    """
    switches = _switches()
    with _Users.lock:
        if _Users.count and _Users.kernel != kernel:
            raise EditorError("two editors with different attention kernels cannot work at the same time")
        if not _Users.count:
            _Users.kernel = kernel
            _Users.before = {name: allowed() for name, (allowed, _) in switches.items()}
            for name, (_, allow) in switches.items():
                allow(name == kernel)
        _Users.count += 1
    try:
        yield
    finally:
        with _Users.lock:
            _Users.count -= 1
            if not _Users.count:
                for name, (_, allow) in switches.items():
                    allow(_Users.before[name])


def usable_device(name: str) -> torch.device:
    """torch.device(name); EditorError when it is unknown or this machine has none."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EditorError(f"unknown device {name!r}; use for instance 'cpu', 'cuda' or 'cuda:1'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EditorError(f"device {name!r} is not available: this PyTorch sees no GPU for it; use 'cpu'")
    return device


def _one_of(what: str, value: Any, allowed: Any) -> None:
    if value not in allowed:
        raise EditorError(f"unknown {what} {value!r}; choose one of: {', '.join(allowed)}")
