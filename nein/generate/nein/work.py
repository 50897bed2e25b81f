"""The four stages of a build as functions of a shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.engine import atomic, images
from nein.engine.blocks import Blocks
from nein.engine.folder import Row
from nein.engine.stages import Model
from nein.generate import job
from nein.generate.nein import algorithms
from nein.generate.nein.config import STAGES
from nein.generate.nein.sources import Source, SourceSet
from nein.loading.errors import isolated
from nein.loading.references import is_served, parse_reference
from nein.models import judges, references
from nein.models.cached import Services
from nein.models.editor_choice import EditorChoice

UNREADABLE = "unreadable image"
EDITOR_FAILED = "the editor failed"
#: Stage -> the model it needs.
MODEL_OF = {"clauses": "itm", "generate": "editor", "match": "itm", "ask": "vqa"}


@dataclass(frozen=True)
class Job(job.Job):
    """A build of NeIn."""

    sources: SourceSet
    rules: algorithms.Rules
    editor: EditorChoice

    stages = STAGES

    @property
    def blocks(self) -> Blocks:
        return Blocks.first(len(self.sources.sources), self.config.shard_size, self.config.limit)

    @property
    def with_family(self) -> bool:
        """Whether records name a family of negation: where there are several."""
        return self.config.family_labels != ["plain"]

    @property
    def drafts(self) -> Path:
        """A folder for files on their way into the data set, which is never seen with one half-written."""
        return atomic.make_folder(self.folder.path / "work" / "drafts")

    def members(self, shard: int) -> list[Source]:
        return [self.sources.sources[index] for index in self.blocks.members(shard)]

    def candidates(self, shard: int) -> list[Row]:
        return [c for row in self.rows("clauses", shard) for c in row["candidates"]]

    def accepted(self, shard: int, stage: str) -> list[Row]:
        """The candidates that a stage accepted."""
        names = {row["id"] for row in self.rows(stage, shard) if row["verdict"] == algorithms.ACCEPTED}
        return [candidate for candidate in self.candidates(shard) if candidate["id"] in names]

    def picture(self, name: str) -> Path:
        """Where a generated picture lies."""
        return self.folder.path / "work" / "pictures" / name

    def validity(self, stage: str) -> Callable[[list[Row]], bool] | None:
        """Generated pictures that have vanished are made again."""
        if stage != "generate":
            return None
        return lambda rows: all(
            row["image"] is None or atomic.holds_something(self.picture(row["image"])) for row in rows
        )

    def model(self, stage: str, device: str) -> Model:
        kind, config = MODEL_OF[stage], self.config

        def services() -> Services:
            return Services.of(config, self.folder.answers)

        def load() -> Any:
            if kind == "editor":
                how = {"device": device, "dtype": config.dtype, "batch_size": config.batch_size}
                return self.editor.load(services=services, **how)
            where = references.resolve(getattr(config.models, kind))
            options: dict[str, Any] = {}
            if parse_reference(where).has_files:
                options["batch_size"] = config.batch_size
                if kind == "vqa":
                    options["quantization"] = config.models.vqa_quantization
            how = {"device": device, "dtype": config.judge_dtype, **options}
            return judges.load(kind, where, services=services() if is_served(where) else None, **how)

        return Model.one(kind, load, kind=kind)

    def make_clauses(self, shard: int, matcher: Any) -> list[Row]:
        rules, members = self.rules, self.members(shard)
        pictures: dict[str, np.ndarray] = {}
        problems = {source.path: source.problem for source in members}
        for source in members:
            if not source.problem:
                try:
                    pictures[source.id] = images.decode(source.path)
                except images.ImageError as error:
                    problems[source.path] = f"{UNREADABLE}: {error}".replace(f"{source.path}: ", "")

        def match(names: Sequence[str]) -> Any:
            categories = [algorithms.queried(rules, name) for name in names]
            return matcher.match([pictures[name] for name in names], categories, head="itc")

        usable = [source.id for source in members if not problems[source.path]]
        cosines = dict(zip(usable, isolated(match, usable), strict=True))
        rows = []
        for source in members:
            values: Any = cosines.get(source.id)
            failed = f"{algorithms.FAILED}: {values}" if isinstance(values, str) else ""
            if problem := problems[source.path] or failed:
                rows.append(algorithms.unusable(source, problem))
            else:
                digest = images.pixel_hash(pictures[source.id])
                rows.append({**algorithms.clauses(source, values, rules), "sha256": digest})
        return rows

    def make_generate(self, shard: int, editor: editors.Editor) -> list[Row]:
        by_id = {source.id: source for source in self.members(shard) if not source.problem}
        candidates = self.candidates(shard)
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
            name = f"{result.id}.{self.config.image_format}"
            write = images.write_jpeg if self.config.image_format == "jpg" else images.write_png
            write(self.picture(name), result.image)
            height, width = result.image.shape[:2]
            stored = images.pixel_hash(images.decode(self.picture(name)))
            rows.append({
                "id": result.id, "image": name, "width": width, "height": height, "sha256": stored,
                "verdict": algorithms.ACCEPTED, "note": result.note,
            })  # fmt: skip
        return rows

    def make_match(self, shard: int, matcher: Any) -> list[Row]:
        above, protocol = self.config.match_above, self.config.protocol
        return algorithms.match(*self._passed("generate", shard), matcher, above=above, protocol=protocol)

    def make_ask(self, shard: int, judge: Any) -> list[Row]:
        return algorithms.ask(*self._passed("match", shard), judge, protocol=self.config.protocol)

    def _passed(self, stage: str, shard: int) -> tuple[list[Row], list[np.ndarray]]:
        """The candidates that a stage accepted, and their generated pictures."""
        files = {row["id"]: row["image"] for row in self.rows("generate", shard)}
        chosen = self.accepted(shard, stage)
        return chosen, [images.decode(self.picture(files[c["id"]])) for c in chosen]


def _not_made(name: str, error: str) -> Row:
    return {"id": name, "image": None, "verdict": EDITOR_FAILED, "error": error}
