"""Which of millions of names have occurred, in little memory."""

from __future__ import annotations

import hashlib
import sqlite3


class Unique:
    """Names that have been added: 16 bytes each, in a temporary file that SQLite keeps and removes itself.

    The bytes are the beginning of a name's SHA-256: of 10^9 names two agree with a chance of 1 in 10^20.
    """

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute("CREATE TABLE names (hash BLOB PRIMARY KEY) WITHOUT ROWID")
        self._db.execute("BEGIN")

    def add(self, name: str) -> bool:
        """Whether the name has not occurred before."""
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:16]
        return self._db.execute("INSERT OR IGNORE INTO names VALUES (?)", (digest,)).rowcount == 1
