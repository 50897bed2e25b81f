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


class FeatureCache:
    """`metrics.base.FeatureStore` over the block `scope`: what is put is kept by `flush`. Every thread has
    its own; they may share the folder."""

    def __init__(self, root: Path, scope: str) -> None:
        self._root, self._scope = root, scope
        self._spaces: dict[str, dict[str, np.ndarray]] = {}
        self._changed: set[str] = set()

    def get(self, space: str, key: str) -> np.ndarray | None:
        if space not in self._spaces:
            self._spaces[space] = read(self._root, space, self._scope)
        return self._spaces[space].get(key)

    def put(self, space: str, key: str, value: np.ndarray) -> None:
        self.get(space, key)  # what is kept already stays
        self._spaces[space][key] = np.asarray(value, dtype=np.float32)
        self._changed.add(space)

    def flush(self) -> None:
        """Writes every changed space, whole."""
        atomic.side_by_side(
            lambda space: write(self._root, space, self._scope, self._spaces[space]), sorted(self._changed)
        )
        self._changed.clear()
