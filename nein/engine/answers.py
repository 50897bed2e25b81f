"""Answers of models on disk, and what they cost: what was asked once is never asked again, by this command or
a later one. And features of images and sentences, found again by content."""

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
from nein.engine.folder import spent_in
from nein.loading.digests import Json
from nein.loading.errors import UserError

if TYPE_CHECKING:  # the help of a command loads no NumPy
    import numpy as np

log = logging.getLogger(__name__)
WAIT = 60.0  # seconds to wait for another process that is writing


class AnswerCache:
    """JSON objects by (space, key) in one SQLite file, which threads and processes may share (a
    `metrics.base.Store`), and what requests have cost by model.

    An answer is on disk before `put` returns; what another process puts is seen at once. Raises UserError
    where the file is damaged or cannot be written, also on a file system without locks.
    """

    def __init__(self, path: Path, *, wait: float = WAIT) -> None:
        atomic.make_folder(path.parent)
        self.path = path
        self._mutex = threading.Lock()
        with self._sentences():
            # SQLite's own journal is a file beside it: unlike a write-ahead log it works on network drives.
            self._db = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = EXTRA")
        with self._transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, value TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS spent (model TEXT PRIMARY KEY, value TEXT)")

    def get(self, space: str, key: str) -> Json | None:
        query = "SELECT value FROM answers WHERE key = ?"
        with self._mutex, self._sentences():
            row = self._db.execute(query, (_address(space, key),)).fetchone()
            return None if row is None else json.loads(row[0])

    def put(self, space: str, key: str, value: Mapping[str, Any]) -> None:
        self.put_all({(space, key): value})

    def put_all(self, values: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """All of `values`, by (space, key), or after a kill none of them."""
        rows = [(_address(*key), json.dumps(value, allow_nan=False)) for key, value in values.items()]
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def pay(self, model: str, dollars: Decimal | None, **counts: float) -> None:
        """Adds a request to what a model has taken. dollars: None for an unknown price."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM spent WHERE model = ?", (model,)).fetchone()
            entry: Json = json.loads(row[0]) if row else {"dollars": None, "dearest": None}
            for name, count in {"requests": 1, **counts}.items():
                entry[name] = entry.get(name, 0) + count
            if dollars is not None:
                entry["dollars"] = str(dollars + Decimal(entry["dollars"] or 0))
                entry["dearest"] = str(max(dollars, Decimal(entry["dearest"] or 0)))
            db.execute("INSERT OR REPLACE INTO spent VALUES (?, ?)", (model, json.dumps(entry)))

    def spent(self) -> dict[str, Json]:
        """Model -> requests, tokens, seconds in all; `dollars` in all and of the `dearest` request, as texts
        of decimals, None without a price."""
        with self._mutex, self._sentences():
            return spent_in(self._db)

    def close(self) -> None:
        with self._mutex:  # sqlite crashes where a thread is still at work
            self._db.close()

    def __enter__(self) -> AnswerCache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """On disk as a whole at the end, undone by an exception."""
        with self._mutex, self._sentences(), self._db as db:
            db.execute("BEGIN IMMEDIATE")
            yield db

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise UserError(
                f"The answers in '{self.path}' cannot be read or written ({error}): the disk is full or "
                "read-only, knows no locks, or another program holds the file; choose a folder elsewhere."
            ) from None
        except (sqlite3.DatabaseError, ValueError, RecursionError) as error:
            raise UserError(
                f"The answers in '{self.path}' are damaged ({error}); remove the file and give the same "
                "command again, which asks for them anew."
            ) from None


class BlockStore:
    """Entries about a block as a whole, whose last bits depend on what else was in the batch; `flush` keeps
    all of a changed space at once. Every thread has its own.

    cache  `get(space, scope)` and `put(space, scope, entries)`: an `AnswerCache`, a `FeatureCache`.
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
        self.get(space, key)  # what is kept already stays
        self._spaces[space][key] = value
        self._changed.add(space)

    def flush(self) -> None:
        """Returns when everything that was put is on disk."""
        for space in sorted(self._changed):
            self._cache.put(space, self._scope, self._spaces[space])
        self._changed.clear()


def _address(space: str, key: str) -> bytes:
    """16 bytes of SHA-256."""
    return hashlib.sha256(json.dumps([space, key]).encode()).digest()[:16]


# --- features ---------------------------------------------------------------------------


def scope_of(ids: Iterable[str]) -> str:
    """The address of a block: 16 hex digits of SHA-256 over its sample ids in order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FeatureCache:
    """The features of blocks, in files below `root`: key -> float32 array, by space and scope.

    The entries of one block lie in one small file. Its address is made of a *space*, which names model
    weights, preprocessing and dtype, and of the block's content, because a network's last bits depend on
    what else is in the batch: without it a result could depend on what had been kept before.
    """

    root: Path

    def get(self, space: str, scope: str) -> dict[str, np.ndarray]:
        """{} where nothing is kept, or where the file is damaged."""
        import safetensors.numpy

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
        import numpy as np
        import safetensors.numpy

        whole = {key: np.ascontiguousarray(value, dtype=np.float32) for key, value in entries.items()}
        atomic.write_bytes(self._path(space, scope), safetensors.numpy.save(whole))

    def _path(self, space: str, scope: str) -> Path:
        return self.root / hashlib.sha256(space.encode()).hexdigest()[:24] / f"{scope}.safetensors"
