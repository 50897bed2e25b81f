"""Makes the page of finished NegBench runs: finding, notes, and cards of single questions and captions with
the models' answers; then reads the numbers that the papers print. Torch is not imported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import judged, scoring
from nein.benchmarks.negbench.models import MODELS
from nein.benchmarks.negbench.questions import read_image
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scoring import TEXT_TO_IMAGE
from nein.benchmarks.negbench.stages import ModelTasks
from nein.benchmarks.runner import FIGURES_CSV, Finished, PaperEstimate
from nein.datasets.negbench import records
from nein.datasets.negbench.records import AFFIRMATION, NEGATION, ChoiceTask, Question, RetrievalTask
from nein.datasets.negbench.registry import MCQ, NANO, REPHRASED, RETRIEVAL
from nein.engine.folder import Folder, Row, sample_seed
from nein.loading.errors import UserError
from nein.metrics.letters import LETTERS
from nein.reporting import cards
from nein.reporting import figures as frames
from nein.reporting.cards import Cell
from nein.reporting.page import Page, Part
from nein.reporting.tables import describe_widest

log = logging.getLogger(__name__)
NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
LEGEND = (
    "Percentages. ± and [ ]: 95 % interval, clustered by picture. ↑ higher is better, ↓ lower is better. "
    "Negation gap: recall with the original captions minus recall with the negated ones, paired."
)
MAX_QUESTIONS, MAX_CAPTIONS = 400, 24  # cards of questions, and of negated captions, in a page


@dataclass(frozen=True)
class EvaluatedRun:
    """A finished run with its summary and estimates."""

    folder: Folder
    facts: Mapping[str, Any]  # `summary` in its manifest; "model" is the name of `_name_models`
    figures: pd.DataFrame  # rows of figures.csv and judged.csv

    @property
    def name(self) -> str:
        return f"{self.facts['model']}, {self.facts['title']}"


def make_page(finished: Sequence[Finished], options: Any) -> Page | None:
    """The page of these runs, grouped by model; None without runs."""
    if not finished:
        return None
    folders = [run.folder for run in finished]  # each is OUT/MODEL/DATA
    models = [folder.path.parent.name for folder in folders]
    evaluated_runs = load_evaluated(sorted(folders, key=lambda folder: models.index(folder.path.parent.name)))
    is_nano = {run.facts["dataset"].partition("-")[0] for run in evaluated_runs} == {NANO}
    frame = frames.concat(run.figures for run in evaluated_runs)
    return Page(
        f"NegBench: {', '.join(dict.fromkeys(run.facts['model'] for run in evaluated_runs))}",
        subtitle=f"Data: {NANO_LABEL}. {LEGEND}" if is_nano else LEGEND,
        findings=make_finding(frame),
        notes=make_notes(evaluated_runs),
        frame=frame,
        stamp=NANO_LABEL if is_nano else "",
        parts=[_make_browser(evaluated_runs)],
    )


def _make_browser(runs: Sequence[EvaluatedRun]) -> Part:
    """The part of the page that shows single questions and captions."""
    model_of = {run.folder.path: run.facts["model"] for run in runs}

    def make_cards() -> Iterator[cards.Card]:
        by_model: dict[str, list[ModelTasks]] = {model: [] for model in model_of.values()}
        for tasks in ModelTasks.load([run.folder for run in runs]):
            by_model[model_of[tasks.folder.path]].append(tasks)
        yield from make_question_cards(by_model)
        yield from make_caption_cards(by_model)

    # Count the questions of the first model of a data set, task and wording: all models are asked the same.
    totals = frames.select(frames.concat(run.figures for run in runs), metric="accuracy", type="all")
    totals = totals.drop_duplicates(["data", "task", "variant"])
    count = int(totals[["n", "unscored"]].sum().sum())
    note = f"{MAX_QUESTIONS} of {count:,} questions, drawn at random." if count > MAX_QUESTIONS else ""
    samples = cards.Samples(
        [cards.Member(model) for model in dict.fromkeys(model_of.values())],
        [cards.Measure("right", "choice; first five")],
        words=("samples", "Model", "Asked"),
        heads=("choice",),  # of the one cell of `_make_reply`
        columns=("caption", "made as", "chosen", "score"),  # of its rows
    )
    return cards.make_browser(samples, make_cards, title="Questions and captions", note=note)


def load_evaluated(folders: Sequence[Folder]) -> list[EvaluatedRun]:
    """The runs with their estimates, under names that tell models apart."""
    evaluated_runs = []
    for folder, name in zip(folders, _name_models(folders), strict=True):
        facts = folder.manifest()["summary"]
        files = [folder.path / FIGURES_CSV, folder.path / judged.JUDGED_CSV]
        figures = frames.concat(frames.read(file) for file in files if file.exists())
        suffixes = ["" if task in (RETRIEVAL, MCQ) else f" {task}" for task in figures["task"]]
        data = [facts["title"] + suffix for suffix in suffixes]  # as tables show it
        labels = {"benchmark": "negbench", "model": name, "dataset": facts["dataset"], "data": data}
        figures = frames.with_columns(figures, **labels)
        evaluated_runs.append(EvaluatedRun(folder, {**facts, "model": name}, figures))
    return evaluated_runs


def _name_models(folders: Sequence[Folder]) -> list[str]:
    """A name per run: "clip"; its folder's, "clip-2", if this model has several; with OUT, "clip (OUT)", if
    several runs have this MODEL/DATA."""
    models = [folder.manifest()["summary"]["model"] for folder in folders]
    places = [folder.path.parts[-2:] for folder in folders]  # (MODEL, DATA)
    names = []
    for folder, model, place in zip(folders, models, places, strict=True):
        own_folders = {path[0] for other, path in zip(models, places, strict=True) if other == model}
        name = place[0] if len(own_folders) > 1 else model
        names.append(f"{name} ({folder.path.parents[1]})" if places.count(place) > 1 else name)
    return names


# --- gaps, finding and notes -----------------------------------------------------------------------
K = max(KS)  # the k of retrieval's negation gap: the papers print recall at 5
_RECALL = {"metric": f"recall@{K}", "direction": TEXT_TO_IMAGE}
_RECALL_GAP = {"metric": f"gap@{K}", "direction": TEXT_TO_IMAGE}
_ACCURACY = {"metric": "accuracy"}
#: Measure -> columns and entries that select its three estimates: affirmed, negated, and their gap.
_GAP_MEASURES: Mapping[str, tuple[Row, Row, Row]] = {
    f"recall@{K}": ({**_RECALL, "kind": records.ORIGINAL}, {**_RECALL, "kind": records.NEGATED}, _RECALL_GAP),
    "choices": ({**_ACCURACY, "type": AFFIRMATION}, {**_ACCURACY, "type": NEGATION}, {"metric": "gap"}),
}


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """The gaps of retrieval and of multiple choice, by wording (see `Benchmark.gaps`)."""
    return frames.concat(_find_gaps(run.figures).assign(run=run.name, model=run.name) for run in finished)


def _find_gaps(figures: pd.DataFrame) -> pd.DataFrame:
    """The gaps of every model, data set, task and wording, by `_GAP_MEASURES`: rows of `frames.gap`."""
    rows: list[Any] = []
    columns = ["model", "data", "task", "variant"]
    figures = frames.select(figures, source="")
    figures = figures.assign(**{name: "" for name in columns if name not in figures})
    for (model, data, task, variant), part in figures.groupby(columns, observed=True, sort=False):
        for name, selections in _GAP_MEASURES.items():
            affirmed, negated, gap = (frames.pick(part, **selection) for selection in selections)
            if affirmed and negated and gap and gap["value"] is not None:
                labels = {"model": model, "data": data, "task": task, "variant": variant}
                labels["measure"] = f"{name}, {task} ({variant})"
                rows += frames.gap(affirmed["value"], negated["value"], gap, **labels)
    return frames.frame(rows)


def make_finding(frame: pd.DataFrame) -> list[str]:
    """A sentence on the widest negation gap of text-to-image retrieval; empty without one."""
    gaps = frames.records(_find_gaps(frames.select(frame, direction=TEXT_TO_IMAGE)))
    sentence = describe_widest(
        frames.frame({**row, "model": f"{row['model']} ({row['data']}, {row['variant']})"} for row in gaps),
        quantity=f"text-to-image recall at {K}",
        change="a caption says what is absent",
        models="models and data sets",
    )
    return [sentence] if sentence else []


def make_notes(runs: Sequence[EvaluatedRun]) -> list[str]:
    """What a reader of the tables must know: differing settings, limits, cut captions, unscored samples."""
    all_facts = [run.facts for run in runs]
    notes = []
    for key, name in (("protocol", "protocol"), ("features", "features"), ("limit", "--limit")):
        if len({facts[key] for facts in all_facts if facts["kind"] == "dual"}) > 1:
            notes.append(f"the rows differ in {name}; they are not comparable with each other.")
    if any(facts["protocol"] == "paper" for facts in all_facts):
        notes.append("protocol 'paper': the right option comes first and ties go to the first, as released.")
    if any(facts["features"] == "unnormalised" for facts in all_facts):
        notes.append("multiple choice compares features that are not normalised, as first published.")
    notes += dict.fromkeys(flag for run in runs for flag in frames.list_entries(run.figures, "flag"))
    if limits := {facts["limit"] for facts in all_facts if facts["limit"]}:
        rule = "recall among fewer images is higher, and not comparable with the full set."
        notes.append(f"--limit {max(limits)}: {rule}")
    for run in runs:
        cut = run.folder.manifest().get("cut", {"count": 0})
        if cut["count"]:
            share = f"{cut['count']:,} of {cut['of']:,} captions"
            notes.append(f"{run.name}: {share} are longer than the model's input and were truncated.")
        notes += _note_unscored(run)
    return notes


def _note_unscored(run: EvaluatedRun) -> Iterator[str]:
    """A note per total of a task with unscored samples: how many, and their most frequent reason."""
    for figure in frames.records(run.figures):
        is_total = figure["metric"] == f"recall@{KS[0]}" or figure.get("type") == "all"
        reasons = list(frames.read_reasons(figure).items())  # (reason, count), the most frequent first
        if is_total and figure["unscored"] and reasons:
            reason, count = reasons[0]
            names = [run.name, *(figure.get(key) for key in ("task", "variant", "kind", "direction"))]
            names += [figure["metric"]] if figure["metric"] in BASELINES else []
            label = ", ".join(name for name in names if name)
            yield f"{label}: {figure['unscored']} unscored; {count} of them: {reason}"


# --- cards of single questions and captions --------------------------------------------------------
RunsByModel = Mapping[str, Sequence[ModelTasks]]  # name of a model -> its runs


class Sample(NamedTuple):  # what a card shows
    data_title: str
    task: Any  # ChoiceTask or RetrievalTask
    record: Any  # Question or RetrievalItem of the task
    caption: str = ""  # of the item


Replies = Iterator[tuple[str, Any]]  # (card name, reply); names that were not drawn are ignored
ReplyReader = Callable[[ModelTasks, Any, Mapping[str, Sample]], Replies]  # arguments: run, task, drawn


def _list_tasks(runs: RunsByModel, task_type: type[Any]) -> Iterator[tuple[str, ModelTasks, Any]]:
    """Yields (model, run, task) for all tasks of a type."""
    for model, model_runs in runs.items():
        for run in model_runs:
            yield from ((model, run, task) for task in run.tasks if isinstance(task, task_type))


def _collect_replies(
    runs: RunsByModel, drawn: Mapping[str, Sample], task_type: type[Any], read_replies: ReplyReader
) -> dict[tuple[str, str], Any]:
    """(model, card name) -> the model's reply. A run that cannot be read is logged and left out."""
    replies: dict[tuple[str, str], Any] = {}
    for model, run, task in _list_tasks(runs, task_type):
        try:
            for name, reply in read_replies(run, task, drawn):
                if name in drawn:
                    replies[model, name] = reply
        except UserError as error:
            log.warning("no sample of '%s' (%s) is shown: %s", run.folder.path, task.name, error)
    return replies


