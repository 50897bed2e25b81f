"""Writing files so that a reader, or a run after a power cut, sees the whole new file or the old one."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from nein.engine.errors import UserError


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into that becomes `path` when the block ends well: temporary file beside it, fsync,
    rename. Creates the folder; an exception leaves what was there."""
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())  # mkstemp makes files only the owner can read
        os.replace(name, path)  # noqa: PTH105 - the atomic rename itself
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path`, as `writing` does."""
    with writing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a whole JSONL file, a line at a time."""
    with writing(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """A JSONL file written by `write_lines`."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def read_json(path: Path) -> Any:
    """The parsed file. Raises UserError with the line and column where the JSON is wrong."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"'{path}' does not exist.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"'{path}' is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"'{path}' is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def make_folder(path: Path) -> Path:
    """Creates a folder with its parents; a UserError says why when it cannot."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be created ({error.strerror or error}); choose a writable folder with --out."
        ) from None
    return path


def check_writable(path: Path) -> None:
    """Makes `path` and proves that a file can be written into it, before hours of work depend on it."""
    make_folder(path)
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be written to ({error.strerror or error}); choose a writable folder with --out."
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
