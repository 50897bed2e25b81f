"""A build in stages: each is a function of a shard, a block of the engine, and writes its rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.engine.run import Executor
from nein.engine.shapes import Shape
from nein.engine.stages import Model, Stage, Step


@dataclass(frozen=True)
class Job:
    """What all stages of a build share. The stage NAME is the method make_NAME(shard, model); its rows depend
    on shard, options and models alone."""

    config: Any
    folder: Folder

    @property
    def blocks(self) -> Blocks:
        """The shards, cut over the whole list, whatever `--limit`."""
        raise NotImplementedError

    @property
    def stages(self) -> Sequence[str]:
        """Those that the options need, in order; each reads the rows of the one before it."""
        raise NotImplementedError

    def model(self, stage: str, device: str) -> Model:
        """What the stage needs, not loaded."""
        raise NotImplementedError

    def validity(self, stage: str) -> Callable[[list[Row]], bool] | None:
        """Whether rows that are there still count; None: they do."""
        return None

    def rows(self, stage: str, shard: int, shape: Shape = None) -> list[Row]:
        """What a finished stage wrote of a shard; shape: of its rows."""
        return self.folder.read(_output(stage), shard, shape)

    def require(self, stages: Iterable[str]) -> None:
        """Raises UserError while a wanted shard lacks one of `stages`."""
        wanted = set(self.blocks.numbers)
        for stage in stages:
            if missing := wanted - self.folder.done(_output(stage)):
                raise UserError(
                    f"'{self.folder.path}' lacks stage {stage} of {len(missing)} of {len(wanted)} shards; "
                    "run the same command again with all stages."
                )

    def steps(self, device: str) -> list[Step]:
        """The stages that the command asks for."""
        return [
            Step(self.folder, self._stage(index, device))
            for index, stage in enumerate(self.stages)
            if stage in self.config.stages
        ]

    def compute(self, make: Callable[[Any], Job], executor: Executor) -> None:
        """Makes what is left. make: configuration -> the job, as a worker elsewhere makes it again. Raises
        UserError where stages before those that are asked for lack."""
        wanted = [stage for stage in self.stages if stage in self.config.stages]
        before = self.stages[: self.stages.index(wanted[-1])] if wanted else ()
        self.require(stage for stage in before if stage not in wanted)
        steps = self.steps(executor.device)
        if executor.is_main:
            self.folder.update(
                selected={output: s.stage.blocks.selection for s in steps for output in s.stage.outputs}
            )
        executor.compute(steps, functools.partial(_steps, make, self.config))

    def _stage(self, number: int, device: str) -> Stage:
        name, outputs = self.stages[number], [_output(stage) for stage in self.stages]
        output, valid, make = outputs[number], self.validity(name), getattr(self, f"make_{name}")
        return Stage(
            name, (output,), self.blocks,
            read=lambda shard: shard,
            work=lambda model, shard, missing: {output: make(shard, model)},
            model=self.model(name, device),
            is_valid=None if valid is None else lambda output, shard, rows: valid(rows),
            invalidates=tuple(outputs[number + 1 :]),
        )  # fmt: skip


def _steps(make: Callable[[Any], Job], config: Any, device: str) -> list[Step]:
    return make(config).steps(device)


def _output(stage: str) -> str:
    """The folder of a stage's rows, below the build's."""
    return f"work/{stage}"
