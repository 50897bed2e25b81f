"""The options of `nein negbench eval`, `analyse` and `convert`; the paper's values: `configs/negbench/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from nein.config.groups import Blind, Evaluation, OnDevice, Seed, Threads
from nein.config.options import DrawnCount, Names, Options, argument, option
from nein.datasets.negbench.registry import NANO, ROWS, TASKS, VARIANTS
from nein.loading.errors import UserError
from nein.loading.references import Need


@dataclass(kw_only=True)
class EvalConfig(Evaluation, Seed, Blind):
    """What decides an evaluation: models, data sets and tasks, protocol."""

    presets = "negbench/eval-"  # prefix of preset files in configs/
    default_out = "runs/negbench-PRESET"
    counted = "pictures (retrieval) or questions of a task"  # by --limit
    batch_size: PositiveInt = 32
    model: Names = option(
        ["nano:clip"],
        "two-tower models: clip, negclip=FOLDER, folder, hub id, open_clip:ARCH/TAG, LABEL=MODEL, none",
        "Main",
    )
    mend: Names = option([], "add remedies: decompose[:LAMBDA], spacevlm[:THRESHOLD]", "Main")
    vlm: Names = option(
        [], "generative models for MCQ: folder, hub id, openai:URL#MODEL, judge:MODEL", "Main"
    )
    match: Names = option(
        [], "image-text matching models: BLIP folder or hub id, plugin:NAME, module:attribute", "Main"
    )
    answers_from: Names = option(
        [], "score existing answers to MCQ: [NAME=]LOG of VLMEvalKit, lmms-eval or inspect", "Main"
    )
    data: str = option(NANO, "nano, nano:WORLD, or a folder or file of released data", "Main")
    datasets: Names = option(
        ["all"],
        "data sets, or all that are there (nein list data)",
        "Data",
        among=(*ROWS, NANO, "all"),
        what="data set",
    )
    tasks: Names = option(
        ["all"], f"tasks: {', '.join(TASKS)}, or all", "Data", among=(*TASKS, "all"), what="task"
    )
    variants: Names = option(
        ["all"], f"wordings: {', '.join(VARIANTS)}, or all", "Data", among=(*VARIANTS, "all"), what="variant"
    )
    image_root: Names = option([], "image folder, matched by file name; or NAME=FOLDER,...", "Data")
    split: Literal["val", "dev", "train"] = option("val", "split of --data nano", "Data")
    scenes: DrawnCount | None = option(None, "scenes drawn for --data nano (default: the split's)", "Data")
    features: Literal["normalised", "unnormalised"] = option(
        "normalised", "unnormalised: MCQ as first published", "Method"
    )
    prompt: Literal["paper", "vlmevalkit"] = option(
        "paper", "question wording for --vlm: NegVQA's, or VLMEvalKit's", "Method"
    )
    scoring: Literal["generated", "logprob"] = option(
        "generated", "--vlm: generated letter, or likeliest first token", "Method"
    )
    judge: str = option("nano:llava", "VQA judge of simpleneg: folder, hub id, openai:URL#MODEL", "Method")
    cache: str | None = option(None, "feature cache, can be shared (default: OUT/cache)", "Output")

    @property
    def cache_dir(self) -> Path:
        return Path(self.cache) if self.cache else self.out_dir / "cache"

    def needs(self) -> list[Need]:
        from nein.benchmarks.negbench import models
        from nein.models import needs
        from nein.models.references import JUDGE

        rows = [ROWS[name] for name in self.datasets if name in ROWS]
        judged = any(part.judged for row in rows for part in row.parts)
        return [
            *(need for name in self.model for need in models.needs(name)),
            *(need for name in self.vlm for need in needs.model_needs("vqa", name.removeprefix(JUDGE))),
            *(need for name in self.match for need in needs.model_needs("itm", name)),
            *(needs.model_needs("vqa", self.judge) if judged else ()),
        ]

    def check(self) -> None:
        if self.answers_from and self.protocol == "paper":
            reason = "--answers-from has letters of --protocol fixed, which shuffles options"
            raise UserError(f"{reason}; give that one.")
        if not (self.model or self.vlm or self.match or self.answers_from):
            raise UserError("No model was named; pass --model NAME, --vlm REFERENCE or --match REFERENCE.")
        if self.preset == "paper" and self.data == NANO:
            needed = "--data FOLDER (with the released files) and --image-root NAME=FOLDER for the pictures"
            raise UserError(f"The paper preset needs published data: {needed}.")
        if self.data.partition(":")[0] != NANO and (self.scenes is not None or self.split != "val"):
            raise UserError("--scenes and --split are for --data nano only; omit them.")


@dataclass(kw_only=True)
class AnalyseConfig(OnDevice, Threads):
    model: Names = option(
        ["nano:clip", "random"], "name, folder, hub id, open_clip:ARCH/TAG, sentence:MODEL, random", "Main"
    )
    objects: Names = option([], "object pairs, A/B (default: dog/cat and others)", "Main")
    out: Path = option(Path("runs/negbench-templates"), "output folder", "Output")

    def needs(self) -> list[Need]:
        from nein.benchmarks.negbench import models

        return [need for name in self.model for need in models.needs(name)]

    def pairs(self) -> list[tuple[str, str]]:
        """The pairs of objects of --objects. Raises UserError."""
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
            raise UserError("No model was named; pass --model NAME, or sentence:FOLDER_OR_ID.")


@dataclass(kw_only=True)
class ConvertConfig(Options):
    """Converts a checkpoint, a PyTorch pickle, to a folder of safetensors. The pickle is read with
    `weights_only=True`, which builds tensors and runs nothing else of the file."""

    epilog = "Then: nein negbench eval --model FOLDER, or --model negclip=FOLDER for that model's name."

    source: Path = argument("IN", ".pt, .pth, .bin, .ckpt (tensors only) or .safetensors")
    folder: Path = argument("OUT", "folder to write; must not exist")
    architecture: str = option("", "open_clip architecture (ViT-B-32) or a JSON configuration; required")
    quick_gelu: bool = option(False, "use QuickGELU, as OpenAI's weights do")

    def check(self) -> None:
        if not self.architecture:
            raise UserError("nein negbench convert needs --architecture NAME, such as ViT-B-32.")
