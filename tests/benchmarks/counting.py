"""A benchmark in one module: of a scene with a thing once or twice, is "There are no two cats." true?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nein.benchmarks.runner import Benchmark, Run, machine_identity, select_rows
from nein.config.groups import Limit, Output, Preset, RuntimeOptions
from nein.config.options import option
from nein.engine.folder import Blocks, Folder
from nein.engine.stages import Model, Stage
from nein.loading.references import Need
from nein.metrics import choice_prompts, choices, letters, load_choices
from nein.models.needs import model_needs
from nein.models.references import resolve, slugify
from nein.nano.scenes import Scene, place, render, rng_for, sample_scene
from nein.reporting.page import Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import COUNTS, Column, Row, Table
from nein.wording.families import plural

SENTENCES = {"affirmed": "There are two {things}.", "denied": "There are no two {things}."}
OPTIONS = ("yes", "no")


@dataclass(kw_only=True)
class CountingConfig(Preset, Limit, RuntimeOptions, Output):
    presets = str(Path(__file__).parent / "counting-")
    preset_names = ("nano",)
    default_out = "runs/counting-PRESET"
    model: str = option("nano:negvqa", "nano:NAME, a hub id or a folder", "Main")
    scenes: int = option(40, "scenes of the data set", "Data")

    def needs(self) -> list[Need]:
        return model_needs("choices", self.model)


def scene(index: int) -> Scene:
    single = sample_scene(rng := rng_for("val", index, "counting"), 1)
    second = place(rng, single.items[0].category, single.items)
    return single.add(second) if second and index % 2 else single


def question(text: str, one: Scene) -> choices.ChoiceQuestion:
    sentence = text.format(things=plural(one.items[0].category))
    return choices.ChoiceQuestion(choice_prompts.write_prompt("paper", f"Is it true? {sentence}", OPTIONS))


@dataclass(frozen=True)
class Answer:
    """A line of answers/000/000012.jsonl."""

    id: str
    variant: str
    value: float | None
    reason: str = ""


class Answers(Folder):
    row_types: ClassVar = {"answers": Answer}


class Asking(Stage):
    """Both sentences about each scene."""

    name, outputs = "answers", ("answers",)

    def __init__(self, blocks: Blocks, model: Model) -> None:
        self.blocks, self.model = blocks, model

    def read(self, number: int) -> range:
        return self.blocks.members(number)

    def work(self, model: Any, indices: range, missing: tuple[str, ...]) -> dict[str, list[Answer]]:
        scenes = [scene(index) for index in indices]
        asked = [[question(text, one) for text in SENTENCES.values()] for one in scenes]
        replies = choices.answer_each(model, [render(one) for one in scenes], asked, ["generated"])
        rows = []
        for index, one, both in zip(indices, scenes, replies, strict=True):
            for variant, reply in zip(SENTENCES, both, strict=True):
                said = letters.parse(reply.text or "", OPTIONS, "fixed")
                right = "BA"[(len(one.items) == 2) == (variant == "affirmed")]
                value = None if said.letter is None else float(said.letter == right)
                rows.append(Answer(str(index), variant, value, reply.error or said.reason))
        return {"answers": rows}


ACCURACY = Table(
    "accuracy", "Accuracy", (Row("model"),), (Column(by="variant"), *COUNTS), {"task": "results"}
)
GAP = Table("gap", "Negation gap", (Row("model"),), (Column(by="variant"), *COUNTS), {"task": "gap"})
PAGE = (Section("accuracy", "Accuracy", (ACCURACY, GAP)),)


class Counting(Benchmark):
    name, title, config, folder = "counting", "Counting", CountingConfig, Answers
    about = 'ask whether "There are no two cats." is true'
    gap = ("affirmed", "denied")
    sections, headline = PAGE, (ACCURACY,)

    def runs(self, config: CountingConfig, device: str) -> list[Run]:
        blocks = Blocks.first(config.scenes, config.batch_size, config.limit)
        where = resolve(config.model)
        model = Model.one(config.model, lambda: load_choices(where, device=device, dtype=config.dtype))
        identity = {"model": config.model, "scenes": config.scenes, **machine_identity(config, device)}
        folder = Answers(config.out_dir / slugify(config.model.replace(":", "-")))
        return [Run(folder, config.model, identity, [Asking(blocks, model)])]

    def scores(self, run: Run) -> ScoreTable:
        return ScoreTable.from_rows(select_rows(run.folder, "answers"))


COUNTING = Counting()
