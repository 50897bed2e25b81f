"""The options of `nein generate` and `nein stats`; the paper's values: `configs/nein/generate-paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.config.groups import Dtype, Limit, Output, Preset, RuntimeOptions, Sampler, Seed
from nein.config.options import Names, Options, Paths, UnitInterval, argument, option
from nein.engine.errors import UserError
from nein.engine.store import Need
from nein.wording.families import FAMILIES

STAGES = ("clauses", "generate", "match", "ask")
FORMATS = ("official", "parquet")


@dataclass
class BuildModels:
    """The models of the filters: `nano:NAME`, a hub id `owner/name[@revision]`, or a local folder."""

    itm: str = option("nano:blip", "image-text matching (BLIP)")
    vqa: str = option("nano:llava", "visual question answering (LLaVA-NeXT)")
    vqa_quantization: Literal["none", "bnb-fp4"] = option("none", "bnb-fp4: 4 bit, as in the paper (CUDA)")


@dataclass(kw_only=True)
class BuildConfig(Preset, Limit, Seed, Sampler, RuntimeOptions, Output):
    """Field names are the keys of a configuration file."""

    presets = "nein/generate-"
    default_out = "runs/generate-PRESET"
    counted = "source images"

    source: str | None = option(None, "nano, a COCO captions JSON, or a JSONL file or its folder", "Source")
    images: str | None = option(None, "folder of the images, if not beside SOURCE", "Source")
    scenes: PositiveInt = option(160, "scenes drawn for --source nano", "Source")
    objects: str = option("coco", "categories to ask for: coco, nano, or a file with one per line", "Clauses")
    queried: PositiveInt = option(15, "random categories per image", "Clauses")
    kept: PositiveInt = option(5, "lowest-scoring of them kept, one sample each", "Clauses")
    absent_below: float = option(0.4, "an object is absent below this cosine", "Clauses")
    families: Names = option(
        ["plain"], f"kinds of negation, drawn evenly: {', '.join(FAMILIES)}, or all", "Clauses",
        among=(*FAMILIES, "all"), what="negation family",
    )  # fmt: skip
    editor: str = option("magicbrush", "editor name, hub id or folder", "Generation")
    image_format: Literal["png", "jpg"] = option(
        "png", "file type of the samples; jpg: as the released scripts", "Generation"
    )
    match_above: float = option(0.4, "filter 1 keeps a sample above this cosine", "Filters")
    protocol: Literal["paper", "fixed"] = option(
        "fixed", "wording, seeds and reading of answers: the released code, or mended", "How"
    )
    evaluation_share: UnitInterval = option(0.0659, "share of the source images for val.json", "Output")
    formats: Names = option(
        list(FORMATS), "official (JSON and folders), parquet (for the datasets library)", "Output",
        among=FORMATS, what="format",
    )  # fmt: skip
    stages: Names = option(
        [*STAGES, "finish"], "stages to run", "Output", among=(*STAGES, "finish"), what="stage"
    )
    shard_size: PositiveInt = option(8, "source images per shard, the unit of work", "Machine")
    judge_dtype: Dtype = option("float32", "number type of the filters' models", "Machine")
    models: BuildModels = field(default_factory=BuildModels)

    @property
    def family_labels(self) -> list[str]:
        return list(FAMILIES) if self.families == ["all"] else self.families

    def needs(self) -> list[Need]:
        from nein.models import needs

        editor = needs.of_editors([self.editor], self.preset, self.editor_overrides())
        judges = *needs.of_model("itm", self.models.itm), *needs.of_model("vqa", self.models.vqa)
        return [*editor, *judges, *needs.english()]

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
    words: Paths = option([], "further lists in files, one word per line", "What")
    examples: NonNegativeInt = option(5, "sentences shown of each sort", "Output")
    json: Path | None = option(None, "also write all counts to this file", "Output")
