"""From `--data` and `--datasets` to tasks: the miniature world, or official CSV files below a folder."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nein.datasets.negbench import official, other_tests, registry
from nein.datasets.negbench.media import Files, whole
from nein.datasets.negbench.records import KINDS, ChoiceTask, Media, RetrievalTask, Task
from nein.datasets.negbench.registry import AFFIRMED, NANO, RETRIEVAL, ROWS, Part, Row
from nein.engine.errors import UserError, unknown
from nein.loading.references import expanded
from nein.nano.scenes import is_nano
from nein.nano.scenes import world as world_of

log = logging.getLogger(__name__)
#: Pictures, by name, among which SimpleNeg's captions search (steer.py of its release).
GALLERY = 25_000
PAIRS = 300  # pairs of drawn scenes when no number is asked for


@dataclass(frozen=True)
class DataSet:
    """All tasks found over the same pictures: the selection must not decide who shares a batch."""

    name: str
    title: str
    tasks: tuple[Task, ...]
    media: Media

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys(name for task in self.tasks for name in task.references))

    @functools.cached_property
    def sha256(self) -> str:
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
    """The data sets of a command. Raises UserError for one that is not there and for wrong files.

    data         "nano" or "nano:WORLD", a folder with official files anywhere in it, or one such file.
    names        Rows of `registry.ROWS`, or "all" that are there but those read by name only; of "nano",
                 "all" is NegBench over its scenes, drawn by `scenes`, `split` and `seed`.
    image_roots  "FOLDER", or "NAME=FOLDER" for one data set; see `media.Files`.
    protocol     For readers with a quirk.
    """
    if is_nano(data):
        drawn = dict.fromkeys(NANO if name == "all" else name for name in names)
        return [_drawn(name, data, scenes, split, seed, protocol) for name in drawn]
    folder = expanded(data)
    if not folder.exists():
        raise UserError(
            f"--data is '{data}'; it must be nano, a folder with the files of a test, or one of them."
        )
    listing = _listing(folder)
    if folder.is_file() and not listing:
        raise UserError(
            f"'{data}' does not have the name of a released file; rename it to the released name, "
            "or for your own data retrieval.csv, negated_retrieval.csv, mcq.csv or binary_mcq.csv."
        )
    roots = _roots(image_roots)
    named = [name for name in dict.fromkeys(names) if name != "all"]
    for name in named:
        if name not in ROWS:
            raise unknown("data set", name, ROWS)
    wanted = [n for n in ROWS if n in named or not ROWS[n].by_name] if "all" in names else named
    found = []
    for row in map(ROWS.__getitem__, wanted):
        if parts := _parts(row, listing):
            found.append(_dataset(row, parts, roots, protocol))
        elif row.name in named:
            files = ", ".join(dict.fromkeys(part.files[0] for part in row.parts))
            where = row.files_at if row.files_at.startswith("the ") else f"they are {row.files_at}"
            raise UserError(
                f"'{data}' has none of the files of {row.title} ({files}); {where}, the pictures are "
                f"{row.pictures}."
            )
    if not found:
        raise UserError(f"'{data}' has none of NegBench's files; {registry.CSV_FILES}.")
    return found


def check_pictures(data: DataSet) -> None:
    """Raises UserError when no picture is there; single ones become unscored rows."""
    if not isinstance(data.media, Files):
        return
    references = data.references
    by_name: dict[str, list[str]] = {}
    for reference in references:
        by_name.setdefault(official.file_name(reference), []).append(reference)
    for group in (group for group in by_name.values() if len(group) > 1):
        paths: dict[Path, str] = {}
        for reference in (reference for reference in group if data.media.exists(reference)):
            other = paths.setdefault(data.media.path(whole(reference)[0]).resolve(), reference)
            if other != reference:
                raise UserError(f"{data.title} names one image as '{other}' and as '{reference}'; use one.")
    if not any(data.media.exists(reference) for reference in references):
        row = ROWS[data.name]
        raise UserError(
            f"None of the {len(references)} pictures of {data.title} is there (the first is "
            f"'{references[0]}'); give their folder as --image-root {data.name}=FOLDER. They come from: "
            f"{row.pictures}."
        )


def chosen(
    data: DataSet, wanted: Sequence[str], variants: Sequence[str], limit: int | None = None
) -> list[Task]:
    """The tasks of the wanted kinds and variants, with their first `limit` pictures or questions."""
    tasks = []
    for task in data.tasks:
        named = "all" in wanted or task.name.partition("/")[2] in wanted
        if not named or not ("all" in variants or task.variant in variants):
            continue
        if isinstance(task, ChoiceTask):
            task = replace(task, questions=task.questions[:limit])
        elif limit is not None:
            ids = {item.id for item in (task.original or task.negated)[:limit]}
            kept = (tuple(row for row in kind if row.id in ids) for kind in (task.original, task.negated))
            original, negated = kept
            task = replace(task, original=original, negated=negated)
        tasks.append(task)
    return tasks


def _drawn(name: str, data: str, scenes: int | None, split: str, seed: int, protocol: str) -> DataSet:
    """NegBench over the miniature world, or pairs about its scenes."""
    from nein.datasets.negbench import drawn
    from nein.nano import data as nano_data
    from nein.nano import scope

    if name not in ROWS:
        world = world_of(data)
        tasks = drawn.tasks(split, scenes, seed, world)
        return DataSet(tasks[0].name.partition("/")[0], world.name, tasks, tasks[0].media)
    if data != NANO or name not in ("nein", "scope"):
        raise UserError(
            f"'{name}' is not drawn in '{data}'; --data nano draws nein and scope. For published files give "
            "--data FOLDER."
        )
    row, count = ROWS[name], scenes or PAIRS
    folder = nano_data.ensure(split, count) if name == "nein" else scope.ensure_pairs(split, count)
    dataset = _dataset(row, _parts(row, _listing(folder)), {"": folder}, protocol)
    return replace(dataset, name=f"{NANO}-{name}")


def _roots(given: Sequence[str]) -> dict[str, Path]:
    """Data set, or "" for all others -> folder."""
    folders: dict[str, Path] = {}
    for item in given:
        name, equals, folder = item.partition("=")
        if not equals:
            name, folder = "", item
        elif name not in ROWS:
            raise unknown("data set in --image-root", name, ROWS)
        if name in folders:
            raise UserError(f"--image-root gives '{name or 'every data set'}' two folders; give one.")
        folders[name] = expanded(folder)
    return folders


def _parts(row: Row, listing: Mapping[str, list[Path]]) -> list[tuple[Part, list[Path | None]]]:
    """The parts that are there, each with its files: [original, negated] or [file]."""

    def find(names: Sequence[str]) -> Path | None:
        places = next((listing[name] for name in names if name in listing), [])
        if len(places) > 1:
            listed = ", ".join(map(str, places))
            raise UserError(f"One file is needed of {listed}; give a folder that has one of them as --data.")
        return places[0] if places else None

    negated = {part: find(part.negated) for part in row.parts if part.task == RETRIEVAL}
    present, alone = [], False
    for part in row.parts:
        files = [find(part.files)]
        if part in negated:
            files.append(negated[part])
            if files[1] is None:  # original captions alone: once, and only where no negated ones are there
                if any(negated.values()) or alone:
                    continue
                alone = files[0] is not None
        if any(files):
            present.append((part, files))
    return present


def _listing(top: Path) -> dict[str, list[Path]]:
    """Released name, maybe with a folder's -> files at or below `top` that are known by it."""
    parts = [part for row in ROWS.values() for part in row.parts]
    released = {name for part in parts for name in (*part.files, *part.negated)}
    places: dict[str, list[Path]] = {}
    below = (Path(parent, name) for parent, _, names in os.walk(top) for name in names)
    for path in [top] if top.is_file() else below:
        for name in released & {path.name, f"{path.absolute().parent.name}/{path.name}"}:
            places.setdefault(name, []).append(path)
    return places


