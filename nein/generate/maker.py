"""The maker of data, shared by the three benchmarks: a source, stages over its shards, files and a card.

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
from nein.datasets.negbench.records import PICTURE_SUFFIXES
from nein.engine import images
from nein.engine.folder import ANSWERS, COMPLETE, Blocks, Folder, Row
from nein.engine.run import Executor
from nein.engine.stages import Model, Rows, Stage, Step
from nein.loading.errors import UserError
from nein.loading.references import expand_user, is_served
from nein.models import llm
from nein.models.cached import Services
from nein.models.llm import LlmOptions
from nein.reporting.tables import pipes

UNREADABLE = "unreadable image"
Looked = np.ndarray | str  # (H, W, 3) uint8, or why there is no image


class BuildFolder(Folder):
    """The folder of a data set on its way."""

    content_name = "a build"


class Maker:
    """A data set on its way. Its constructor finds what is wrong with names, lists and models; it loads none.

    listing  The records of the source; stages: those that the options need, in order.
    decides  Options that decide rows; the rest may differ between commands on one folder.
    """

    listing: Listing[Any]
    decides: str = ""
    stages: Sequence[type[ShardStage]] = ()
    folder_type: type[Folder] = BuildFolder

    def __init__(self, config: Any, shard_size: int) -> None:
        self.config, self.shard_size = config, shard_size
        self.folder = self.folder_type(config.out_dir)

    def identity(self, device: str) -> Row:
        """Everything that decides a row."""
        return {
            **{name: getattr(self.config, name) for name in self.decides.split()},
            "listing": self.listing.sha256(),
            "device": device.partition(":")[0],
            "image_rule": images.RULE,
        }

    @property
    def blocks(self) -> Blocks:
        """The shards, cut over the whole list, whatever `--limit`."""
        return Blocks.first(len(self.listing.records), self.shard_size, self.config.limit)

    def members(self, shard: int) -> list[Any]:
        return [self.listing.records[index] for index in self.blocks.members(shard)]

    def rows(self, stage: str, shard: int) -> list[Any]:
        return self.folder.read(f"work/{stage}", shard)

    def steps(self, device: str) -> list[Step]:
        return [Step(self.folder, stage(self, device)) for stage in self.stages]

    def finish(self) -> tuple[str, Row]:
        """Writes files and card of finished stages: a summary in words, entries of the manifest."""
        raise NotImplementedError

    def services(self) -> Services:
        return Services.create(self.config, self.folder.path / ANSWERS)

    def client(self, options: LlmOptions, device: str) -> llm.Client:
        return llm.load(options, services=self.services(), device=device)


class ShardStage(Stage):
    """From the inputs of a shard to its rows, which depend on shard, options and models alone.

    kind  Of the model that it needs.
    """

    kind: ClassVar[str]

    def __init__(self, maker: Any, device: str) -> None:
        self.maker, self.config, self.device = maker, maker.config, device
        self.blocks, self.outputs = maker.blocks, (f"work/{self.name}",)
        names = [stage.name for stage in maker.stages]
        self.invalidates = tuple(f"work/{name}" for name in names[names.index(self.name) + 1 :])
        place = self.works_at()
        self.model = None if place == "host" else Model.one(self.kind, self.load, place, self.kind)

    def load(self) -> Any:
        raise NotImplementedError

    def works_at(self) -> str:
        """Where the model works (`nein.engine.stages.Model`); "host": there is none."""
        return "device"

    def make(self, model: Any, inputs: Any) -> Sequence[Any]:
        """A row per record; of one that failed it says why."""
        raise NotImplementedError

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> Mapping[str, Rows]:
        return {self.outputs[0]: self.make(model, inputs)}


def make(kind: Callable[[Any], Maker], config: Any, executor: Executor) -> str | None:
    """Runs the remaining stages; returns the summary of a finished data set, else None. Raises UserError."""
    maker = kind(config)  # reads lists, loads no model
    steps = maker.steps(executor.device)
    with executor.lock([maker.folder]):
        if executor.is_main:
            facts = {
                "source": maker.listing.origin,
                "invocation": invocation(executor),
                "selected": {step.stage.outputs[0]: step.stage.blocks.selection for step in steps},
            }
            maker.folder.open(maker.identity(executor.device), facts, overwrite=config.overwrite)
        executor.processes.barrier()
        executor.compute(steps, functools.partial(_steps, kind, config))
        if not executor.concludes:
            return None
        summary, entries = maker.finish()
        maker.folder.update(**{"status": COMPLETE, **entries})
        return summary


def _steps(kind: Callable[[Any], Maker], config: Any, device: str) -> list[Step]:
    return kind(config).steps(device)


def llm_identity(options: LlmOptions) -> Row:
    """Everything but the prompt that decides an answer; the address may change."""
    model = str(options.model)
    keys = ("temperature", "max_tokens", "attempts", "dtype")
    return {
        "model": model.rpartition("#")[2] if is_served(model) else model,
        **{key: getattr(options, key) for key in keys},
        **options.thinking,
    }


# --- what a card says ----------------------------------------------------------------------------


def tally(values: Iterable[Any]) -> dict[str, int]:
    """Value -> how often it occurs, commonest first."""
    return dict(Counter(map(str, values)).most_common())


def losses(label: str, counts: Mapping[str, int]) -> list[str]:
    """Lines of a summary in words: how much is lost for which reason."""
    return [f"  {count:6d} {label}: {reason}" for reason, count in counts.items()]


def section(title: str, counts: Row) -> str:
    """A table of a card as Markdown; nothing for no counts."""
    return f"\n## {title}\n\n{pipes([*counts.items()], ['what', 'count'])}\n" if counts else ""


Record = TypeVar("Record")

NO_CAPTION = "no caption"
BAD_NAME = "the file name is not a plain name"


@dataclass(frozen=True)
class Listing(Generic[Record]):
    """The records of a source in order. One that cannot be used stays with its problem: it is counted, and no
    shard shifts when it is mended.

    origin  What they are of, for the manifest; notes: what was odd about the list, counted.
    """

    records: Sequence[Record]
    origin: Row
    notes: Mapping[str, int] = field(default_factory=dict)

    def sha256(self) -> str:
        """Over everything that the list says; of a file its name, and not its pixels."""
        digest = hashlib.sha256()
        for record in self.records:
            facts = {field.name: getattr(record, field.name) for field in fields(record)}  # type: ignore[arg-type]
            digest.update(json.dumps(facts, default=lambda path: path.name).encode() + b"\n")
        return digest.hexdigest()


def image_folder(folder_name: str | None, default: Path) -> Path:
    """The folder of `--images`, else the one beside the list. Raises UserError."""
    folder = expand_user(folder_name) if folder_name else default
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}' with images; pass it as --images.")
    return folder


def iter_captioned(path: Path, suffixes: Iterable[str] = PICTURE_SUFFIXES) -> Iterator[coco.CaptionedImage]:
    """Captioned images of COCO's JSON, of JSON lines, or of a folder with X.txt beside X.jpg at any depth, as
    img2dataset writes CC12M. Raises UserError."""
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


def clean(texts: Iterable[str]) -> tuple[str, ...]:
    """Distinct captions, white space made single."""
    return tuple(dict.fromkeys(filter(None, (" ".join(text.split()) for text in texts))))


#: The 80 categories of COCO (Lin et al., arXiv:1405.0312), in its order and spelling.
COCO: tuple[str, ...] = tuple(
    (
        "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,"
        "parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,"
        "handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,"
        "surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,"
        "broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,dining table,toilet,tv,laptop,"
        "mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,book,clock,vase,scissors,"
        "teddy bear,hair drier,toothbrush"
    ).split(",")
)
