"""The options of the commands on NeIn. Imports nothing heavy: `--help` is immediate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from nein.benchmarks import config as benchmarks
from nein.config.groups import (
    Dtype,
    Limit,
    Output,
    Preset,
    Runs,
    RuntimeOptions,
    Sampler,
    ScoreOptions,
    Seed,
    TrackerOptions,
)
from nein.config.options import Names, Options, Paths, option
from nein.engine.errors import UserError, chosen
from nein.engine.store import Need
from nein.wording.families import LABELS, MINIMAL_PAIRS

STAGES = ("edit", "score", "report")


@dataclass
class ModelsConfig:
    """Judges and encoders: `nano:NAME`, a hub id `owner/name[@revision]`, or a local folder."""

    clip: str = option("nano:clip", "CLIP, for CLIP-I and CLIP-T")
    dino: str = option("nano:dino", "DINO")
    lpips: str = option("nano:lpips", "LPIPS network: alex, vgg, squeeze, or a folder")
    fid: str = option("nano:fid", "network of the Frechet distance: inception, or a folder")
    vqa: str = option("nano:llava", "visual question answering; also openai:URL#MODEL, vllm:[URL#]MODEL")
    ovd: str = option("nano:owlv2", "open-vocabulary detector")
    vqa_quantization: Literal["none", "bnb-fp4"] = option("none", "bnb-fp4: 4 bit, as in the paper (CUDA)")
    vqa_options: dict[str, Any] = option({}, "of an endpoint: --models.vqa_options.reasoning_effort none")
    ovd_pad: Literal["library", "gray"] = option("library", "padding; gray: as in the paper's time")
    ovd_backend: Literal["torchvision", "pil"] = option("torchvision", "resize; pil: as in the paper's time")


@dataclass(kw_only=True)
class EvalConfig(Preset, Limit, Seed, Sampler, RuntimeOptions, Output, ScoreOptions, TrackerOptions):
    """Everything that decides an evaluation. Field names are the keys of a configuration file."""

    presets = "nein/eval-"
    default_out = "runs/PRESET"
    formats = ("md", "csv", "plots")  # of its report

    editor: Names = option(
        ["magicbrush"], "names, hub ids, folders, files, EDITOR=CHECKPOINT, NAME=... for a name of yours; "
        "a,b or all", "What",
    )  # fmt: skip
    edited: str | None = option(
        None, "score pictures made elsewhere, FOLDER/<method>/<NeIn id>.jpg, instead of --editor", "What"
    )
    data: str = option(
        "nano", "nano, nano:WORLD, nano:scope[-LANGUAGE], a folder in NeIn's layout, or "
        "hub:OWNER/NAME[@REVISION]", "Data",
    )  # fmt: skip
    split: str = option("val", "which split of the data", "Data")
    annotations: str | None = option(None, "annotation file, if not DATA/<split>.json", "Data")
    source_images: str | None = option(None, "folder of COCO images, if not in DATA", "Data")
    nein_images: str | None = option(None, "folder of NeIn images, if not in DATA", "Data")
    columns: dict[str, str] = option({}, "renamed fields: --columns.T_negative NAME", "Data")
    samples: Names = option([], "only these ids", "Data")
    families: Names = option(
        [], f"other sentences in place of the data's own, drawn evenly: {', '.join(LABELS)}; or "
        f"{MINIMAL_PAIRS}: affirmed and denied, the object there and not",
        "Data", among=(*LABELS, MINIMAL_PAIRS), what="negation family",
    )  # fmt: skip
    control: Names = option(
        [], "affirmative twins to run as well: remove, add, or none", "What", among=("remove", "add"),
        what="control",
    )  # fmt: skip
    mend: Names = option(
        [], "cures without training, beside the editor as it is: rewrite, rewrite:llm:MODEL, "
        "negative-prompt, negative-prompt-alone, attention, best-of:N:JUDGE", "What",
    )  # fmt: skip
    metrics: Names = option([], "metrics to compute, or all (which leaves out obeyed)", "What")
    stages: Names = option(list(STAGES), "stages to run", "What", among=STAGES, what="stage")
    protocol: Literal["paper", "fixed"] = option(
        "fixed", "answers read as by the paper's code, or mended", "How"
    )
    align: Literal["stretch", "crop"] = option("stretch", "the target is stretched, or cropped", "How")
    align_resolution: PositiveInt = option(512, "pixels of the crop rule of --align crop", "How")
    threshold: NonNegativeFloat = option(0.1, "detection threshold", "How")
    article: Literal["none", "a_an"] = option("none", "article in the judge's question", "How")
    evidence: Literal["both", "own"] = option(
        "both", "what judges are asked for the record: both protocols' questions, or only these", "How"
    )
    judge_dtype: Dtype = option("float32", "dtype of the judges (encoders measure in float32)", "Machine")
    cache: str | None = option(None, "folder of cached target features; default OUT/cache", "Output")
    retry_refused: bool = option(False, "send again what a service refused to edit", "How")
    debug_zone: bool = option(False, "draw ZONE's maps, a picture per sample, into RUN/maps", "Output")
    models: ModelsConfig = field(default_factory=ModelsConfig)

    @property
    def cache_dir(self) -> Path:
        return Path(self.cache) if self.cache else self.out_dir / "cache"

    @property
    def computes(self) -> bool:
        """Whether it asks for more than a report of what is there."""
        return bool({"edit", "score"} & set(self.stages))

    @property
    def tracks(self) -> list[str]:
        """Minimal pairs have instructions of their own, and no control."""
        return ["negative"] if MINIMAL_PAIRS in self.families else ["negative", *self.control]

    def needs(self) -> list[Need]:
        from nein.models import needs

        edits = "edit" in self.stages and self.edited is None
        asked = list(metrics_of(self.metrics)) if "score" in self.stages else []
        return [
            *(needs.of_editors(self.editor, self.preset, self.editor_overrides()) if edits else []),
            *(needs.of_remedies(self.mend, self.models.vqa) if edits else []),
            *needs.of_metrics(asked, self.models),
            *needs.of_data(self.data),
        ]

    def check(self) -> None:
        from nein.models import editor_choice

        self.metrics = metrics_of(self.metrics)
        if not self.editor:
            raise UserError("No editor was named; say --editor NAME, a comma list, or all.")
        self.editor = [editor_choice.spelled_editor(name) for name in self.editor]
        if not self.stages:
            raise UserError(f"No stage was named; --stages takes some of {', '.join(STAGES)}.")
        if "score" in self.stages and not self.metrics:
            raise UserError("No metric was named; --metrics takes a comma list, or all.")
        if self.preset == "paper" and self.data == "nano" and self.stages != ["report"]:
            raise UserError(
                "The paper preset needs NeIn's data: --data FOLDER (with val.json, coco_for_val/ and "
                "nein_val/) or --data hub:OWNER/NAME."
            )


def metrics_of(names: Sequence[str]) -> list[str]:
    """The metrics in the order of the table; "all": those that NeIn's layout serves. Raises UserError."""
    from nein import metrics

    if names == ["all"]:
        return [name for name, metric in metrics.METRICS.items() if not metric.by_truth]
    asked = {chosen("metric", name, metrics.METRICS) for name in names}
    return [name for name in metrics.METRICS if name in asked]


