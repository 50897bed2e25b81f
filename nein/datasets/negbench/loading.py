"""Loads the data sets of `--data` and `--datasets` with their tasks: from released files below a folder, or
drawn in the miniature world; then selects tasks and checks images."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nein.datasets import interleave_sources
from nein.datasets.negbench import official, other_tests, records, registry
from nein.datasets.negbench.media import Files, Media, file_name
from nein.datasets.negbench.records import ChoiceTask, RetrievalTask, Task
from nein.datasets.negbench.registry import AFFIRMED, NANO, ROWS, Part, Row
from nein.loading.errors import UserError, unknown
from nein.loading.references import expand_user
from nein.nano.scenes import find_world, is_nano

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet:
    """All tasks of one set of images, also those that a command does not select: batches are cut over all.
    Questions are in the order of `interleave_sources`, except groups that must be right together."""

    name: str
    title: str
    tasks: tuple[Task, ...]
    media: Media

    @property
    def references(self) -> list[str]:
        return list(dict.fromkeys(name for task in self.tasks for name in task.references))

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of all records."""
        digest = hashlib.sha256()
        for task in self.tasks:
            digest.update(f"{task.name}/{task.variant}/{task.sha256}\n".encode())
        return digest.hexdigest()


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
    """The data sets of a command. Raises UserError for a missing one and for wrong files.

    data         "nano" or "nano:WORLD", a folder with released files anywhere in it, or one such file.
    names        Rows of `registry.ROWS`; "all": those whose files exist, except rows marked `by_name`. Of
                 "nano", "all" is NegBench over its scenes, drawn by `scenes`, `split` and `seed`.
    image_roots  "FOLDER", or "NAME=FOLDER" for one data set; see `media.Files`.
    protocol     For readers whose release has a bug: docs/reference/quirks.md."""
    if is_nano(data):
        to_draw = dict.fromkeys(NANO if name == "all" else name for name in names)
        return [_draw_dataset(name, data, scenes, split, seed, protocol) for name in to_draw]

    # The files below the folder, the image folders and the names.
    folder = expand_user(data)
    if not folder.exists():
        allowed = "nano, a folder with the files of a test, or one of them"
        raise UserError(f"--data is '{data}'; it must be {allowed}.")
    listing = _list_files(folder)
    if folder.is_file() and not listing:
        advice = "Your own data are retrieval.csv, negated_retrieval.csv, mcq.csv or binary_mcq.csv."
        raise UserError(f"'{data}' does not have the name of a released file; rename it. {advice}")
    roots = _parse_roots(image_roots)
    named = [name for name in dict.fromkeys(names) if name != "all"]
    for name in named:
        if name not in ROWS:
            raise unknown("data set", name, ROWS)

    # A data set per row whose files exist; one that is named must have a file.
    loaded = []
    for row in ROWS.values() if "all" in names else [ROWS[name] for name in named]:
        if row.by_name and row.name not in named:
            continue
        dataset = _read_dataset(row, listing, roots, protocol)
        if dataset is not None:
            loaded.append(dataset)
        elif row.name in named:
            files = ", ".join(dict.fromkeys(part.files[0] for part in row.parts))
            origin = f"{row.files_at}; images: {row.images}"
            raise UserError(f"'{data}' has none of the files of {row.title} ({files}): {origin}.")
    if not loaded:
        raise UserError(f"'{data}' has none of NegBench's files; {registry.CSV_FILES}.")
    return loaded


def check_images(data: DataSet) -> None:
    """Raises UserError if no image exists, or one has two references. Some missing ones are no error: their
    rows are unscored."""
    if not isinstance(data.media, Files):
        return
    names = data.references
    counts = Counter(map(file_name, names))
    first: dict[Path, str] = {}  # file -> its first reference
    for name in names:
        path = data.media.find_path(name) if counts[file_name(name)] > 1 else None
        other = name if path is None else first.setdefault(path.resolve(), name)
        if other != name:
            raise UserError(f"{data.title} names one image as both '{other}' and '{name}'; use one name.")
    if not any(map(data.media.find_path, names)):
        advice = f"pass their folder as --image-root {data.name}=FOLDER"
        missing = f"None of the {len(names)} images of {data.title} exists (the first is '{names[0]}')"
        raise UserError(f"{missing}; {advice}. They come from: {ROWS[data.name].images}.")


def select_tasks(
    data: DataSet, kinds: Sequence[str], variants: Sequence[str], limit: int | None = None
) -> list[Task]:
    """The tasks of these kinds and variants, with their first `limit` images or questions."""
    selected = []
    for task in data.tasks:
        if {"all", task.what}.intersection(kinds) and {"all", task.variant}.intersection(variants):
            selected.append(task if limit is None else task.limit(limit))
    return selected


# --- the miniature world ---------------------------------------------------------------------------
def _draw_dataset(name: str, data: str, scenes: int | None, split: str, seed: int, protocol: str) -> DataSet:
    """NegBench over the scenes of a world (`name` NANO), or another test with pairs of scenes."""
    from nein.datasets.negbench import drawn
    from nein.nano import data as nano_data
    from nein.nano import scope

    if name not in ROWS:  # NANO
        world = find_world(data)
        tasks = drawn.make_tasks(split, scenes, seed, world)
        world_key = tasks[0].name.partition("/")[0]
        return DataSet(world_key, world.name, tuple(map(_interleave, tasks)), tasks[0].media)
    if data != NANO or name not in ("nein", "scope"):
        advice = "For published files pass --data FOLDER."
        raise UserError(f"'{name}' is not drawn in '{data}'; --data nano draws nein and scope. {advice}")
    count = scenes or 300  # pairs of scenes
    folder = nano_data.ensure_data_set(split, count) if name == "nein" else scope.ensure_pairs(split, count)
    dataset = _read_dataset(ROWS[name], _list_files(folder), {"": folder}, protocol)
    assert dataset is not None
    return replace(dataset, name=f"{NANO}-{name}")


