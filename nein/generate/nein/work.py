"""The four stages of a build as functions of a shard.

A record of a stage depends on the shard's sources, the configuration and the models, and on nothing else:
shards are cut over the whole list, whatever `--limit`, and a batch never crosses from one into the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import editors
from metrics.base import isolated
from nein.engine import images
from nein.generate.nein import clauses, crew, filters
from nein.generate.nein.config import STAGES, BuildConfig
from nein.generate.nein.folder import BuildDir
from nein.generate.nein.ledger import Ledger
from nein.generate.nein.sources import Source, SourceSet

UNREADABLE = "unreadable image"
EDITOR_FAILED = "the editor failed"
#: Stage -> the model it needs, by the name under which `crew.Tools` loads it.
MODEL_OF = {"clauses": "itm", "generate": "editor", "match": "itm", "ask": "vqa"}


@dataclass(frozen=True)
class Job:
    """What all workers of a build share."""

    config: BuildConfig
    sources: SourceSet
    rules: clauses.Rules
    folder: BuildDir
    ledger: Ledger

    def shards(self) -> list[int]:
        """Numbers of the shards that hold the wanted sources."""
        wanted = min(len(self.sources.sources), self.config.limit or len(self.sources.sources))
        return list(range(-(-wanted // self.config.shard_size)))

    def members(self, shard: int) -> Sequence[Source]:
        size = self.config.shard_size
        return self.sources.sources[shard * size : (shard + 1) * size]

    def candidates(self, shard: int) -> list[dict[str, Any]]:
        return [c for row in self.ledger.record("clauses", shard)["rows"] for c in row["candidates"]]


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
    usable = [source for source in members if not problems[source.path]]
    found = isolated(
        lambda rows: matcher.match(
            [pictures[usable[i].id] for i in rows],
            [clauses.queried(rules, usable[i].id) for i in rows],
            head="itc",
        ),
        range(len(usable)),
    )
    cosines = dict(zip((source.id for source in usable), found, strict=True))
    made = []
    for source in members:
        if problems[source.path]:
            made.append(clauses.unusable(source, problems[source.path], rules))
            continue
        values = cosines[source.id]
        if isinstance(values, str):
            made.append(clauses.unusable(source, f"{filters.FAILED}: {values}", rules))
            continue
        digest = images.pixel_hash(pictures[source.id])
        made.append({**clauses.clauses(source, values, rules), "sha256": digest})
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
            error = result.error or "the editor gave no picture and no reason"
            rows.append({"id": result.id, "image": None, "verdict": EDITOR_FAILED, "error": error})
            continue
        name = f"{result.id}.{job.config.image_format}"
        write = images.write_jpeg if job.config.image_format == "jpg" else images.write_png
        write(job.folder.image(name), result.image)
        height, width = result.image.shape[:2]
        rows.append(
            {
                "id": result.id,
                "image": name,
                "width": width,
                "height": height,
                "sha256": images.pixel_hash(images.decode(job.folder.image(name))),
                "verdict": filters.ACCEPTED,
                "note": result.note,
            }
        )
    return rows


def _match(job: Job, shard: int, matcher: Any) -> list[dict[str, Any]]:
    chosen, pictures = _passed(job, shard, "generate")
    return filters.match(
        chosen, pictures, matcher, above=job.config.match_above, protocol=job.config.protocol
    )


def _ask(job: Job, shard: int, judge: Any) -> list[dict[str, Any]]:
    chosen, pictures = _passed(job, shard, "match")
    return filters.ask(chosen, pictures, judge, protocol=job.config.protocol)


def _passed(job: Job, shard: int, stage: str) -> tuple[list[dict[str, Any]], list[np.ndarray]]:
    """The candidates that `stage` accepted, and their generated pictures."""
    accepted = {r["id"] for r in job.ledger.record(stage, shard)["rows"] if r["verdict"] == filters.ACCEPTED}
    files = {r["id"]: r["image"] for r in job.ledger.record("generate", shard)["rows"]}
    chosen = [c for c in job.candidates(shard) if c["id"] in accepted]
    return chosen, [images.decode(job.folder.image(files[c["id"]])) for c in chosen]


_STAGES: dict[str, Callable[[Job, int, Any], list[dict[str, Any]]]] = {
    "clauses": _clauses,
    "generate": _generate,
    "match": _match,
    "ask": _ask,
}


def run(job: Job, stages: Sequence[str], tools: crew.Tools, *, threads: int, quiet: bool = False) -> None:
    """Works until every wanted shard has gone through `stages`, waiting for shards that others hold."""
    work = crew.Work(
        STAGES, job.shards(), MODEL_OF, lambda *what: _STAGES[what[0]](job, *what[1:]), job.ledger
    )
    crew.run(work, stages, tools, threads=threads, quiet=quiet)
