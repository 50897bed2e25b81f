"""Base of `nein generate`, `nein negbench generate` and `nein negvqa generate`, which make data sets.

Stages turn the records of a source into rows, shard by shard; then `finish` writes the files. Each command
subclasses `Maker` and `ShardStage`. Parts: both, parts of summaries and cards, records of a source.

OUT/manifest.json     what decides the data, where they come from, counts
OUT/work/<stage>/     the rows of a stage, a file per shard
OUT/answers.sqlite    every answer of a language model
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from nein.benchmarks.runner import invocation
from nein.datasets import coco
from nein.datasets.negbench.media import PICTURE_SUFFIXES
from nein.engine import images
from nein.engine.answers import ANSWERS
from nein.engine.folder import COMPLETE, Blocks, Folder, Row
from nein.engine.run import Executor
from nein.engine.stages import Model, Rows, Stage, Step
from nein.loading.errors import UserError
from nein.loading.references import expand_user, is_served
from nein.models import llm
from nein.models.cached import Services
from nein.models.llm import LlmOptions
from nein.reporting.tables import format_rows

# --- makers and stages ---------------------------------------------------------------------------
UNREADABLE = "unreadable image"  # start of a problem
ImageOrReason = np.ndarray | str  # (H, W, 3) uint8, or why there is no image


class BuildFolder(Folder):
    """The folder of a data set that is being made."""

    content_name = "a build"


class Maker:
    """Makes one data set. The constructor checks names, lists and models, and loads no model."""

    listing: Listing[Any]  # the records of the source
    decides: str = ""  # names of options that decide rows; others may differ between commands on one folder
    stages: Sequence[type[ShardStage]] = ()  # those that the options need, in order
    folder_type: type[Folder] = BuildFolder

    def __init__(self, config: Any, shard_size: int) -> None:
        self.config, self.shard_size = config, shard_size
        self.folder = self.folder_type(config.out_dir)

    def identity(self, device: str) -> Row:
        """Everything that decides the rows, for the manifest."""
        options = {name: getattr(self.config, name) for name in self.decides.split()}
        facts = {"listing": self.listing.sha256(), "device": device.partition(":")[0]}
        return {**options, **facts, "image_rule": images.RULE}

    @property
    def blocks(self) -> Blocks:
        """The shards of the whole list: `--limit` selects some, and moves no boundary."""
        return Blocks.first(len(self.listing.records), self.shard_size, self.config.limit)

    def members(self, shard: int) -> list[Any]:
        return [self.listing.records[index] for index in self.blocks.members(shard)]

    def rows(self, stage: str, shard: int) -> list[Any]:
        return self.folder.read(f"work/{stage}", shard)

    def steps(self, device: str) -> list[Step]:
        return [Step(self.folder, stage(self, device)) for stage in self.stages]

    def finish(self) -> tuple[str, Row]:
        """Writes the data set and its card; returns a summary in words and entries of the manifest."""
        raise NotImplementedError

    def services(self) -> Services:
        return Services.create(self.config, self.folder.path / ANSWERS)

    def client(self, options: LlmOptions, device: str) -> llm.Client:
        return llm.load(options, services=self.services(), device=device)


class ShardStage(Stage):
    """Makes the rows of a shard, which depend on shard, options and models alone."""

    kind: ClassVar[str]  # what the stage's model is for ("editor"): its key in the manifest

    def __init__(self, maker: Any, device: str) -> None:
        self.maker, self.config, self.device = maker, maker.config, device
        self.blocks, self.outputs = maker.blocks, (f"work/{self.name}",)
        names = [stage.name for stage in maker.stages]
        self.invalidates = tuple(f"work/{name}" for name in names[names.index(self.name) + 1 :])
        place = self.works_at()
        self.model = None if place == "host" else Model.one(self.kind, self.load, place, kind=self.kind)

    def load(self) -> Any:
        raise NotImplementedError

    def works_at(self) -> str:
        """Where the model works (`nein.engine.stages.Model`); "host": the stage has no model."""
        return "device"

    def make(self, model: Any, inputs: Any) -> Sequence[Any]:
        """One row per record; the row of a failed record says why it failed."""
        raise NotImplementedError

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> Mapping[str, Rows]:
        return {self.outputs[0]: self.make(model, inputs)}


def make(maker_type: Callable[[Any], Maker], config: Any, executor: Executor) -> str | None:
    """Runs the remaining stages; returns the summary of a finished data set, else None. Raises UserError."""
    maker = maker_type(config)  # reads lists, loads no model
    steps = maker.steps(executor.device)
    with executor.lock([maker.folder]):
        if executor.is_main:
            selected = {step.stage.outputs[0]: step.stage.blocks.selection for step in steps}
            facts = {"source": maker.listing.origin, "invocation": invocation(executor), "selected": selected}
            maker.folder.open(maker.identity(executor.device), facts, overwrite=config.overwrite)
        executor.processes.barrier()
        executor.compute(steps, functools.partial(_make_steps, maker_type, config))
        if not executor.concludes:
            return None
        summary, entries = maker.finish()
        maker.folder.update(**{"status": COMPLETE, **entries})
        return summary


def _make_steps(maker_type: Callable[[Any], Maker], config: Any, device: str) -> list[Step]:
    return maker_type(config).steps(device)


def llm_identity(options: LlmOptions) -> Row:
    """Everything besides the prompt that decides an answer; the address of a served model does not."""
    model = str(options.model)
    name = model.rpartition("#")[2] if is_served(model) else model
    settings = {key: getattr(options, key) for key in ("temperature", "max_tokens", "attempts", "dtype")}
    return {"model": name, **settings, **options.thinking}


# --- parts of summaries and cards ----------------------------------------------------------------
def tally(values: Iterable[Any]) -> dict[str, int]:
    """Value -> number of times it occurs, commonest first."""
    return dict(Counter(map(str, values)).most_common())


def list_losses(label: str, counts: Mapping[str, int]) -> list[str]:
    """Lines of a summary: the count of each reason for which something is missing."""
    return [f"  {count:6d} {label}: {reason}" for reason, count in counts.items()]


def make_section(title: str, counts: Row) -> str:
    """A section of a card with a table of counts, as Markdown; "" without counts."""
    return f"\n## {title}\n\n{format_rows([*counts.items()], ['what', 'count'])}\n" if counts else ""


# --- records of a source -------------------------------------------------------------------------
Record = TypeVar("Record")

NO_CAPTION = "no caption"
BAD_NAME = "the file name is not a plain name"


@dataclass(frozen=True)
class Listing(Generic[Record]):
    """The records of a source in order; unusable ones stay, so that repairing them shifts no shard."""

    records: Sequence[Record]
    origin: Row  # where the records come from, for the manifest
    notes: Mapping[str, int] = field(default_factory=dict)  # oddity of the list -> its count

    def sha256(self) -> str:
        """SHA-256 over all fields of all records; a file counts by its name, not by its pixels."""
        digest = hashlib.sha256()
        for record in self.records:
            facts = {entry.name: getattr(record, entry.name) for entry in fields(record)}  # type: ignore[arg-type]
            digest.update(json.dumps(facts, default=lambda path: path.name).encode() + b"\n")
        return digest.hexdigest()


def image_folder(folder_name: str | None, default: Path) -> Path:
    """The folder of `--images`, or else `default`. Raises UserError."""
    folder = expand_user(folder_name) if folder_name else default
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}' with images; pass it as --images.")
    return folder


def iter_captioned(path: Path, suffixes: Iterable[str] = PICTURE_SUFFIXES) -> Iterator[coco.CaptionedImage]:
    """Yields the captioned images of COCO's JSON, of JSON lines, or of a folder with X.txt next to X.jpg at
    any depth, as img2dataset writes CC12M. Raises UserError."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.suffix.lower() in suffixes:
                text_file = file.with_suffix(".txt")
                text = text_file.read_text(encoding="utf-8", errors="replace") if text_file.is_file() else ""
                yield coco.CaptionedImage(file.relative_to(path).as_posix(), (text,), folder=path)
    elif path.suffix == ".jsonl":
        yield from coco.iter_images(path)
    else:
        yield from coco.read(captions=path).images


def clean_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """The distinct non-empty texts in order, with each run of white space as one space."""
    return tuple(dict.fromkeys(filter(None, (" ".join(text.split()) for text in texts))))


#: The 80 categories of COCO (Lin et al., arXiv:1405.0312), in its order and spelling.
COCO_CATEGORIES: tuple[str, ...] = tuple(
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,"
    "parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,"
    "handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,"
    "surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,"
    "broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,dining table,toilet,tv,laptop,"
    "mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,book,clock,vase,scissors,"
    "teddy bear,hair drier,toothbrush".split(",")
)
