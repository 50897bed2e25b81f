"""What `nein generate` makes of captioned images, in four stages; its files: docs/benchmarks/nein-data.md."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from nein import editors
from nein.engine import atomic, images
from nein.engine.errors import UserError
from nein.engine.folder import Row
from nein.generate import maker
from nein.generate.maker import Looked, ShardStage
from nein.generate.nein import algorithms, sources
from nein.generate.nein.config import BuildConfig
from nein.generate.nein.sources import Source
from nein.loading.digests import json_digest
from nein.loading.references import parse_reference
from nein.models import editor_choice, judges, references

EDITOR_FAILED = "the editor failed"


class NeinStage(ShardStage):
    maker: NeinMaker

    def load(self) -> Any:
        """The judge of a filter."""
        where = references.resolve(getattr(self.config.models, self.kind))
        how: dict[str, Any] = {"device": self.device, "dtype": self.config.judge_dtype}
        if parse_reference(where).has_files:
            how["batch_size"] = self.config.batch_size
            if self.kind == "vqa":
                how["quantization"] = self.config.models.vqa_quantization
        return judges.load(self.kind, where, services=self.maker.services(), **how)

    def accepted(self, shard: int, stage: str) -> tuple[list[Row], list[np.ndarray]]:
        """The candidates that a stage accepted, and their generated images, (H, W, 3) uint8."""
        names = {row["id"] for row in self.maker.rows(stage, shard) if row["verdict"] == algorithms.ACCEPTED}
        chosen = [candidate for candidate in self.maker.candidates(shard) if candidate["id"] in names]
        made = {row["id"]: row["image"] for row in self.maker.rows("generate", shard)}
        return chosen, [images.decode(self.maker.image_path(made[row["id"]])) for row in chosen]


class Clauses(NeinStage):
    """Algorithm 1: image and captions -> objects that are absent, and a sentence that says so for each."""

    name, kind = "clauses", "itm"

    def read(self, shard: int) -> list[tuple[Source, Looked]]:
        """Every image, (H, W, 3) uint8, or why it cannot be used."""
        return [(source, source.problem or _look(source.path)) for source in self.maker.members(shard)]

    def make(self, model: Any, inputs: list[tuple[Source, Looked]]) -> list[Row]:
        usable = [(source, pixels) for source, pixels in inputs if not isinstance(pixels, str)]
        names = [algorithms.queried(self.maker.objects, self.config, source.id) for source, _ in usable]
        cosines = iter(algorithms.cosines(model, [pixels for _, pixels in usable], names))
        rows = []
        for source, pixels in inputs:
            if isinstance(pixels, str):
                rows.append(algorithms.unusable(source, pixels))
            elif isinstance(values := next(cosines), str):
                rows.append(algorithms.unusable(source, f"{algorithms.FAILED}: {values}"))
            else:
                row = algorithms.clauses(source, values, self.maker.objects, self.config)
                rows.append({**row, "sha256": images.pixel_hash(pixels)})
        return rows


class Generate(NeinStage):
    """Source image and "Add a cat." -> the sample, by an editor."""

    name, kind = "generate", "editor"

    def load(self) -> Any:
        how = {name: getattr(self.config, name) for name in ("dtype", "batch_size")}
        return self.maker.editor.load(services=self.maker.services, device=self.device, **how)

    def read(self, shard: int) -> list[editors.EditRequest]:
        candidates = self.maker.candidates(shard)
        wanted = {candidate["source"] for candidate in candidates}
        sources = [
            source for source in self.maker.members(shard) if source.id in wanted and not source.problem
        ]
        pixels = {source.id: images.decode(source.path) for source in sources}
        return [
            editors.EditRequest(c["id"], pixels[c["source"]], c["generated"], c["seed"]) for c in candidates
        ]

    def make(self, model: editors.Editor, inputs: list[editors.EditRequest]) -> list[Row]:
        results = model.edit(inputs) if inputs else []
        if [result.id for result in results] != [request.id for request in inputs]:
            raise AssertionError(f"editor {model.name!r} did not answer every request, in order")
        return [self._row(result) for result in results]

    def _row(self, result: editors.EditResult) -> Row:
        if result.image is None:
            error = result.error or "the editor gave no picture and no reason"
            return {"id": result.id, "image": None, "verdict": EDITOR_FAILED, "error": error}
        name = f"{result.id}.{self.config.image_format}"
        path = self.maker.image_path(name)
        (images.write_jpeg if self.config.image_format == "jpg" else images.write_png)(path, result.image)
        height, width = result.image.shape[:2]
        facts = {"id": result.id, "image": name, "width": width, "height": height}
        facts |= {"sha256": images.pixel_hash(images.decode(path)), "verdict": algorithms.ACCEPTED}
        return {**facts, "note": result.note}

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        """Images that have vanished are made again."""
        made = [self.maker.image_path(row["image"]) for row in rows if row["image"] is not None]
        return all(map(atomic.holds_something, made))


class Match(NeinStage):
    """Filter 1: do image and caption with the object match?"""

    name, kind = "match", "itm"

    def read(self, shard: int) -> tuple[list[Row], list[np.ndarray]]:
        return self.accepted(shard, "generate")

    def make(self, model: Any, inputs: tuple[list[Row], list[np.ndarray]]) -> list[Row]:
        above, protocol = self.config.match_above, self.config.protocol
        return algorithms.match(*inputs, model, above=above, protocol=protocol)


class Ask(NeinStage):
    """Filter 2: does the judge say yes to caption and object?"""

    name, kind = "ask", "vqa"

    def read(self, shard: int) -> tuple[list[Row], list[np.ndarray]]:
        return self.accepted(shard, "match")

    def make(self, model: Any, inputs: tuple[list[Row], list[np.ndarray]]) -> list[Row]:
        return algorithms.ask(*inputs, model, protocol=self.config.protocol)


class NeinMaker(maker.Maker):
    """A build of NeIn."""

    config: BuildConfig
    stages = (Clauses, Generate, Match, Ask)
    decides = (
        "queried kept absent_below image_format match_above protocol seed shard_size batch_size dtype "
        "judge_dtype"
    )

    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config, wanted=config.stages, shard_size=config.shard_size)
        if "finish" in config.stages and "parquet" in config.formats:
            if importlib.util.find_spec("datasets") is None:
                raise UserError(
                    "--formats parquet needs 'datasets': pip install 'nein[hub]', or use --formats official."
                )
        for kind in {stage.kind for stage in self.stages if stage.name in config.stages} - {"editor"}:
            where = references.resolve(getattr(config.models, kind))
            if parse_reference(where).kind == "name":
                raise UserError(
                    f"--models.{kind} '{where}' is neither a folder, a hub id owner/name, nor nano:NAME."
                )
            judges.check(where)
        self.listing = sources.load(config)
        self.objects = sources.categories(config.objects, config.queried)
        self.editor = editor_choice.choose_editor(config.editor, config.preset, config.editor_options)

    def identity(self, device: str) -> dict[str, Any]:
        return {
            **super().identity(device),
            "families": self.config.family_labels,
            "objects": json_digest({"objects": self.objects})[:16],
            "noise": algorithms.NOISE,
            **self.editor.identity(),
            **vars(self.config.models),
        }

    def candidates(self, shard: int) -> list[Row]:
        return [candidate for row in self.rows("clauses", shard) for candidate in row["candidates"]]

    def image_path(self, name: str) -> Path:
        """Of a generated image."""
        return self.folder.path / "work" / "pictures" / name


def _look(path: Path) -> Looked:
    try:
        return images.decode(path)
    except images.ImageError as error:
        return f"{maker.UNREADABLE}: {error}".replace(f"{path}: ", "")
