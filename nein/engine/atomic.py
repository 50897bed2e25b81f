"""Reads and writes files: bytes, text, JSON, JSONL and CSV. Writes are atomic: a reader, or a run after a
power cut, sees the whole new file or the old one. Errors are UserErrors that name the file."""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import platformdirs
import pydantic
from typing_extensions import TypedDict

from nein.loading.digests import Json
from nein.loading.errors import UserError

Row = Json  # a line of a JSONL file that has no dataclass
adapter: Callable[[Any], pydantic.TypeAdapter[Any]] = functools.cache(pydantic.TypeAdapter)


# --- writing -------------------------------------------------------------------------------------
# A draft is the temporary file of a write: ".NAME.<host>-<process>-<random>.tmp", in the folder of NAME.
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]
_DRAFT = re.compile(r"\..+\.([0-9a-f]{4})-(\d+)-[0-9a-f]{4}\.tmp")
_ABANDONED = 86_400  # seconds after which no other host still writes its draft


@contextlib.contextmanager
def write_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a draft that replaces `path` at the end of the `with` block (fsync, rename); an exception leaves
    the old file. Creates the folder. Raises UserError, at once, for a path that is not writable."""
    if path.is_dir():
        raise UserError(f"'{path}' is a folder; give the name of a file.")
    draft = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{secrets.token_hex(2)}.tmp")
    try:
        try:
            opened = draft.open("xb")
        except (FileNotFoundError, NotADirectoryError):  # rare: most files have a folder
            make_folder(path.parent)
            opened = draft.open("xb")
    except OSError as error:
        raise UserError(f"'{path}' cannot be written ({error.strerror or error}).") from None
    try:
        with opened as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def remove_drafts(folder: Path, below: bool = True) -> None:  # below: in its subfolders, too
    """Removes drafts of killed writers: of ended processes of this host, and all older than a day."""
    import psutil

    for parent, folders, names in os.walk(folder):
        for name in names:
            if (match := _DRAFT.fullmatch(name)) is None:
                continue
            host, process = match.groups()
            path = Path(parent, name)
            with contextlib.suppress(OSError):
                ended = host == _HOST and not psutil.pid_exists(int(process))
                if ended or time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        if not below:
            folders.clear()  # `os.walk` goes no deeper


def write_bytes(path: Path, data: bytes) -> None:
    with write_file(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n")


def write_lines(path: Path, rows: Iterable[Any]) -> int:
    """Writes a JSONL file, one `json_line` per row; returns their number."""
    count = 0
    with write_file(path) as file:
        for row in rows:
            file.write(json_line(row))
            count += 1
    return count


def json_line(row: Any) -> bytes:
    """A mapping or a dataclass as a line of JSON. Raises ValueError for NaN and infinity."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_drop_defaults).encode() + b"\n"


def _drop_defaults(row: Any) -> Json:
    """The fields of a dataclass that differ from their default."""
    fields = {}
    for field in dataclasses.fields(row):
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        if (value := getattr(row, field.name)) != default:
            fields[field.name] = value
    return fields


# --- reading -------------------------------------------------------------------------------------
def record(fields: Mapping[str, Any]) -> Any:
    """A type for `parse`: JSON objects with these keys (`NotRequired[...]`) and any others."""
    return pydantic.with_config(extra="allow")(TypedDict("record", fields))  # type: ignore[operator]


