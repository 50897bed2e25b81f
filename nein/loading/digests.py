"""What files, facts and tensors hold, as SHA-256; dtypes by the names that options have."""

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
#: Files of a model folder that can change what the model computes.
_RELEVANT = (".safetensors", ".json", ".txt", ".model", ".jinja")
_WEIGHTS = (*_RELEVANT, ".bin", ".pt", ".pth", ".ckpt")
#: Files of more bytes count by size and time of change where nothing may be read twice.
_LARGE = 1 << 24


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of one of `DTYPES`. Raises UserError."""
    import torch

    return getattr(torch, choose("dtype", name, DTYPES))


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def content_digest(path: Path) -> str | None:
    """12 digits of a file: of its size and its first 16 MiB. None where it cannot be read. A copy has the
    same ones, and so does the same image on every machine."""
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(f"{path.stat().st_size}:".encode())
            digest.update(file.read(_LARGE))
    except OSError:
        return None
    return digest.hexdigest()[:12]


def folder_digest(folder: Path) -> str:
    """SHA-256 over names and contents of the weights, configuration and tokenizer files of a model folder."""
    return _digest(folder, _model_files(folder, _RELEVANT))


def quick_digest(path: Path) -> str:
    """12 digits that change with a model's file, or with the files of its folder, before anything is loaded:
    contents count, of a file over 16 MiB its size and time of change."""
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
    """SHA-256 of the name, the line, and the source text of the whole file (in a notebook: the cell) of a
    function or class. What it imports does not count, nor what it holds: the values of a closure, of a global
    of another file, of an object. A function typed into an interpreter goes by its name."""
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
