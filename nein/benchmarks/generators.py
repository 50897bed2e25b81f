"""The benchmark `generators`: do text-to-image models draw what their prompt denies?

A model draws up to three variants of every prompt: "a cat and no dog" (denied), "a cat and a dog" (affirmed),
"a cat" (unmentioned). A judge looks for the dog in each image. If a prompt has no variant "unmentioned", the
judge looks for its dog in the image of another prompt, one that names no dog. In this file: images and
questions, the stages Draw and Judge, estimates, the page, and the benchmark.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from nein.benchmarks.generators_config import GeneratorsConfig
from nein.benchmarks.nein import calibrations
from nein.benchmarks.nein.config import ReportConfig
from nein.benchmarks.nein.runs import read_image
from nein.benchmarks.runner import SCORES_CSV, Benchmark, Finished, Run, machine_identity, select_rows
from nein.datasets import prompts as prompt_files
from nein.datasets.nein import IMAGE_SUFFIXES, image_name
from nein.datasets.prompts import AFFIRMED, DENIED, UNMENTIONED, Prompt, Prompts, is_noun
from nein.editors import EditRequest, text_to_image
from nein.engine import atomic, images
from nein.engine.folder import Blocks, Folder, sample_seed
from nein.engine.stages import Model, Stage
from nein.loading.errors import UserError
from nein.loading.references import expand_user, is_served, parse_reference
from nein.models import judges, references
from nein.models.cached import Services
from nein.models.editor_choice import ExternalEdits
from nein.models.judges import OBJECT, QUESTION, JudgeOptions, Word
from nein.reporting import cards, tables
from nein.reporting import figures as frames
from nein.reporting.page import Page, Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import COUNTS, Column, Row, Table, entry, p_value
from nein.statistics import Estimate, calibration, pairs_test

IMAGES = "images"  # the output of the stage Draw
FORBIDDEN, WANTED = "forbidden", "wanted"  # roles of a thing in the prompt that denies
#: Role of a thing and judge -> title. "sentence": actions and attributes, which only the VQA judge gets.
METRICS = {
    "forbidden_vqa": "forbidden, VQA",
    "wanted_vqa": "wanted, VQA",
    "forbidden_ovd": "forbidden, OVD",
    "wanted_ovd": "wanted, OVD",
    "forbidden_sentence": "forbidden, sentence by VQA",
    "wanted_sentence": "wanted, sentence by VQA",
}
JUDGE_OPTIONS = JudgeOptions()


# --- images to draw, and questions about them ----------------------------------------------------------
@dataclass
class Question:
    """Is a thing in an image, by one kind of judge? Answered, a line of vqa/000/000012.jsonl."""

    id: str
    source: str  # id of the prompt that forbids or wants the thing
    thing: str
    metric: str  # a key of `METRICS`
    variant: str  # of the source; `UNMENTIONED` also in the image of another prompt
    picture: str  # id of the image
    value: float | None = None  # 1: the image does as its prompt says; not mentioned: the thing is absent
    reason: str | None = None  # why there is no value
    again: bool = False  # worth another try

    @property
    def kind(self) -> str:
        """The kind of judge that is asked."""
        return "ovd" if self.metric.endswith("_ovd") else "vqa"

    @property
    def word(self) -> Word:
        """The thing as judges take it: a noun, or a question."""
        if is_noun(self.thing):
            return Word(self.thing, None, OBJECT)
        is_question, caption = self.thing.endswith("?"), self.thing.removesuffix(".")
        text = self.thing if is_question else f'Does the caption "{caption}" describe this image?'
        return Word(text, None, QUESTION)

    def answer(self, verdict: judges.Verdict) -> Question:
        """The question with the verdict of its judge."""
        present, reply = verdict["verdict_fixed"], verdict["reply"]
        if present is None:
            reason = reply.get("error") or f"{reply.get('answer')!r} is neither yes nor no"
            return replace(self, reason=reason)
        should_be_there = self.metric.startswith(WANTED) or self.variant == AFFIRMED
        return replace(self, value=float(present == should_be_there))


@dataclass(frozen=True)
class PlannedImage:
    """An image to draw."""

    id: str  # also the file name, without suffix, of an existing image
    sample: str  # decides the seed, the same for all variants of a prompt
    text: str
    questions: list[Question] = field(default_factory=list)

    def ask(self, prompt: Prompt, ending: str, thing: str, *, role: str, variant: str) -> None:
        """Adds the questions about a thing of a prompt, which may be another image's."""
        for judge in calibrations.KINDS if is_noun(thing) else ("sentence",):
            name, metric = f"{prompt.id}/{thing}{ending}", f"{role}_{judge}"
            self.questions.append(Question(name, prompt.id, thing, metric, variant, self.id))


