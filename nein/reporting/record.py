"""What the files of a report were made of: a command that finds nothing new leaves them as they are.

`Record` is a file beside them: a digest of the figures, the words, the specifications and the code that they
follow from, and the hash of every file as it was written.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.loading.digests import file_sha256

#: What draws and prints besides our own files.
LIBRARIES = ("matplotlib", "jinja2", "pandas", "pillow", "tabulate")


@dataclass(frozen=True)
class Record:
    """path: where it lies."""

    path: Path

    def holds(self, made_of: str, files: Iterable[Path]) -> bool:
        """Whether the files are there, made of just that, and as they were written."""
        try:
            return bool(json.loads(self.path.read_bytes()) == _entries(made_of, files))
        except (UserError, OSError, ValueError):
            return False

    def write(self, made_of: str | None, files: Iterable[Path]) -> None:
        """made_of: None for files that have to be made every time, of which there is no record."""
        if made_of is None:
            self.path.unlink(missing_ok=True)
        else:
            atomic.write_json(self.path, _entries(made_of, files))


def digest(value: Any) -> str:
    """SHA-256, in hex, of something that can be JSON."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def of_file(path: Path) -> str:
    """SHA-256, in hex, of a file's bytes. Raises UserError where it cannot be read."""
    try:
        return file_sha256(path)
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None


@functools.cache
def code() -> str:
    """A digest of all that turns figures into files."""
    folder = Path(__file__).parent
    sources = sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".j2", ".css", ".js"))
    versions = [importlib.metadata.version(name) for name in LIBRARIES]
    return digest([versions, [of_file(path) for path in sources]])


def _entries(made_of: str, files: Iterable[Path]) -> dict[str, Any]:
    return {"made_of": made_of, "files": {path.name: of_file(path) for path in files}}
