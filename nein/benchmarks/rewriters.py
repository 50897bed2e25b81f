"""The benchmark `rewriters`: do rewriters of instructions still ask for the removal that was wanted?

A vendor's rewriter may shield an editor from a negation: it words the request anew for the model that paints.
Here rewriters (`nein.models.rewriters`) alone get NeIn's instructions, and their texts are scored.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nein.benchmarks.nein.runs import read_image
from nein.benchmarks.rewriters_config import RewritersConfig
from nein.benchmarks.runner import Benchmark, Run, machine_identity, select_rows
from nein.datasets import nein as data
from nein.datasets.nein import Sample
from nein.engine.folder import Blocks, Folder
from nein.engine.stages import Model, Stage
from nein.loading.references import is_served
from nein.models import rewriters
from nein.models.cached import Services
from nein.models.references import digest_models, slugify, split_label
from nein.reporting.page import Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import COUNTS, Column, Row, Table
from nein.wording.denials import OUTCOMES, find_outcome
from nein.wording.families import find_named


def find_invented(text: str, sample: Sample, objects: Sequence[str]) -> list[str]:
    """The `objects` that the text names, although instruction, caption and truth of the image do not."""
    names = {sample.object, *(thing.name for thing in sample.things)}
    names |= {*find_named([sample.negative, sample.caption], objects)}
    return [noun for noun in find_named([text], objects) if noun not in names]


@dataclass(frozen=True)
class Rewriting:
    """A line of rewritten/000/000012.jsonl."""

    id: str  # of the sample
    source: str  # of its image
    instruction: str
    thing: str  # that the instruction denies
    text: str | None = None  # the rewritten instruction
    error: str = ""  # why there is no text


class RewritersDir(Folder):
    row_types: ClassVar = {"rewritten": Rewriting}  # by output


@dataclass(kw_only=True)
class Rewrite(Stage):
    """Rewrites the instruction of every sample."""

    blocks: Blocks
    samples: Sequence[Sample]
    model: Model  # loads a `Rewriter`
    shows_images: bool = False  # whether the rewriter gets the images
    name, outputs = "rewritten", ("rewritten",)  # of the stage, and of its only output

    def read(self, number: int) -> list[tuple[Sample, Any]]:
        """The samples of a block, each with its image; None: not shown; a text: why it has none."""
        members = []
        for index in self.blocks.members(number):
            sample = self.samples[index]
            image = read_image(sample.sample_path, "NeIn") if self.shows_images else None
            members.append((sample, image))
        return members

    def work(self, model: Any, members: list[Any], missing: tuple[str, ...]) -> dict[str, list[Rewriting]]:
        readable = [(sample, image) for sample, image in members if not isinstance(image, str)]
        instructions = [sample.negative for sample, _ in readable]
        rewordings = iter(model.rewrite(instructions, [image for _, image in readable]))
        rows = []
        for sample, image in members:
            if isinstance(image, str):
                text, error = None, image
            else:
                text, error, _again = next(rewordings)
            rows.append(Rewriting(sample.id, sample.source_id, sample.negative, sample.object, text, error))
        return {"rewritten": rows}

    def is_valid(self, output: str, number: int, rows: list[Rewriting]) -> bool:
        return not any(row.error for row in rows)


SHARES = Table(
    "outcomes",
    "What becomes of the thing that the instruction denies, %",
    (Row("model", "rewriter"),),
    (Column(by="metric"), *COUNTS),
    {"task": "results"},
)


class Rewriters(Benchmark):
    name, title = "rewriters", "Rewriters"
    config, folder = RewritersConfig, RewritersDir
    about = "measure what rewriters make of negative instructions"
    sections = (Section("outcomes", "Rewriters", (SHARES,)),)

    def runs(self, config: RewritersConfig, device: str) -> list[Run]:
        dataset = data.load(config.data, split=config.split)
        services = Services.create(config, config.out_dir / "cache" / "answers.sqlite")
        options: dict[str, Any] = {"services": services, "device": device, "dtype": config.dtype}
        runs = []
        for label, reference in map(split_label, config.rewriter):
            name = label or reference
            rewriters.check(reference)
            source = rewriters.find_source(reference)  # the model that it asks; "": none
            served = is_served(source)
            load = functools.partial(rewriters.load, reference, **options)
            model = Model.one(reference, load, "remote" if served else "device")
            # Behind an address a block is one instruction, so that a kill loses only the requests in flight.
            blocks = Blocks.first(len(dataset.samples), 1 if served else config.batch_size, config.limit)
            identity = {"rewriter": reference, "data": dataset.records_sha256}
            identity |= machine_identity(config, device)
            identity |= digest_models({"rewriter": source} if source else {})
            is_vendor = reference.partition(":")[0] in rewriters.VENDORS
            stage = Rewrite(blocks=blocks, samples=dataset.samples, model=model, shows_images=is_vendor)
            folder = RewritersDir(config.out_dir / slugify(name.replace(":", "-")))
            runs.append(Run(folder, name, identity, [stage], {"data": dataset.facts(blocks)}))
        return runs

    def scores(self, run: Run) -> ScoreTable:
        """For every sample 0 or 1 of each outcome, and whether the text names a thing that is not there."""
        stage: Any = run.stages[0]
        samples = {sample.id: sample for sample in stage.samples}
        objects = sorted({sample.object for sample in stage.samples})
        rows = []
        for row in select_rows(run.folder, "rewritten"):
            labels = {"id": row.id, "source": row.source}
            outcome, why, invents = None, row.error, None
            if row.text is not None:
                outcome, why = find_outcome(row.text, row.thing)
                invents = float(bool(find_invented(row.text, samples[row.id], objects)))
            for name in OUTCOMES:
                value = None if outcome is None else float(outcome == name)
                rows.append({**labels, "metric": name, "value": value, "reason": why})
            rows.append({**labels, "metric": "invented", "value": invents, "reason": row.error})
        return ScoreTable.from_rows(rows)


REWRITERS = Rewriters()