# --- released files --------------------------------------------------------------------------------
def _parse_roots(image_roots: Sequence[str]) -> dict[str, Path]:
    """`--image-root`: data set, or "" for all others -> folder."""
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


def _list_files(top: Path) -> dict[str, list[Path]]:
    """Released name, "NAME" or "FOLDER/NAME" -> the files of that name at or below `top`."""
    released = set[str]()
    for row in ROWS.values():
        for part in row.parts:
            released.update(part.files, part.negated)
    paths: dict[str, list[Path]] = {}
    for path in [top] if top.is_file() else top.rglob("*"):
        for name in released & {path.name, f"{path.absolute().parent.name}/{path.name}"}:
            paths.setdefault(name, []).append(path)
    return paths


def _find_file(names: Sequence[str], listing: Mapping[str, list[Path]]) -> Path | None:
    """The file with the first of `names` that exists. Raises UserError if there are several."""
    paths = next((listing[name] for name in names if name in listing), [])
    if len(paths) > 1:
        listed = ", ".join(map(str, paths))
        raise UserError(f"--data contains {listed}; pass a folder with only one of them.")
    return paths[0] if paths else None


def _read_dataset(
    row: Row, listing: Mapping[str, list[Path]], roots: Mapping[str, Path], protocol: str
) -> DataSet | None:
    """The data set of a row, with the tasks whose files exist; None without any."""
    # (part, its file, its file of negated captions), of the parts with one of them.
    sources = []
    for part in row.parts:
        file, negated = _find_file(part.files, listing), _find_file(part.negated, listing)
        if file or negated:
            sources.append((part, file, negated))
    retrieval = [part for part, _, negated in sources if negated]
    if not retrieval:  # original captions alone: one task, not one per wording
        retrieval = [part for part, _, _ in sources if part.negated][:1]
    sources = [source for source in sources if source[0] in retrieval or not source[0].negated]
    if not sources:
        return None
    _, file, negated = sources[0]
    csv_folder = (file or negated or Path()).parent
    media = Files(roots.get(row.name, roots.get("")), csv_folder=csv_folder)
    tasks = [_read_task(row, *source, media, protocol) for source in sources]
    return DataSet(row.name, row.title, tuple(map(_interleave, _unify_references(tasks))), media)


GALLERY = 25_000  # images, sorted by name, that SimpleNeg's captions search (steer.py of its release)


def _read_task(
    row: Row, part: Part, file: Path | None, negated: Path | None, media: Files, protocol: str
) -> Task:
    """The task of one part, from its file and that of the negated captions; warns if a file is not whole."""
    paths = [path for path in (file, negated) if path is not None]
    origin = {"files": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}}
    shared: Any = {"media": media, "variant": part.variant, "origin": origin}
    name = f"{row.name}/{part.task}"
    if part.judged:
        queries = other_tests.simpleneg(paths[0])
        gallery = tuple(media.list_images()[:GALLERY])
        return RetrievalTask(name, (), queries, gallery=gallery, **shared)
    if part.reader:
        return ChoiceTask(name, other_tests.read(part.reader, paths[0], protocol), **shared)
    if part.negated:
        original = official.read_retrieval(file, records.ORIGINAL) if file else ()
        denying = official.read_retrieval(negated, records.NEGATED) if negated else ()
        counts = [len(items) for items, path in ((original, file), (denying, negated)) if path]
        task: Task = RetrievalTask(name, original, denying, **shared)
    else:
        layout = "control" if part.task.endswith(AFFIRMED) else row.layout
        questions = official.read_questions(paths[0], layout)
        counts = [len(questions)]
        task = ChoiceTask(name, questions, kind=part.task.removesuffix(AFFIRMED), **shared)
    for path, count in zip(paths, counts, strict=True):
        if (published := row.sizes.get(part.task, count)) != count:
            log.warning("'%s' has %d rows; as published it has %d", path, count, published)
    return task


def _interleave(task: Task) -> Task:
    """The task with its questions in the order of `interleave_sources`, unless they form groups."""
    if not isinstance(task, ChoiceTask) or any(question.groups for question in task.questions):
        return task
    return replace(task, questions=interleave_sources(task.questions, lambda question: question.cluster))


def _unify_references(tasks: Sequence[Task]) -> Sequence[Task]:
    """The tasks with one reference per image, the first; unchanged if a task has two images of one name."""
    first: dict[str, str] = {}  # file name -> reference
    for task in tasks:
        names = [file_name(reference) for reference in task.references]
        if len(set(names)) < len(names):
            return tasks
        first = {**dict(zip(names, task.references, strict=True)), **first}

    def unify(record: Any) -> Any:
        return replace(record, image=first.get(file_name(record.image), record.image))

    return [task.map_records(unify) for task in tasks]
