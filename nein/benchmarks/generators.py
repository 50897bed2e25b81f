"""The benchmark `generators`: do text-to-image models draw what their prompt denies?

A model draws "a cat and no dog" and, if they are given, two twins: "a cat and a dog", and one that names no
dog. A judge looks for the dog in each image; without the last twin, in the image of another prompt. In this
file: images and questions, the stages Draw and Judge, estimates, the page, and the benchmark.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from nein import statistics
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
from nein.reporting.figures import Figure
from nein.reporting.page import Page, Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import COUNTS, Column, Row, Table, entry, p_value
from nein.statistics import calibration

IMAGES, FORBIDDEN, WANTED = "images", "forbidden", "wanted"
#: Role and judge, for nouns; role and "sentence", for actions and attributes, which only the VQA judge gets.
METRICS = {
    f"{role}_{kind}": f"{role}, {title}"
    for kind, title in (*calibrations.KINDS.items(), ("sentence", "sentence by VQA"))
    for role in (FORBIDDEN, WANTED)
}
JUDGE_OPTIONS = JudgeOptions()
CANVAS = np.full((text_to_image.SIDE, text_to_image.SIDE, 3), 255, np.uint8)  # (H, W, 3)


# --- images to draw, and questions about them ----------------------------------------------------------


@dataclass
class Question:
    """Is a thing in an image? Answered, a line of vqa/000/000012.jsonl.

    source, picture  Ids of the prompt that forbids or wants the thing, and of the image.
    variant          The arm that it is asked for. metric: a key of `METRICS`; unanswered, a role.
    value            1 where an image does as its prompt says, or a thing that is not mentioned is absent.
    """

    id: str
    source: str
    thing: str
    metric: str
    variant: str
    picture: str = ""
    value: float | None = None
    reason: str | None = None  # why there is no value
    again: bool = False  # worth another try

    @property
    def word(self) -> Word:
        text = self.thing
        if text.endswith("."):
            text = f'Does the caption "{text[:-1]}" describe this image?'
        return Word(text, None, OBJECT if is_noun(self.thing) else QUESTION)


@dataclass(frozen=True)
class Picture:
    """An image to draw. id: also the file name, without suffix, of an existing image; sample: decides the
    seed, the same for twins."""

    id: str
    sample: str
    text: str
    questions: Sequence[Question]


def plan_pictures(prompts: Prompts, samples: int) -> list[list[Picture]]:
    """Images per prompt, with questions: `ID`, `ID-affirmed`, `ID-unmentioned`; by sample `ID_0`, ..."""
    # (index of a prompt, arm) -> questions about its image
    questions_of: dict[tuple[int, str], list[Question]] = {}
    for index, record in enumerate(prompts.records):
        # (index of the prompt whose image is asked about, its arm, thing, role, variant)
        things = [(index, arm, thing, FORBIDDEN, arm) for arm in record.texts for thing in record.forbidden]
        things += [(index, DENIED, thing, WANTED, DENIED) for thing in record.wanted]
        for thing in filter(is_noun, () if UNMENTIONED in record.texts else record.forbidden):
            if (other := prompts.find_without(index, thing)) is not None:
                things.append((other, DENIED, thing, FORBIDDEN, UNMENTIONED))
        for owner, arm, thing, role, variant in things:
            question = Question(f"{record.id}/{thing}", record.id, thing, role, variant)
            questions_of.setdefault((owner, arm), []).append(question)
    ends = [f"_{sample}" for sample in range(samples)] if samples > 1 else [""]
    groups: list[list[Picture]] = [[] for _ in prompts.records]
    for index, record in enumerate(prompts.records):
        for end, (arm, text) in itertools.product(ends, record.texts.items()):
            name = record.id + f"-{arm}" * (arm != DENIED) + end
            questions = [replace(q, id=q.id + end, picture=name) for q in questions_of.get((index, arm), ())]
            groups[index].append(Picture(name, record.id + end, text, questions))
    return groups


def read_folder(folder: Path, pictures: Sequence[Picture]) -> ExternalEdits:
    """The images in a folder or its subfolders that are named after `pictures`. Raises UserError."""
    ids = {name: picture.id for picture in pictures for name in (f"{picture.id}_0", picture.id)}
    files: dict[str, Path] = {}
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES):
        name = ids.get(image_name(path.name))
        if name is not None and files.setdefault(name, path) != path:
            raise UserError(f"'{files[name]}' and '{path}' are of one prompt; remove one of them.")
    if not files:
        raise UserError(
            f"No image in '{folder}' is named after a prompt, as '{pictures[0].id}.png' would be."
        )
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
    pictures: Sequence[Picture]
    blocks: Blocks
    model: Model
    seed: int
    folder_of_images: ExternalEdits | None
    name, outputs, invalidates, cut = IMAGES, (IMAGES,), (*calibrations.KINDS,), True

    def read(self, number: int) -> range:
        return self.blocks.needed(number)

    def work(self, model: Any, indices: range, missing: tuple[str, ...]) -> dict[str, list[Drawing]]:
        requests = []
        for picture in (self.pictures[index] for index in indices):
            seed = sample_seed(self.seed, picture.sample)
            requests.append(EditRequest(picture.id, CANVAS, picture.text, seed))
        if self.folder_of_images is None:
            results = model.edit(requests)
        else:
            results = [model.read(request.id)[0] for request in requests]
        rows = []
        for index, request, result in zip(indices, requests, results, strict=True):
            row = Drawing(request.id, request.instruction, error=result.error or "", again=result.transient)
            if result.image is not None:
                row.image = f"pictures/{index // 1000:03d}/{index:06d}.png"
                images.write_png(self.folder.path / row.image, result.image)
            rows.append(row)
        return {IMAGES: rows}

    def is_valid(self, output: str, number: int, rows: list[Drawing]) -> bool:
        """Whether no drawing is worth another try and no image file has vanished."""
        files = filter(None, map(self.folder.image, rows))
        return not any(row.again for row in rows) and all(map(atomic.is_nonempty_file, files))

    def ids(self, records: range) -> list[str]:
        return [self.pictures[index].id for index in records]

    def files(self, records: range) -> list[Path]:
        paths = self.folder_of_images.files if self.folder_of_images else {}
        return [paths[name] for name in self.ids(records) if name in paths]


@dataclass(kw_only=True)
class Judge(Stage):
    """Asks one kind of judge whether each thing is in each image; a detector is asked about nouns alone."""

    folder: GeneratorsDir
    pictures: Sequence[Picture]
    drawn: Blocks  # the blocks of `Draw`
    kind: str
    model: Model
    cut = True

    def __post_init__(self) -> None:
        self.name, self.outputs, self.blocks = self.kind, (self.kind,), self.drawn.units

    def questions(self, picture: Picture) -> list[Question]:
        return [item for item in picture.questions if self.kind == "vqa" or is_noun(item.thing)]

    def read(self, number: int) -> list[tuple[Picture, np.ndarray | str]]:
        """Read every picture with its image (H, W, 3) uint8, or why there is none."""
        needed = self.blocks.needed(number)
        numbers = Blocks(self.drawn.count, self.drawn.size, needed).numbers
        files = {row.id: self.folder.image(row) or row.error for row in self.folder.rows(IMAGES, numbers)}
        pairs = [(self.pictures[index], files[self.pictures[index].id]) for index in needed]
        return [(item, file if isinstance(file, str) else read_image(file, "drawn")) for item, file in pairs]

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> dict[str, list[Question]]:
        usable = [(picture, image) for picture, image in inputs if not isinstance(image, str)]
        words = [[question.word for question in self.questions(picture)] for picture, _ in usable]
        arrays = [image for _, image in usable]  # (H, W, 3) uint8 each
        replies = iter(judges.ask(self.kind, model, arrays, words, JUDGE_OPTIONS) if usable else ())
        rows = []
        for picture, image in inputs:
            questions, is_asked = self.questions(picture), not isinstance(image, str)
            verdicts = next(replies) if is_asked else [judges.make_unanswered(image)] * len(questions)
            for question, verdict in zip(questions, verdicts, strict=True):
                is_there, error = verdict["verdict_fixed"], verdict["reply"].get("error")
                row = replace(question, again=is_asked and error is not None)
                row.metric += f"_{self.kind}" if is_noun(question.thing) else "_sentence"
                if is_there is None:
                    row.reason = error or f"{verdict['reply'].get('answer')!r} is neither yes nor no"
                else:
                    row.value = float(is_there == (question.metric == WANTED or question.variant == AFFIRMED))
                rows.append(row)
        return {self.kind: rows}

    def is_valid(self, output: str, number: int, rows: list[Question]) -> bool:
        """Whether no question has to be asked again."""
        return not any(row.again for row in rows)

    def state(self, records: range) -> list[list[str]]:
        """The ids of the questions about each image, among them those about things of other prompts."""
        groups = (self.questions(self.pictures[index]) for index in records)
        return [[question.id for question in questions] for questions in groups]


# --- estimates -----------------------------------------------------------------------------------------


def compare_denied(table: ScoreTable, metric: str) -> statistics.estimates.PairedTest | None:
    """Test how much more often things are there where they are denied than where they are not mentioned."""
    arms = [table.where(metric=metric, variant=arm) for arm in (UNMENTIONED, DENIED)]
    return statistics.pairs_test(*arms[0].pair(arms[1]))


def correct_shares(run: Finished, judge: calibrations.Calibration) -> Iterator[Figure]:
    """Yield shares and excess of nouns, as judged and corrected for the judge's errors (task "corrected")."""
    table, rates = ScoreTable.read(run.folder.path / SCORES_CSV), judge.rates("fixed", role=OBJECT)
    forbidden, wanted_things = (f"{role}_{judge.kind}" for role in (FORBIDDEN, WANTED))
    pairs: list[tuple[Any, ...]] = []  # (metric, variant, unit, as judged, corrected)
    for (metric, variant), rows in table.where(metric=(forbidden, wanted_things)).groups("metric", "variant"):
        question: Any = "retention" if metric == wanted_things or variant == AFFIRMED else "removal"
        if (judged := rows.estimate()) is not None:
            pairs.append((metric, variant, "%", judged, calibration.correct(judged, rates, question)))
    if (test := compare_denied(table, forbidden)) is not None:
        difference = calibration.correct_difference(test.difference, rates)
        pairs.append((forbidden, "more often if denied", "points", test.difference, difference))
    for metric, variant, unit, judged, corrected in pairs:
        facts = {"task": "corrected", "model": run.name, "metric": metric, "variant": variant}
        yield frames.figure(judged, unit=unit, statistic="judged", **facts)
        ends = {name: getattr(corrected, name) for name in ("value", "low", "high", "refused")}
        yield {**facts, **ends, "unit": unit, "statistic": "corrected"}