def plan_images(prompts: Prompts, samples: int) -> list[PlannedImage]:
    """All images with their questions. Ids: `ID`, `ID-affirmed`, `ID-unmentioned`; by sample `ID_0`, ..."""
    endings = [f"_{sample}" for sample in range(samples)] if samples > 1 else [""]  # of ids
    plan: dict[tuple[int, str, str], PlannedImage] = {}  # (index of a prompt, ending, variant) -> image
    for index, prompt in enumerate(prompts.records):
        for ending in endings:
            for variant, text in prompt.texts.items():
                name = prompt.id if variant == DENIED else f"{prompt.id}-{variant}"
                plan[index, ending, variant] = PlannedImage(name + ending, prompt.id + ending, text)
    for (index, ending, variant), image in plan.items():
        prompt = prompts.records[index]
        for thing in prompt.forbidden:
            image.ask(prompt, ending, thing, role=FORBIDDEN, variant=variant)
        if variant != DENIED:
            continue
        for thing in prompt.wanted:
            image.ask(prompt, ending, thing, role=WANTED, variant=DENIED)
        # Without a variant "unmentioned", a noun is looked for in the image of a prompt that lacks it.
        for thing in filter(is_noun, prompt.forbidden if UNMENTIONED not in prompt.texts else ()):
            other = prompts.find_without(index, thing)
            if other is not None:
                plan[other, ending, DENIED].ask(prompt, ending, thing, role=FORBIDDEN, variant=UNMENTIONED)
    return [*plan.values()]


def read_folder(folder: Path, plan: Sequence[PlannedImage]) -> ExternalEdits:
    """The images in a folder or its subfolders that are named after planned ones. Raises UserError."""
    ids = {f"{image.id}_0": image.id for image in plan} | {image.id: image.id for image in plan}
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        name = ids.get(image_name(path.name)) if path.suffix.lower() in IMAGE_SUFFIXES else None
        if name is not None and files.setdefault(name, path) != path:
            raise UserError(f"'{files[name]}' and '{path}' are of one prompt; remove one of them.")
    if not files:
        raise UserError(f"No image in '{folder}' is named after a prompt; expected '{plan[0].id}.png' ...")
    return ExternalEdits(folder.resolve().name, "", files)


# --- stages --------------------------------------------------------------------------------------------
@dataclass
class Drawing:
    """A line of images/000/000012.jsonl."""

    id: str  # of the image
    text: str
    image: str | None = None  # path below the run's folder
    error: str = ""  # why there is no image
    again: bool = False  # worth another try


class GeneratorsDir(Folder):
    row_types: ClassVar = {IMAGES: Drawing, **dict.fromkeys(calibrations.KINDS, Question)}  # by output

    def find_image(self, row: Drawing) -> Path | None:
        return None if row.image is None else self.check_inside(self.path / row.image)


@dataclass(kw_only=True)
class Draw(Stage):
    """Draws every image: a text-to-image model, run as an editor of an empty canvas, or images that exist."""

    folder: GeneratorsDir
    plan: Sequence[PlannedImage]
    blocks: Blocks
    model: Model
    seed: int
    existing: ExternalEdits | None  # None: the model draws
    name, outputs = IMAGES, (IMAGES,)
    invalidates = (*calibrations.KINDS,)  # other images need other answers of every judge
    cut = True  # draws only what `--limit` selects of a block

    def read(self, number: int) -> range:
        """The indices of the images of a block in `plan`."""
        return self.blocks.needed(number)

    def work(self, model: Any, indices: range, missing: tuple[str, ...]) -> dict[str, list[Drawing]]:
        canvas = np.full((text_to_image.SIDE, text_to_image.SIDE, 3), 255, np.uint8)  # (H, W, 3), white
        requests = []
        for planned in self.plan[indices.start : indices.stop]:
            seed = sample_seed(self.seed, planned.sample)
            requests.append(EditRequest(planned.id, canvas, planned.text, seed))
        results = [model.read(item.id)[0] for item in requests] if self.existing else model.edit(requests)
        rows = []
        for index, request, result in zip(indices, requests, results, strict=True):
            row = Drawing(request.id, request.instruction, error=result.error or "", again=result.transient)
            if result.image is not None:
                row.image = f"pictures/{index // 1000:03d}/{index:06d}.png"
                images.write_png(self.folder.path / row.image, result.image)
            rows.append(row)
        return {IMAGES: rows}

    def is_valid(self, output: str, number: int, rows: list[Drawing]) -> bool:
        """False if an image is worth another try, or its file has vanished."""
        files = [file for row in rows if (file := self.folder.find_image(row))]
        return not any(row.again for row in rows) and all(map(atomic.is_nonempty_file, files))

    def files(self, records: range) -> list[Path]:
        """The user's images of these records, if they exist; a changed one is read again."""
        files = self.existing.files if self.existing else {}
        return [files[item.id] for item in self.plan[records.start : records.stop] if item.id in files]


