"""Finds the tasks of `--data` and `--datasets`: the miniature world, or official CSV files below a folder."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nein.datasets import interleave_sources
from nein.datasets.negbench import official, other_tests, records, registry
from nein.datasets.negbench.media import Files, Media, file_name
from nein.datasets.negbench.records import ChoiceTask, RetrievalTask, Task
from nein.datasets.negbench.registry import AFFIRMED, NANO, ROWS, Part, Row
from nein.loading.errors import UserError, unknown
from nein.loading.references import expand_user
from nein.nano.scenes import is_nano
from nein.nano.scenes import world as world_of

log = logging.getLogger(__name__)
GALLERY = 25_000  # images, sorted by name, that SimpleNeg's captions search (steer.py of its release)
PAIRS = 300  # pairs of drawn scenes when no number is asked for


@dataclass(frozen=True)
class DataSet:
    """All tasks over the same images: a selection must not decide who shares a batch. Questions are in the
    order of `interleave_sources`, except groups that must be right together."""

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
        return [_draw_dataset(name, data, scenes, split, seed, protocol) for name in drawn]
    if not (folder := expand_user(data)).exists():
        raise UserError(
            f"--data is '{data}'; it must be nano, a folder with the files of a test, or one of them."
        )
    listing = _listing(folder)
    if folder.is_file() and not listing:
        raise UserError(
            f"'{data}' does not have the name of a released file; rename it. Your own data are "
            "retrieval.csv, negated_retrieval.csv, mcq.csv or binary_mcq.csv."
        )
    roots, named = _roots(image_roots), [name for name in dict.fromkeys(names) if name != "all"]
    if other := next((name for name in named if name not in ROWS), None):
        raise unknown("data set", other, ROWS)
    loaded = []
    for row in ROWS.values() if "all" in names else (ROWS[name] for name in named):
        if row.by_name and row.name not in named:
            continue
        if (dataset := _dataset(row, listing, roots, protocol)) is not None:
            loaded.append(dataset)
        elif row.name in named:
            files = ", ".join(dict.fromkeys(part.files[0] for part in row.parts))
            raise UserError(
                f"'{data}' has none of the files of {row.title} ({files}): {row.files_at}; images: "
                f"{row.images}."
            )
    if not loaded:
        raise UserError(f"'{data}' has none of NegBench's files; {registry.CSV_FILES}.")
    return loaded


def check_images(data: DataSet) -> None:
    """Raises UserError when no image is there, or one has two names; single ones become unscored rows."""
    if not isinstance(data.media, Files):
        return
    names, first = data.references, dict[Path, str]()
    count = Counter(map(file_name, names))
    for name in names:
        if count[file_name(name)] > 1 and (path := data.media.find_path(name)) is not None:
            other = first.setdefault(path.resolve(), name)
            if other != name:
                raise UserError(f"{data.title} names one image as both '{other}' and '{name}'; use one name.")
    if not any(map(data.media.find_path, names)):
        raise UserError(
            f"None of the {len(names)} images of {data.title} exists (the first is '{names[0]}'); pass "
            f"their folder as --image-root {data.name}=FOLDER. They come from: {ROWS[data.name].images}."
        )


def select_tasks(
    data: DataSet, kinds: Sequence[str], variants: Sequence[str], limit: int | None = None
) -> list[Task]:
    """The tasks of the wanted kinds and variants, with their first `limit` images or questions."""
    tasks = (task for task in data.tasks if {"all", task.what}.intersection(kinds))
    tasks = (task for task in tasks if {"all", task.variant}.intersection(variants))
    return [task if limit is None else task.limit(limit) for task in tasks]


def _draw_dataset(name: str, data: str, scenes: int | None, split: str, seed: int, protocol: str) -> DataSet:
    """NegBench over the miniature world, or pairs about its scenes."""
    from nein.datasets.negbench import drawn
    from nein.nano import data as nano_data
    from nein.nano import scope

    if name not in ROWS:
        world = world_of(data)
        tasks = drawn.tasks(split, scenes, seed, world)
        return DataSet(
            tasks[0].name.partition("/")[0], world.name, tuple(map(_interleave, tasks)), tasks[0].media
        )
    if data != NANO or name not in ("nein", "scope"):
        raise UserError(
            f"'{name}' is not drawn in '{data}'; --data nano draws nein and scope. For published files pass "
            "--data FOLDER."
        )
    make, count = nano_data.ensure if name == "nein" else scope.ensure_pairs, scenes or PAIRS
    folder = make(split, count)
    dataset = _dataset(ROWS[name], _listing(folder), {"": folder}, protocol)
    assert dataset is not None
    return replace(dataset, name=f"{NANO}-{name}")


def _roots(image_roots: Sequence[str]) -> dict[str, Path]:
    """Data set, or "" for all others -> folder."""
    folders: dict[str, Path] = {}
    for item in image_roots:
        name, equals, folder = item.partition("=")
        if not equals:
            name, folder = "", item
        elif name not in ROWS:
            raise unknown("data set in --image-root", name, ROWS)
        if name in folders:
            raise UserError(f"--image-root names two folders for '{name or 'every data set'}'; pass one.")
        folders[name] = expand_user(folder)
    return folders


def _listing(top: Path) -> dict[str, list[Path]]:
    """Released name, maybe with a folder's -> files at or below `top` that are known by it."""
    parts = [part for row in ROWS.values() for part in row.parts]
    released = {name for part in parts for name in (*part.files, *part.negated)}
    paths: dict[str, list[Path]] = {}
    for path in [top] if top.is_file() else top.rglob("*"):
        for name in released & {path.name, f"{path.absolute().parent.name}/{path.name}"}:
            paths.setdefault(name, []).append(path)
    return paths