def parse(data: Any, kind: Any, source: str) -> Any:
    """JSON, as bytes or already in dictionaries and lists, as an object of a type.

    kind    A dataclass, a `record`, or lists and dictionaries of them.
    source  File and line, for the UserError, which tells the first mismatch.
    """
    try:
        if isinstance(data, bytes):
            return adapter(kind).validate_json(data.removeprefix(codecs.BOM_UTF8), strict=True)
        return adapter(kind).validate_python(data, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = f"'{'.'.join(map(str, first['loc']))}': " if first["loc"] else ""
        value = "" if first["type"] in ("missing", "json_invalid") else f", not {first['input']!r:.60}"
        raise UserError(f"{source}: {location}{first['msg']}{value}.") from None


def read_json(path: Path, kind: Any = Any) -> Any:
    """The object in a JSON file. Raises UserError for a file that cannot be read, or holds another type."""
    with explain_read_errors(path):
        return parse(path.read_bytes(), kind, f"'{path}'")


def iter_lines(path: Path, kind: Any = Row) -> Iterator[tuple[int, Any]]:
    """Yields (line number from 1, object) of a JSONL file, without blank lines. Raises UserError."""
    with explain_read_errors(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                yield number, parse(line, kind, f"'{path}', line {number}")


def read_lines(path: Path, kind: Any = Row) -> list[Any]:
    """All objects of a JSONL file. Raises UserError as `iter_lines` does."""
    return [row for _, row in iter_lines(path, kind)]


def read_csv(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """[(line number, row)] of a table with at least these columns. Raises UserError."""
    with explain_read_errors(path), path.open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            header = reader.fieldnames or ()
            rows = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            raise UserError(f"'{path}' is not a CSV file: {error}.") from None
    missing = [f"column {name}" for name in columns if name not in header]
    missing += [] if rows else ["line"]
    if missing:
        raise UserError(f"'{path}' has no {missing[0]}; expected {', '.join(columns)}.")
    for number, row in rows:
        if None in row or None in row.values():  # csv's mark of too many values, and of too few
            raise UserError(f"'{path}', line {number}: the line is cut off or too long.")
    return rows


def read_text_lines(path: Path) -> list[str]:
    with explain_read_errors(path):
        return path.read_text(encoding="utf-8-sig").splitlines()


@contextlib.contextmanager
def explain_read_errors(path: Path) -> Iterator[None]:
    """Turns the errors of reading a file into UserErrors."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except UnicodeDecodeError:
        raise UserError(f"'{path}' is not a text file in UTF-8.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def stamp(path: Path) -> tuple[str, int, int]:
    """(path, bytes, time of change) of a file, which differ when it has changed; zeros without a file."""
    try:
        stat = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), stat.st_size, stat.st_mtime_ns


def is_nonempty_file(path: Path) -> bool:
    """Whether a file exists and has content; a full disk or a crash of the machine leaves empty files."""
    return stamp(path)[1] > 0


# --- folders, and the user's cache ---------------------------------------------------------------
def make_folder(path: Path) -> Path:
    """Creates a folder with its parents. Raises UserError if files cannot be written into it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()  # tries to write
    except OSError as error:
        raise UserError(
            f"'{path}' is not writable ({error.strerror or error}); choose a writable folder with --out."
        ) from None
    return path


def cache_root() -> Path:
    """`$NEIN_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("NEIN_CACHE") or platformdirs.user_cache_dir("nein"))


def make_once(target: Path, make: Callable[[Path], None], proof: str = "") -> Path:
    """Returns the folder `target` of a cache, filled at its first use. Its name must tell everything that
    decides its content, since it is never filled again. Raises OSError if an incomplete one is in the way.

    make   Fills a draft of the folder, which is then renamed. Other processes wait for the first one where
           the file system has locks; else each makes a draft, and one wins.
    proof  A file that a complete folder has; "": its existence is enough.
    """
    if (target / proof).exists():
        return target
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(target.resolve()).encode()).hexdigest()[:32]  # of the lock's file
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):
            # No soft lock: it is a mere file, which a killed process would leave for ever.
            lock = FileLock(cache_root() / "locks" / name, fallback_to_soft=False)
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock)
        if (target / proof).exists():  # another process has made it meanwhile
            return target
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            draft.chmod(0o755)  # mkdtemp makes folders only the owner can read
            make(draft)
            draft.rename(target)
        except OSError:
            if not (target / proof).exists():
                raise  # no other process was faster
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def store_bytes(data: bytes) -> Path:
    """Writes an image's bytes into the cache, once; returns the file, which is named by their SHA-256."""
    digest = hashlib.sha256(data).hexdigest()
    path = cache_root() / "files" / digest[:2] / digest
    if not path.is_file():
        write_bytes(path, data)
    return path
