"""A benchmark in one module: does a model understand "There are no two cats."?

A scene shows one thing once or twice; the model says whether a sentence about it is true, affirmed or denied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from jsonargparse.typing import PositiveInt

from metrics import choices, letters
from nein.benchmarks.runner import Benchmark, Run, machine_identity
from nein.config import options
from nein.config.commands import Command
from nein.config.options import about
from nein.engine.blocks import Blocks
from nein.engine.executors import Model, Stage
from nein.engine.folder import Folder
from nein.nano.captions import plural
from nein.nano.scenes import Scene, place, render, rng_for, sample_scene
from nein.reporting import figures as frames
from nein.reporting.report import Section
from nein.reporting.tables import COUNTS, Across, Row, Table

SENTENCES = {"affirmed": "There are two {things}.", "denied": "There are no two {things}."}
OPTIONS = ("yes", "no")


@dataclass
class CountingConfig:
    preset: str = field(default="nano", metadata=about("which counting-<preset>.yaml fills the rest"))
    model: str = field(default="nano:negvqa", metadata=about("as `nein negvqa --model` takes it"))
    scenes: PositiveInt = field(default=40, metadata=about("scenes of the data set"))
    limit: PositiveInt | None = field(default=None, metadata=about("only the first N scenes"))
    out_dir: Path = field(default=Path("runs/counting"), metadata=about("folder of results"))
    overwrite: bool = field(default=False, metadata=about("discard what another configuration left"))
    batch_size: PositiveInt = field(default=8, metadata=about("pictures asked about together"))
    device: str = field(default="auto", metadata=about("auto, cpu, cuda"))
    dtype: str = field(default="float32", metadata=about("number type of the model"))


def runs(config: CountingConfig, device: str) -> list[Run]:
    from nein.models.references import resolve, slug

    where, revision = resolve(config.model)
    blocks = Blocks.first(config.scenes, config.batch_size, config.limit)
    model = Model(
        config.model,
        lambda: choices.load(where, revision=revision, device=device, dtype=config.dtype),
        lambda loaded: {"model": (loaded.fingerprint, loaded.describe())},
    )
    stage = Stage("answers", ("answers",), blocks, lambda number: list(blocks.members(number)), ask, model)
    identity = {"model": config.model, "scenes": config.scenes, **machine_identity(config, device)}
    return [Run(slug(config.model.replace(":", "-")), config.model, identity, (stage,))]


def scene(index: int) -> Scene:
    rng = rng_for("val", index, "counting")
    single = sample_scene(rng, 1)
    second = place(rng, single.items[0].category, single.items) if index % 2 else None
    return single.with_item(second) if second else single


def ask(model: Any, indices: list[int], missing: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    scenes = [scene(index) for index in indices]
    asked, rows = [], []
    for one in scenes:
        said = [text.format(things=plural(one.items[0].category)) for text in SENTENCES.values()]
        prompts = [choices.prompt("paper", f"Is it true? {sentence}", OPTIONS) for sentence in said]
        asked.append([choices.Asked(prompt) for prompt in prompts])
    replies = choices.answer_each(model, [render(one) for one in scenes], asked, ["generated"])
    for index, one, row in zip(indices, scenes, replies, strict=True):
        for variant, reply in zip(SENTENCES, row, strict=True):
            said = letters.parse(reply.text or "", OPTIONS, "fixed")
            right = "A" if (len(one.items) == 2) == (variant == "affirmed") else "B"
            value = None if said.letter is None else float(said.letter == right)
            reason = reply.error or said.reason
            rows.append({"id": str(index), "variant": variant, "value": value, "reason": reason})
    return {"answers": rows}


def parse(argv: Sequence[str]) -> tuple[CountingConfig, bool]:
    folder = str(Path(__file__).parent / "counting-")
    return options.read(CountingConfig, argv, prog="nein counting", description="Count.", folder=folder)


def figures(config: CountingConfig, run: Run, folder: Folder) -> pd.DataFrame:
    rows = folder.selected("answers", run.stages[0].blocks, str)
    return frames.of_scores(rows, by=("variant",))


ACCURACY = Table("accuracy", "Accuracy", (Row("model"),), (Across("variant"), *COUNTS))
SECTIONS = (Section("accuracy", "Accuracy", (ACCURACY,)),)
COUNTING = Benchmark("counting", "Counting", "answers", runs, figures, SECTIONS, (ACCURACY,))
COMMAND = Command("count", "tests.benchmarks.counting:COUNTING", "tests.benchmarks.counting:parse")
