"""Define and check the options of a CLIP's fine-tuning (`train/finetune_clip.py`).

Precedence: command line > `--config FILE` > `--preset NAME` (`configs/train/clip-NAME.yaml`) > default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config.options import DrawnCount, Names
from nein.datasets.negbench.sentences import VARIED
from nein.loading.errors import UserError, unknown
from nein.loading.references import Need
from nein.train.options import BelowOne, Learning, option, setting

WORDINGS = ("code", *VARIED)  # values of --wordings


@dataclass(kw_only=True)
class ClipConfig(Learning):
    """Options of `train/finetune_clip.py`; field names are the keys of a configuration file. A `setting` may
    differ when a run resumes, an `option` may not."""

    PROG = "train/finetune_clip.py"
    DESCRIPTION = "Fine-tune a CLIP on negated captions and multiple-choice questions (NegBench)."
    MEMORY_ADVICE = "lower --batch-size and --questions-per-step, or use --precision bf16"
    CARD_OPTIONS = "alpha trainable batch_size questions_per_step learning_rate weight_decay".split()
    presets = "train/clip-"  # start of the file names of --preset, in configs/
    preset_names = ("nano", "varied", "paper")

    preset: Literal["nano", "varied", "paper"] = setting(
        "nano", "defaults: configs/train/clip-PRESET.yaml", "Main"
    )
    base: str = option(
        "nano:clip",
        "model to start from: nano:clip, OWNER/NAME[@REVISION], a folder, or open_clip:NAME/TAG",
        "Main",
    )
    # Strings, as the command line gives them. `alphas` has the numbers.
    alpha: Names = option(["0.99"], "weight of the contrastive loss; several values: a sweep", "Main")
    trainable: Literal["all", "text"] = option("all", "trained weights; text: not the vision tower", "Main")

    words: Names = option([], "add words as tokens (CLIP of transformers): no,not,without", "Main")

    captions: str = option("nano", "nano, nano:WORLD, or a CSV file of captions (NegCap)", "Data")
    image_column: str = option("filepath", "captions file: column of the images", "Data")
    caption_column: str | None = option(
        None,
        "captions file: column of a caption or of a list of them; default: negative_captions, captions, "
        "caption or title",
        "Data",
    )
    questions: str = option("nano", "nano, nano:WORLD, or a CSV file of questions (NegMCQ)", "Data")
    image_root: str | None = setting(None, "folder of the images (default: that of the CSV files)", "Data")
    nano_scenes: DrawnCount = option(8000, "scenes drawn for nano data", "Data")
    wordings: Names = option(["code"], f"nano data: wordings of sentences: {', '.join(WORDINGS)}", "Data")
    original_captions: NonNegativeInt = option(0, "nano data: original captions per scene", "Data")
    caption_questions: bool = option(False, "nano data: add a question per scene about its caption", "Data")
    limit: PositiveInt | None = option(None, "only the first N images of either file", "Data")
    augment: Literal["none", "crop"] = option("none", "crop: random crop of 90 to 100 % of the area", "Data")

    protocol: Literal["paper", "fixed"] = option(
        "fixed",
        "paper: as released, questions scored by dot products, the rate falling over the whole file",
        "Optimization",
    )
    epoch_share: Annotated[float, Field(gt=0, le=1)] = option(
        1.0, "fraction of the shorter file per epoch (released code: 0.35)", "Optimization"
    )
    batch_size: PositiveInt = option(64, "captions per step, over all processes", "Optimization")
    questions_per_step: PositiveInt = option(64, "questions per step, over all processes", "Optimization")

    learning_rate: PositiveFloat = 1e-8
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    beta2: BelowOne = 0.98
    epsilon: PositiveFloat = 1e-6
    weight_decay: NonNegativeFloat = option(0.2, "AdamW; gains and biases excepted", "Optimization")
    clip: NonNegativeFloat = 0.0
    out: str = "runs/finetune-clip"

    def check(self) -> None:
        if self.protocol == "paper" and self.schedule == "linear":
            raise UserError("--protocol paper does not support --schedule linear; pass constant or cosine.")
        if not self.alpha:
            raise UserError("--alpha needs at least one value between 0 and 1.")
        for word in self.alpha:
            try:
                value = float(word)
            except ValueError:
                value = -1.0  # refused below
            if not 0 <= value <= 1:
                raise UserError(f"--alpha has '{word}'; it must be a number between 0 and 1.")
        if len(set(self.alphas)) < len(self.alphas):
            raise UserError(f"--alpha names a value twice: {', '.join(self.alpha)}.")
        if self.trainable == "text" and self.augment != "none":
            raise UserError("--trainable text stores image features once; pass --augment none.")
        for wording in self.wordings:
            if wording not in WORDINGS:
                raise unknown("wording", wording, WORDINGS)
        if self.preset == "paper" and "nano" in (self.captions, self.questions):
            raise UserError(
                "The preset 'paper' needs its data: pass --captions and --questions, the files negcap.csv "
                "and negmcq.csv from nein negbench generate --form training."
            )

    def identity(self) -> dict[str, object]:
        """Options that a resumed run must keep; for "paper" also the scoring: earlier code had another."""
        scoring = {"questions scored by": "dot products"} if self.protocol == "paper" else {}
        return {**super().identity(), **scoring}

    @property
    def alphas(self) -> list[float]:
        """Values of --alpha; `train` uses the first, `run` trains a model for each."""
        return [float(word) for word in self.alpha]

    def needs(self) -> list[Need]:  # models that `nein fetch` downloads
        from nein.models import needs

        return needs.model_needs("dual", self.base)

    def with_alpha(self, alpha: float, out: Path) -> ClipConfig:
        """Copy for one value of alpha, with its own folder."""
        return dataclasses.replace(self, alpha=[format_alpha(alpha)], out=str(out))


def format_alpha(alpha: float) -> str:
    """Shortest text that reads back as the same number: "0", "0.99", "0.1234567"."""
    return f"{alpha:g}" if float(f"{alpha:g}") == alpha else repr(alpha)
