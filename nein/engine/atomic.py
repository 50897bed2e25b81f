"""Writing files so that a reader, or a run after a power cut, sees the whole new file or the old one; and
reading them with a sentence for what is wrong."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

import platformdirs
import pydantic_core
from pydantic_core import core_schema

from nein.engine.errors import UserError

Item = TypeVar("Item")
_AT_ONCE = 8  # files that are written side by side
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]  # in the names of drafts
_DRAFT = re.compile(r"\..+\.([0-9a-f]{4})-(\d+)-[0-9a-f]{4}\.tmp")
_LEFT = 86_400  # seconds after which nobody writes a draft of another host
_NOT_OURS = "It was not written like that: bring the file back, or make the folder's results again."

# --- shapes of what is read ----------------------------------------------------------------------

#: What JSON has to be: a dataclass, or `list[...]` or `dict[str, ...]` of one, which is made of it. Or a type
#: (float takes whole numbers), (type, None) with null, a list whose members all have one shape ([int, int]:
#: exactly two of them), or a mapping of keys to shapes; "key?" may be missing, others may be there.
Shape = Any
_TYPES: Mapping[Any, Callable[..., Any]] = {
    str: core_schema.str_schema, int: core_schema.int_schema, float: core_schema.float_schema,
    bool: core_schema.bool_schema, dict: core_schema.dict_schema, list: core_schema.list_schema,
}  # fmt: skip
#: Pydantic's kind of mistake -> what there should be.
_WORDS = {
    "string_type": "a text", "int_type": "a whole number", "float_type": "a number", "too_short": "longer",
    "bool_type": "true or false", "dict_type": "an object", "dataclass_type": "an object",
    "list_type": "a list", "tuple_type": "a list", "too_long": "shorter",
}  # fmt: skip


@functools.cache
def _of_class(kind: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(kind)


def _validator(shape: Shape) -> Any:
    if dataclasses.is_dataclass(shape) or hasattr(shape, "__origin__"):
        return _of_class(shape)
    return pydantic_core.SchemaValidator(_schema(shape))


def _checked(value: Any, shape: Shape) -> Any:
    """The value, as a dataclass where the shape is one. Raises pydantic's ValidationError."""
    validator = _validator(shape)
    if not isinstance(validator, pydantic_core.SchemaValidator):
        return validator.validate_json(json.dumps(value), strict=True)
    validator.validate_python(value)
    return value


def _schema(shape: Shape) -> core_schema.CoreSchema:
    """The shape as pydantic's validator has it, without any conversion."""
    if isinstance(shape, list):
        count = len(shape) if len(shape) > 1 else None
        return core_schema.list_schema(_schema(shape[0]), min_length=count, max_length=count, strict=True)
    if isinstance(shape, Mapping) and shape:
        fields = {
            key.removesuffix("?"): core_schema.typed_dict_field(_schema(part), required=key[-1:] != "?")
            for key, part in shape.items()
        }
        return core_schema.typed_dict_schema(fields, strict=True, extra_behavior="allow")
    if isinstance(shape, tuple):
        parts = [_schema(part) for part in shape if part is not None]
        wrong = {"custom_error_type": "shape", "custom_error_message": "of another type"}
        one = parts[0] if len(parts) == 1 else core_schema.union_schema(parts, **wrong)  # type: ignore[arg-type]
        return core_schema.nullable_schema(one) if None in shape else one
    if shape is object:
        return core_schema.any_schema()
    return _TYPES[shape if isinstance(shape, type) else dict](strict=True)


def fault(value: Any, shape: Shape, name: str = "") -> str:
    """The first thing that is wrong, in words: "'data.annotations' is 3, which must be a text"; "" where all
    is well."""
    try:
        _checked(value, shape)
        return ""
    except pydantic_core.ValidationError as error:
        first = error.errors(include_url=False)[0]
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]]
    inner = "".join([name, *parts]).removeprefix(".")
    if first["type"] == "missing":
        return f"'{inner}' is missing"
    wanted = _WORDS.get(first["type"], first["msg"].removeprefix("Input should be "))
    excerpt = json.dumps(first["input"], ensure_ascii=False, default=str)[:60]
    return (f"'{inner}' " if inner else "") + f"is {excerpt}, which must be {wanted}"


