"""The options of `nein generate` and `nein stats`; the paper's values: `configs/nein/generate-paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from nein.config.groups import Budget, Dtype, Limit, OnDevice, Output, Preset, RuntimeOptions, Sampler, Seed
from nein.config.options import DrawnCount, Names, Options, Paths, UnitInterval, argument, option
from nein.engine.errors import UserError
from nein.loading.references import Need, is_served
from nein.models.llm import LlmOptions
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


MEDICAL_SOURCES = ("chexpert", "ham10000")
#: All stages in order. Those that a configuration does not need pass their input on.
NEGBENCH_STAGES = ("pairs", "concepts", "verify", "validate", "paraphrase")


@dataclass(kw_only=True)
class NegbenchConfig(Preset, Limit, Seed, RuntimeOptions, Output):
    presets = "negbench/generate-"
    default_out = "runs/negbench-generate-PRESET"
    counted = "images"

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
    resolution: PositiveInt = option(512, "pairs: image size of text:ID", "Pairs")
    steps: PositiveInt = option(50, "pairs: sampling steps", "Pairs")

    stages: Names = option(
        [*NEGBENCH_STAGES, "finish"],
        "stages to run",
        "Output",
        among=(*NEGBENCH_STAGES, "finish"),
        what="stage",
    )
    shard_size: PositiveInt = option(16, "images per shard (unit of work)", "Machine")
    llm: LlmOptions = field(default_factory=LlmOptions)

    @property
    def absent(self) -> int:
        """How many absent objects an image gets: as published, where nothing is said."""
        return self.negatives or (3 if self.concepts == "annotations" else 5 if self.thing == "image" else 1)

    @property
    def asked(self) -> int:
        """How many questions an image gets at most."""
        return self.questions or (3 if self.thing == "image" and self.mcq == "script" else 1)

    @property
    def medical(self) -> bool:
        return self.source in MEDICAL_SOURCES

    @property
    def asks_llm(self) -> bool:
        thinks = self.source == "pairs" and not self.edits
        return self.concepts == "llm" or self.validate or self.paraphrase or thinks

    @property
    def detects(self) -> bool:
        return self.verify != "none" or self.source == "pairs"

    @property
    def edits(self) -> bool:
        """Pairs by an editor start from pictures: no language model has to think of a scene."""
        return self.maker.startswith("editor:")

    def needs(self) -> list[Need]:
        from nein.models import needs

        name = self.maker.partition(":")[2]
        of_editor: list[Need] = []
        if self.source == "pairs" and self.edits:
            of_editor = needs.of_editors([name], self.preset, {"steps": self.steps})
        elif self.source == "pairs":
            of_editor = needs.of_pipeline(name, checker=True)
        return [
            *of_editor,
            *(needs.of_model("ovd", self.detector) if self.detects else []),
            *(needs.of_model("llm", self.llm.model) if self.asks_llm else []),
        ]

    def check(self) -> None:
        needs = {
            "captions": "captions",
            "coco": "instances" if self.concepts == "annotations" else "captions",
        }
        needs |= dict.fromkeys(("voc", *MEDICAL_SOURCES), "instances")
        name, source = needs.get(self.source, ""), f"--source {self.source}"
        pairs, asks_llm = self.source == "pairs", self.concepts == "llm"
        kind, _, model = self.maker.partition(":")
        braces = set(self.query.replace("{object}", "")) & set("{}")
        photographs = self.form == "evaluation" and self.thing == "image" and not self.medical
        refused = {
            f"{source} needs --{name}; see nein negbench generate --help.": name and not getattr(self, name),
            f"{source} has no annotated objects; use --concepts llm with --llm.model, or --source coco.":
                self.source == "captions" and not asks_llm,
            f"{source} has no captions to extract objects from; use --concepts annotations.":
                self.source in ("voc", *MEDICAL_SOURCES) and asks_llm,
            f"{source} is for evaluation; use --form evaluation.": self.medical and self.form == "training",
            f"--maker is '{self.maker}'; it must be editor:NAME or text:ID.":
                pairs and (kind not in ("editor", "text") or not model),
            f"--query is '{self.query}'; it must contain {{object}}, such as 'A photo of {{object}}', "
            "and no other braces.":
                "{object}" not in self.query or braces,
            f"{source} with --captions also needs --instances (COCO's JSON): the objects already there.":
                pairs and self.edits and self.captions and not self.instances,
            "--mcq files is for evaluation questions on photographs; leave it out.":
                self.mcq == "files" and not photographs,
            "--affneg needs --paraphrase.": self.affneg and not self.paraphrase,
        }  # fmt: skip
        for sentence, wrong in refused.items():
            if wrong:
                raise UserError(sentence)
        asks = {"--concepts llm": asks_llm, "--validate": self.validate, "--paraphrase": self.paraphrase}
        if self.asks_llm:
            self.llm.check(next((flag for flag, given in asks.items() if given), "--maker"))


@dataclass(kw_only=True)
class ConversionConfig(Preset, Limit, Seed, OnDevice, Budget, Output):
    """Field names are the keys of a configuration file."""

    presets = "negvqa/generate-"
    default_out = "runs/negvqa-generate-PRESET"
    counted = "questions"
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
        """Where questions are negated (`nein.engine.stages.Model`); drawn ones are as they were drawn."""
        if self.llm.model is None:
            return "host"
        return "remote" if is_served(self.llm.model) else "device"

    def needs(self) -> list[Need]:
        from nein.models import needs

        model = needs.of_model("llm", self.llm.model) if self.llm.model else []
        return [*model, *needs.of_data(self.source)]

    def check(self) -> None:
        if self.llm.model or self.source != "nano":
            self.llm.check(f"--source {self.source}")


@dataclass(kw_only=True)
class CheckConfig(Options):
    """The labels of a check sheet."""

    files: Paths = argument("FILE.csv", "files saved from the check sheet, one per reviewer")
    out: Path | None = option(None, "write the figures to this CSV file", "Output")
