"""Everything that decides a built NegBench; published values: `configs/negbench/generate-paper.yaml`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from jsonargparse.typing import ClosedUnitInterval, NonNegativeInt, PositiveInt

from nein.config import options
from nein.config.options import about
from nein.engine.errors import UserError
from nein.models.llm.options import LlmOptions

PROG = "nein negbench generate"
#: All stages in order. Those that a configuration does not need pass their input on.
STAGES = ("pairs", "concepts", "verify", "paraphrase")


@dataclass
class BuildConfig:
    """Field names are the keys of a configuration file."""

    preset: Literal["nano", "paper"] = field(
        default="nano", metadata=about("which configs/negbench/generate-<preset>.yaml fills the rest", "What")
    )
    source: Literal["nano", "coco", "voc", "captions", "pairs"] = field(
        default="nano",
        metadata=about(
            "nano; coco: instances (and captions); voc: a VOC2007 folder; captions: captioned images; pairs: "
            "pictures made with and without an object (HardNeg-Syn)",
            "What",
        ),
    )
    form: Literal["evaluation", "training"] = field(
        default="evaluation",
        metadata=about("evaluation: up to three questions per image; training: NegCap and NegMCQ", "What"),
    )
    instances: str | None = field(
        default=None, metadata=about("coco: instances JSON; voc: folder with Annotations/", "Source")
    )
    captions: str | None = field(
        default=None,
        metadata=about("captions JSON, JSONL, or a folder with a .txt beside each image", "Source"),
    )
    images: str | None = field(
        default=None, metadata=about("folder of the images, if not beside the list", "Source")
    )
    image_set: str | None = field(
        default=None, metadata=about("voc: only the images that ImageSets/Main/NAME.txt lists", "Source")
    )
    scenes: PositiveInt = field(default=60, metadata=about("scenes or pairs drawn for nano", "Source"))
    split: Literal["train", "dev", "val"] = field(
        default="val", metadata=about("which scenes of the nano world", "Source")
    )
    limit: PositiveInt | None = field(default=None, metadata=about("only the first N images", "Source"))

    concepts: Literal["annotations", "llm"] = field(
        default="annotations",
        metadata=about(
            "objects from annotations and co-occurrence, or from captions by --llm.model", "Concepts"
        ),
    )
    negatives: PositiveInt = field(default=3, metadata=about("absent objects per image", "Concepts"))
    verify: Literal["none", "negatives", "both"] = field(
        default="none",
        metadata=about(
            "a detector drops absent objects it sees; both: also present ones it misses", "Concepts"
        ),
    )
    detector: str = field(
        default="nano:owlv2", metadata=about("nano:NAME, a hub id or a folder: OWL-ViT, OWLv2", "Concepts")
    )
    query: str = field(default="{object}", metadata=about("what the detector is asked for", "Concepts"))
    threshold: ClosedUnitInterval = field(
        default=0.1, metadata=about("an object is there at this score and above", "Concepts")
    )

    wording: Literal["code", "paper"] = field(
        default="code", metadata=about("features (released code) or includes (paper)", "Sentences")
    )
    thing: Literal["image", "video"] = field(default="image", metadata=about("what is shown", "Sentences"))
    order: Literal["either", "prefix", "suffix"] = field(
        default="either", metadata=about("where the negation of a caption stands", "Sentences")
    )
    captions_per_image: PositiveInt | None = field(
        default=None, metadata=about("of those an image has; default all, in training three", "Sentences")
    )
    questions: PositiveInt = field(default=3, metadata=about("at most, per image (evaluation)", "Sentences"))
    paraphrase: bool = field(
        default=False, metadata=about("also have --llm.model rephrase everything", "Sentences")
    )
    affneg: bool = field(
        default=False,
        metadata=about("paraphrases keep the order of what is affirmed and what is denied", "Sentences"),
    )

    maker: str = field(
        default="editor:magicbrush",
        metadata=about(
            "pairs: editor:NAME adds to drawn or given images; text:ID draws both pictures", "Pairs"
        ),
    )
    attempts: PositiveInt = field(
        default=3, metadata=about("pairs: tries with further seeds until the detector agrees", "Pairs")
    )
    resolution: PositiveInt = field(default=512, metadata=about("pairs: side of pictures from text", "Pairs"))
    steps: PositiveInt = field(default=50, metadata=about("pairs: sampling steps", "Pairs"))

    seed: NonNegativeInt = field(default=0, metadata=about("every image derives its own from it", "How"))
    out: str | None = field(default=None, metadata=about("default runs/negbench-generate-<preset>", "Output"))
    overwrite: bool = field(
        default=False, metadata=about("discard what another configuration left in OUT", "Output")
    )
    stages: options.Names = field(
        default_factory=lambda: [*STAGES, "finish"], metadata=about("stages to run", "Output")
    )
    shard_size: PositiveInt = field(
        default=16, metadata=about("images per shard, the unit of work that a process claims", "Machine")
    )
    batch_size: PositiveInt = field(default=16, metadata=about("pictures per forward pass", "Machine"))
    device: str = field(default="auto", metadata=about("auto, cpu, cuda, cuda:1, mps", "Machine"))
    dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("number type of detector and maker", "Machine")
    )
    llm: LlmOptions = field(default_factory=LlmOptions)

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/negbench-generate-{self.preset}")

    @property
    def asks_llm(self) -> bool:
        return self.concepts == "llm" or self.paraphrase or (self.source == "pairs" and not self.edits)

    @property
    def detects(self) -> bool:
        return self.verify != "none" or self.source == "pairs"

    @property
    def edits(self) -> bool:
        """Pairs by an editor start from pictures: no language model has to think of a scene."""
        return self.maker.startswith("editor:")


#: Fields that decide records; the rest may differ between commands on one folder.
DECIDES = (
    "source", "form", "concepts", "negatives", "verify", "detector", "query", "threshold", "wording", "thing",
    "order", "captions_per_image", "questions", "paraphrase", "affneg", "maker", "attempts", "resolution",
    "steps", "seed", "shard_size", "dtype",
)  # fmt: skip


def parse(argv: Sequence[str]) -> tuple[BuildConfig, bool]:
    """The configuration of a command line, checked, and whether `--dry-run` was given.

    Raises UserError for anything wrong; prints and raises SystemExit(0) for `--help`.
    """
    config, dry_run = options.read(
        BuildConfig,
        argv,
        prog=PROG,
        description="Build NegBench data: negated captions, multiple-choice questions, hard pairs.",
        folder="negbench/generate-",
        llm="The language model of --concepts llm, --paraphrase and --maker text:ID.",
    )
    check(config)
    return config, dry_run


def check(config: BuildConfig) -> None:
    """Everything that can be wrong with the options themselves. Raises UserError."""
    needs = {
        "coco": ("instances",) if config.concepts == "annotations" else ("captions",),
        "voc": ("instances",),
        "captions": ("captions",),
    }.get(config.source, ())
    for name in needs:
        if getattr(config, name) is None:
            raise UserError(f"--source {config.source} needs --{name}; see {PROG} --help.")
    if config.source == "captions" and config.concepts == "annotations":
        raise UserError(
            "--source captions has no annotated objects; say --concepts llm with an --llm.model, or take "
            "--source coco."
        )
    if config.source == "voc" and config.concepts == "llm":
        raise UserError("--source voc has no captions to read objects from; say --concepts annotations.")
    kind, colon, name = config.maker.partition(":")
    if config.source == "pairs" and (kind not in ("editor", "text") or not colon or not name):
        raise UserError(f"--maker is '{config.maker}'; it must be editor:NAME or text:ID.")
    if config.asks_llm and not config.llm.model:
        what = (
            "--concepts llm"
            if config.concepts == "llm"
            else "--paraphrase"
            if config.paraphrase
            else "--maker"
        )
        raise UserError(
            f"{what} asks a language model, and --llm.model names none; give openai:URL#MODEL, a hub id "
            "owner/name or a folder."
        )
    if "{object}" not in config.query or set(config.query.replace("{object}", "")) & set("{}"):
        raise UserError(
            f"--query is '{config.query}'; it must contain {{object}} and no other braces: "
            "'A photo of {object}'."
        )
    if config.asks_llm and config.llm.attempts > 1 and config.llm.temperature == 0:
        raise UserError(
            f"--llm.attempts {config.llm.attempts} at --llm.temperature 0 would draw one answer again and "
            "again; raise the temperature or take 1 attempt."
        )
    if config.source == "pairs" and config.edits and config.captions and not config.instances:
        raise UserError(
            "--source pairs with --captions needs --instances as well (COCO's JSON): what a picture shows "
            "has to be known before something is added."
        )
    if config.affneg and not config.paraphrase:
        raise UserError("--affneg is about paraphrases; give --paraphrase as well.")
    strange = [stage for stage in config.stages if stage not in (*STAGES, "finish")]
    if strange:
        raise UserError(f"--stages has '{strange[0]}'; allowed: {', '.join((*STAGES, 'finish'))}.")