def make_question_cards(runs: RunsByModel, limit: int = MAX_QUESTIONS) -> Iterator[cards.Card]:
    """A card per question; `limit` random ones if there are more."""
    questions = {
        f"{run.data.name}/{task.key}/{question.id}": Sample(run.data.title, task, question)
        for _, run, task in _list_tasks(runs, ChoiceTask)
        for question in task.questions
    }
    drawn = {name: questions[name] for name in cards.choose_ids(list(questions), limit)}
    rows = _collect_replies(runs, drawn, ChoiceTask, _read_choice_rows)
    for name, (title, task, question, _) in drawn.items():
        model_rows = [rows.get((model, name)) for model in runs]  # one per model; None: not asked
        templates = set[str]()  # of the options that models chose
        for row in model_rows:
            if row and row["shares"] is None:  # the model chose none
                templates.add("none")
            elif row:
                templates.update(_name_template(question, k) for k in _list_chosen(row))
        right = question.options[question.correct]
        yield cards.Card(
            name,
            title=question.asked or right.text,
            aside=f"{title} · {question.type}" if question.type else title,
            facets={
                "Task": [f"{title}, {task.key}"],
                "Right": [_name_template(question, question.correct)],
                "Chosen": sorted(templates),
            },
            values=[[row["credit"] if row else None] for row in model_rows],
            pictures=[("", _make_thumbnail(task, question.image))],
            lines=[f"{option.label}{' (right)' if option is right else ''}" for option in question.options],
            said=[_make_reply(question, row) for row in model_rows],
        )


