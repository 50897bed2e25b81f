"""What files, facts and tensors hold, as SHA-256; dtypes by the names that options have."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nein.loading.errors import choose

if TYPE_CHECKING:
    import numpy as np
    import torch

#: Names of dtypes; each is an attribute of torch (`torch_dtype`).
DTYPES = ("float32", "bfloat16", "float16")
#: Files of a model folder that can change what the model computes.
_RELEVANT = (".safetensors", ".json", ".txt", ".model", ".jinja")


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of one of `DTYPES`. Raises UserError."""
    import torch

    return getattr(torch, choose("dtype", name, DTYPES))


def file_sha256(path: Path, progress: Callable[[int], object] = lambda _: None) -> str:
    """SHA-256 of a file, hexadecimal; `progress` gets the bytes as they are read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            progress(len(block))
    return digest.hexdigest()


def folder_digest(folder: Path) -> str:
    """SHA-256 over names and contents of the weights, configuration and tokenizer files of a model folder."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in _RELEVANT)
    stamp = tuple((str(p.relative_to(folder)), p.stat().st_size, p.stat().st_mtime_ns) for p in files)
    return _digest(str(folder.resolve()), stamp)


@lru_cache(maxsize=64)
def _digest(folder: str, stamp: tuple[tuple[str, int, int], ...]) -> str:
    total = hashlib.sha256()
    for name, _size, _mtime in stamp:
        total.update(name.encode() + b"\0" + bytes.fromhex(file_sha256(Path(folder, name))))
    return total.hexdigest()


def pixel_digest(picture: np.ndarray) -> str:
    """SHA-256 of size and pixels: the identity of a picture, whatever file it came from."""
    digest = hashlib.sha256(f"{picture.shape[0]}x{picture.shape[1]}:".encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names and contents of tensors: what weights are, however they were stored."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}:".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def json_digest(facts: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON-serialisable mapping; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
