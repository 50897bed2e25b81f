"""The options of `nein generate` and `nein stats`; the paper's values: `configs/nein/generate-paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.config.groups import Dtype, Limit, Output, Preset, RuntimeOptions, Sampler, Seed
from nein.config.options import DrawnCount, Names, Options, Paths, UnitInterval, argument, option
from nein.engine.errors import UserError
from nein.loading.references import Need
from nein.wording.families import FAMILIES

STAGES = ("clauses", "generate", "match", "ask")
FORMATS = ("official", "parquet")
FAMILY_HELP = f"negation families: {', '.join(FAMILIES)}, or all"


@dataclass
class BuildModels:
    """The models of the filters: `nano:NAME`, a hub id `owner/name[@revision]`, or a local folder."""

    itm: str = option("nano:blip", "image-text matching (BLIP)")
    vqa: str = option("nano:llava", "visual question answering (LLaVA-NeXT)")
    vqa_quantization: Literal["none", "bnb-fp4"] = option(
        "none", "quantize vqa; bnb-fp4: 4 bit, as in the paper (CUDA)"
    )


@dataclass(kw_only=True)
class BuildConfig(Preset, Limit, Seed, Sampler, RuntimeOptions, Output):
    """Field names are the keys of a configuration file."""

    presets = "nein/generate-"
    default_out = "runs/generate-PRESET"
    counted = "source images"

    source: str | None = option(None, "captioned images: nano, COCO .json, .jsonl, or a folder", "Main")
    images: str | None = option(None, "image folder (default: beside SOURCE)", "Main")
    scenes: DrawnCount = option(160, "number of scenes to draw for --source nano", "Main")
    objects: str = option("coco", "object vocabulary: coco, nano, or a file", "Clauses")
    queried: PositiveInt = option(15, "categories to sample per image", "Clauses")
    kept: PositiveInt = option(5, "keep the lowest-scoring ones, one sample each", "Clauses")
    absent_below: float = option(0.4, "take a category as absent below this image-text cosine", "Clauses")
    families: Names = option(
        ["plain"], FAMILY_HELP, "Clauses", among=(*FAMILIES, "all"), what="negation family"
    )
    editor: str = option("magicbrush", "editor that adds the objects", "Generation")
    image_format: Literal["png", "jpg"] = option("png", "of the samples (paper: jpg)", "Generation")
    match_above: float = option(0.4, "filter 1: keep samples above this cosine", "Filters")
    protocol: Literal["paper", "fixed"] = option("fixed", "paper: as released; fixed: corrected", "Method")
    evaluation_share: UnitInterval = option(0.0659, "fraction of source images in the val split", "Output")
    formats: Names = option([*FORMATS], "official (folders), parquet", "Output", among=FORMATS, what="format")
    stages: Names = option(
        [*STAGES, "finish"], "stages to run", "Output", among=(*STAGES, "finish"), what="stage"
    )
    shard_size: PositiveInt = option(8, "source images per shard (unit of work)", "Machine")
    judge_dtype: Dtype = option("float32", "dtype of the filter models", "Machine")
    models: BuildModels = field(default_factory=BuildModels)

    @property
    def family_labels(self) -> list[str]:
        return list(FAMILIES) if self.families == ["all"] else self.families

    def needs(self) -> list[Need]:
        from nein.models import needs

        editor = needs.of_editors([self.editor], self.preset, self.editor_options)
        judges = *needs.of_model("itm", self.models.itm), *needs.of_model("vqa", self.models.vqa)
        return [*editor, *judges]

    def check(self) -> None:
        if not self.family_labels or not self.stages:
            raise UserError("--families and --stages must each name at least one.")
        for name in ("absent_below", "match_above"):
            if not -1 <= getattr(self, name) <= 1:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} is {getattr(self, name)}; a cosine is from -1 to 1.")
        if self.kept > self.queried:
            raise UserError(f"--kept is {self.kept}, more than the {self.queried} categories of --queried.")
        if not self.source:
            raise UserError(
                "The paper preset needs captioned images: --source captions_train2014.json --images "
                "train2014, or a folder with a .jsonl file; --source nano draws its own."
            )


@dataclass(kw_only=True)
class StatsConfig(Options):
    """Which captions are counted, and by which words."""

    captions: Paths = argument("CAPTIONS", "COCO captions .json, .jsonl, or text lines")
    words: Paths = option(
        [Path("paper")], "word lists: paper (NeIn's Table 1), files of a word a line", "Main"
    )
    examples: NonNegativeInt = option(5, "example sentences to print per list", "Output")
    json: Path | None = option(None, "write all counts to this JSON file", "Output")
