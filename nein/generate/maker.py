"""How data are made, the same for all three benchmarks: a source, stages over its shards, files and a card.

OUT/manifest.json     what decides the data, where they come from, counts
OUT/work/<stage>/     the rows of a stage, a file per shard
OUT/answers.sqlite    every answer of a language model
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from nein.benchmarks.runner import invocation
from nein.engine.atomic import Shape
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder, Row
from nein.engine.run import Executor
from nein.engine.stages import Functions, Model, Stage, Step
from nein.generate.sources import Listing
from nein.loading.references import is_served
from nein.models.cached import Services
from nein.models.llm import LlmOptions
from nein.models.llm import client as llm


class BuildFolder(Folder):
    """The folder of a data set on its way."""

    content_name = "a build"


class Maker:
    """A data set on its way. Its constructor finds what is wrong with names, lists and models; it loads none.

    listing  The records of the source; stages: those that the options need, in order.
    """

    listing: Listing[Any]
    stages: Sequence[type[ShardStage]] = ()

    def __init__(self, config: Any, *, wanted: Sequence[str], shard_size: int) -> None:
        """wanted: the stages that the command asks for, of which "finish" writes the data set."""
        self.config, self.wanted, self.shard_size = config, wanted, shard_size
        self.folder = BuildFolder(config.out_dir)

    def identity(self, device: str) -> dict[str, Any]:
        """Everything that decides a row."""
        raise NotImplementedError

    @property
    def blocks(self) -> Blocks:
        """The shards, cut over the whole list, whatever `--limit`."""
        return Blocks.first(len(self.listing.records), self.shard_size, self.config.limit)

    def members(self, shard: int) -> list[Any]:
        """The records of a shard."""
        return [self.listing.records[index] for index in self.blocks.members(shard)]

    def rows(self, stage: str, shard: int, shape: Shape = None) -> list[Row]:
        """What a finished stage wrote of a shard; shape: of its rows."""
        return self.folder.read(f"work/{stage}", shard, shape)

    def require(self, stages: Sequence[str]) -> None:
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
        stages = [stage(self, device) for stage in self.stages]
        outputs = [stage.output for stage in stages]
        return [
            Step(self.folder, stage.of_engine(outputs[number + 1 :]))
            for number, stage in enumerate(stages)
            if stage.name in self.wanted
        ]

    def client(self, options: LlmOptions, device: str) -> llm.Client:
        """A language model, whose answers are kept."""
        services = Services.of(self.config, self.folder.answers)
        return llm.load(options, services=services, device=device)


Build = TypeVar("Build", bound=Maker)
Finish = Callable[[Build], tuple[str, dict[str, Any]]]


class ShardStage:
    """From the inputs of a shard to its rows, which depend on shard, options and models alone.

    name  Of the stage. model: the kind of model that it needs.
    """

    name: ClassVar[str]
    model: ClassVar[str]

    def __init__(self, maker: Any, device: str) -> None:
        self.maker, self.config, self.device = maker, maker.config, device

    def load(self) -> Any:
        """The model."""
        raise NotImplementedError

    def read(self, shard: int) -> Any:
        """The inputs of `work`."""
        raise NotImplementedError

    def work(self, model: Any, inputs: Any) -> list[Row]:
        """A row per record; of one that failed it says why."""
        raise NotImplementedError

    #: (rows) -> whether rows that are there still count; None: they do, and are not read.
    is_valid: Any = None

    @property
    def place(self) -> str:
        """Where the model works (`nein.engine.stages.Model`)."""
        return "device"

    @property
    def output(self) -> str:
        return f"work/{self.name}"

    def of_engine(self, after: Sequence[str]) -> Stage:
        """after: the outputs of the stages behind, which are made of this one's."""
        return Functions(
            self.name,
            (self.output,),
            self.maker.blocks,
            read=self.read,
            work=self._work,
            model=Model.one(self.model, self.load, self.place, self.model),
            is_valid=self._is_valid if self.is_valid else None,
            invalidates=tuple(after),
        )

    def _work(self, model: Any, inputs: Any, missing: Sequence[str]) -> dict[str, list[Row]]:
        return {self.output: self.work(model, inputs)}

    def _is_valid(self, output: str, shard: int, rows: list[Row]) -> bool:
        return bool(self.is_valid(rows))


def make(kind: Callable[[Any], Build], config: Any, executor: Executor, finish: Finish[Build]) -> str | None:
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
        executor.barrier()
        last = max((number for number, name in enumerate(names) if name in maker.wanted), default=0)
        maker.require([name for name in names[:last] if name not in maker.wanted])
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
