"""How data are made, the same for all three benchmarks: a source, stages over its shards, files and a card.

OUT/manifest.json     what decides the data, where they come from, counts
OUT/work/<stage>/     the rows of a stage, a file per shard
OUT/answers.sqlite    every answer of a language model
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from nein.benchmarks.runner import invocation
from nein.engine import images
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder
from nein.engine.run import Executor
from nein.engine.stages import Model, Rows, Stage, Step
from nein.generate.sources import Listing
from nein.loading.references import is_served
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

    def __init__(self, config: Any, *, wanted: Sequence[str], shard_size: int) -> None:
        """wanted: the stages that the command asks for, of which "finish" writes the data set."""
        self.config, self.wanted, self.shard_size = config, wanted, shard_size
        self.folder = self.folder_type(config.out_dir)

    def identity(self, device: str) -> dict[str, Any]:
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
        """The records of a shard."""
        return [self.listing.records[index] for index in self.blocks.members(shard)]

    def rows(self, stage: str, shard: int) -> list[Any]:
        """What a finished stage wrote of a shard."""
        return self.folder.read(f"work/{stage}", shard)

    def require(self, stages: Iterable[str]) -> None:
        """Raises UserError while a wanted shard lacks one of `stages`."""
        shards = set(self.blocks.numbers)
        for stage in stages:
            if missing := shards - self.folder.done(f"work/{stage}"):
                raise UserError(
                    f"'{self.folder.path}' lacks stage {stage} of {len(missing)} of {len(shards)} shards; "
                    "run the same command again with all stages."
                )

    def steps(self, device: str) -> list[Step]:
        """The stages that the command asks for."""
        return [Step(self.folder, stage(self, device)) for stage in self.stages if stage.name in self.wanted]

    def services(self) -> Services:
        return Services.of(self.config, self.folder.answers)

    def client(self, options: LlmOptions, device: str) -> llm.Client:
        """A language model, whose answers are kept."""
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
        """The model."""
        raise NotImplementedError

    def works_at(self) -> str:
        """Where the model works (`nein.engine.stages.Model`); "host": there is none."""
        return "device"

    def make(self, model: Any, inputs: Any) -> Sequence[Any]:
        """A row per record; of one that failed it says why."""
        raise NotImplementedError

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> Mapping[str, Rows]:
        return {self.outputs[0]: self.make(model, inputs)}


Build = TypeVar("Build", bound=Maker)


def make(
    kind: Callable[[Any], Build],
    config: Any,
    executor: Executor,
    finish: Callable[[Build], tuple[str, dict[str, Any]]],
) -> str | None:
    """Does what is left of the stages that the options ask for; a summary if the data set was finished.
    Raises UserError, EditorError or MetricError.

    finish  Writes files and card of finished stages: a summary in words, entries of the manifest.
    """
    maker = kind(config)
    steps = maker.steps(executor.device)
    names = [stage.name for stage in maker.stages]
    with executor.locked([maker.folder]):
        if executor.is_main:
            facts = {
                "source": maker.listing.origin,
                "invocation": invocation(executor),
                "selected": {step.stage.outputs[0]: step.stage.blocks.selection for step in steps},
            }
            maker.folder.open(maker.identity(executor.device), facts, overwrite=config.overwrite)
        executor.processes.barrier()
        last = max((number for number, name in enumerate(names) if name in maker.wanted), default=0)
        maker.require(name for name in names[:last] if name not in maker.wanted)
        executor.compute(steps, functools.partial(_steps, kind, config))
        if "finish" not in maker.wanted or not executor.concludes:
            return None
        maker.require(names)
        summary, entries = finish(maker)
        maker.folder.update(**{"status": COMPLETE, **entries})
        return summary


def _steps(kind: Callable[[Any], Maker], config: Any, device: str) -> list[Step]:
    return kind(config).steps(device)


def llm_identity(options: LlmOptions) -> dict[str, Any]:
    """What decides an answer besides the prompt; not where the model is, for a server may move."""
    model = str(options.model)
    keys = ("temperature", "max_tokens", "attempts", "dtype")
    return {
        "model": model.rpartition("#")[2] if is_served(model) else model,
        **{key: getattr(options, key) for key in keys},
        **options.thinking,
    }


# --- what a card says ----------------------------------------------------------------------------


def counted(values: Iterable[Any]) -> dict[str, int]:
    """Value -> how often it occurs, commonest first."""
    return dict(Counter(map(str, values)).most_common())


def losses(what: str, counts: Mapping[str, int]) -> list[str]:
    """Lines of a summary in words: how much is lost for which reason."""
    return [f"  {count:6d} {what}: {reason}" for reason, count in counts.items()]


def section(title: str, counts: Mapping[str, Any]) -> str:
    """A table of a card as Markdown; nothing for no counts."""
    return f"\n## {title}\n\n{pipes([*counts.items()], ['what', 'count'])}\n" if counts else ""
