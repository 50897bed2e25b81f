"""Features of unchanging pictures, kept on disk.

Entries are addressed by content: a *space* names model weights, preprocessing and number type, a *key* the
pixels. Entries of one block of samples live in one small file per space, written atomically, so several
processes and commands can share a cache. The block is part of the address because a network's last bits
depend on what else is in the batch: without it a result could depend on what had been cached before.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from nein.engine import atomic

log = logging.getLogger(__name__)


def scope_of(ids: Iterable[str]) -> str:
    """The address of a block: 16 hex digits of SHA-256 over its sample ids in order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


class FeatureCache:
    """`metrics.base.FeatureStore` on disk: float32 arrays, in safetensors files.

    Spaces of one scope are in memory, read from disk when first asked for, written by `flush`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._scope = "none"
        self._spaces: dict[str, dict[str, np.ndarray]] = {}
        self._changed: set[str] = set()

    def open(self, scope: str) -> None:
        """Turns to another block; what was put and not flushed is dropped."""
        self._scope = scope
        self._spaces, self._changed = {}, set()

    def get(self, space: str, key: str) -> np.ndarray | None:
        return self._load(space).get(key)

    def put(self, space: str, key: str, value: np.ndarray) -> None:
        self._load(space)[key] = np.ascontiguousarray(value, dtype=np.float32)
        self._changed.add(space)

    def flush(self) -> None:
        """Writes every changed space, whole."""
        for space in sorted(self._changed):
            atomic.write_bytes(self._path(space), safetensors.numpy.save(self._spaces[space]))
        self._changed = set()

    def _load(self, space: str) -> dict[str, np.ndarray]:
        if space not in self._spaces:
            path = self._path(space)
            entries: dict[str, np.ndarray] = {}
            if path.is_file():
                try:
                    entries = safetensors.numpy.load(path.read_bytes())
                except (OSError, ValueError, safetensors.SafetensorError) as error:
                    log.warning("cache file %s is damaged and is made again (%s)", path, error)
            self._spaces[space] = entries
        return self._spaces[space]

    def _path(self, space: str) -> Path:
        folder = hashlib.sha256(space.encode()).hexdigest()[:24]
        return self.root / folder / f"{self._scope}.safetensors"