def _dataset(
    row: Row, parts: Sequence[tuple[Part, list[Path | None]]], roots: Mapping[str, Path], protocol: str
) -> DataSet:
    given = [path for _, files in parts for path in files if path is not None]
    media = Files(roots.get(row.name, roots.get("")), beside=given[0].parent)
    tasks = [_task(row, part, files, media, protocol) for part, files in parts]
    return DataSet(row.name, row.title, tuple(_same_names(tasks)), media)


def _task(row: Row, part: Part, files: Sequence[Path | None], media: Files, protocol: str) -> Task:
    name = f"{row.name}/{part.task}"
    try:
        origin = {"files": {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p}}
    except OSError as error:
        raise UserError(f"'{error.filename}' cannot be read: {error.strerror or error}.") from None
    if part.task == RETRIEVAL and not part.judged:
        original, negated = (
            official.read_retrieval(path, kind) if path is not None else ()
            for path, kind in zip(files, KINDS, strict=True)
        )
        for path, items in zip(files, (original, negated), strict=True):
            _count(row, part, path, len(items))
        return RetrievalTask(name, original, negated, media, part.variant, origin)
    path = files[0]
    assert path is not None
    if part.judged:
        gallery, queries = tuple(media.listing()[:GALLERY]), other_tests.simpleneg(path)
        return RetrievalTask(name, (), queries, media, part.variant, origin, gallery)
    if part.reader:
        questions = other_tests.read(part.reader, path, protocol)
        return ChoiceTask(name, questions, media, part.variant, origin=origin)
    questions = official.read_questions(path, "control" if part.task.endswith(AFFIRMED) else row.layout)
    _count(row, part, path, len(questions))
    return ChoiceTask(name, questions, media, part.variant, part.task.removesuffix(AFFIRMED), origin)


def _count(row: Row, part: Part, path: Path | None, rows: int) -> None:
    published = row.sizes.get(part.task, rows)
    if path is not None and rows != published:
        log.warning("'%s' has %d rows; as published it has %d", path, rows, published)


def _same_names(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with one reference per picture, the first, unless a file has two pictures of one name."""
    first: dict[str, str] = {}
    for task in tasks:
        names = {reference: official.file_name(reference) for reference in task.references}
        if len(set(names.values())) < len(names):
            return list(tasks)
        for reference, name in names.items():
            first.setdefault(name, reference)

    def renamed(records: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(replace(r, image=first.get(official.file_name(r.image), r.image)) for r in records)

    return [
        replace(task, original=renamed(task.original), negated=renamed(task.negated))
        if isinstance(task, RetrievalTask)
        else replace(task, questions=renamed(task.questions))
        for task in tasks
    ]
