"""Everything that decides a built NegBench; published values: `configs/negbench/generate-paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import PositiveInt

from nein.config.groups import Limit, Output, Preset, RuntimeOptions, Seed
from nein.config.options import DrawnCount, Names, UnitInterval, option
from nein.engine.errors import UserError
from nein.loading.references import Need
from nein.models.llm import LlmOptions

MEDICAL_SOURCES = ("chexpert", "ham10000")
#: All stages in order. Those that a configuration does not need pass their input on.
STAGES = ("pairs", "concepts", "verify", "validate", "paraphrase")


@dataclass(kw_only=True)
class BuildConfig(Preset, Limit, Seed, RuntimeOptions, Output):
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
        [*STAGES, "finish"], "stages to run", "Output", among=(*STAGES, "finish"), what="stage"
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