@dataclass(kw_only=True)
class Judge(Stage):
    """Asks one kind of judge its questions about every image."""

    folder: GeneratorsDir
    plan: Sequence[PlannedImage]
    drawn: Blocks  # of `Draw`
    kind: str  # "vqa" or "ovd"
    model: Model
    cut = True  # asks only about the images that `--limit` selects of a block

    def __post_init__(self) -> None:
        self.name, self.outputs = self.kind, (self.kind,)
        self.blocks = self.drawn.units  # batches of images also where a block of `Draw` is one image

    def read(self, number: int) -> list[tuple[list[Question], np.ndarray | str]]:
        """The questions about every image, and the image, (H, W, 3) uint8, or why there is none."""
        needed = self.blocks.needed(number)
        numbers = Blocks(self.drawn.count, self.drawn.size, needed).numbers  # of the blocks of `Draw`
        inputs = []
        # Both begin at the same record: a block of judges is one or several whole blocks of `Draw`.
        for index, drawing in zip(needed, self.folder.rows(IMAGES, numbers), strict=False):
            questions = [question for question in self.plan[index].questions if question.kind == self.kind]
            file = self.folder.find_image(drawing)
            inputs.append((questions, read_image(file, "drawn") if file else drawing.error))
        return inputs

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> dict[str, list[Question]]:
        readable = [(questions, image) for questions, image in inputs if not isinstance(image, str)]
        words = [[question.word for question in questions] for questions, _ in readable]
        arrays = [image for _, image in readable]  # (H, W, 3) uint8 each
        replies = iter(judges.ask(self.kind, model, arrays, words, JUDGE_OPTIONS) if readable else ())
        rows = []
        for questions, image in inputs:
            no_image = isinstance(image, str)
            verdicts = [judges.make_unanswered(image)] * len(questions) if no_image else next(replies)
            for question, verdict in zip(questions, verdicts, strict=True):
                again = not no_image and "error" in verdict["reply"]
                rows.append(replace(question.answer(verdict), again=again))
        return {self.kind: rows}

    def is_valid(self, output: str, number: int, rows: list[Question]) -> bool:
        return not any(row.again for row in rows)


# --- estimates -----------------------------------------------------------------------------------------
def correct_shares(run: Finished, judge: calibrations.Calibration) -> Iterator[frames.Figure]:
    """Yields rows of the task "corrected": every share and excess of nouns, as judged and as corrected."""
    rates = judge.rates("fixed", role=OBJECT)
    metrics = tuple(f"{role}_{judge.kind}" for role in (FORBIDDEN, WANTED))
    for row in frames.records(run.figures, task=("results", "excess"), metric=metrics):
        if row["value"] is None:
            continue
        judged = Estimate(**{item.name: row[item.name] for item in fields(Estimate)})  # row -> estimate
        variant = row["variant"]
        if row["task"] == "excess":
            variant, corrected = "more often if denied", calibration.correct_difference(judged, rates)
        elif variant == AFFIRMED or row["metric"].startswith(WANTED):  # the share that has the thing
            corrected = calibration.correct(judged, rates, "retention")
        else:
            corrected = calibration.correct(judged, rates, "removal")
        labels = {"task": "corrected", "model": run.name, "metric": row["metric"], "variant": variant}
        yield frames.figure(judged, unit=row["unit"], statistic="judged", **labels)
        ends = {name: getattr(corrected, name) for name in ("value", "low", "high", "refused")}
        yield {**labels, **ends, "unit": row["unit"], "statistic": "corrected"}


