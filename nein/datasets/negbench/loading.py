"""From `--data` and `--datasets` to tasks: the miniature world, or official CSV files below a folder."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from nein.datasets.negbench import official, other_tests
from nein.datasets.negbench.media import Files
from nein.datasets.negbench.records import (
    NEGATED,
    ORIGINAL,
    ChoiceTask,
    Media,
    RetrievalTask,
    Task,
)
from nein.datasets.negbench.registry import (
    AFFIRMED,
    BINARY,
    CSV_FILES,
    NANO,
    RETRIEVAL,
    ROWS,
    SCOPE,
    Part,
    Row,
)
from nein.engine.errors import UserError, unknown
from nein.nano.worlds import World, is_nano, world

log = logging.getLogger(__name__)
#: Pictures, by name, among which SimpleNeg's captions search (steer.py of its release).
GALLERY = 25_000


@dataclass(frozen=True)
class DataSet:
    """Tasks over the same pictures.

    tasks  All that were found, whether asked for or not: pictures are cut into blocks over all of them, so
           that the selection of tasks cannot decide which pictures share a batch.
    """

    name: str
    title: str
    tasks: tuple[Task, ...]
    media: Media

    @property
    def references(self) -> list[str]:
        """Every distinct picture of every task, in order of first appearance."""
        return list(dict.fromkeys(name for task in self.tasks for name in task.references))

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 over the records of all tasks."""
        total = hashlib.sha256()
        for task in self.tasks:
            total.update(f"{task.name}/{task.variant}/{task.sha256}\n".encode())
        return total.hexdigest()


def load(
    data: str,
    *,
    names: Sequence[str] = ("all",),
    image_roots: Sequence[str] = (),
    scenes: int | None = None,
    split: str = "val",
    seed: int = 0,
    protocol: str = "fixed",
) -> list[DataSet]:
    """The data sets of a command.

    data         "nano" or "nano:WORLD", a folder with official files anywhere in it, or one such file.
    names        Rows of `registry.ROWS`, or "all" that are there but those read by name only. Of "nano",
                 "all" is NegBench's twin; other tests have twins, too, which are asked for by name.
    image_roots  "FOLDER", or "NAME=FOLDER" for one data set; see `media.Files`.
    scenes       nano: how many scenes; `split` and `seed` likewise.
    protocol     "paper" or "fixed", for readers with a quirk.

    Raises UserError, one sentence, for a set that is not there (with where to get it) and for wrong files.
    """
    if is_nano(data):
        return [
            _twin(name, data, scenes, split, protocol)
            if name in ROWS
            else _nano(world(data), scenes, split, seed)
            for name in dict.fromkeys(NANO if name == "all" else name for name in names)
        ]
    folder = Path(data).expanduser()
    if not folder.exists():
        raise UserError(
            f"--data is '{data}'; it must be nano, a folder with the files of a test, or one of them."
        )
    if folder.is_file() and names_of(folder) is None:
        raise UserError(
            f"'{data}' has none of the names by which files are known; give it the released name, "
            "or for your own data retrieval.csv, negated_retrieval.csv, mcq.csv or binary_mcq.csv."
        )
    roots = _roots(image_roots)
    named = [name for name in dict.fromkeys(names) if name != "all"]
    wanted = [n for n in ROWS if n in named or not ROWS[n].by_name] if "all" in names else named
    for name in wanted:
        if name not in ROWS:
            raise unknown("data set", name, ROWS)
    parts_of = {name: _parts(ROWS[name], folder) for name in wanted}
    if "all" in names:
        parts_of = {name: parts for name, parts in parts_of.items() if parts or name in named}
        if not parts_of:
            raise UserError(f"'{data}' has none of NegBench's files; {CSV_FILES}.")
    for name, parts in parts_of.items():
        if not parts:
            files = ", ".join(dict.fromkeys(part.files[0] for part in ROWS[name].parts))
            raise UserError(
                f"'{data}' has none of the files of {ROWS[name].title} ({files}); {_at(ROWS[name])}, "
                f"the pictures are {ROWS[name].pictures}."
            )
    return [_dataset(ROWS[name], parts, roots, folder, protocol) for name, parts in parts_of.items()]


