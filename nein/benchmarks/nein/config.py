"""Options of `nein eval`, `nein grid`, `nein report` and `nein compare`. No torch: `--help` is immediate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from nein.benchmarks import config as benchmarks
from nein.config.groups import Dtype, Evaluation, Runs, Sampler, Seed
from nein.config.options import Names, Options, Paths, option
from nein.loading.errors import UserError, match_name
from nein.loading.references import Need
from nein.wording.families import FAMILY_NAMES, MINIMAL_PAIRS

STAGES = ("edit", "score", "report")  # of --stages
FAMILY_CHOICES = (MINIMAL_PAIRS, *FAMILY_NAMES)  # of --families


@dataclass
class ModelsConfig:
    """Judges and encoders: `nano:NAME`, a hub id `owner/name[@revision]`, or a local folder."""

    clip: str = option("nano:clip", "CLIP, for CLIP-I and CLIP-T")
    dino: str = option("nano:dino", "DINO")
    lpips: str = option("nano:lpips", "LPIPS network: alex, vgg, squeeze, or a folder")
    fid: str = option("nano:fid", "FID network: inception, or a folder")
    vqa: str = option("nano:llava", "VQA judge; also openai:URL#MODEL")
    ovd: str = option("nano:owlv2", "open-vocabulary detector")
    vqa_quantization: Literal["none", "bnb-fp4"] = option("none", "bnb-fp4: 4 bit", in_file=True)
    vqa_options: dict[str, Any] = option(
        {}, "options of vqa: --models.vqa_options.reasoning_effort none, .device_map auto"
    )
    ovd_pad: Literal["library", "gray"] = option("library", "gray: as in the paper", in_file=True)
    ovd_backend: Literal["torchvision", "pil"] = option("torchvision", "pil: as in the paper", in_file=True)


@dataclass(kw_only=True)
class EvalConfig(Evaluation, Seed, Sampler):
    """Options of `nein eval`; field names are the keys of a configuration file."""

    presets = "nein/eval-"  # how the names of its preset files in configs/ begin
    default_out = "runs/PRESET"  # of --out

    editor: Names = option(
        ["magicbrush"], "NAME, hub id, folder, file.py:function; a,b; LABEL=EDITOR; all", "Main"
    )
    edited: str | None = option(
        None, "score existing edits: FOLDER/METHOD/<NeIn id>.jpg", "Main", value="FOLDER"
    )
    data: str = option("nano", "nano, nano:WORLD, nano:scope, NeIn folder, hub:OWNER/NAME", "Main")
    split: str = option("val", "split of the data", "Data")
    columns: dict[str, str] = option({}, "renamed fields: --columns.T_negative NAME", "Data")
    samples: Names = option([], "only these ids", "Data")
    families: Names = option(
        [],
        f"replace the sentences: {', '.join(FAMILY_CHOICES)}",
        "Data",
        among=FAMILY_CHOICES,
        what="negation family",
    )
    control: Names = option(
        [], "also affirmative twins: remove, add, or none", "Main", among=("remove", "add"), what="control"
    )
    mend: Names = option(
        [],
        "add remedies: rewrite[:REWRITER], negative-prompt, negative-prompt-alone, nag[:SCALE], "
        "vsf[:SCALE], attention, best-of:N:JUDGE",
        "Main",
    )
    metrics: Names = option([], "metrics to compute, or all (nein list metrics)", "Main")
    answers_from: str | None = option(
        None, "score removal_vqa by a log of VLMEvalKit, lmms-eval or inspect", "Main", value="LOG"
    )
    stages: Names = option(list(STAGES), "stages to run", "Main", among=STAGES, what="stage")
    align: Literal["stretch", "crop"] = option("stretch", "how the target is fitted", in_file=True)
    align_resolution: PositiveInt = option(512, "resolution of align: crop", in_file=True)
    threshold: NonNegativeFloat = option(0.1, "detection threshold", in_file=True)
    article: Literal["none", "a_an"] = option("none", "article in the judge's question", in_file=True)
    evidence: Literal["both", "own"] = option("both", "questions of both protocols, or its own", in_file=True)
    judge_dtype: Dtype = option("float32", "dtype of the judges", in_file=True)
    cache: str | None = option(None, "folder of target features (default: OUT/cache)", in_file=True)
    retry_refused: bool = option(False, "resend edits that a service refused", in_file=True)
    models: ModelsConfig = field(default_factory=ModelsConfig)

    @property
    def cache_dir(self) -> Path:
        return Path(self.cache) if self.cache else self.out_dir / "cache"

    @property
    def tracks(self) -> list[str]:
        """Instruction tracks of a run; minimal pairs have no controls."""
        return ["negative"] if MINIMAL_PAIRS in self.families else ["negative", *self.control]

    def needs(self) -> list[Need]:
        from nein.models import needs

        found: list[Need] = []
        if "edit" in self.stages and self.edited is None:  # edits are made here
            found += needs.editor_needs(self.editor, self.preset, self.editor_options)
            found += needs.remedy_needs(self.mend, self.models.vqa)
        metrics = select_metrics(self.metrics) if "score" in self.stages else []
        return [*found, *needs.metric_needs(metrics, self.models), *needs.data_needs(self.data)]

    def check(self) -> None:
        self.metrics = select_metrics(self.metrics)
        if not self.editor:
            raise UserError("No editor was named; pass --editor NAME, a comma list, or all.")
        if not self.stages:
            raise UserError(f"No stage was named; --stages takes some of {', '.join(STAGES)}.")
        if "score" in self.stages and not self.metrics:
            raise UserError("No metric was named; --metrics takes a comma list, or all.")
        if self.answers_from and "removal_vqa" not in self.metrics:
            raise UserError("--answers-from scores the metric removal_vqa only; add it to --metrics.")
        if self.preset == "paper" and self.data == "nano" and self.stages != ["report"]:
            folder = "--data FOLDER (with val.json, coco_for_val/ and nein_val/)"
            raise UserError(f"The paper preset needs NeIn's data: {folder} or --data hub:OWNER/NAME.")


def select_metrics(names: Sequence[str]) -> list[str]:
    """The named metrics in the order of `METRICS`; ["all"]: those that need no list of the objects in an
    image, which NeIn lacks. Raises UserError for an unknown name."""
    from nein.metrics.table import METRICS

    if names == ["all"]:
        return [name for name, metric in METRICS.items() if not metric.by_truth]
    selected = {match_name("metric", name, METRICS) for name in names}
    return [name for name in METRICS if name in selected]


@dataclass(kw_only=True)
class MovedData(Options):
    """Options for data that were moved after the run."""

    data: str | None = option(None, "the data, if they are no longer where the runs found them", "Data")
    split: str = option("val", "annotation file of --data", "Data")


@dataclass(kw_only=True)
class GridConfig(Runs, MovedData, Seed):
    """Options of `nein grid`."""

    samples: Names = option([], "draw these samples, in this order", "Main")
    select: Literal["random", "worst", "best"] = option(
        "random", "choose samples: random, or worst or best by --metric", "Main"
    )
    metric: str | None = option(None, "metric of --select (default: removal_vqa)", "Main")
    number: PositiveInt = option(6, "how many samples", "Main")
    tracks: Names = option(
        [], "only these instruction tracks", "Main", among=("negative", "remove", "add"), what="track"
    )
    size: Annotated[int, Field(ge=16, le=2048)] = option(192, "long side of an image in pixels", "Output")
    columns: Names = option(
        [], "columns in order: sample, target, EDITOR[/TRACK], each with =CAPTION", "Output"
    )
    captions: Literal["all", "instruction", "none"] = option("all", "text above a row", "Output")
    verdicts: bool = option(True, "print the judges' verdicts below every edit", "Output", negatable=True)
    highlight: Names = option([], "mark these columns and sample ids", "Output")
    out: Path | None = option(None, ".png, .pdf or .svg file (default: grid.png in the first RUN)", "Output")

    def check(self) -> None:
        from nein.metrics.table import METRICS

        out = self.out
        if out is not None and out.is_dir():
            raise UserError(f"'{out}' is a folder; --out takes a file, for example {out / 'grid.png'}.")
        if out is not None and out.suffix not in (".png", ".pdf", ".svg"):
            raise UserError(f"'{out}' has an unknown ending; --out takes .png, .pdf or .svg.")
        if self.metric is not None:
            self.metric = match_name("metric", self.metric, METRICS)


@dataclass(kw_only=True)
class ReportConfig(benchmarks.ReportConfig, benchmarks.Comparing, MovedData):
    """Options of `nein report`; some apply to runs of NegVQA alone."""

    protocols: bool = option(False, "show the effect of each quirk of the published protocol", "Main")
    calibration: Paths = option([], "calibration folders (default: RUN/calibration)", "Main")
    labels: Paths = option(
        [], "human labels: labels.csv of nein study, or CSV with editor,track,id,gone", "Main"
    )
    title: str | None = option(None, "title of the page", "Output")
    thumbnails: NonNegativeInt = option(128, "longer side of an image in pixels; 0 for none", "Output")
    embed: NonNegativeInt = option(
        24, "MiB of images inside the page; the rest goes into files next to it", "Output"
    )
    shown: NonNegativeInt = option(400, "NegVQA: questions shown in the page", "Output")
    negated: str | None = option(None, "NegVQA: second of two question files", "Data")
    images: str | None = option(None, "NegVQA: image folder (default: next to the file)", "Data")


@dataclass(kw_only=True)
class CompareConfig(benchmarks.CompareConfig):
    """Options of `nein compare`."""

    track: Literal["negative", "remove", "add", "all"] = option("negative", "which instructions", "Main")

    def check(self) -> None:
        from nein.metrics.table import METRICS

        super().check()
        self.metrics = [match_name("metric", name, METRICS) for name in self.metrics]
