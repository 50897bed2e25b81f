"""Caches on disk: answers of models with their costs (SQLite), features of images and texts (safetensors).

An entry has a space and a key. A *space* names the model, its weights and its settings. A *key* names one
input; a *scope* is the key of a whole block (`hash_scope`).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
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
from nein.loading.digests import Json
from nein.loading.errors import UserError

if TYPE_CHECKING:  # the help of a command loads no NumPy
    import numpy as np

log = logging.getLogger(__name__)
ANSWERS = "answers.sqlite"  # file name of an `AnswerCache` in a run or in OUT
_SPENDING = "SELECT model, value FROM spent ORDER BY rowid"


# --- answers -----------------------------------------------------------------------------
class AnswerCache:
    """JSON objects by (space, key), and costs of requests by model, in one SQLite file, which threads and
    processes may share. A `metrics.base.Store`.

    An answer is on disk before `put` returns; other processes see it at once. Methods raise UserError if the
    file is damaged, cannot be written, or lies on a file system without locks.
    """

    def __init__(self, path: Path, *, wait: float = 60) -> None:  # seconds, while another process writes
        atomic.make_folder(path.parent)
        self.path = path
        self._mutex = threading.Lock()  # the connection serves one thread at a time
        with self._translate_errors():
            # SQLite's default journal works on network drives, unlike a write-ahead log.
            self._db = sqlite3.connect(path, timeout=wait, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = EXTRA")  # a power cut loses no answer
        with self._transaction() as db:
            db.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, value TEXT)")
            db.execute("CREATE TABLE IF NOT EXISTS spent (model TEXT PRIMARY KEY, value TEXT)")

    def get(self, space: str, key: str) -> Json | None:
        query = "SELECT value FROM answers WHERE key = ?"
        with self._mutex, self._translate_errors():
            row = self._db.execute(query, (_hash_key(space, key),)).fetchone()
            return None if row is None else json.loads(row[0])

    def put(self, space: str, key: str, value: Mapping[str, Any]) -> None:
        self.put_all({(space, key): value})

    def put_all(self, values: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        """Writes (space, key) -> answer in one transaction: all, or none if the process is killed."""
        rows = [(_hash_key(*pair), json.dumps(value, allow_nan=False)) for pair, value in values.items()]
        with self._transaction() as db:
            db.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def add_cost(self, model: str, dollars: Decimal | None, **counts: float) -> None:
        """Adds one request to the costs of a model. dollars: None if its price is unknown."""
        with self._transaction() as db:
            row = db.execute("SELECT value FROM spent WHERE model = ?", (model,)).fetchone()
            entry: Json = json.loads(row[0]) if row else {"dollars": None, "dearest": None}
            for name, count in {"requests": 1, **counts}.items():
                entry[name] = entry.get(name, 0) + count
            if dollars is not None:  # decimal strings: sums of cents stay exact
                entry["dollars"] = str(dollars + Decimal(entry["dollars"] or 0))
                entry["dearest"] = str(max(dollars, Decimal(entry["dearest"] or 0)))
            db.execute("INSERT OR REPLACE INTO spent VALUES (?, ?)", (model, json.dumps(entry)))

    def read_spending(self) -> dict[str, Json]:
        """Model -> sums of its requests; `dearest`: of one request. Dollars are decimal strings or None."""
        with self._mutex, self._translate_errors():
            return {model: json.loads(value) for model, value in self._db.execute(_SPENDING)}

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
            db.execute("BEGIN IMMEDIATE")  # locks now: two processes that read, then write, would collide
            yield db

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
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
    """The entries of one block in memory: read once per space, written by `flush`. Each thread has its own.

    cache  An `AnswerCache` or a `FeatureCache`, whose value for (space, scope) is key -> entry.
    scope  Names the block. Entries are stored by block since their last bits depend on the batch.
    """

    def __init__(self, cache: Any, scope: str) -> None:
        self._cache, self._scope = cache, scope
        self._spaces: dict[str, Json] = {}  # space -> key -> entry
        self._changed: set[str] = set()  # spaces with new entries

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


# --- spending, of a run or OUT that no command has open -----------------------------------
def read_spending(folder: Path, above: int = 3) -> dict[str, Json]:
    """`AnswerCache.read_spending` of a folder or else of the nearest of `above` parents with costs, or {}."""
    folders = (folder, *folder.absolute().parents[:above])
    for path, name in itertools.product(folders, (ANSWERS, f"cache/{ANSWERS}")):
        address = f"{(path / name).resolve().as_uri()}?mode=ro"  # a run may lie on a read-only disk
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(address, uri=True)) as db:
            totals = {model: json.loads(value) for model, value in db.execute(_SPENDING)}
            if totals:
                return totals
    return {}


def describe_spending(spending: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line per model: "gpt-5-mini: $0.56 for 1,234 requests (2,000,000 tokens in, 9,000 out)"."""
    lines = []
    for name, totals in spending.items():
        dollars = "price unknown" if totals["dollars"] is None else f"${Decimal(totals['dollars']):.2f}"
        count = f"{totals['requests']:,} request{'' if totals['requests'] == 1 else 's'}"
        tokens = f"{totals.get('input_tokens', 0):,} tokens in, {totals.get('output_tokens', 0):,} out"
        lines.append(f"{name}: {dollars} for {count} ({tokens})")
    return lines


# --- features ---------------------------------------------------------------------------
def hash_scope(ids: Iterable[str]) -> str:
    """The scope of a block: 16 hex digits of SHA-256 over its sample ids, in order."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class FeatureCache:
    """Features of the inputs of a block: key -> float32 array, one file per space and scope below `root`.

    The space names weights, preprocessing and dtype. Features are stored by block since a network's last bits
    depend on the batch, and a result must not depend on what was cached before.
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