def select(tasks: Iterable[Task], wanted: Sequence[str], variants: Sequence[str]) -> list[Task]:
    """The tasks whose kind ("retrieval", "mcq", ...) and variant are asked for; "all" is every one."""
    chosen = []
    for task in tasks:
        kind = task.name.partition("/")[2]
        if ("all" in wanted or kind in wanted) and ("all" in variants or task.variant in variants):
            chosen.append(task)
    return chosen


def check_pictures(data: DataSet) -> None:
    """Raises UserError when not one picture of a data set is there: the folder is then the wrong one.

    Single ones that are missing become unscored rows.
    """
    if not isinstance(data.media, Files):
        return
    references = data.references
    if not any(data.media.exists(reference) for reference in references):
        row = ROWS[data.name]
        raise UserError(
            f"None of the {len(references)} pictures of {data.title} is there (the first is "
            f"'{references[0]}'); give their folder as --image-root {data.name}=FOLDER. They come from: "
            f"{row.pictures}."
        )


def limited(task: Task, limit: int | None) -> Task:
    """The first `limit` pictures (retrieval) or questions of a task. A smaller gallery is easier."""
    if limit is None:
        return task
    if isinstance(task, ChoiceTask):
        return replace(task, questions=task.questions[:limit])
    first_ids = {item.id for item in (task.original or task.negated)[:limit]}
    return replace(
        task,
        original=tuple(item for item in task.original if item.id in first_ids),
        negated=tuple(item for item in task.negated if item.id in first_ids),
    )


def asks(task: Task) -> bool:
    """Whether there is anything in the task."""
    return bool(task.questions if isinstance(task, ChoiceTask) else task.original or task.negated)


def names_of(path: Path) -> str | None:
    """The row that a file belongs to by its name, or None."""
    for row in ROWS.values():
        for part in row.parts:
            if _named(path) & {*part.files, *part.negated}:
                return row.name
    return None


def _nano(world: World, scenes: int | None, split: str, seed: int) -> DataSet:
    from nein.datasets.negbench import drawn

    tasks = (drawn.retrieval(split, scenes, seed, world), drawn.choice(split, scenes, seed, world))
    return DataSet(tasks[0].name.partition("/")[0], world.name, tasks, tasks[0].media)


def _twin(name: str, data: str, scenes: int | None, split: str, protocol: str) -> DataSet:
    """A drawn twin of another test: files in exactly its form, read as they are."""
    from nein.datasets.negbench import drawn_tests

    if data != NANO or name not in drawn_tests.WRITERS:
        raise UserError(
            f"'{name}' is not drawn in '{data}'; --data nano has twins of {', '.join(drawn_tests.WRITERS)}. "
            "For the published one give --data FOLDER."
        )
    folder, row = drawn_tests.folder(name, split, scenes), ROWS[name]
    made = _dataset(row, _parts(row, folder), {"": folder}, folder, protocol)
    title = row.title if name in SCOPE else f"{row.title} (drawn twin)"
    return replace(made, name=f"{NANO}-{name}", title=title)


def _at(row: Row) -> str:
    return row.files_at if row.files_at.startswith("the ") else f"they are {row.files_at}"


def _roots(given: Sequence[str]) -> dict[str, Path]:
    """Data set -> folder; "" for those that are not named."""
    folders: dict[str, Path] = {}
    for item in given:
        name, equals, folder = item.partition("=")
        if not equals:
            name, folder = "", item
        elif name not in ROWS:
            raise unknown("data set in --image-root", name, ROWS)
        if name in folders:
            raise UserError(f"--image-root gives '{name or 'every data set'}' two folders; give one.")
        folders[name] = Path(folder).expanduser()
    return folders


def _parts(row: Row, folder: Path) -> list[tuple[Part, list[Path | None]]]:
    """The parts of a data set that are there, each with its files: [original, negated] or [file]."""
    present = []
    for part in row.parts:
        files = [_find(folder, part.files)]
        if part.task == RETRIEVAL:
            files.append(_find(folder, part.negated))
            if files[1] is None and any(p.task == RETRIEVAL and _find(folder, p.negated) for p in row.parts):
                continue  # the original captions are read with the negated ones that are there
        if any(files):
            present.append((part, files))
    retrievals = [item for item in present if item[0].task == RETRIEVAL]
    extra = [item for item in retrievals if item[1][1] is None][1:]  # originals alone: once
    return [item for item in present if item not in extra]


