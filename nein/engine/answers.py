"""Caches on disk: answers of models with their costs, so that no request is sent twice; and features of
images and texts.

An entry has a space and a key. A *space* names the model, its weights and its settings. A key names the
input; a *scope* names all inputs of a block (`hash_scope`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nein.engine import atomic
from nein.engine.folder import SPENDING
from nein.loading.digests import Json
from nein.loading.errors import UserError

if TYPE_CHECKING:  # the help of a command loads no NumPy
    import numpy as np

log = logging.getLogger(__name__)
LOCK_TIMEOUT = 60.0  # seconds to wait for another process that is writing


class AnswerCache:
    """JSON objects by (space, key), and costs of requests by model, in one SQLite file, which threads and
    processes may share (a `metrics.base.Store`).

    An answer is on disk before `put` returns; other processes see it at once. Raises UserError where the file
    is damaged or cannot be written, also on a file system without locks.
    """

    def __init__(self, path: Path, *, wait: float = LOCK_TIMEOUT) -> None:
        atomic.make_folder(path.parent)
        self.path = path
        self._mutex = threading.Lock()
        with self._translate_errors():
            # SQLite's default journal works on network drives, unlike a write-ahead log.
            self._db = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = EXTRA")
        with self._transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, value TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS spent (model TEXT PRIMARY KEY, value TEXT)")

    def get(self, space: str, key: str) -> Json | None:
        """The answer, or None."""
        query = "SELECT value FROM answers WHERE key = ?"
        with self._mutex, self._translate_errors():
            row = self._db.execute(query, (_hash_key(space, key),)).fetchone()
            return None if row is None else json.loads(row[0])

    def put(self, space: str, key: str, value: Mapping[str, Any]) -> None:
        self.put_all({(space, key): value})

    def put_all(self, values: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """Writes all of `values`, by (space, key); none of them if the process is killed."""
        rows = [(_hash_key(*key), json.dumps(value, allow_nan=False)) for key, value in values.items()]
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def add_cost(self, model: str, dollars: Decimal | None, **counts: float) -> None:
        """Adds one request to the costs of a model. dollars: None for an unknown price."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM spent WHERE model = ?", (model,)).fetchone()
            entry: Json = json.loads(row[0]) if row else {"dollars": None, "dearest": None}
            for name, count in {"requests": 1, **counts}.items():
                entry[name] = entry.get(name, 0) + count
            if dollars is not None:
                entry["dollars"] = str(dollars + Decimal(entry["dollars"] or 0))
                entry["dearest"] = str(max(dollars, Decimal(entry["dearest"] or 0)))
            db.execute("INSERT OR REPLACE INTO spent VALUES (?, ?)", (model, json.dumps(entry)))

    def read_spending(self) -> dict[str, Json]:
        """Model -> requests, tokens, seconds; `dollars` of all requests and of the `dearest` one, as decimal
        strings, None without a price."""
        with self._mutex, self._translate_errors():
            return {model: json.loads(value) for model, value in self._db.execute(SPENDING)}

    def close(self) -> None:
        with self._mutex:  # closing while another thread reads would crash
            self._db.close()

    def __enter__(self) -> AnswerCache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._translate_errors(), self._db as db:  # rolls back on an exception
            db.execute("BEGIN IMMEDIATE")
            yield db

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises UserError for SQLite's errors."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise UserError(
                f"The answers in '{self.path}' cannot be read or written ({error}): the disk is full, "
                "read-only or without locks, or another program holds the file; choose another --out."
            ) from None
        except (sqlite3.DatabaseError, ValueError, RecursionError) as error:
            raise UserError(
                f"The answers in '{self.path}' are damaged ({error}); remove the file and rerun the command, "
                "which asks for them again."
            ) from None


class BlockStore:
    """The entries of one block: read once per space, and written by `flush`. Every thread has its own store.

    cache  An `AnswerCache` or a `FeatureCache`, whose value for (space, scope) is key -> entry.
    scope  The block: the last bits of an entry depend on the batch.
    """

    def __init__(self, cache: Any, scope: str) -> None:
        self._cache, self._scope = cache, scope
        self._spaces: dict[str, Json] = {}
        self._changed: set[str] = set()

    def get(self, space: str, key: str) -> Any:
        if space not in self._spaces:
            self._spaces[space] = self._cache.get(space, self._scope) or {}
        return self._spaces[space].get(key)

    def put(self, space: str, key: str, value: Any) -> None:
        self.get(space, key)  # reads the entries that are on disk
        self._spaces[space][key] = value
        self._changed.add(space)

    def flush(self) -> None:
        """Writes every space with new entries; they are on disk when this returns."""
        for space in sorted(self._changed):
            self._cache.put(space, self._scope, self._spaces[space])
        self._changed.clear()


def _hash_key(space: str, key: str) -> bytes:
    return hashlib.sha256(json.dumps([space, key]).encode()).digest()[:16]


# --- features ---------------------------------------------------------------------------


def hash_scope(ids: Iterable[str]) -> str:
    """The scope of a block: 16 hex digits of SHA-256 over its sample ids, in order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FeatureCache:
    """Features by space and scope: key -> float32 array, one small file per block below `root`.

    The space names weights, preprocessing and dtype. The scope is part of the address, since a network's last
    bits depend on the batch, and a result must not depend on what was cached before.
    """

    root: Path

    def get(self, space: str, scope: str) -> dict[str, np.ndarray]:
        """The entries of a block; {} where the file is missing or damaged."""
        import safetensors.numpy

        path = self._path(space, scope)
        if not path.is_file():
            return {}
        try:
            return safetensors.numpy.load(path.read_bytes())
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            log.warning("cache file %s is damaged and will be rewritten (%s)", path, error)
            return {}

    def put(self, space: str, scope: str, entries: Mapping[str, np.ndarray]) -> None:
        import numpy as np
        import safetensors.numpy

        arrays = {key: np.ascontiguousarray(value, dtype=np.float32) for key, value in entries.items()}
        atomic.write_bytes(self._path(space, scope), safetensors.numpy.save(arrays))

    def _path(self, space: str, scope: str) -> Path:
        return self.root / hashlib.sha256(space.encode()).hexdigest()[:24] / f"{scope}.safetensors"