# --- writing -------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into that becomes `path` when the block ends well: temporary file beside it, fsync,
    rename. Creates the folder; an exception leaves what was there.

    Raises UserError, before anything is written, for a path that is a folder or lies in one that takes no
    files.
    """
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


def remove_drafts(folder: Path, below: bool = True) -> None:
    """Removes what killed writers have left in a folder, and `below` it: drafts of processes of this host
    that have ended, and any that are older than a day."""
    import psutil

    for parent, folders, names in os.walk(folder):
        for name in names:
            if (draft := _DRAFT.fullmatch(name)) is None:
                continue
            path, (host, process) = Path(parent, name), draft.groups()
            with contextlib.suppress(OSError):
                ended = host == _HOST and not psutil.pid_exists(int(process))
                if ended or time.time() - path.stat().st_mtime > _LEFT:
                    path.unlink()
        if not below:
            folders.clear()


def parallel_map(write: Callable[[Item], Any], items: Sequence[Item]) -> None:
    """Calls `write`, which writes a file, with each of `items`; several at a time, since a disk keeps them in
    the time that it takes to keep one. Raises what the first that fails raises, when all are over."""
    if len(items) < 2:
        for item in items:
            write(item)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), thread_name_prefix="write") as pool:
        begun = [pool.submit(write, item) for item in items]
    for future in begun:
        future.result()


def write_bytes(path: Path, data: bytes) -> None:
    """Writes `data` to `path`, as `writing` does."""
    with writing(path) as file:
        file.write(data)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def plain(row: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their default."""
    fields = {}
    for field in dataclasses.fields(row):
        value, made = getattr(row, field.name), field.default_factory
        if value != (field.default if made is dataclasses.MISSING else made()):
            fields[field.name] = value
    return fields


def write_lines(path: Path, rows: Iterable[Any]) -> int:
    """Writes a JSONL file, a row at a time, each a mapping or a dataclass (`plain`); how many. Raises
    ValueError for NaN and infinite numbers."""
    count = 0
    with writing(path) as file:
        for row in rows:
            file.write(_line(row))
            count += 1
    return count


def _line(row: Any) -> bytes:
    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain).encode() + b"\n"


def holds_lines(path: Path, rows: Iterable[Any]) -> bool:
    """Whether a file is what `write_lines` would write."""
    return path.exists() and path.read_bytes() == b"".join(map(_line, rows))


# --- reading -------------------------------------------------------------------------------------


def iter_lines(path: Path, shape: Shape = dict) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the line, from 1, and its object) of a JSONL file, one at a time; blank lines are skipped.

    Raises UserError naming the file, the line and what is wrong with it.
    """
    with _readable(path), path.open("rb") as file:
        yield from _objects(enumerate(file, start=1), shape, path)


def checked_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file, one at a time. Raises UserError as `iter_lines` does."""
    return (row for _, row in iter_lines(path))


def read_lines(path: Path, shape: Shape = dict) -> list[dict[str, Any]]:
    """All objects of a JSONL file. Raises UserError as `iter_lines` does."""
    return [row for _, row in iter_lines(path, shape)]


def read_headed(path: Path, shape: Shape = dict) -> tuple[dict[str, Any], list[Any]]:
    """The first object of a JSONL file, {} where it has none, and the others. Raises UserError."""
    with _readable(path), path.open("rb") as file:
        lines = enumerate(file, start=1)
        head: dict[str, Any] = next((row for _, row in _objects(itertools.islice(lines, 1), dict, path)), {})
        return head, [row for _, row in _objects(lines, shape, path)]


def stamp(path: Path) -> tuple[str, int, int]:
    """(path, bytes, time of change) of a file; zeros where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), stat.st_size, stat.st_mtime_ns


def sizes(paths: Iterable[Path]) -> list[int]:
    """Bytes of files, 0 where there is none."""
    return [stamp(path)[1] for path in paths]


def stamps(folder: Path) -> list[tuple[str, int, int]]:
    """Of all files of a run's folder but its manifest and notes, in order."""
    found = []
    for path, folders, names in os.walk(folder):
        if Path(path) == folder:
            folders[:] = [name for name in folders if name != "notes"]
            names = [name for name in names if name != "manifest.json"]
        found += [stamp(Path(path, name)) for name in names]
    return sorted(found)


def whole_lines(path: Path, shape: Shape = dict) -> Iterator[dict[str, Any]]:
    """The same of a file that is appended to, without a last line that a kill has cut short."""
    with path.open("rb") as file:
        whole = ((number, line) for number, line in enumerate(file, start=1) if line.endswith(b"\n"))
        yield from (row for _, row in _objects(whole, shape, path))


