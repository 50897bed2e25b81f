"""The benchmark `generators`: do text-to-image models draw what their prompt denies?

A model draws "a cat and no dog" and, if they are given, two twins: "a cat and a dog", and one that names no
dog. A judge looks for the dog in each image; without the last twin, in the image of another prompt. In this
file: images and questions, the stages Draw and Judge, estimates, the page, and the benchmark.
"""

from __future__ import annotations

import functools
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
from nein.datasets import prompts as data
from nein.datasets.nein import IMAGE_SUFFIXES, image_name
from nein.datasets.prompts import AFFIRMED, DENIED, UNMENTIONED, Prompts, is_noun
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

IMAGES, FORBIDDEN, WANTED = "images", "forbidden", "wanted"
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
CANVAS = np.full((text_to_image.SIDE, text_to_image.SIDE, 3), 255, np.uint8)  # (H, W, 3)


# --- images to draw, and questions about them ----------------------------------------------------------


@dataclass
class Question:
    """Is a thing in an image? Answered, a line of vqa/000/000012.jsonl."""

    id: str
    source: str  # id of the prompt that forbids or wants the thing
    thing: str
    metric: str  # a key of `METRICS`; before the answer only the role, `FORBIDDEN` or `WANTED`
    variant: str  # the arm that it is asked for
    picture: str  # id of the image
    value: float | None = None  # 1: the image does as its prompt says; not mentioned: the thing is absent
    reason: str | None = None  # why there is no value
    again: bool = False  # worth another try

    @property
    def word(self) -> Word:
        text = self.thing
        if text.endswith("."):
            text = f'Does the caption "{text[:-1]}" describe this image?'
        return Word(text, None, OBJECT if is_noun(self.thing) else QUESTION)

    def answer(self, kind: str, verdict: judges.Verdict) -> Question:
        """The question with the verdict of a kind of judge."""
        present, reply = verdict["verdict_fixed"], verdict["reply"]
        should_be_there = self.metric == WANTED or self.variant == AFFIRMED
        row = replace(self, metric=f"{self.metric}_{kind if is_noun(self.thing) else 'sentence'}")
        if present is None:
            row.reason = reply.get("error") or f"{reply.get('answer')!r} is neither yes nor no"
        else:
            row.value = float(present == should_be_there)
        return row


@dataclass(frozen=True)
class PlannedImage:
    """An image to draw."""

    id: str  # also the file name, without suffix, of an existing image
    sample: str  # decides the seed, the same for twins
    text: str
    questions: list[Question] = field(default_factory=list)


def plan_images(prompts: Prompts, samples: int) -> list[PlannedImage]:
    """All images with their questions. Ids: `ID`, `ID-affirmed`, `ID-unmentioned`; by sample `ID_0`, ..."""
    ends = [f"_{sample}" for sample in range(samples)] if samples > 1 else [""]
    plan: dict[tuple[int, str, str], PlannedImage] = {}  # (index of a prompt, end of its ids, arm) -> image
    for index, record in enumerate(prompts.records):
        for end in ends:
            for arm, text in record.texts.items():
                name = record.id if arm == DENIED else f"{record.id}-{arm}"
                plan[index, end, arm] = PlannedImage(name + end, record.id + end, text)
    for (index, end, arm), image in plan.items():
        record = prompts.records[index]
        asked = [(image, thing, FORBIDDEN, arm) for thing in record.forbidden]
        if arm == DENIED:
            asked += [(image, thing, WANTED, arm) for thing in record.wanted]
        if arm == DENIED and UNMENTIONED not in record.texts:
            # Without that twin a noun is looked for in the image of a prompt that does not name it.
            for thing in filter(is_noun, record.forbidden):
                other = prompts.find_without(index, thing)
                if other is not None:
                    asked.append((plan[other, end, DENIED], thing, FORBIDDEN, UNMENTIONED))
        for about, thing, role, variant in asked:
            name = f"{record.id}/{thing}{end}"
            about.questions.append(Question(name, record.id, thing, role, variant, about.id))
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
    """A line of images/000/000012.jsonl. image: a file below the folder; error: why there is none."""

    id: str
    text: str
    image: str | None = None
    error: str = ""
    again: bool = False  # worth another try


class GeneratorsDir(Folder):
    row_types: ClassVar = {IMAGES: Drawing, **dict.fromkeys(calibrations.KINDS, Question)}

    def image(self, row: Drawing) -> Path | None:
        return None if row.image is None else self.check_inside(self.path / row.image)


