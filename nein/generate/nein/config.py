"""Everything that decides a built data set; the paper's values: `configs/nein/generate-paper.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config import options
from nein.config.options import Names, about
from nein.engine.errors import UserError, unknown
from nein.wording.families import FAMILIES

STAGES = ("clauses", "generate", "match", "ask")
FORMATS = ("official", "parquet")


@dataclass
class BuildModels:
    """The models of the filters: `nano:NAME`, a hub id `owner/name[@revision]`, or a local folder."""

    itm: str = field(default="nano:blip", metadata=about("image-text matching (BLIP)"))
    vqa: str = field(default="nano:llava", metadata=about("visual question answering (LLaVA-NeXT)"))
    vqa_quantization: Literal["none", "bnb-fp4"] = field(
        default="none", metadata=about("bnb-fp4: 4 bit, as in the paper (needs CUDA)")
    )


@dataclass
class BuildConfig:
    """Field names are the keys of a configuration file."""

    preset: Literal["nano", "paper"] = field(
        default="nano",
        metadata=about("which configs/nein/generate-<preset>.yaml fills what is not given", "What"),
    )
    source: str | None = field(
        default=None,
        metadata=about("nano, a COCO captions JSON, or a JSONL file or the folder that holds it", "Source"),
    )
    images: str | None = field(
        default=None, metadata=about("folder of the images, if not beside SOURCE", "Source")
    )
    scenes: PositiveInt = field(default=160, metadata=about("scenes drawn for --source nano", "Source"))
    limit: PositiveInt | None = field(
        default=None, metadata=about("only the first N source images", "Source")
    )
    objects: str = field(
        default="coco",
        metadata=about("categories to ask for: coco, nano, or a text file with one per line", "Clauses"),
    )
    queried: PositiveInt = field(default=15, metadata=about("random categories per image", "Clauses"))
    kept: PositiveInt = field(
        default=5, metadata=about("lowest-scoring of them kept, one sample each", "Clauses")
    )
    absent_below: float = field(
        default=0.4, metadata=about("an object is absent below this cosine", "Clauses")
    )
    families: Names = field(
        default_factory=lambda: ["plain"],
        metadata=about(f"kinds of negation, drawn evenly: {', '.join(FAMILIES)}, or all", "Clauses"),
    )
    editor: str = field(default="magicbrush", metadata=about("editor name, hub id or folder", "Generation"))
    steps: PositiveInt | None = field(
        default=None, metadata=about("sampling steps, if not the editor's own", "Generation")
    )
    guidance_scale: PositiveFloat | None = field(
        default=None, metadata=about("text guidance, if not the editor's own", "Generation")
    )
    image_guidance_scale: PositiveFloat | None = field(
        default=None, metadata=about("image guidance, if not the editor's own", "Generation")
    )
    editor_options: dict[str, Any] = field(
        default_factory=dict,
        metadata=about("further options of the editor: --editor-options.resize none", "Generation"),
    )
    image_format: Literal["png", "jpg"] = field(
        default="png", metadata=about("file type of the samples; jpg: as the released scripts", "Generation")
    )
    match_above: float = field(
        default=0.4, metadata=about("filter 1 keeps a sample above this cosine", "Filters")
    )
    protocol: Literal["paper", "fixed"] = field(
        default="fixed",
        metadata=about("wording, seeds and reading of answers: the released code, or mended", "How"),
    )
    seed: NonNegativeInt = field(
        default=0, metadata=about("run seed; every image and sample derives its own from it", "How")
    )
    evaluation_share: ClosedUnitInterval = field(
        default=0.0659, metadata=about("share of the source images whose samples go to val.json", "Output")
    )
    formats: Names = field(
        default_factory=lambda: list(FORMATS),
        metadata=about("official (JSON and folders), parquet (for the datasets library)", "Output"),
    )
    stages: Names = field(
        default_factory=lambda: [*STAGES, "finish"], metadata=about("stages to run", "Output")
    )
    out: str | None = field(
        default=None, metadata=about("folder of the build; default runs/generate-<preset>", "Output")
    )
    overwrite: bool = field(
        default=False, metadata=about("discard what another configuration left in OUT", "Output")
    )
    shard_size: PositiveInt = field(
        default=8,
        metadata=about("source images per shard, the unit of work that a process claims", "Machine"),
    )
    batch_size: PositiveInt = field(
        default=16, metadata=about("samples per forward pass; lower it when memory runs out", "Machine")
    )
    device: str = field(default="auto", metadata=about("auto, cpu, cuda, cuda:1, mps", "Machine"))
    dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("number type of the editor", "Machine")
    )
    judge_dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("number type of the filters' models", "Machine")
    )
    models: BuildModels = field(default_factory=BuildModels)

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/generate-{self.preset}")

    def editor_overrides(self) -> dict[str, Any]:
        """The sampler settings that were given, by the names `editors.get_editor` takes."""
        given = {key: getattr(self, key) for key in ("steps", "guidance_scale", "image_guidance_scale")}
        return {**{key: value for key, value in given.items() if value is not None}, **self.editor_options}

    @property
    def family_labels(self) -> list[str]:
        return list(FAMILIES) if self.families == ["all"] else self.families


def parse(argv: Sequence[str]) -> tuple[BuildConfig, bool]:
    """The checked configuration of a `nein generate` command line, and whether `--dry-run` was given.

    Raises UserError; prints and raises SystemExit(0) for `--help`.
    """
    config, dry_run = options.read(
        BuildConfig,
        argv,
        prog="nein generate",
        description="Build a NeIn data set from captioned images: clauses, pictures, filters, split, card.",
        folder="nein/generate-",
        models="nano:NAME, a hub id owner/name[@revision], or a local folder",
    )
    _check(config)
    return config, dry_run


def _check(config: BuildConfig) -> None:
    for what, given, allowed in (
        ("stage", config.stages, (*STAGES, "finish")),
        ("format", config.formats, FORMATS),
        ("negation family", config.family_labels, tuple(FAMILIES)),
    ):
        for name in given:
            if name not in allowed:
                raise unknown(what, name, allowed)
    if not config.family_labels or not config.stages:
        raise UserError("--families and --stages must each name at least one.")
    for name in ("absent_below", "match_above"):
        if not -1 <= getattr(config, name) <= 1:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag} is {getattr(config, name)}; a cosine is from -1 to 1.")
    if config.kept > config.queried:
        raise UserError(f"--kept is {config.kept}, more than the {config.queried} categories of --queried.")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", config.device):
        raise UserError(f"--device is '{config.device}'; it must be auto, cpu, cuda, cuda:N or mps.")
    if not config.source:
        raise UserError(
            "The paper preset needs captioned images: --source captions_train2014.json --images train2014, "
            "or a folder with a .jsonl file; --source nano draws its own."
        )
