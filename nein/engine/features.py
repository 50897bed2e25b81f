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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from nein.engine import atomic

log = logging.getLogger(__name__)


def scope_of(ids: Iterable[str]) -> str:
    """The address of a block: 16 hex digits of SHA-256 over its sample ids in order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FeatureCache:
    """The features of blocks, in files below `root`: key -> float32 array, by space and scope."""

    root: Path

    def get(self, space: str, scope: str) -> dict[str, np.ndarray]:
        """{} where nothing is kept, or where the file is damaged."""
        path = self._path(space, scope)
        if not path.is_file():
            return {}
        try:
            return safetensors.numpy.load(path.read_bytes())
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            log.warning("cache file %s is damaged and is made again (%s)", path, error)
            return {}

    def put(self, space: str, scope: str, entries: Mapping[str, np.ndarray]) -> None:
        """Keeps the entries of a block in place of what was kept of it."""
        whole = {key: np.ascontiguousarray(value, dtype=np.float32) for key, value in entries.items()}
        atomic.write_bytes(self._path(space, scope), safetensors.numpy.save(whole))

    def _path(self, space: str, scope: str) -> Path:
        return self.root / hashlib.sha256(space.encode()).hexdigest()[:24] / f"{scope}.safetensors"