@dataclass(kw_only=True)
class Elsewhere(Options):
    """Data that have been moved."""

    data: str | None = option(None, "the data, if they are no longer where the runs found them", "Data")
    split: str = option("val", "annotation file of --data", "Data")


@dataclass(kw_only=True)
class GridConfig(Runs, Elsewhere, Seed):
    """Which samples are drawn."""

    ids: Names = option([], "draw these samples, in this order", "What")
    select: Literal["random", "worst", "best"] = option(
        "random", "which samples otherwise: random by --seed, or worst or best by --metric", "What"
    )
    metric: str | None = option(
        None, "the metric of --select, averaged over the runs (default: removal_vqa)", "What"
    )
    number: PositiveInt = option(6, "how many samples", "What")
    tracks: Names = option(
        [], "only these instruction tracks", "What", among=("negative", "remove", "add"), what="track"
    )
    size: PositiveInt = option(192, "long side of a picture in pixels", "Output")
    columns: Names = option(
        [], "only these, in this order: sample, target, EDITOR or EDITOR/TRACK, each with =CAPTION", "Output"
    )
    captions: Literal["all", "instruction", "none"] = option("all", "what stands above a row", "Output")
    verdicts: bool = option(True, "the judges' verdicts below every edit", "Output", negatable=True)
    highlight: Names = option([], "columns, by their names, and samples, by their ids, to mark", "Output")
    out: Path | None = option(
        None, ".png, .pdf or .svg to write, the latter two with letters (default: grid.png in the first RUN)",
        "Output",
    )  # fmt: skip

    def check(self) -> None:
        from nein import metrics

        out = self.out
        if out is not None and out.is_dir():
            raise UserError(f"'{out}' is a folder; --out takes a file, for example {out / 'grid.png'}.")
        if out is not None and out.suffix not in (".png", ".pdf", ".svg"):
            raise UserError(f"'{out}' is no picture that can be written; --out takes .png, .pdf or .svg.")
        if not 16 <= self.size <= 2048:
            raise UserError(f"--size is {self.size}; allowed are 16 to 2048 pixels.")
        if self.metric is not None:
            self.metric = chosen("metric", self.metric, metrics.METRICS)


@dataclass(kw_only=True)
class ReportConfig(benchmarks.ReportConfig, benchmarks.Comparing, Elsewhere):
    """What a report is made of."""

    protocols: bool = option(False, "add what each quirk of the published protocol changes", "What")
    calibration: Paths = option(
        [], "folders of the judges' calibration (default: RUN/calibration where it exists)", "What"
    )
    judge_grade: Paths = option([], "folders that nein negvqa --model judge wrote", "What")
    labels: Path | None = option(
        None, "people's labels of some samples: CSV with editor,track,id,gone", "What"
    )
    title: str | None = option(None, "title of the page", "Output")
    thumbnails: NonNegativeInt = option(128, "longer side of a picture; 0 for none", "Output")
    budget: NonNegativeInt = option(
        24, "MiB of pictures and answers inside the page; beyond it they go into files beside it", "Output"
    )


@dataclass(kw_only=True)
class CompareConfig(benchmarks.CompareConfig):
    """What is compared."""

    track: Literal["negative", "remove", "add", "all"] = option("negative", "which instructions", "What")

    def check(self) -> None:
        from nein import metrics

        self.metrics = [chosen("metric", name, metrics.METRICS) for name in self.metrics]
