"""Everything that decides an evaluation on NegBench; the paper's values are in `configs/negbench/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from nein.benchmarks import config as benchmarks
from nein.config.groups import (
    Blind,
    Limit,
    OnDevice,
    Output,
    Preset,
    RuntimeOptions,
    ScoreOptions,
    Seed,
    TrackerOptions,
)
from nein.config.options import Names, Options, argument, option
from nein.datasets.negbench.registry import NANO, ROWS, TASKS, VARIANTS
from nein.engine.errors import UserError
from nein.engine.store import Need
from nein.metrics.letters import Rule


@dataclass(kw_only=True)
class EvalConfig(Preset, Limit, Seed, Blind, RuntimeOptions, Output, ScoreOptions, TrackerOptions):
    presets = "negbench/eval-"
    default_out = "runs/negbench-PRESET"
    counted = "pictures (retrieval) or questions of a task"
    batch_size: PositiveInt = 32
    model: Names = option(
        ["nano:clip"],
        "two-tower models: names (clip, negclip=FOLDER, ...), folders, hub ids, open_clip:ARCH/TAG, "
        "nano:clip, random, each as NAME=... under a name of yours; none for none",
        "What",
    )
    mend: Names = option(
        [],
        "remedies without training, beside each two-tower model as it is: decompose[:LAMBDA], "
        "spacevlm[:THRESHOLD], steer[:ALPHA][@PAIRS.json], neat[@CAPTIONS.csv]", "What",
    )  # fmt: skip
    vlm: Names = option(
        [],
        "generative models asked the multiple-choice questions: folders, hub ids, openai:URL#MODEL; "
        "judge:REFERENCE for a VQA judge in its own template", "What",
    )  # fmt: skip
    match: Names = option(
        [],
        "models that score a picture with a sentence by a head of their own: BLIP folders and hub ids, "
        "plugin:NAME, module:attribute", "What",
    )  # fmt: skip
    data: str = option(
        NANO, "nano, nano:WORLD, a folder with the files of a test anywhere in it, or one such file", "Data"
    )
    datasets: Names = option(
        ["all"], f"data sets, or all that are there: {', '.join(ROWS)}", "Data",
        among=(*ROWS, NANO, "all"), what="data set",
    )  # fmt: skip
    tasks: Names = option(
        ["all"], f"tasks, or all: {', '.join(TASKS)}", "Data", among=(*TASKS, "all"), what="task"
    )
    variants: Names = option(
        ["all"], f"wordings, or all that are there: {', '.join(VARIANTS)}", "Data",
        among=(*VARIANTS, "all"), what="variant",
    )  # fmt: skip
    image_root: Names = option([], "folder of the pictures, matched by file name; or NAME=FOLDER,...", "Data")
    split: Literal["val", "dev", "train"] = option("val", "split of --data nano", "Data")
    scenes: PositiveInt | None = option(
        None, "scenes drawn for --data nano, if not the split's own number", "Data"
    )
    protocol: Literal["fixed", "paper"] = option(
        "fixed", "options shuffled and ties shared, or the right option first and ties to the first", "How"
    )
    features: Literal["normalised", "unnormalised"] = option(
        "normalised", "unnormalised: multiple choice as first published", "How"
    )
    pooling: Literal["normalise-first", "average-first"] = option(
        "normalise-first", "how frames of a video become one feature", "How"
    )
    prompt: Literal["paper", "vlmevalkit"] = option(
        "paper", "wording of the questions to --vlm: NegVQA's, or the toolkit's", "How"
    )
    scoring: Literal["generated", "logprob"] = option(
        "generated", "--vlm: the letter it writes, or the likeliest letter as its first token", "How"
    )
    judge: str = option(
        "nano:llava",
        "VQA judge of the tests that are defined by its answers (simpleneg): a folder, a hub id, "
        "openai:URL#MODEL, vllm:URL#MODEL, vllm:MODEL",
        "How",
    )
    letters: Rule = option("fixed", "how the letter of an answer is read", "How")
    cache: str | None = option(None, "folder of features, can be shared; default OUT/cache", "Output")

    @property
    def cache_dir(self) -> Path:
        return Path(self.cache) if self.cache else self.out_dir / "cache"

    @property
    def judged(self) -> bool:
        return any(part.judged for row in map(ROWS.get, self.datasets) if row for part in row.parts)

    def needs(self) -> list[Need]:
        from nein.benchmarks.negbench import models
        from nein.models import needs
        from nein.models.references import JUDGE

        return [
            *(need for name in self.model for need in models.needs(name)),
            *(need for name in self.vlm for need in needs.of_model("vqa", name.removeprefix(JUDGE))),
            *(need for name in self.match for need in needs.of_model("itm", name)),
            *(needs.of_model("vqa", self.judge) if self.judged else ()),
        ]

    def check(self) -> None:
        for what, given in (("data set", self.datasets), ("task", self.tasks), ("variant", self.variants)):
            if not given:
                raise UserError(f"No {what} was named; see nein negbench eval --help.")
        if not self.model and not self.vlm and not self.match:
            raise UserError("No model was named; say --model NAME, --vlm REFERENCE or --match REFERENCE.")
        if self.preset == "paper" and self.data == NANO:
            raise UserError(
                "The paper preset needs published data: --data FOLDER (with the released files) and "
                "--image-root NAME=FOLDER for the pictures."
            )
        if self.data.partition(":")[0] != NANO and (self.scenes is not None or self.split != "val"):
            raise UserError("--scenes and --split are about --data nano; leave them out.")


@dataclass(kw_only=True)
class ReportConfig(benchmarks.ReportConfig):
    out: Path = option(Path("negbench.html"), "page to write; the other files lie beside it", "Output")


@dataclass(kw_only=True)
class AnalyseConfig(OnDevice):
    model: Names = option(
        ["nano:clip", "random"],
        "names, folders, hub ids, open_clip:ARCH/TAG, nano:clip, random, or sentence:FOLDER_OR_ID",
        "What",
    )
    objects: Names = option([], "pairs of objects, A/B (default: dog/cat and others)", "What")
    article: Literal["a_an", "none"] = option("a_an", '"a dog" or "dog" in the templates', "How")
    out: Path = option(Path("runs/negbench-templates"), "output folder", "Output")

    def needs(self) -> list[Need]:
        from nein.benchmarks.negbench import models

        return [need for name in self.model for need in models.needs(name)]

    def pairs(self) -> list[tuple[str, str]]:
        """Those of --objects. Raises UserError."""
        pairs = []
        for item in self.objects:
            a, _, b = (part.strip() for part in item.partition("/"))
            if not a or not b or a == b:
                raise UserError(f"--objects has '{item}'; it must be pairs of two objects: dog/cat,car/bus.")
            pairs.append((a, b))
        return pairs

    def check(self) -> None:
        self.pairs()
        if not self.model:
            raise UserError("No model was named; say --model NAME, or sentence:FOLDER_OR_ID.")


#: Methods with a head of their own.
CONVERTED = ("dcsm",)


@dataclass(kw_only=True)
class ConvertConfig(Options):
    """Which file, what it is, and where to: a PyTorch pickle becomes a folder of safetensors, once. It is
    read with `weights_only=True`, which builds tensors and runs nothing else of the file."""

    epilog = (
        "Then: nein negbench eval --model FOLDER, or --model negclip=FOLDER for that model's name; of a "
        "method --match FOLDER."
    )

    source: Path = argument("IN", ".pt, .pth, .bin, .ckpt (tensors only) or .safetensors")
    folder: Path = argument("OUT", "folder to write; must not exist")
    architecture: str = option(
        "",
        "open_clip's name for it, such as ViT-B-32, a JSON file with its configuration, or a method: dcsm; "
        "needed",
    )
    quick_gelu: bool = option(
        False,
        "the model computes with QuickGELU, as OpenAI's do; the released scripts run the checkpoint files "
        "without",
    )
    base: str = option("", "of a method: folder or hub id of the CLIP it stands on (default: its authors')")

    def check(self) -> None:
        if not self.architecture:
            raise UserError("nein negbench convert needs --architecture NAME, such as ViT-B-32.")
        if self.architecture in CONVERTED and self.quick_gelu:
            raise UserError(f"--quick-gelu says nothing of {self.architecture}, whose CLIP says it itself.")
        if self.architecture not in CONVERTED and self.base:
            raise UserError(f"--base says what a method ({', '.join(CONVERTED)}) stands on.")
