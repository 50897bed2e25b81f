"""Where weights lie in memory."""

from __future__ import annotations

from typing import Any

ALIGNMENT = 64  # bytes, as PyTorch aligns what it allocates itself


def aligned(module: Any) -> Any:
    """The same module; weights on the CPU begin at multiples of `ALIGNMENT`.

    A file is mapped into memory, where a weight may begin anywhere, and elsewhere when it is loaded again.
    Products of MKL differ in their last bits with that.
    """
    for weight in (*module.parameters(), *module.buffers()):
        if weight.device.type == "cpu" and weight.data_ptr() % ALIGNMENT:
            weight.data = weight.data.clone()
    return module
