"""The four stages of a build as functions of a shard, on whose sources, configuration and models alone a row
depends: shards are cut over the whole list, whatever `--limit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.engine import atomic, images
from nein.engine.blocks import Blocks
from nein.engine.folder import Folder, Row
from nein.engine.stages import Model, Stage
from nein.generate.nein import algorithms
from nein.generate.nein.config import STAGES, BuildConfig
from nein.generate.nein.sources import Source, SourceSet
from nein.generate.shards import make_stage, output
from nein.loading.errors import isolated

UNREADABLE = "unreadable image"
EDITOR_FAILED = "the editor failed"
#: Stage -> the model it needs.
MODEL_OF = {"clauses": "itm", "generate": "editor", "match": "itm", "ask": "vqa"}


@dataclass(frozen=True)
class Job:
    """What all stages of a build share. A shard of sources is a block of the engine."""

    config: BuildConfig
    sources: SourceSet
    rules: algorithms.Rules
    folder: Folder

    @property
    def with_family(self) -> bool:
        """Whether records name a family of negation: where there are several."""
        return self.config.family_labels != ["plain"]

    @property
    def blocks(self) -> Blocks:
        return Blocks.first(len(self.sources.sources), self.config.shard_size, self.config.limit)

    def members(self, shard: int) -> list[Source]:
        return [self.sources.sources[index] for index in self.blocks.members(shard)]

    def rows(self, stage: str, shard: int) -> list[Row]:
        """What a finished stage wrote of a shard."""
        return self.folder.read(output(stage), shard)

    def candidates(self, shard: int) -> list[Row]:
        return [c for row in self.rows("clauses", shard) for c in row["candidates"]]

    def accepted(self, shard: int, stage: str) -> list[Row]:
        """The candidates that a stage accepted."""
        names = {row["id"] for row in self.rows(stage, shard) if row["verdict"] == algorithms.ACCEPTED}
        return [candidate for candidate in self.candidates(shard) if candidate["id"] in names]

    @property
    def drafts(self) -> Path:
        """A folder for files on their way into the data set, which is never seen with one half-written."""
        return atomic.make_folder(self.folder.path / "work" / "drafts")

    def picture(self, name: str) -> Path:
        """Where a generated picture lies."""
        return self.folder.path / "work" / "pictures" / name


def stage(job: Job, name: str, model: Model) -> Stage:
    """A stage of a build. Generated pictures that have vanished are made again."""

    def usable(_: str, shard: int, rows: list[Row]) -> bool:
        return all(row["image"] is None or job.picture(row["image"]).exists() for row in rows)

    return make_stage(
        name, STAGES, job.blocks, model,
        lambda shard, loaded: _FUNCTIONS[name](job, shard, loaded),
        lambda shard, reason: _lost(job, name, shard, reason),
        usable if name == "generate" else None,
    )  # fmt: skip


def _clauses(job: Job, shard: int, matcher: Any) -> list[dict[str, Any]]:
    rules, members = job.rules, job.members(shard)
    pictures: dict[str, np.ndarray] = {}
    problems = {source.path: source.problem for source in members}
    for source in members:
        if not source.problem:
            try:
                pictures[source.id] = images.decode(source.path)
            except images.ImageError as error:
                problems[source.path] = f"{UNREADABLE}: {error}".replace(f"{source.path}: ", "")
    usable = [source.id for source in members if not problems[source.path]]

    def match(names: Sequence[str]) -> Any:
        asked = [algorithms.queried(rules, name) for name in names]
        return matcher.match([pictures[name] for name in names], asked, head="itc")

    cosines = dict(zip(usable, isolated(match, usable), strict=True))
    made = []
    for source in members:
        values: Any = cosines.get(source.id)
        failed = f"{algorithms.FAILED}: {values}" if isinstance(values, str) else ""
        if problem := problems[source.path] or failed:
            made.append(algorithms.unusable(source, problem))
        else:
            digest = images.pixel_hash(pictures[source.id])
            made.append({**algorithms.clauses(source, values, rules), "sha256": digest})
    return made


def _generate(job: Job, shard: int, editor: editors.Editor) -> list[dict[str, Any]]:
    by_id = {source.id: source for source in job.members(shard) if not source.problem}
    candidates = job.candidates(shard)
    pictures = {name: images.decode(by_id[name].path) for name in {c["source"] for c in candidates}}
    requests = [
        editors.EditRequest(c["id"], pictures[c["source"]], c["generated"], c["seed"]) for c in candidates
    ]
    results = editor.edit(requests) if requests else []
    if [result.id for result in results] != [request.id for request in requests]:
        raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
    rows = []
    for result in results:
        if result.image is None:
            rows.append(_not_made(result.id, result.error or "the editor gave no picture and no reason"))
            continue
        name = f"{result.id}.{job.config.image_format}"
        write = images.write_jpeg if job.config.image_format == "jpg" else images.write_png
        write(job.picture(name), result.image)
        height, width = result.image.shape[:2]
        stored = images.pixel_hash(images.decode(job.picture(name)))
        rows.append({
            "id": result.id, "image": name, "width": width, "height": height, "sha256": stored,
            "verdict": algorithms.ACCEPTED, "note": result.note,
        })  # fmt: skip
    return rows


def _not_made(name: str, error: str) -> Row:
    return {"id": name, "image": None, "verdict": EDITOR_FAILED, "error": error}


def _passed(job: Job, shard: int, stage: str) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """The candidates that `stage` accepted, and their generated pictures."""
    files = {r["id"]: r["image"] for r in job.rows("generate", shard)}
    chosen = job.accepted(shard, stage)
    return chosen, [images.decode(job.picture(files[c["id"]])) for c in chosen]


def _lost(job: Job, stage: str, shard: int, reason: str) -> list[Row]:
    """What a stage says of a shard that it could not finish."""
    if stage == "clauses":
        return [algorithms.unusable(source, reason) for source in job.members(shard)]
    if stage == "generate":
        return [_not_made(c["id"], reason) for c in job.candidates(shard)]
    verdict: Row = {"verdict": algorithms.FAILED, "error": reason}
    if stage == "match":
        verdict = {"text": "", "cosine": None, **verdict}
    return [{"id": c["id"], **verdict} for c in job.accepted(shard, STAGES[STAGES.index(stage) - 1])]


_FUNCTIONS: dict[str, Callable[[Job, int, Any], list[Row]]] = {
    "clauses": _clauses,
    "generate": _generate,
    "match": lambda job, shard, matcher: algorithms.match(
        *_passed(job, shard, "generate"), matcher, above=job.config.match_above, protocol=job.config.protocol
    ),
    "ask": lambda job, shard, judge: algorithms.ask(
        *_passed(job, shard, "match"), judge, protocol=job.config.protocol
    ),
}