@dataclass(kw_only=True)
class Draw(Stage):
    """Draws every image: a text-to-image model, run as an editor of an empty canvas, or images that exist."""

    folder: GeneratorsDir
    plan: Sequence[PlannedImage]
    blocks: Blocks
    model: Model
    seed: int
    existing: ExternalEdits | None
    name, outputs, invalidates, cut = IMAGES, (IMAGES,), (*calibrations.KINDS,), True

    def read(self, number: int) -> range:
        return self.blocks.needed(number)

    def work(self, model: Any, indices: range, missing: tuple[str, ...]) -> dict[str, list[Drawing]]:
        requests = []
        for planned in self.plan[indices.start : indices.stop]:
            seed = sample_seed(self.seed, planned.sample)
            requests.append(EditRequest(planned.id, CANVAS, planned.text, seed))
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
        """False where an image is worth another try, or its file has vanished."""
        files = [file for row in rows if (file := self.folder.image(row))]
        return not any(row.again for row in rows) and all(map(atomic.is_nonempty_file, files))

    def files(self, records: range) -> list[Path]:
        files = self.existing.files if self.existing else {}
        return [files[item.id] for item in self.plan[records.start : records.stop] if item.id in files]


@dataclass(kw_only=True)
class Judge(Stage):
    """Asks one kind of judge whether each thing is in each image; a detector is asked about nouns alone."""

    folder: GeneratorsDir
    plan: Sequence[PlannedImage]
    drawn: Blocks  # of `Draw`
    kind: str
    model: Model
    cut = True

    def __post_init__(self) -> None:
        self.name, self.outputs, self.blocks = self.kind, (self.kind,), self.drawn.units

    def read(self, number: int) -> list[tuple[list[Question], np.ndarray | str]]:
        """The questions about every image, and the image, (H, W, 3) uint8, or why there is none."""
        needed = self.blocks.needed(number)
        numbers = Blocks(self.drawn.count, self.drawn.size, needed).numbers  # of the blocks of `Draw`
        inputs = []
        # Both begin at the same record: a block of judges is one or several whole blocks of `Draw`.
        for index, drawing in zip(needed, self.folder.rows(IMAGES, numbers), strict=False):
            questions = self.plan[index].questions
            if self.kind != "vqa":
                questions = [question for question in questions if is_noun(question.thing)]
            file = self.folder.image(drawing)
            inputs.append((questions, read_image(file, "drawn") if file else drawing.error))
        return inputs

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> dict[str, list[Question]]:
        readable = [(questions, image) for questions, image in inputs if not isinstance(image, str)]
        words = [[question.word for question in questions] for questions, _ in readable]
        arrays = [image for _, image in readable]  # (H, W, 3) uint8 each
        replies = iter(judges.ask(self.kind, model, arrays, words, JUDGE_OPTIONS) if readable else ())
        rows = []
        for questions, image in inputs:
            if isinstance(image, str):
                rows += [question.answer(self.kind, judges.make_unanswered(image)) for question in questions]
                continue
            for question, verdict in zip(questions, next(replies), strict=True):
                rows.append(question.answer(self.kind, verdict))
                rows[-1].again = "error" in verdict["reply"]
        return {self.kind: rows}

    def is_valid(self, output: str, number: int, rows: list[Question]) -> bool:
        return not any(row.again for row in rows)


# --- estimates -----------------------------------------------------------------------------------------


def correct_shares(run: Finished, judge: calibrations.Calibration) -> Iterator[frames.Figure]:
    """Yield shares and excess of nouns, as judged and corrected for the judge's errors (task "corrected")."""
    rates = judge.rates("fixed", role=OBJECT)
    metrics = tuple(f"{role}_{judge.kind}" for role in (FORBIDDEN, WANTED))
    for row in frames.records(run.figures, task=("results", "excess"), metric=metrics):
        if row["value"] is None:
            continue
        judged = Estimate(**{item.name: row[item.name] for item in fields(Estimate)})
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
    """The images of every run, in the order of the first, with the mean of their scores."""
    drawings = [{row.id: row for row in select_rows(run.folder, IMAGES)} for run in finished]
    means = []  # per run: (id of an image, metric) -> 0 to 1
    for run in finished:
        table = ScoreTable.read(run.folder.path / SCORES_CSV, ["picture"]).scored.frame
        means.append(table.groupby(["picture", "metric"], observed=True)["value"].mean().to_dict())
    for name in cards.choose_ids([*drawings[0]], 200):
        replies = []
        for run, rows in zip(finished, drawings, strict=True):
            row = rows.get(name, Drawing(name, "", error="not drawn"))
            file = run.folder.image(row)
            replies.append(cards.CardReply(cards.read_thumbnail(file, 192) if file else {"none": row.error}))
        values = [[scores.get((name, metric)) for metric in metrics] for scores in means]  # runs x metrics
        yield cards.Card(name, drawings[0][name].text, values=values, said=replies)


# --- the benchmark -------------------------------------------------------------------------------------