def _read_choice_rows(run: ModelTasks, task: Any, drawn: Mapping[str, Sample]) -> Replies:
    """Yields (card name, `scoring.make_choice_row`) for every question of the task, drawn or not."""
    return ((f"{run.data.name}/{task.key}/{row['id']}", row) for row in scoring.read_rows(run, task))


def _make_reply(question: Question, row: Row | None) -> cards.CardReply | None:
    """The model's choice, with a line per option in the order shown. row: of `scoring.make_choice_row`:
    "shares" is the choice as shares of the options (None: no choice), "credit" the share of the right one."""
    if row is None:
        return None
    answer = row.get("answer") or ""  # of a generative model
    if row["shares"] is None:
        return cards.CardReply(cells=[Cell("none", row["reason"], "none")], line=answer)
    mark = {1.0: "right", 0.0: "wrong"}.get(row["credit"], "none")  # "none": a tie with the right option
    labels = [question.options[k].label for k in _list_chosen(row)]
    templates = dict.fromkeys(_name_template(question, k) for k in _list_chosen(row))
    lines = []  # (option, template, share, score)
    for letter, k in zip(LETTERS, row["shown"], strict=False):  # there are more letters than options
        score = f"{row['scores'][k]:.3f}" if row.get("scores") else ""
        share = f"{100 * row['shares'][k]:.0f} %"
        lines.append((f"{letter}: {question.options[k].label}", _name_template(question, k), share, score))
    cell = Cell(" or ".join(labels), " or ".join(templates), mark)
    return cards.CardReply(cells=[cell], line=answer, rows=lines)


