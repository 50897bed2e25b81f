"""Where and how a model runs: device, dtype, memory layout, attention kernel, compilation, offloading.

None of it is meant to change a picture; all but the device and offloading may change its last bits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from nein.editors.base import EditorError
from nein.loading.digests import torch_dtype
from nein.loading.errors import choose
from nein.loading.weights import aligned

_KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
#: "sdpa" leaves the choice to torch's scaled_dot_product_attention; the others are its kernels.
ATTENTIONS = ("sdpa", *_KERNELS)
OFFLOADS = ("none", "model", "sequential")
_switch = threading.Lock()


@dataclass(frozen=True)
class RuntimeOptions:
    """The checked choice. Raises EditorError.

    channels_last  Memory layout of convolutions; faster on some GPUs.
    compile        Pass the denoiser through torch.compile; the first batch of every size takes minutes.
    offload        "none"; "model": each part is on the device only while it works; "sequential": each layer
                   (pipelines only; slow). Needs a GPU.
    """

    device: torch.device
    dtype: str
    channels_last: bool = False
    attention: str = "sdpa"
    compile: bool = False
    offload: str = "none"

    @classmethod
    def of(cls, device: str, dtype: str, **options: Any) -> RuntimeOptions:
        return cls(usable_device(device), dtype, **options)

    def __post_init__(self) -> None:
        torch_dtype(self.dtype)
        choose("attention", self.attention, ATTENTIONS)
        choose("offload", self.offload, OFFLOADS)
        for name in ("channels_last", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise EditorError(f"{name} is {getattr(self, name)!r}; expected true or false")
        if self.offload != "none" and self.device.type == "cpu":
            raise EditorError(f"offload is {self.offload!r}, which needs a GPU, but the device is 'cpu'")
        if self.attention == "sdpa":
            return
        probe = torch.zeros(1, 1, 8, 8, device=self.device, dtype=self.torch_dtype)
        try:
            with self.attending():
                torch.nn.functional.scaled_dot_product_attention(probe, probe, probe)
        except RuntimeError as error:
            raise EditorError(
                f"attention {self.attention!r} is not available on {self.device.type} in {self.dtype}; "
                f"use 'sdpa', which lets torch choose"
            ) from error

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch_dtype(self.dtype)

    def describe(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("dtype", "channels_last", "attention", "compile")}

    def place(self, module: Any) -> Any:
        """The module for inference, in the dtype and layout, on the device unless it is to be offloaded."""
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        device = self.device if self.offload == "none" else "cpu"
        placed = module.to(device=device, dtype=self.torch_dtype, memory_format=layout).eval()
        return aligned(placed).requires_grad_(False)

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

    @contextmanager
    def attending(self) -> Iterator[None]:
        """The chosen attention kernel is in force inside, for one thread at a time: it is a switch of the
        whole process."""
        if self.attention == "sdpa":
            yield
            return
        with _switch, sdpa_kernel(_KERNELS[self.attention]):
            yield


def usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EditorError(f"unknown device {name!r}; use for instance 'cpu', 'cuda' or 'cuda:1'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EditorError(f"device {name!r} is not available: this PyTorch sees no GPU for it; use 'cpu'")
    return device
