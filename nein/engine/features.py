"""Features of pictures and sentences on disk: computed once, found again by content.

The entries of one block lie in one small file. Its address is made of a *space*, which names model weights,
preprocessing and dtype, and of the block's content, because a network's last bits depend on what else is in
the batch: without it a result could depend on what had been kept before.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from nein.engine import atomic
from nein.engine.answers import BlockStore

log = logging.getLogger(__name__)


def scope_of(ids: Iterable[str]) -> str:
    """The address of a block: 16 hex digits of SHA-256 over its sample ids in order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


def read(root: Path, space: str, scope: str) -> dict[str, np.ndarray]:
    """Key -> float32 array; {} where nothing is kept, or where the file is damaged."""
    path = _path(root, space, scope)
    if not path.is_file():
        return {}
    try:
        return safetensors.numpy.load(path.read_bytes())
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        log.warning("cache file %s is damaged and is made again (%s)", path, error)
        return {}


def write(root: Path, space: str, scope: str, entries: Mapping[str, np.ndarray]) -> None:
    """Keeps the entries of a block in place of what was kept of it."""
    whole = {key: np.ascontiguousarray(value, dtype=np.float32) for key, value in entries.items()}
    atomic.write_bytes(_path(root, space, scope), safetensors.numpy.save(whole))


def _path(root: Path, space: str, scope: str) -> Path:
    return root / hashlib.sha256(space.encode()).hexdigest()[:24] / f"{scope}.safetensors"


def features_of(root: Path, scope: str) -> BlockStore:
    """Features of a block."""
    return BlockStore(
        lambda space: read(root, space, scope), lambda space, entries: write(root, space, scope, entries)
    )
