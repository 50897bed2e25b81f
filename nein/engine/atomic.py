"""Writing files so that a reader, or a run after a power cut, sees the whole new file or the old one; and
reading them with a sentence for what is wrong."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

import platformdirs

from nein.engine import shapes
from nein.engine.errors import UserError
from nein.engine.shapes import Shape

Item = TypeVar("Item")
# Files that are written side by side.
_AT_ONCE = 8
_LOOKING = threading.Lock()
_NOT_OURS = "It was not written like that: bring the file back, or make the folder's results again."


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into that becomes `path` when the block ends well: temporary file beside it, fsync,
    rename. Creates the folder; an exception leaves what was there.

    Raises UserError, before anything is written, for a path that is a folder or lies in one that takes no
    files.
    """
    make_folder(path.parent)
    if path.is_dir():
        raise UserError(f"'{path}' is a folder; give the name of a file.")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise UserError(f"'{path}' cannot be written ({error.strerror or error}).") from None
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


def side_by_side(write: Callable[[Item], Any], items: Sequence[Item]) -> None:
    """Calls `write`, which writes a file, with each of `items`; several at a time, since a disk keeps them in
    the time that it takes to keep one.

    Raises what the first that fails raises, when the others are written.
    """
    if len(items) < 2:
        for item in items:
            write(item)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), thread_name_prefix="write") as pool:
        begun = [pool.submit(write, item) for item in items]
    for one in begun:
        one.result()


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path`, as `writing` does."""
    with writing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes a whole JSONL file atomically, a row at a time; how many. Raises ValueError for a number that is
    none."""
    count = 0
    with writing(path) as file:
        for row in rows:
            file.write(_line(row))
            count += 1
    return count


def _line(row: Mapping[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def iter_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the line, from 1, and its object) of a JSONL file, read as they are asked for; blank lines
    are passed over.

    Raises UserError naming the file, the line and what is wrong with it.
    """
    read, name = reader(dict), f"'{path}'"
    for number, line in _lines(path):
        yield number, read(line, name, number)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """(number, line) of the lines of a file that are not blank. Raises UserError."""
    try:
        with path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, start=1) if not line.isspace())
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def read_lines(path: Path, shape: Shape = dict) -> list[dict[str, Any]]:
    """All objects of a JSONL file. Their keys are the same texts, which would be half of what is held.

    Raises as `checked_lines`.
    """
    return [{sys.intern(key): value for key, value in row.items()} for row in checked_lines(path, shape)]


def checked_lines(path: Path, shape: Shape = dict) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, one at a time. Raises UserError as `iter_lines` does, and for one without
    the `shape`."""
    read, name = reader(shape), f"'{path}'"
    return (read(line, name, number) for number, line in _lines(path))


def whole_lines(path: Path, shape: Shape = dict) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file that is appended to; a last line that a kill has cut short is passed over.

    Raises UserError as `read_lines` does.
    """
    read, name = reader(shape), f"'{path}'"
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                yield read(line, name, number)


class Reader(Protocol):
    """What makes of a line its object.

    name, number  Of the file, and of the line in it from 1, or 0: for the UserError about a line that is no
                  object or has not the shape.
    """

    def __call__(self, line: bytes, name: str, number: int = 0) -> dict[str, Any]: ...


def reader(shape: Shape) -> Reader:
    """Of a file of objects of one shape. Words are made only where something is wrong: there are millions of
    lines."""
    from pydantic_core import from_json

    fits = shapes.quick(shape)

    def read(line: bytes, name: str, number: int = 0) -> dict[str, Any]:
        try:
            row = from_json(line)
        except ValueError:
            row = None
        if not fits(row):
            where = f"{name}, line {number}" if number else name
            row = _object(line, f"{where},")
            _check(row, shape, where)
        return row

    return read


def _check(content: Any, shape: Shape, where: str) -> None:
    if said := shapes.fault(content, shape):
        raise UserError(f"{where}: {said}. {_NOT_OURS}")


def _object(line: bytes, where: str) -> dict[str, Any]:
    """Raises UserError, which begins with `where`, for a line that holds none."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except json.JSONDecodeError as error:
        if not line.endswith(b"\n"):
            raise UserError(
                f"{where} the last one, is cut short; whatever wrote the file did not finish. Delete that "
                "line, or make the file again."
            ) from None
        raise UserError(f"{where} is not valid JSON: {error.msg} at column {error.colno}.") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object.")
    return row


def read_json(path: Path, shape: Shape = object) -> Any:
    """The parsed file. Raises UserError with the line and column where the JSON is wrong, and for content
    without the `shape`."""
    content = _read_json(path)
    _check(content, shape, f"'{path}'")
    return content


def _read_json(path: Path) -> Any:
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
    with _LOOKING:  # the system tells the mask only to who changes it
        mask = os.umask(0)
        os.umask(mask)
    return mask


def cache_root() -> Path:
    """`$NEIN_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("NEIN_CACHE") or platformdirs.user_cache_dir("nein"))


def made_once(target: Path, make: Callable[[Path], None], proof: str = "") -> Path:
    """`target`, which `make(draft)` fills on first use; what it cannot finish leaves nothing.

    The name of the folder must tell everything that decides its content. Of processes that make it at the
    same time one wins.

    proof  A file in it without which it is not what it should be. Raises OSError where such a folder is in
           the way.
    """
    if (target / proof).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        draft.chmod(0o755)  # mkdtemp makes folders only the owner can read
        make(draft)
        try:
            draft.rename(target)
        except OSError:
            if not (target / proof).exists():
                raise  # not just another process that was faster
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def file_of(data: bytes) -> Path:
    """A file with these bytes, named by their SHA-256: what records hold in place of pictures, which are read
    where they are needed."""
    digest = hashlib.sha256(data).hexdigest()
    path = cache_root() / "files" / digest[:2] / digest
    if not path.is_file():
        write_bytes(path, data)
    return path
