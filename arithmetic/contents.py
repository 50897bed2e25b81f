"""What tensors hold, as a hash."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names and contents of tensors: what weights are, however they were stored."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}:".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