# --- the page ------------------------------------------------------------------------------------------
ROWS = (Row("model", "generator"), Row("metric", "thing", METRICS))
RESULTS = Table(
    "results",
    "Images that do as their prompt says, %",
    ROWS,
    (
        Column("denied: absent", {"task": "results", "variant": DENIED}),
        Column("asked for: present", {"task": "results", "variant": AFFIRMED}),
        Column("gap", {"task": "gap", "variant": "gap"}),
        Column("not mentioned: absent", {"task": "results", "variant": UNMENTIONED}),
        Column("more often if denied", {"task": "excess"}),
        Column("p", {"task": "excess"}, p_value()),
        *COUNTS,
    ),
    {"task": ("results", "gap", "excess")},
    "Wanted things are looked for where another is denied. Not mentioned: the prompt's twin, or another "
    "prompt that does not name the thing. Differences in points, clustered by prompt.",
)
CORRECTED = Table(
    "corrected",
    "Corrected for the judges' errors, of things named by a noun",
    (*ROWS, Row("variant", "prompt")),
    (
        Column("as judged", {"statistic": "judged"}),
        Column("corrected", {"statistic": "corrected"}),
        Column("not corrected because", {"statistic": "corrected"}, entry("refused")),
    ),
    note="Rogan-Gladen: as if the judge erred on these images as often as on those of its calibration.",
)


def _list_notes(run: Finished) -> Iterator[str]:
    facts = run.manifest["data"]
    if facts["sentences"] or facts["left_out"]:
        yield (
            f"{facts['name']}: {facts['sentences']} denied actions and attributes are asked as sentences, of "
            f"the VQA judge alone; {facts['left_out']} denials are left out: no single question decides them."
        )
    if run.manifest["preset"] == "nano":
        yield "Preset nano: a miniature generator of drawn scenes, not comparable with published models."


def _make_cards(finished: Sequence[Finished], metrics: Sequence[str]) -> Iterator[cards.Card]:
    """A card per image of the first run, with the image of every run and the means of its scores."""
    drawings = [{row.id: row for row in select_rows(run.folder, IMAGES)} for run in finished]
    means = []  # per run: (id of an image, metric) -> 0 to 1
    for run in finished:
        table = ScoreTable.read(run.folder.path / SCORES_CSV, ["picture"]).scored.frame
        means.append(table.groupby(["picture", "metric"], observed=True)["value"].mean().to_dict())
    for name in cards.choose_ids([*drawings[0]], 200):
        replies = []
        for run, rows in zip(finished, drawings, strict=True):
            row = rows.get(name, Drawing(name, "", error="not drawn"))
            file = run.folder.find_image(row)
            replies.append(cards.CardReply(cards.read_thumbnail(file, 192) if file else {"none": row.error}))
        values = [[scores.get((name, metric)) for metric in metrics] for scores in means]  # runs x metrics
        yield cards.Card(name, drawings[0][name].text, values=values, said=replies)


