"""Everything that decides a built NegBench; published values: `configs/negbench/generate-paper.yaml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from nein.config.groups import Limit, Output, Preset, RuntimeOptions, Seed
from nein.config.options import Names, UnitInterval, option
from nein.engine.errors import UserError
from nein.engine.store import Need
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
        "nano",
        "nano; coco: instances (and captions); voc: a VOC2007 folder; captions: captioned images; pairs: "
        "pictures made with and without an object (HardNeg-Syn); chexpert, ham10000: their tables", "What",
    )  # fmt: skip
    form: Literal["evaluation", "training"] = option(
        "evaluation", "evaluation: up to three questions per image; training: NegCap and NegMCQ", "What"
    )
    protocol: Literal["paper", "fixed"] = option(
        "fixed",
        "rules of drawing and of verification: as released, or ours (docs/benchmarks/negbench-data.md)",
        "What",
    )
    instances: str | None = option(
        None, "coco: instances JSON; voc: folder with Annotations/; chexpert, ham10000: their CSV, or nano",
        "Source",
    )  # fmt: skip
    captions: str | None = option(
        None, "captions JSON, JSONL, or a folder with a .txt beside each image", "Source"
    )
    images: str | None = option(None, "folder of the images, if not beside the list", "Source")
    image_set: str | None = option(None, "voc: only the images that ImageSets/Main/NAME.txt lists", "Source")
    scenes: PositiveInt = option(60, "scenes, pairs or medical pictures drawn for nano", "Source")
    split: Literal["train", "dev", "val"] = option("val", "which scenes of the nano world", "Source")

    concepts: Literal["annotations", "llm"] = option(
        "annotations", "objects from annotations and co-occurrence, or from captions by --llm.model",
        "Concepts",
    )  # fmt: skip
    negatives: PositiveInt | None = option(
        None, "absent objects per image; default 3, from a language model 5, of a video 1", "Concepts"
    )
    verify: Literal["none", "negatives", "both"] = option(
        "none", "a detector drops absent objects it sees; both: also present ones it misses", "Concepts"
    )
    detector: str = option("nano:owlv2", "nano:NAME, a hub id or a folder: OWL-ViT, OWLv2", "Concepts")
    query: str = option("{object}", "what the detector is asked for", "Concepts")
    threshold: UnitInterval = option(0.1, "an object is there at this score and above", "Concepts")

    validate: bool = option(
        False, "drop images whose objects --llm.model takes for no list of objects (temperature 0)",
        "Concepts",
    )  # fmt: skip
    prompts: Path | None = option(
        None, "folder of a copy of github.com/m1k2zoo/negbench: its prompts are asked in the place of ours",
        "Concepts",
    )  # fmt: skip

    wording: Literal["code", "paper"] = option(
        "code", "features (released code) or includes (paper)", "Sentences"
    )
    thing: Literal["image", "video"] = option("image", "what is shown", "Sentences")
    order: Literal["either", "prefix", "suffix"] = option(
        "either", "where the negation of a caption stands", "Sentences"
    )
    captions_per_image: PositiveInt | None = option(
        None, "evaluation: of those an image has (training has always three); default all", "Sentences"
    )
    questions: PositiveInt | None = option(
        None, "evaluation: at most, per image; default 3, of a video and with --mcq files 1", "Sentences"
    )
    mcq: Literal["script", "files"] = option(
        "script", "evaluation: questions drawn as the released script does, or as the released files are",
        "Sentences",
    )  # fmt: skip
    paraphrase: bool = option(
        False,
        "also have --llm.model rephrase everything; training captions are written from caption and object",
        "Sentences",
    )
    affneg: bool = option(
        False, "paraphrases keep the order of what is affirmed and what is denied", "Sentences"
    )

    maker: str = option(
        "editor:magicbrush", "pairs: editor:NAME adds to drawn or given images; text:ID draws both pictures",
        "Pairs",
    )  # fmt: skip
    attempts: PositiveInt = option(3, "pairs: tries with further seeds until the detector agrees", "Pairs")
    resolution: PositiveInt = option(512, "pairs: side of pictures from text", "Pairs")
    steps: PositiveInt = option(50, "pairs: sampling steps", "Pairs")

    stages: Names = option(
        [*STAGES, "finish"], "stages to run", "Output", among=(*STAGES, "finish"), what="stage"
    )
    shard_size: PositiveInt = option(16, "images per shard, the unit of work", "Machine")
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
        made: list[Need] = []
        if self.source == "pairs" and self.edits:
            made = needs.of_editors([name], self.preset, {"steps": self.steps})
        elif self.source == "pairs":
            made = needs.of_pipeline(name, checker=True)
        return [
            *made,
            *(needs.of_model("ovd", self.detector) if self.detects else []),
            *(needs.of_model("llm", self.llm.model) if self.asks_llm else []),
        ]

    def check(self) -> None:
        needs = {
            "coco": ("instances",) if self.concepts == "annotations" else ("captions",),
            "voc": ("instances",),
            "captions": ("captions",),
            **dict.fromkeys(MEDICAL_SOURCES, ("instances",)),
        }.get(self.source, ())
        for name in needs:
            if getattr(self, name) is None:
                raise UserError(f"--source {self.source} needs --{name}; see nein negbench generate --help.")
        kind, _, name = self.maker.partition(":")
        pairs, source = self.source == "pairs", f"--source {self.source}"
        asks = {"--concepts llm": self.concepts == "llm", "--validate": self.validate,
                "--paraphrase": self.paraphrase}  # fmt: skip
        braces = set(self.query.replace("{object}", "")) & set("{}")
        for wrong, sentence in (
            (self.source == "captions" and self.concepts == "annotations",
             f"{source} has no annotated objects; say --concepts llm with an --llm.model, or take "
             "--source coco."),
            (self.source in ("voc", *MEDICAL_SOURCES) and self.concepts == "llm",
             f"{source} has no captions to read objects from; say --concepts annotations."),
            (self.medical and self.form == "training",
             f"{source} is for evaluation; say --form evaluation."),
            (pairs and (kind not in ("editor", "text") or not name),
             f"--maker is '{self.maker}'; it must be editor:NAME or text:ID."),
            ("{object}" not in self.query or braces,
             f"--query is '{self.query}'; it must contain {{object}} and no other braces: "
             "'A photo of {object}'."),
            (pairs and self.edits and self.captions and not self.instances,
             f"{source} with --captions needs --instances as well (COCO's JSON): what a picture shows has to "
             "be known before something is added."),
            (self.prompts is not None and not any(asks.values()),
             "--prompts are for --concepts llm, --validate and --paraphrase; give one of them as well."),
            (self.mcq == "files" and (self.medical or self.form == "training" or self.thing == "video"),
             "--mcq files is about evaluation questions on photographs; leave it out."),
            (self.affneg and not self.paraphrase,
             "--affneg is about paraphrases; give --paraphrase as well."),
        ):  # fmt: skip
            if wrong:
                raise UserError(sentence)
        if self.asks_llm:
            self.llm.check(next((flag for flag, given in asks.items() if given), "--maker"))


#: Fields that decide records; the rest may differ between commands on one folder.
DECIDES = (
    "source", "form", "protocol", "concepts", "absent", "verify", "validate", "detector", "query",
    "threshold", "wording", "thing", "order", "captions_per_image", "asked", "paraphrase", "affneg", "maker",
    "attempts", "resolution", "steps", "seed", "shard_size", "dtype",
)  # fmt: skip
