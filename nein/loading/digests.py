"""Computes digests (SHA-256) of files, model folders, source code, pixels, tensors and JSON."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch

Json = dict[str, Any]  # a JSON object


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


_LARGE = 1 << 24  # bytes (16 MiB); `content_digest` and `quick_digest` do not read larger files whole
#: Suffixes of files in a model folder that can change its results; then those of pickled weights, too.
_RESULT_SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
_ALL_SUFFIXES = (*_RESULT_SUFFIXES, ".bin", ".pt", ".pth", ".ckpt")


def content_digest(path: Path) -> str | None:
    """12 digits over the size and first 16 MiB of a file, equal for copies; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(f"{path.stat().st_size}:".encode())
            digest.update(file.read(_LARGE))
    except OSError:
        return None
    return digest.hexdigest()[:12]


def folder_digest(folder: Path) -> str:
    """SHA-256 over names and contents of the weights, configurations and tokenizers in a model folder."""
    return _digest(folder, _list_files(folder, _RESULT_SUFFIXES))


def quick_digest(path: Path) -> str:
    """12 digits over a model's file or folder; files above 16 MiB count by size and modification time."""
    if path.is_file():
        return _digest(path.parent, [path], _LARGE)[:12]
    return _digest(path, _list_files(path, _ALL_SUFFIXES), _LARGE)[:12]


def _list_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in suffixes)


def _digest(folder: Path, files: Iterable[Path], max_bytes: float = float("inf")) -> str:
    """SHA-256 over names and contents of files; above `max_bytes`, over size and modification time."""
    total = hashlib.sha256()
    for file in files:
        stat = file.stat()
        content = f"{stat.st_size} {stat.st_mtime_ns}".encode()
        if stat.st_size <= max_bytes:
            content = bytes.fromhex(file_sha256(file))
        total.update(str(file.relative_to(folder)).encode() + b"\0" + content)
    return total.hexdigest()


def source_digest(thing: Any) -> str:
    """SHA-256 over name, line and source file (in a notebook: the cell) of a function, a class or an object's
    class; over the name, if there is no source. Imports and values (closures, attributes) do not count."""
    thing = inspect.unwrap(thing)
    thing = thing.func if isinstance(thing, partial) else thing
    definition = thing if inspect.isroutine(thing) or isinstance(thing, type) else type(thing)
    facts: Json = {"name": f"{definition.__module__}.{definition.__qualname__}"}
    candidates = [definition]
    if isinstance(definition, type):  # a class that a notebook defines has no file; its methods have one
        candidates += filter(inspect.isfunction, vars(definition).values())
    for candidate in candidates:
        try:
            lines, line_number = inspect.findsource(candidate)
        except (TypeError, OSError):
            continue
        return json_digest({**facts, "line": line_number, "source": "".join(lines)})
    return json_digest(facts)


def pixel_digest(image: np.ndarray) -> str:
    """SHA-256 over size and pixels of an image, (H, W, 3) uint8; the format of its file does not count."""
    digest = hashlib.sha256(f"{image.shape[0]}x{image.shape[1]}:".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, shapes, dtypes and contents of tensors; their order does not count."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}:".encode())
        total.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def json_digest(facts: Mapping[str, Any]) -> str:
    """SHA-256 over a JSON-serializable mapping; the order of its keys does not count."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