def _find(names: Sequence[str], listing: Mapping[str, list[Path]]) -> Path | None:
    paths = next((listing[name] for name in names if name in listing), [])
    if len(paths) > 1:
        listed = ", ".join(map(str, paths))
        raise UserError(f"--data contains {listed}; pass a folder with only one of them.")
    return paths[0] if paths else None


def _dataset(
    row: Row, listing: Mapping[str, list[Path]], roots: Mapping[str, Path], protocol: str
) -> DataSet | None:
    sources = [(part, _find(part.files, listing), _find(part.negated, listing)) for part in row.parts]
    wordings = [part for part, _, negated in sources if negated]
    # Original captions alone: once, and only where no negated ones are there.
    wordings = wordings or [part for part, file, _ in sources if part.negated and file][:1]
    sources = [
        (part, file, negated)
        for part, file, negated in sources
        if (file or negated) and (part in wordings or not part.negated)
    ]
    if not sources:
        return None
    csv_folder = next(path for path in sources[0][1:] if path).parent
    media = Files(roots.get(row.name, roots.get("")), csv_folder=csv_folder)
    tasks = [_task(row, part, file, negated, media, protocol) for part, file, negated in sources]
    return DataSet(row.name, row.title, tuple(map(_interleave, _same_names(tasks))), media)


def _task(row: Row, part: Part, file: Path | None, negated: Path | None, media: Files, protocol: str) -> Task:
    name, paths = f"{row.name}/{part.task}", [path for path in (file, negated) if path is not None]
    origin = {"files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}}
    if part.negated:
        original = official.read_retrieval(file, records.ORIGINAL) if file else ()
        denied = official.read_retrieval(negated, records.NEGATED) if negated else ()
        counts = [len(items) for items, path in ((original, file), (denied, negated)) if path]
        task: Task = RetrievalTask(name, original, denied, media, part.variant, origin)
    elif part.judged:
        queries = other_tests.simpleneg(paths[0])
        return RetrievalTask(name, (), queries, media, part.variant, origin, (*media.listing()[:GALLERY],))
    elif part.reader:
        questions = other_tests.read(part.reader, paths[0], protocol)
        return ChoiceTask(name, questions, media, part.variant, origin=origin)
    else:
        layout = "control" if part.task.endswith(AFFIRMED) else row.layout
        questions, kind = official.read_questions(paths[0], layout), part.task.removesuffix(AFFIRMED)
        counts = [len(questions)]
        task = ChoiceTask(name, questions, media, part.variant, kind, origin)
    for path, rows in zip(paths, counts, strict=True):
        if (published := row.sizes.get(part.task, rows)) != rows:
            log.warning("'%s' has %d rows; as published it has %d", path, rows, published)
    return task


def _interleave(task: Task) -> Task:
    if not isinstance(task, ChoiceTask) or any(question.groups for question in task.questions):
        return task
    return replace(task, questions=interleave_sources(task.questions, lambda question: question.cluster))


def _same_names(tasks: Sequence[Task]) -> Sequence[Task]:
    """The tasks with one reference per image, the first, unless a file has two images of one name."""
    first: dict[str, str] = {}
    for task in tasks:
        names = {reference: file_name(reference) for reference in task.references}
        if len(set(names.values())) < len(names):
            return tasks
        first = {name: reference for reference, name in names.items()} | first
    return [
        task.map_records(
            lambda record: replace(record, image=first.get(file_name(record.image), record.image))
        )
        for task in tasks
    ]
