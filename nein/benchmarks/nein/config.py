"""The configuration of an evaluation, and the one order in which it is put together.

Precedence: command line > `--config FILE` > preset (`configs/nein/eval-<preset>.yaml`) > default. Reading,
merging and type checks are done in `nein.config.options`; this file holds the table of options. It imports
nothing heavy, so that `--help` is immediate.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config import options
from nein.config.options import Names, about
from nein.engine.errors import UserError, unknown

STAGES = ("edit", "score", "report")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class ModelsConfig:
    """Judges and encoders: `nano:NAME`, a hub id `owner/name[@revision]`, or a local folder."""

    clip: str = field(default="nano:clip", metadata=about("CLIP, for CLIP-I and CLIP-T"))
    dino: str = field(default="nano:dino", metadata=about("DINO"))
    lpips: str = field(default="nano:lpips", metadata=about("LPIPS network: alex, vgg, squeeze, or a folder"))
    fid: str = field(
        default="nano:fid", metadata=about("network of the Frechet distance: inception, or a folder")
    )
    vqa: str = field(default="nano:llava", metadata=about("visual question answering judge"))
    ovd: str = field(default="nano:owlv2", metadata=about("open-vocabulary detector"))
    vqa_quantization: Literal["none", "bnb-fp4"] = field(
        default="none", metadata=about("bnb-fp4: 4 bit, as in the paper (needs CUDA)")
    )
    ovd_pad: Literal["library", "gray"] = field(
        default="library", metadata=about("padding of the detector; gray: as in the paper's time")
    )
    ovd_backend: Literal["torchvision", "pil"] = field(
        default="torchvision", metadata=about("resize of the detector; pil: as in the paper's time")
    )


@dataclass
class EvalConfig:
    """Everything that decides an evaluation. Field names are the keys of a configuration file."""

    editor: Names = field(
        default_factory=lambda: ["magicbrush"],
        metadata=about("editor names, hub ids, folders, files, NAME=CHECKPOINT: a,b or all", "What"),
    )
    edited: str | None = field(
        default=None,
        metadata=about(
            "score pictures made elsewhere, FOLDER/<method>/<NeIn id>.jpg, instead of --editor", "What"
        ),
    )
    preset: Literal["nano", "paper"] = field(
        default="nano",
        metadata=about("which configs/nein/eval-<preset>.yaml fills what is not given", "What"),
    )
    data: str = field(
        default="nano",
        metadata=about("nano, a folder in NeIn's layout, or hub:OWNER/NAME[@REVISION]", "Data"),
    )
    split: str = field(default="val", metadata=about("which split of the data", "Data"))
    annotations: str | None = field(
        default=None, metadata=about("annotation file, if not DATA/<split>.json", "Data")
    )
    source_images: str | None = field(
        default=None, metadata=about("folder of COCO images, if not in DATA", "Data")
    )
    nein_images: str | None = field(
        default=None, metadata=about("folder of NeIn images, if not in DATA", "Data")
    )
    columns: dict[str, str] = field(
        default_factory=dict, metadata=about("renamed fields: --columns.T_negative NAME", "Data")
    )
    limit: PositiveInt | None = field(default=None, metadata=about("only the first N samples", "Data"))
    samples: Names = field(default_factory=list, metadata=about("only these ids", "Data"))
    control: Names = field(
        default_factory=list, metadata=about("affirmative twins to run as well: remove, add, or none", "What")
    )
    metrics: Names = field(default_factory=list, metadata=about("metrics to compute, or all", "What"))
    stages: Names = field(default_factory=lambda: list(STAGES), metadata=about("stages to run", "What"))
    protocol: Literal["paper", "fixed"] = field(
        default="fixed", metadata=about("how answers are read: the paper's code, or mended", "How")
    )
    align: Literal["stretch", "crop"] = field(
        default="stretch", metadata=about("how the target is compared: stretched, or cropped", "How")
    )
    align_resolution: PositiveInt = field(
        default=512, metadata=about("resolution of the crop rule of --align crop, in pixels", "How")
    )
    threshold: NonNegativeFloat = field(default=0.1, metadata=about("detection threshold", "How"))
    article: Literal["none", "a_an"] = field(
        default="none", metadata=about("article in the judge's question", "How")
    )
    evidence: Literal["both", "own"] = field(
        default="both",
        metadata=about(
            "what judges are asked for the record: both protocols' questions, or only these", "How"
        ),
    )
    seed: NonNegativeInt = field(
        default=0, metadata=about("run seed; every sample derives its own from it", "How")
    )
    steps: PositiveInt | None = field(
        default=None, metadata=about("sampling steps, if not the editor's own", "How")
    )
    guidance_scale: PositiveFloat | None = field(
        default=None, metadata=about("text guidance, if not the editor's own", "How")
    )
    image_guidance_scale: PositiveFloat | None = field(
        default=None, metadata=about("image guidance, if not the editor's own", "How")
    )
    batch_size: PositiveInt = field(
        default=16, metadata=about("samples per block; lower it when memory runs out", "Machine")
    )
    device: str = field(default="auto", metadata=about("auto, cpu, cuda, cuda:1, mps", "Machine"))
    dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("number type of the editors", "Machine")
    )
    judge_dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32",
        metadata=about("number type of the judges (encoders always measure in float32)", "Machine"),
    )
    editor_options: dict[str, Any] = field(
        default_factory=dict,
        metadata=about(
            "more of the editor: --editor-options.attention math, .compile, .offload, .ema", "How"
        ),
    )
    out: str | None = field(default=None, metadata=about("result folder; default runs/<preset>", "Files"))
    cache: str | None = field(
        default=None, metadata=about("folder of cached target features; default OUT/cache", "Files")
    )
    overwrite: bool = field(
        default=False,
        metadata=about("discard earlier results that a changed configuration contradicts", "Files"),
    )
    debug_zone: bool = field(
        default=False,
        metadata=about("draw ZONE's intermediate maps, one picture per sample, into RUN/maps", "Files"),
    )
    models: ModelsConfig = field(default_factory=ModelsConfig)

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/{self.preset}")

    @property
    def cache_dir(self) -> Path:
        return Path(self.cache) if self.cache else self.out_dir / "cache"

    @property
    def tracks(self) -> list[str]:
        return ["negative", *self.control]

    def editor_overrides(self) -> dict[str, Any]:
        """The sampler settings that were given, by the names `editors.get_editor` takes."""
        given = {key: getattr(self, key) for key in ("steps", "guidance_scale", "image_guidance_scale")}
        return {**{key: value for key, value in given.items() if value is not None}, **self.editor_options}

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def parse(argv: Sequence[str]) -> tuple[EvalConfig, bool]:
    """The checked configuration of a command line, and whether `--dry-run` was given.

    Raises UserError for anything wrong with it; prints and raises SystemExit(0) for `--help`.
    """
    config, dry_run = options.read(
        EvalConfig,
        argv,
        prog="nein eval",
        folder="nein/eval-",
        description="Edit, score, report: how image editors follow instructions that say what is absent.",
        models="nano:NAME, a hub id owner/name[@revision], or a local folder",
    )
    config.metrics = _metrics(config.metrics)
    _check(config)
    return config, dry_run


def _metrics(wanted: list[str]) -> list[str]:
    import metrics

    if wanted == ["all"]:
        return list(metrics.METRICS)
    for name in wanted:
        if name not in metrics.METRICS:
            raise unknown("metric", name, metrics.METRICS)
    return [name for name in metrics.METRICS if name in wanted]


def _check(config: EvalConfig) -> None:
    for what, given, allowed in (
        ("stage", config.stages, STAGES),
        ("control", config.control, ("remove", "add")),
    ):
        for name in given:
            if name not in allowed:
                raise unknown(what, name, allowed)
    if not config.editor:
        raise UserError("No editor was named; say --editor NAME, a comma list, or all.")
    if not config.stages:
        raise UserError(f"No stage was named; --stages takes some of {', '.join(STAGES)}.")
    if "score" in config.stages and not config.metrics:
        raise UserError("No metric was named; --metrics takes a comma list, or all.")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", config.device):
        raise UserError(f"--device is '{config.device}'; it must be auto, cpu, cuda, cuda:N or mps.")
    if config.preset == "paper" and config.data == "nano" and config.stages != ["report"]:
        raise UserError(
            "The paper preset needs NeIn's data: --data FOLDER (with val.json, coco_for_val/ and nein_val/) "
            "or --data hub:OWNER/NAME."
        )
