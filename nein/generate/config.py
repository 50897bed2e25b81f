"""The options of the commands that make data; the papers' values: `configs/*/generate-paper.yaml`.

One class per command: `nein generate`, `stats`, `negbench generate`, `negvqa generate` and `negvqa check`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.config.groups import Budget, Dtype, Limit, OnDevice, Output, Preset, RuntimeOptions, Sampler, Seed
from nein.config.options import DrawnCount, Names, Options, Paths, UnitInterval, argument, option
from nein.loading.errors import UserError
from nein.loading.references import Need, is_served
from nein.models.llm import LlmOptions
from nein.wording.families import FAMILIES


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
    """How `nein generate` makes NeIn data."""

    presets = "nein/generate-"  # start of a preset's file
    default_out = "runs/generate-PRESET"
    counted = "source images"  # by --limit

    source: str | None = option(None, "captioned images: nano, COCO .json, .jsonl, or a folder", "Main")
    images: str | None = option(None, "image folder (default: beside SOURCE)", "Main")
    scenes: DrawnCount = option(160, "number of scenes to draw for --source nano", "Main")
    objects: str = option("coco", "object vocabulary: coco, nano, or a file", "Clauses")
    queried: PositiveInt = option(15, "categories to sample per image", "Clauses")
    kept: PositiveInt = option(5, "keep the lowest-scoring ones, one sample each", "Clauses")
    absent_below: float = option(0.4, "take a category as absent below this image-text cosine", "Clauses")
    families: Names = option(
        ["plain"], f"negation families: {', '.join(FAMILIES)}, or all", "Clauses",
        among=(*FAMILIES, "all"), what="negation family",
    )  # fmt: skip
    editor: str = option("magicbrush", "editor that adds the objects", "Generation")
    image_format: Literal["png", "jpg"] = option("png", "of the samples (paper: jpg)", "Generation")
    match_above: float = option(0.4, "filter 1: keep samples above this cosine", "Filters")
    protocol: Literal["paper", "fixed"] = option("fixed", "paper: as released; fixed: corrected", "Method")
    evaluation_share: UnitInterval = option(0.0659, "fraction of source images in the val split", "Output")
    shard_size: PositiveInt = option(8, "source images per shard (unit of work)", "Machine")
    judge_dtype: Dtype = option("float32", "dtype of the filter models", "Machine")
    models: BuildModels = field(default_factory=BuildModels)

    @property
    def family_labels(self) -> list[str]:
        return list(FAMILIES) if self.families == ["all"] else self.families

    def needs(self) -> list[Need]:
        from nein.models import needs

        editor = needs.editor_needs([self.editor], self.preset, self.editor_options)
        itm, vqa = needs.model_needs("itm", self.models.itm), needs.model_needs("vqa", self.models.vqa)
        return [*editor, *itm, *vqa]

    def check(self) -> None:
        if not self.family_labels:
            raise UserError("--families is empty; pass at least one family.")
        for flag, cosine in (("absent-below", self.absent_below), ("match-above", self.match_above)):
            if not -1 <= cosine <= 1:
                raise UserError(f"--{flag} is {cosine}; a cosine lies between -1 and 1.")
        if self.kept > self.queried:
            raise UserError(f"--kept is {self.kept}, more than the {self.queried} categories of --queried.")
        if not self.source:
            raise UserError(
                "--source is missing; pass COCO's captions and --images, a .jsonl file or a folder."
            )


@dataclass(kw_only=True)
class StatsConfig(Options):
    """Which captions `nein stats` counts, by which words."""

    captions: Paths = argument("CAPTIONS", "COCO captions .json, .jsonl, or text lines")
    words: Paths = option(
        [Path("paper")], "word lists: paper (NeIn's Table 1), files of a word a line", "Main"
    )
    examples: NonNegativeInt = option(5, "example sentences to print per list", "Output")
    json: Path | None = option(None, "write all counts to this JSON file", "Output")


@dataclass(kw_only=True)
class NegbenchConfig(Preset, Limit, Seed, RuntimeOptions, Output):
    """How `nein negbench generate` makes NegBench data."""

    presets = "negbench/generate-"  # start of a preset's file
    default_out = "runs/negbench-generate-PRESET"
    counted = "images"  # by --limit

    source: Literal["nano", "coco", "voc", "captions", "pairs", "chexpert", "ham10000"] = option(
        "nano", "data: nano, coco, voc, captions, pairs (HardNeg-Syn), chexpert, ham10000", "Main"
    )
    form: Literal["evaluation", "training"] = option("evaluation", "files to test or to train on", "Main")
    protocol: Literal["paper", "fixed"] = option("fixed", "paper: as released; fixed: corrected", "Main")
    instances: str | None = option(None, "annotations: COCO .json, VOC folder or medical table", "Source")
    captions: str | None = option(None, "COCO .json, .jsonl, or folder with a .txt per image", "Source")
    images: str | None = option(None, "image folder (default: beside the list)", "Source")
    image_set: str | None = option(None, "voc: use only the images of ImageSets/Main/NAME.txt", "Source")
    scenes: DrawnCount = option(60, "number of scenes or pairs to draw for nano", "Source")
    split: Literal["train", "dev", "val"] = option("val", "split of the nano world", "Source")

    concepts: Literal["annotations", "llm"] = option("annotations", "source of object names", "Concepts")
    negatives: PositiveInt | None = option(None, "absent objects per image (3; llm 5, video 1)", "Concepts")
    verify: Literal["none", "negatives", "both"] = option(
        "none", "drop absent objects that the detector finds; both: also missed ones", "Concepts"
    )
    detector: str = option("nano:owlv2", "OWL-ViT or OWLv2: nano:NAME, hub id or folder", "Concepts")
    query: str = option("{object}", "detector prompt", "Concepts")
    threshold: UnitInterval = option(0.1, "detection threshold", "Concepts")
    validate: bool = option(False, "drop images whose object lists --llm.model rejects", "Concepts")

    wording: Literal["code", "paper"] = option("code", "MCQ verb: features, or includes", "Sentences")
    thing: Literal["image", "video"] = option("image", "media type", "Sentences")
    order: Literal["either", "prefix", "suffix"] = option("either", "place of the negation", "Sentences")
    captions_per_image: PositiveInt | None = option(None, "evaluation: max per image", "Sentences")
    questions: PositiveInt | None = option(None, "evaluation: MCQs per image (3; video 1)", "Sentences")
    mcq: Literal["script", "files"] = option("script", "sample MCQs as script or files do", "Sentences")
    paraphrase: bool = option(False, "rephrase captions and options with --llm.model", "Sentences")
    affneg: bool = option(False, "keep the order of affirmation and negation in paraphrases", "Sentences")

    maker: str = option("editor:magicbrush", "pairs: editor:NAME adds, or text:ID draws both", "Pairs")
    attempts: PositiveInt = option(3, "pairs: max seeds to try until the detector agrees", "Pairs")
    steps: PositiveInt = option(50, "pairs: sampling steps", "Pairs")

    shard_size: PositiveInt = option(16, "images per shard (unit of work)", "Machine")
    llm: LlmOptions = field(default_factory=LlmOptions)

    @property
    def absent(self) -> int:
        """The number of absent objects per image; by default as published."""
        default = 3 if self.concepts == "annotations" else 5 if self.thing == "image" else 1
        return self.negatives or default

    @property
    def asked(self) -> int:
        """The most questions per image; a manifest has it under this name."""
        return self.questions or (3 if self.thing == "image" and self.mcq == "script" else 1)

    @property
    def medical(self) -> bool:
        return self.source in ("chexpert", "ham10000")

    @property
    def asks_llm(self) -> bool:
        return self.concepts == "llm" or self.validate or self.paraphrase or bool(self.maker_for("text"))

    def maker_for(self, kind: Literal["editor", "text"]) -> str:
        """The editor that makes the pairs, or the pipeline that draws them from text; "" if none does."""
        maker, _, name = self.maker.partition(":")
        return name if self.source == "pairs" and maker == kind else ""

    def needs(self) -> list[Need]:
        from nein.models import needs

        needed: list[Need] = []
        if editor := self.maker_for("editor"):
            needed += needs.editor_needs([editor], self.preset, {"steps": self.steps})
        if (pipeline := self.maker_for("text")) and (need := Need.parse(pipeline)):
            needed.append(need)
        if self.source == "pairs" or self.verify != "none":
            needed += needs.model_needs("ovd", self.detector)
        return [*needed, *needs.model_needs("llm", self.llm.model)] if self.asks_llm else needed

    def check(self) -> None:
        source, from_captions = f"--source {self.source}", self.concepts == "llm"
        lists = {"captions": "captions", "voc": "instances", "chexpert": "instances", "ham10000": "instances"}
        lists["coco"] = "captions" if from_captions else "instances"
        name = lists.get(self.source, "")  # the option that the source needs; "": none
        from_text, is_pairs = self.maker_for("text"), self.source == "pairs"
        no_maker = is_pairs and not (from_text or self.maker_for("editor"))
        no_instances = is_pairs and self.captions and not self.instances
        no_captions = self.source == "voc" or self.medical
        is_photo = self.form == "evaluation" and self.thing == "image" and not self.medical
        is_other_query = "{object}" not in self.query or set("{}") & set(self.query.replace("{object}", ""))
        refused = {  # message -> whether it applies
            f"{source} needs --{name}; see nein negbench generate --help.": name and not getattr(self, name),
            f"{source} names no objects; use --concepts llm.": self.source == "captions"
            and not from_captions,
            f"{source} has no captions; use --concepts annotations.": no_captions and from_captions,
            f"{source} is for evaluation; use --form evaluation.": self.medical and self.form == "training",
            f"--query is '{self.query}'; it must contain {{object}} and no other braces.": is_other_query,
            f"--maker is '{self.maker}'; it must be editor:NAME or text:ID.": no_maker,
            "--maker text:ID draws scenes of its own; leave out --captions.": from_text and self.captions,
            f"{source} with --captions also needs --instances.": no_instances,
            "--mcq files is for evaluation questions on photographs.": self.mcq == "files" and not is_photo,
            "--affneg needs --paraphrase.": self.affneg and not self.paraphrase,
        }
        for message, applies in refused.items():
            if applies:
                raise UserError(message)
        if self.asks_llm:
            self.llm.check("--maker text:ID, --concepts llm, --validate or --paraphrase")


@dataclass(kw_only=True)
class ConversionConfig(Preset, Limit, Seed, OnDevice, Budget, Output):
    """How `nein negvqa generate` makes NegVQA data."""

    presets = "negvqa/generate-"  # start of a preset's file
    default_out = "runs/negvqa-generate-PRESET"
    counted = "questions"  # by --limit
    seed: NonNegativeInt = 1234
    source: str = option("nano", "questions: nano, hub:OWNER/NAME, .jsonl, .json, .csv, .tsv", "Main")
    images: str | None = option(None, "image folder (default: beside the file)", "Main")
    split: str = option("dev", "split of a hub data set", "Source")
    columns: dict[str, str] = option({}, "map field names: --columns.question prompt", "Source")
    questions: DrawnCount = option(200, "number of questions to draw for --source nano", "Main")
    letters: Literal["balanced", "notebook"] = option("balanced", "notebook: as the paper", "Method")
    sheet: PositiveInt = option(100, "random items on the sheet for human review", "Output")
    llm: LlmOptions = field(default_factory=LlmOptions)

    @property
    def place(self) -> str:
        """Where questions are negated: see `nein.engine.stages.Model`. "host": drawn ones need no model."""
        if self.llm.model is None:
            return "host"
        return "remote" if is_served(self.llm.model) else "device"

    def needs(self) -> list[Need]:
        from nein.models import needs

        model = needs.model_needs("llm", self.llm.model) if self.llm.model else []
        return [*model, *needs.data_needs(self.source)]

    def check(self) -> None:
        if self.llm.model or self.source != "nano":
            self.llm.check(f"--source {self.source}")


@dataclass(kw_only=True)
class CheckConfig(Options):
    """The labels of a check sheet."""

    files: Paths = argument("FILE.csv", "files saved from the check sheet, one per reviewer")
    out: Path | None = option(None, "write the figures to this CSV file", "Output")