def _list_chosen(row: Row) -> list[int]:
    """The indices of the chosen options: several if their scores are equal."""
    return [k for k, share in enumerate(row["shares"] or ()) if share > 0]


def _name_template(question: Question, k: int) -> str:
    return question.options[k].template or "unknown template"


def make_caption_cards(runs: RunsByModel, limit: int = MAX_CAPTIONS) -> Iterator[cards.Card]:
    """A card per negated caption: its image, and the first images that each model finds."""
    captions = {
        f"{run.data.name}/{task.key}/{item.id}#{k}": Sample(run.data.title, task, item, caption)
        for _, run, task in _list_tasks(runs, RetrievalTask)
        for item in task.negated
        for k, caption in enumerate(item.captions)
        if item.image
    }
    drawn = {name: captions[name] for name in cards.choose_ids(list(captions), limit)}
    images_found = _collect_replies(runs, drawn, RetrievalTask, _find_first_images)
    for name, (title, task, item, caption) in drawn.items():
        labeled_images = [("its image", item.image)]
        scores: list[list[float | None]] = []  # per model: whether the caption finds its image
        for model in runs:
            images = images_found.get((model, name))
            scores.append([None if images is None else float(item.image in images)])
            labeled_images += [(f"{model}: {rank}", image) for rank, image in enumerate(images or (), 1)]
        thumbnails = [(label, _make_thumbnail(task, image, 128)) for label, image in labeled_images]
        facets = {"Task": [f"{title}, {task.key}"]}
        yield cards.Card(name, caption, f"{title} · retrieval", facets, values=scores, pictures=thumbnails)