class Generators(Benchmark):
    name, title, config, folder = "generators", "Generators", GeneratorsConfig, GeneratorsDir
    gap, report_config = (AFFIRMED, DENIED), ReportConfig
    sections = (Section("results", "Generators", (RESULTS, CORRECTED)),)

    def runs(self, config: GeneratorsConfig, device: str) -> list[Run]:
        calibrations.load(config.calibration, explicit=True)  # a wrong folder is refused before any work
        prompts = data.load(config.prompts)
        plan = plan_images(prompts, config.samples)
        count = sum(len(record.texts) for record in prompts.records[: config.limit]) * config.samples
        services = Services.create(config, config.out_dir / "cache" / "answers.sqlite")
        machine: dict[str, Any] = {"device": device, "dtype": config.dtype}
        shared = {"prompts": prompts.facts["sha256"], "seed": config.seed, "samples": config.samples}
        shared |= machine_identity(config, device)
        facts = {"data": prompts.facts, "config": asdict(JUDGE_OPTIONS)}

        # The judges, which all generators share.
        models = {}  # kind of judge -> its model
        asks_per_image = max(1, round(sum(len(image.questions) for image in plan) / len(plan)))
        for kind, judge in config.judges.items():
            judges.check(judge)
            load = functools.partial(judges.load, kind, judge, services=services, **machine)
            models[kind] = Model.one(f"{kind} {judge}", load, references.find_place(judge), kind)
            shared[kind] = references.identify(judge)
        runs = []
        for text in config.generator:
            label, reference = references.split_label(text)
            served, singly = is_served(reference), False  # singly: one image per call
            identity, files, existing = {"generator": "images that exist"}, dict(config.judges), None
            if expand_user(reference).is_dir():
                load = functools.partial(read_folder, expand_user(reference), plan)
                existing = load()
                label = label or existing.name
            else:
                singly = text_to_image.find_pipeline(reference) is None
                options = {**(services.options if served else {}), **config.generator_options}
                options |= {} if singly else {**machine, "batch_size": config.batch_size}
                load = functools.partial(text_to_image.get_generator, reference, **options)
                name = parse_reference(reference).without_address
                identity = {"generator": name, **config.generator_options}
                files["generator"] = reference.removeprefix("diffusers:")
            model = Model.one(text, load, "remote" if singly else "device", "generator", int(not served))
            blocks = Blocks(len(plan), 1 if singly else config.batch_size, range(count), config.batch_size)
            folder_name = label or references.slugify(reference.replace(":", "-"))
            folder = GeneratorsDir(config.out_dir / folder_name)
            common: dict[str, Any] = {"folder": folder, "plan": plan}
            draw = Draw(blocks=blocks, model=model, seed=config.seed, existing=existing, **common)
            draw.asks = {reference: 1} if served else {}
            stages: list[Stage] = [draw]
            for kind, judge in config.judges.items():
                stage = Judge(drawn=blocks, kind=kind, model=models[kind], **common)
                stage.asks = {judge: asks_per_image} if is_served(judge) else {}
                stages.append(stage)
            identity |= {**shared, **references.digest_models(files)}
            runs.append(Run(folder, label or reference, identity, stages, facts))
        return runs

    def scores(self, run: Run) -> ScoreTable:
        draw, *stages = run.stages
        ids = {draw.plan[index].id for index in draw.blocks.indices}  # type: ignore[attr-defined]
        rows = (row for stage in stages for row in run.folder.rows(stage.name, stage.blocks.numbers))
        return ScoreTable.from_rows((row for row in rows if row.picture in ids), ["picture"])

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        """Adds how much more often a thing is there where it is denied than where it is not mentioned."""
        rows = []
        for metric in METRICS:
            unmentioned, denied = (table.where(metric=metric, variant=arm) for arm in (UNMENTIONED, DENIED))
            if (test := pairs_test(*unmentioned.pair(denied))) is not None:
                labels: frames.Figure = {
                    "task": "excess",
                    "metric": metric,
                    "p": test.p,
                    "p_least": test.least,
                }
                rows.append(frames.figure(test.difference, unit="points", **labels))
        return frames.concat([super().estimates(table, folder), frames.frame(rows)])

    def page(self, finished: Sequence[Finished], options: Any) -> Page:
        rows, findings, notes = list[frames.Figure](), list[str](), list[str]()
        calibrated = calibrations.load(options.calibration, explicit=True)
        for run in finished:
            notes += _list_notes(run)
            for judge in calibrated:
                rows += correct_shares(run, judge) if judge.fits(run.manifest) else ()
            for row in frames.records(run.figures, task="excess")[:1]:  # by VQA, where it was asked
                findings.append(
                    f"{run.name} draws a thing {tables.format_estimate(row)} points more often when its "
                    "prompt denies it than when its prompt does not mention it."
                )
        parts = []
        if isinstance(options, ReportConfig):  # an evaluation writes no page
            metrics = frames.list_entries(finished[0].figures, "metric", [*METRICS])
            measures = [cards.Measure(metric, METRICS[metric]) for metric in metrics]
            members = [cards.Member(run.name) for run in finished]
            samples = cards.Samples(members, measures, words=("prompts", "Generator", "Obeyed"))
            make_cards = functools.partial(_make_cards, finished, metrics)
            parts = [cards.make_browser(samples, make_cards, title="Images")]
        return Page(self.title, "", [*dict.fromkeys(notes)], findings, parts, figures=[frames.frame(rows)])


GENERATORS = Generators()
