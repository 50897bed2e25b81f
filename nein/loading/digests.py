"""SHA-256 of files, folders, sources, pixels, tensors and facts; dtypes by the names of options."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nein.loading.errors import choose

if TYPE_CHECKING:
    import numpy as np
    import torch

#: Facts as JSON holds them, for a reader and for a digest.
Json = dict[str, Any]
#: Names of dtypes; each is an attribute of torch (`torch_dtype`).
DTYPES = ("float32", "bfloat16", "float16")
#: Endings of files in a model folder that can change its results.
_RELEVANT = (".safetensors", ".json", ".txt", ".model", ".jinja")
_WEIGHTS = (*_RELEVANT, ".bin", ".pt", ".pth", ".ckpt")
_LARGE = 1 << 24  # bytes; `quick_digest` takes size and time of change of larger files


def torch_dtype(name: str) -> torch.dtype:
    import torch

    return getattr(torch, choose("dtype", name, DTYPES))


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def content_digest(path: Path) -> str | None:
    """12 digits of the size and first 16 MiB of a file, equal for copies; None where it cannot be read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(f"{path.stat().st_size}:".encode())
            digest.update(file.read(_LARGE))
    except OSError:
        return None
    return digest.hexdigest()[:12]


def folder_digest(folder: Path) -> str:
    """SHA-256 over names and contents of weights, configurations and tokenizers of a model folder."""
    return _digest(folder, _model_files(folder, _RELEVANT))


def quick_digest(path: Path) -> str:
    """12 digits that change with a model's file, or the files of its folder: by content, or above 16 MiB by
    size and time of change."""
    folder, files = (path.parent, [path]) if path.is_file() else (path, _model_files(path, _WEIGHTS))
    return _digest(folder, files, _LARGE)[:12]


def _model_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in endings)


def _digest(folder: Path, files: Iterable[Path], large: float = float("inf")) -> str:
    total = hashlib.sha256()
    for file in files:
        stat = file.stat()
        read = stat.st_size <= large
        content = bytes.fromhex(file_sha256(file)) if read else f"{stat.st_size} {stat.st_mtime_ns}".encode()
        total.update(str(file.relative_to(folder)).encode() + b"\0" + content)
    return total.hexdigest()


def source_digest(thing: Any) -> str:
    """SHA-256 of the name, line and source file (in a notebook: the cell) of a function or class. Imports and
    values (closures, globals of other files, attributes) do not count. Without source: the name."""
    inner = inspect.unwrap(thing)
    inner = inner.func if isinstance(inner, partial) else inner
    code = inner if inspect.isroutine(inner) or isinstance(inner, type) else type(inner)
    facts: dict[str, Any] = {"name": f"{code.__module__}.{code.__qualname__}"}
    # A class that a notebook defines has no file; its methods have.
    for part in (code, *filter(inspect.isfunction, vars(code).values() if isinstance(code, type) else ())):
        try:
            lines, first = inspect.findsource(part)
        except (TypeError, OSError):
            continue
        return json_digest({**facts, "line": first, "source": "".join(lines)})
    return json_digest(facts)


def pixel_digest(image: np.ndarray) -> str:
    """SHA-256 of size and pixels of an image, (H, W, 3) uint8, whatever file it came from."""
    digest = hashlib.sha256(f"{image.shape[0]}x{image.shape[1]}:".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names and contents of tensors, however they were stored."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}:".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def json_digest(facts: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON-serializable mapping, in any order of its keys."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