def _objects(lines: Iterable[tuple[int, bytes]], shape: Shape, path: Path) -> Iterator[tuple[int, Any]]:
    read = _validator(shape).validate_json
    for number, line in lines:
        if line.isspace():
            continue
        try:
            row = read(line, strict=True)
        except ValueError:  # words are made only here: there are millions of lines
            where = f"'{path}', line {number}"
            row = _parsed(line, f"{where},", of_lines=True)
            if not isinstance(row, dict):
                raise UserError(f"{where}, is not a JSON object.") from None
            row = check(row, shape, where)
        yield number, row


def read_json(path: Path, shape: Shape = object) -> Any:
    """The parsed file. Raises UserError with the line and column where the JSON is wrong, and for content
    without the `shape`."""
    with _readable(path):
        content = _parsed(path.read_bytes(), f"'{path}'")
    return check(content, shape, f"'{path}'")


def read_csv(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """(number of the line, row) of a table that has these columns, and more or not. Raises UserError."""
    with _readable(path), path.open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file, strict=True)
            header = reader.fieldnames or ()
            rows = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            raise UserError(f"'{path}' is not a CSV file: {error}.") from None
    lacking = [f"column {name}" for name in columns if name not in header]
    if lacking or not rows:
        raise UserError(f"'{path}' has no {(lacking or ['line'])[0]}; expected {', '.join(columns)}.")
    for number, row in rows:
        if None in row or None in row.values():
            raise UserError(f"'{path}', line {number}: the line is cut off or too long.")
    return rows


def read_text_lines(path: Path) -> list[str]:
    """The lines of a text file. Raises UserError."""
    with _readable(path):
        return path.read_text(encoding="utf-8-sig").splitlines()


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"There is no file '{path}'.") from None
    except UnicodeDecodeError:
        raise UserError(f"'{path}' is not a text file in UTF-8.") from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None


def check(content: Any, shape: Shape, where: str) -> Any:
    """The content, as a dataclass where the shape is one. Raises UserError, which begins with `where`, for
    content without the shape."""
    try:
        return _checked(content, shape)
    except pydantic_core.ValidationError:
        raise UserError(f"{where}: {fault(content, shape)}. {_NOT_OURS}") from None


def _parsed(data: bytes, where: str, *, of_lines: bool = False) -> Any:
    """Of a file, or one of its lines. Raises UserError, which begins with `where`."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except json.JSONDecodeError as error:
        if of_lines and not data.endswith(b"\n"):
            raise UserError(
                f"{where} the last one, is cut short; whatever wrote the file did not finish. Delete that "
                "line, or make the file again."
            ) from None
        line = "" if of_lines else f"line {error.lineno}, "
        raise UserError(f"{where} is not valid JSON: {error.msg} at {line}column {error.colno}.") from None
    except RecursionError:
        raise UserError(f"{where} is nested too deeply to be read.") from None


def holds_something(path: Path) -> bool:
    """Whether there is a file that is not empty, as a full disk or a crash of the machine may leave one."""
    with contextlib.suppress(OSError):
        return path.stat().st_size > 0
    return False


# --- folders -------------------------------------------------------------------------------------


def make_folder(path: Path) -> Path:
    """Creates a folder with its parents, and proves that a file can be written into it, before hours of work
    depend on it. Raises UserError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise UserError(
            f"'{path}' cannot be written to ({error.strerror or error}); choose a writable folder with --out."
        ) from None
    return path


def cache_root() -> Path:
    """`$NEIN_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("NEIN_CACHE") or platformdirs.user_cache_dir("nein"))


def made_once(target: Path, make: Callable[[Path], None], proof: str = "") -> Path:
    """`target`, which `make(draft)` fills on first use; what it cannot finish leaves nothing.

    The name of the folder must tell everything that decides its content. Processes that need it at the same
    time wait for the first, where the file system has locks; else each makes it, and one wins.

    proof  A file in it without which it is not what it should be. Raises OSError where such a folder is in
           the way.
    """
    if (target / proof).exists():
        return target
    from filelock import FileLock

    target.parent.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(target.resolve()).encode()).hexdigest()[:32]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):
            # Not a lock that is a mere file: one that a killed process leaves would be held for ever.
            lock = FileLock(cache_root() / "locks" / name, fallback_to_soft=False)
            Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock)
        if not (target / proof).exists():
            _make(target, make, proof)
    return target


def _make(target: Path, make: Callable[[Path], None], proof: str) -> None:
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


def file_of(data: bytes) -> Path:
    """A file with these bytes, named by their SHA-256: what records hold in place of pictures, which are read
    where they are needed."""
    digest = hashlib.sha256(data).hexdigest()
    path = cache_root() / "files" / digest[:2] / digest
    if not path.is_file():
        write_bytes(path, data)
    return path