# --- the page ------------------------------------------------------------------------------------------

_EXCESS = {"task": "excess"}
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
        Column("more often if denied", _EXCESS),
        Column("p", _EXCESS, p_value()),
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


def _notes(run: Finished) -> Iterator[str]:
    facts = run.manifest["data"]
    if facts["sentences"] or facts["left_out"]:
        yield (
            f"{facts['name']}: {facts['sentences']} denied actions and attributes are asked as sentences, of "
            f"the VQA judge alone; {facts['left_out']} denials are left out: no single question decides them."
        )
    if run.manifest["preset"] == "nano":
        yield "Preset nano: a miniature generator of drawn scenes, not comparable with published models."


def _cards(finished: Sequence[Finished], metrics: Sequence[str]) -> Iterator[cards.Card]:
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
        prompts, _ = data.load(config.prompts), calibrations.load(config.calibration, explicit=True)
        groups = plan_pictures(prompts, config.samples)
        pictures = [picture for group in groups for picture in group]
        services = Services.create(config, config.out_dir / "cache" / "answers.sqlite")
        machine: dict[str, Any] = {"device": device, "dtype": config.dtype}
        shared = {"prompts": prompts.facts["sha256"], "seed": config.seed, "samples": config.samples}
        shared |= machine_identity(config, device)
        models = {}  # kind of judge -> its model
        for kind, judge in config.judges.items():
            judges.check(judge)
            load = functools.partial(judges.load, kind, judge, services=services, **machine)
            models[kind] = Model.one(f"{kind} {judge}", load, references.find_place(judge), kind)
            shared[kind] = references.identify(judge)
        runs = []
        for text in config.generator:
            label, reference = references.split_label(text)
            folder_of_images, served = None, is_served(reference)
            singly = served or parse_reference(reference).is_code  # one image per call
            identity, files = {"generator": "images that exist"}, dict(config.judges)
            if expand_user(reference).is_dir():
                load = functools.partial(read_folder, expand_user(reference), pictures)
                folder_of_images = load()
                label = label or folder_of_images.name
            else:
                text_to_image.find_pipeline(reference)
                options = {**(services.options if served else {}), **config.generator_options}
                options |= {} if singly else {**machine, "batch_size": config.batch_size}
                load = functools.partial(text_to_image.get_generator, reference, **options)
                name = parse_reference(reference).without_address
                identity = {"generator": name, **config.generator_options}
                files["generator"] = reference.removeprefix("diffusers:")
            model = Model.one(text, load, "remote" if singly else "device", "generator", int(not served))
            selection = range(sum(map(len, groups[: config.limit])))
            blocks = Blocks(len(pictures), 1 if singly else config.batch_size, selection, config.batch_size)
            folder_name = label or references.slugify(reference.replace(":", "-"))
            folder = GeneratorsDir(config.out_dir / folder_name)
            common: dict[str, Any] = {"folder": folder, "pictures": pictures}
            seeds: dict[str, Any] = {"seed": config.seed, "folder_of_images": folder_of_images}
            stages: list[Stage] = [Draw(blocks=blocks, model=model, **seeds, **common)]
            stages += [Judge(drawn=blocks, kind=kind, model=models[kind], **common) for kind in models]
            for stage, server in zip(stages, (reference, *config.judges.values()), strict=True):
                # About how many requests an image takes: itself, or its questions.
                count = len(pictures) if stage is stages[0] else sum(len(p.questions) for p in pictures)
                stage.asks = {server: max(1, round(count / len(pictures)))} if is_served(server) else {}
            facts = {"data": prompts.facts, "config": dataclasses.asdict(JUDGE_OPTIONS)}
            identity |= {**shared, **references.digest_models(files)}
            runs.append(Run(folder, label or reference, identity, stages, facts))
        return runs

    def scores(self, run: Run) -> ScoreTable:
        draw, *stages = run.stages
        ids = {draw.pictures[index].id for index in draw.blocks.indices}  # type: ignore[attr-defined]
        rows = (row for stage in stages for row in run.folder.rows(stage.name, stage.blocks.numbers))
        return ScoreTable.from_rows((row for row in rows if row.picture in ids), ["picture"])

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        rows = []
        for metric in METRICS:
            if (test := compare_denied(table, metric)) is not None:
                facts: Figure = {"task": "excess", "metric": metric, "p": test.p, "p_least": test.least}
                rows.append(frames.figure(test.difference, unit="points", **facts))
        return frames.concat([super().estimates(table, folder), frames.frame(rows)])

    def page(self, finished: Sequence[Finished], options: Any) -> Page:
        calibrated = calibrations.load(options.calibration, explicit=True)
        pairs = itertools.product(finished, calibrated)
        rows = [row for run, judge in pairs if judge.fits(run.manifest) for row in correct_shares(run, judge)]
        findings = []
        for run in finished:
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
            parts = [
                cards.make_browser(samples, functools.partial(_cards, finished, metrics), title="Images")
            ]
        notes = [*dict.fromkeys(note for run in finished for note in _notes(run))]
        return Page(self.title, "", notes, findings, parts, figures=[frames.frame(rows)])


GENERATORS = Generators()