def _find_first_images(run: ModelTasks, task: Any, drawn: Mapping[str, Sample]) -> Replies:
    """Yields (card name, first images found) for each drawn caption of this task that was encoded."""
    pictures, texts = run.read_features(task)
    captions = {}  # card name -> caption
    for name, sample in drawn.items():
        if name.startswith(f"{run.data.name}/{task.key}/") and sample.caption in texts.rows:
            captions[name] = sample.caption
    seeds = [sample_seed(0, name) for name in captions]
    images_found = judged.find_images(task, pictures, texts, list(captions.values()), seeds)
    yield from zip(captions, images_found, strict=True)


def _make_thumbnail(task: Any, name: str, side: int = 256) -> cards.Thumbnail:
    """side: pixels of the image's longer side."""
    image = read_image(task.media, name)  # or a text: why there is none
    return {"none": image} if isinstance(image, str) else cards.make_thumbnail(image, side)


# --- the papers' numbers ---------------------------------------------------------------------------
KEY_COLUMNS = ("dataset", "variant", "task", "metric", "kind", "direction", "type")  # what a number is of


@lru_cache(maxsize=1)
def paper_numbers() -> pd.DataFrame:
    """The numbers that papers print: `source` (a paper), `row` of its table (a model, and its fine-tuning
    data), `KEY_COLUMNS` and `value`."""
    file = Path(__file__).with_name("paper_numbers.csv")
    rows: Any = pd.read_csv(file, keep_default_na=False).to_dict("records")
    printed = frames.frame(rows)
    return printed.assign(value=printed["value"] / 100)  # per cent in the file, as printed


def paper_gaps() -> Iterator[dict[str, Any]]:
    """The gaps in `paper_numbers` per paper, model, data set and task (see `Benchmark.paper_gaps`)."""
    columns = ["source", "row", "dataset", "task"]
    for (_, model, data, task), rows in paper_numbers().groupby(columns, observed=True, sort=False):
        for name, (affirmed_selection, negated_selection, _) in _GAP_MEASURES.items():
            affirmed = frames.pick(rows, **affirmed_selection)
            negated = frames.pick(rows, **negated_selection)
            if affirmed and negated:
                labels = {"model": model, "data": data, "measure": f"{name}, {task} ({REPHRASED})"}
                yield {**labels, "affirmed": affirmed["value"], "negated": negated["value"]}


def paper_estimates(source: str, run: Mapping[str, Any] | None) -> Iterator[PaperEstimate]:
    """The numbers of a paper (see `Benchmark.paper_estimates`). run: a manifest; the numbers of its model and
    data set; None: all."""
    printed = frames.select(paper_numbers(), source=source)
    if run:
        model = MODELS.get(run["summary"].get("row") or "")
        if not model or source not in model.published:
            return
        dataset = run["summary"].get("dataset")
        dataset = "coco" if dataset == NANO else dataset  # nano data stand for COCO
        printed = frames.select(printed, row=model.published[source], dataset=dataset)
    for row in frames.records(printed):
        key = {column: row[column] for column in KEY_COLUMNS if row[column]}
        yield PaperEstimate(row["row"], key, row["value"], row["unit"], needs_all=row["task"] == RETRIEVAL)