def _find(folder: Path, names: Sequence[str]) -> Path | None:
    if folder.is_file():
        return folder if _named(folder) & set(names) else None
    files = _listing(folder)
    for name in names:
        places = files.get(name, [])
        if len(places) > 1:
            raise UserError(
                f"'{folder}' has {len(places)} files named {name}; give a folder that has it once as --data."
            )
        if places:
            return places[0]
    return None


@lru_cache(maxsize=4)
def _listing(folder: Path) -> dict[str, list[Path]]:
    places: dict[str, list[Path]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            for known in _named(path) & _released():
                places.setdefault(known, []).append(path)
    return places


def _named(path: Path) -> set[str]:
    """What a file may be known by: its name, or for names that many files have, also that of its folder."""
    return {path.name, f"{path.absolute().parent.name}/{path.name}"}


@lru_cache(maxsize=1)
def _released() -> frozenset[str]:
    parts = (part for row in ROWS.values() for part in row.parts)
    return frozenset(name for part in parts for name in (*part.files, *part.negated))


def _dataset(
    row: Row,
    parts: Sequence[tuple[Part, list[Path | None]]],
    roots: Mapping[str, Path],
    folder: Path,
    protocol: str,
) -> DataSet:
    root = roots.get(row.name, roots.get(""))
    beside = folder.parent if folder.is_file() else folder
    media = Files(root, beside=_beside(parts) or beside)
    tasks: list[Task] = []
    for part, files in parts:
        name = f"{row.name}/{part.task}"
        origin = {"files": {path.name: _check_sum(row, path) for path in files if path is not None}}
        if part.judged:
            assert files[0] is not None
            gallery, queries = tuple(media.listing()[:GALLERY]), other_tests.simpleneg(files[0])
            tasks.append(RetrievalTask(name, (), queries, media, part.variant, origin, gallery))
        elif part.reader:
            assert files[0] is not None
            questions = other_tests.read(part.reader, files[0], protocol)
            tasks.append(ChoiceTask(name, questions, media, part.variant, origin=origin))
        elif part.task == RETRIEVAL:
            original, negated = (
                official.read_retrieval(path, kind, allow_empty=True) if path is not None else ()
                for path, kind in zip(files, (ORIGINAL, NEGATED), strict=True)
            )
            tasks.append(RetrievalTask(name, original, negated, media, part.variant, origin))
        else:
            assert files[0] is not None
            control = part.task.endswith(AFFIRMED)
            questions = official.read_questions(files[0], "control" if control else row.layout)
            kind = BINARY if part.task.removesuffix(AFFIRMED) == BINARY else "mcq"
            tasks.append(ChoiceTask(name, questions, media, part.variant, kind, origin))
    return DataSet(row.name, row.title, tuple(_same_names(tasks)), media)


def _same_names(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with one reference per picture; the files of a data set may name its folder differently.

    References with the same file name become the first of them, unless a file uses a name for two pictures.
    """
    for task in tasks:
        names = [official.file_name(reference) for reference in task.references]
        if len(set(names)) < len(names):
            return list(tasks)
    first: dict[str, str] = {}
    for task in tasks:
        for reference in task.references:
            first.setdefault(official.file_name(reference), reference)

    def renamed(records: Sequence[Any]) -> tuple[Any, ...]:
        names = (first.get(official.file_name(r.image), r.image) for r in records)
        return tuple(
            r if r.image == name else replace(r, image=name) for r, name in zip(records, names, strict=True)
        )

    same: list[Task] = []
    for task in tasks:
        if isinstance(task, RetrievalTask):
            same.append(replace(task, original=renamed(task.original), negated=renamed(task.negated)))
        else:
            same.append(replace(task, questions=renamed(task.questions)))
    return same


def _beside(parts: Sequence[tuple[Part, list[Path | None]]]) -> Path | None:
    return next((path.parent for _, files in parts for path in files if path is not None), None)


def _check_sum(row: Row, path: Path) -> str:
    """The file's SHA-256; a warning where that of the released file is known and another."""
    try:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    if sha256 != row.sha256.get(path.name, sha256):
        log.warning("'%s' is not the released file (its SHA-256 differs)", path)
    return sha256
