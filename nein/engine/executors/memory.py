"""Memory: the peak of a stage, and what is free."""

from __future__ import annotations

import gc
import sys
from typing import Any

import psutil

from nein.engine.environment import peak_memory

CUDA = "largest amount allocated on the device during the stage"
PROCESS = "peak of the process"
SMALL = 4 * 2**30  # bytes: for less, no collection of garbage is worth the third of a second that it takes


def reset(device: str) -> None:
    """Begin to measure a stage anew, where the device can."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def free_share(device: str) -> float:
    """How much of a device's memory is free, 0 to 1; 0 where it does not tell, 1 for a CPU."""
    if not device.startswith("cuda"):
        return float(device == "cpu")
    import torch

    return free(device) / torch.cuda.mem_get_info(device)[1]


def free(device: str) -> int:
    """Bytes that may still be taken."""
    if not device.startswith("cuda"):
        return int(psutil.virtual_memory().available)
    import torch

    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info(device)[0])


def release(device: str) -> None:
    """Gives back the memory of models that nobody names any more, and to the device what PyTorch holds of it
    and does not use."""
    if device == "cpu" and (used := peak(device)) is not None and used["bytes"] < SMALL:
        return
    gc.collect()
    torch = sys.modules.get("torch")  # never the reason to import it
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def peak(device: str) -> dict[str, Any] | None:
    """{"bytes": int, "what": CUDA or PROCESS} of this process; None where the system does not tell.

    A CPU has no counter that could be reset, so what was needed before the stage is in its figure.
    """
    if device.startswith("cuda"):
        import torch

        return {"bytes": int(torch.cuda.max_memory_allocated(device)), "what": CUDA}
    used = peak_memory().get("host")
    return None if used is None else {"bytes": used, "what": PROCESS}


def sentence(label: str, used: dict[str, Any]) -> str:
    """ "ip2p: 1.3 GiB (peak of the process)"."""
    return f"{label}: {used['bytes'] / 2**30:.1f} GiB ({used['what']})"