# --- the benchmark -------------------------------------------------------------------------------------
class Generators(Benchmark):
    name, title = "generators", "Generators"
    config, report_config, folder = GeneratorsConfig, ReportConfig, GeneratorsDir
    gap = (AFFIRMED, DENIED)
    sections = (Section("results", "Generators", (RESULTS, CORRECTED)),)

    def runs(self, config: GeneratorsConfig, device: str) -> list[Run]:
        calibrations.load(config.calibration, explicit=True)  # a wrong folder is refused before any work
        prompts = prompt_files.load(config.prompts)
        plan = plan_images(prompts, config.samples)
        selected = sum(len(prompt.texts) for prompt in prompts.records[: config.limit]) * config.samples
        services = Services.create(config, config.out_dir / "cache" / "answers.sqlite")
        machine: dict[str, Any] = {"device": device, "dtype": config.dtype}
        facts = {"data": prompts.facts, "config": asdict(JUDGE_OPTIONS)}
        # What the identities of all runs share.
        shared = {"prompts": prompts.facts["sha256"], "seed": config.seed, "samples": config.samples}
        shared |= machine_identity(config, device)
        # The judges, which all generators share.
        judge_models = {}  # kind of judge -> its model
        asked = Counter(question.kind for image in plan for question in image.questions)  # kind -> questions
        for kind, judge in config.judges.items():
            judges.check(judge)
            load = functools.partial(judges.load, kind, judge, services=services, **machine)
            judge_models[kind] = Model.one(f"{kind} {judge}", load, references.find_place(judge), kind)
            shared[kind] = references.identify(judge)
        runs = []
        for text in config.generator:
            label, reference = references.split_label(text)
            # A folder of images, or a model: how to load it, and what identifies its images.
            served, one_per_call = is_served(reference), False
            existing, identity = None, {"generator": "images that exist"}
            with_files = dict(config.judges)  # role -> model of which a digest enters the identity
            if expand_user(reference).is_dir():
                load = functools.partial(read_folder, expand_user(reference), plan)
                existing = load()
                label = label or existing.name
            else:
                one_per_call = text_to_image.find_pipeline(reference) is None
                options = {**(services.options if served else {}), **config.generator_options}
                if not one_per_call:
                    options |= {**machine, "batch_size": config.batch_size}
                load = functools.partial(text_to_image.get_generator, reference, **options)
                name = parse_reference(reference).without_address
                identity = {"generator": name, **config.generator_options}
                with_files["generator"] = reference.removeprefix("diffusers:")
            identity |= {**shared, **references.digest_models(with_files)}
            # Its stages.
            place = "remote" if one_per_call else "device"
            model = Model.one(text, load, place, kind="generator", requests=int(not served))
            size = 1 if one_per_call else config.batch_size
            blocks = Blocks(len(plan), size, range(selected), unit=config.batch_size)
            folder_name = label or references.slugify(reference.replace(":", "-"))
            folder = GeneratorsDir(config.out_dir / folder_name)
            common: dict[str, Any] = {"folder": folder, "plan": plan}
            draw = Draw(blocks=blocks, model=model, seed=config.seed, existing=existing, **common)
            draw.asks = {reference: 1} if served else {}
            stages: list[Stage] = [draw]
            for kind, judge in config.judges.items():
                stage = Judge(drawn=blocks, kind=kind, model=judge_models[kind], **common)
                stage.asks = {judge: max(1, round(asked[kind] / len(plan)))} if is_served(judge) else {}
                stages.append(stage)
            runs.append(Run(folder, label or reference, identity, stages, facts))
        return runs

    def scores(self, run: Run) -> ScoreTable:
        draw, *stages = run.stages
        selected = {draw.plan[index].id for index in draw.blocks.indices}  # type: ignore[attr-defined]
        rows = (row for stage in stages for row in run.folder.rows(stage.name, stage.blocks.numbers))
        return ScoreTable.from_rows((row for row in rows if row.picture in selected), ["picture"])

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        """Adds how much more often a thing is there where it is denied than where it is not mentioned."""
        rows = []
        for metric in METRICS:
            unmentioned, denied = (table.where(metric=metric, variant=name) for name in (UNMENTIONED, DENIED))
            if (test := pairs_test(*unmentioned.pair(denied))) is not None:
                row = frames.figure(test.difference, unit="points", task="excess", metric=metric)
                rows.append({**row, "p": test.p, "p_least": test.least})
        return frames.concat([super().estimates(table, folder), frames.frame(rows)])

    def page(self, finished: Sequence[Finished], options: Any) -> Page:
        corrected: list[frames.Figure] = []
        findings, notes = list[str](), list[str]()
        calibrated = calibrations.load(options.calibration, explicit=True)
        for run in finished:
            notes += _list_notes(run)
            for judge in calibrated:
                if judge.fits(run.manifest):
                    corrected += correct_shares(run, judge)
            excess = frames.records(run.figures, task="excess")
            if excess:  # the first is by VQA, if that judge was asked
                points = tables.format_estimate(excess[0])
                findings.append(
                    f"{run.name} draws a thing {points} points more often when its prompt denies it than "
                    "when its prompt does not mention it."
                )
        parts = []
        if isinstance(options, ReportConfig):  # an evaluation writes no page
            metrics = frames.list_entries(finished[0].figures, "metric", [*METRICS])
            measures = [cards.Measure(metric, METRICS[metric]) for metric in metrics]
            members = [cards.Member(run.name) for run in finished]
            samples = cards.Samples(members, measures, words=("prompts", "Generator", "Obeyed"))
            make_cards = functools.partial(_make_cards, finished, metrics)
            parts = [cards.make_browser(samples, make_cards, title="Images")]
        figures, notes = [frames.frame(corrected)], [*dict.fromkeys(notes)]
        return Page(self.title, notes=notes, findings=findings, parts=parts, figures=figures)


GENERATORS = Generators()
