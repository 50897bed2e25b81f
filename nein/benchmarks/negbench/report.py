"""The report of finished runs: OUT/table.md, figures.csv, report.html and plots. Needs no torch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pandas as pd

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import judged, scores, stages
from nein.benchmarks.negbench.data import sets_of
from nein.benchmarks.negbench.models import MODELS
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import TEXT_TO_IMAGE
from nein.benchmarks.negbench.stages import ModelTasks
from nein.benchmarks.runner import FIGURES, Finished, Printed
from nein.datasets.negbench.records import (
    AFFIRMATION,
    NEGATED,
    NEGATION,
    ORIGINAL,
    ChoiceTask,
    Option,
    Question,
)
from nein.datasets.negbench.registry import MCQ, NANO, REPHRASED, RETRIEVAL
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.metrics.letters import LETTERS
from nein.reporting import cards, tables
from nein.reporting import figures as frames
from nein.reporting.cards import Cell
from nein.reporting.figures import number
from nein.reporting.page import Page, Part
from nein.reporting.tables import widest

log = logging.getLogger(__name__)
NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
HOW = (
    "Percentages. ± and [ ]: 95 % interval, clustered by picture. ↑ higher is better, ↓ lower is better. "
    "Negation gap: recall with the original captions minus recall with the negated ones, paired."
)
SIDE, LIMIT = 256, 400  # pixels of a picture's longer side; questions in a page
UNKNOWN = "made otherwise"  # an option of which no template is known
GROUP = ["model", "data", "task", "variant"]
K = 5  # of retrieval's negation gap, on a page as on a leaderboard: authors print recall at 5
#: A measure, its figures, their ends, affirmed and denied, and the figure of the gap.
_LOST: Sequence[tuple[str, str, Any, str, Mapping[str, str]]] = (
    (
        f"recall@{K}",
        f"recall@{K}",
        ({"kind": ORIGINAL}, {"kind": NEGATED}),
        f"gap@{K}",
        {"direction": TEXT_TO_IMAGE},
    ),
    ("choices", "accuracy", ({"type": AFFIRMATION}, {"type": NEGATION}), "gap", {}),
)
RIGHT = cards.Measure("right", "choice")
COLUMNS = ("caption", "made as", "chosen", "score")


@dataclass(frozen=True)
class Evaluated:
    folder: Folder
    facts: Mapping[str, Any]  # `summary` of its manifest
    figures: pd.DataFrame

    @property
    def name(self) -> str:
        return f"{self.facts['model']}, {self.facts['title']}"

    @property
    def data(self) -> str:
        return str(self.folder.manifest()["data"]["records_sha256"])


def page(runs: Sequence[Finished], options: Any) -> Page | None:
    """What a report says of runs besides their plots, models in the order of the runs."""
    if not runs:
        return None
    models = [finished.folder.path.parent.name for finished in runs]
    order = sorted(range(len(runs)), key=lambda k: models.index(models[k]))
    found = evaluated([runs[k].folder for k in order])
    nano = {run.facts["dataset"].partition("-")[0] for run in found} == {NANO}
    frame = together(found)
    return Page(
        f"NegBench: {', '.join(dict.fromkeys(run.facts['model'] for run in found))}",
        subtitle=f"Data: {NANO_LABEL}. {HOW}" if nano else HOW,
        findings=finding(frame),
        notes=notes(found),
        frame=frame,
        stamp=NANO_LABEL if nano else "",
        parts=_questions(found, runs),
    )


def _questions(runs: Sequence[Evaluated], finished: Sequence[Finished]) -> list[Part]:
    """The page's part with single questions: of all runs on the data of the command's own, or of any."""
    own = [entry for entry in finished if entry.run] or finished
    here = {entry.folder.path for entry in own}
    chosen = [run for run in runs if len(frames.select(run.figures, metric="accuracy"))]
    at_hand = {run.data for run in chosen if run.folder.path in here}
    visible = [run for run in chosen if run.data in at_hand]

    def make() -> Iterator[cards.Card]:
        loaded = {(data := cast(Any, entry.run).asked.data).sha256: data for entry in own if entry.run}
        data_sets = list(loaded.values()) or sets_of([entry.folder for entry in own])
        by_model: dict[str, list[ModelTasks]] = {}
        for run in visible:
            tasks = ModelTasks.of_folder(run.folder, data_sets)
            by_model.setdefault(run.facts["model"], []).extend([tasks] if tasks else [])
        return questions(by_model)

    members = [cards.Member(model) for model in dict.fromkeys(run.facts["model"] for run in visible)]
    words = ("questions", "Model", "Asked")
    samples = cards.Samples(members, [RIGHT], words=words, heads=("choice",), columns=COLUMNS)
    return [cards.browser(samples, make, title="Questions")] if visible else []


def evaluated(runs: Sequence[Folder]) -> list[Evaluated]:
    """Models of one name are told apart by their run directories, equal runs by where they lie."""
    all_facts = [
        {**run.manifest()["summary"], "quick_gelu": run.models()["model"].get("quick_gelu")} for run in runs
    ]
    folders: dict[str, set[str]] = {}
    for run, facts in zip(runs, all_facts, strict=True):
        folders.setdefault(facts["model"], set()).add(run.path.parent.name)
    times = Counter(run.path.parts[-2:] for run in runs)
    found = []
    for run, facts in zip(runs, all_facts, strict=True):
        name = run.path.parent.name if len(folders[facts["model"]]) > 1 else facts["model"]
        if times[run.path.parts[-2:]] > 1:
            name = f"{name} ({run.path.parents[1]})"
        parts = [run.path / FIGURES, run.path / judged.FIGURES]
        figures = frames.concat(frames.read(file) for file in parts if file.exists())
        # data set and task, as tables show them
        data = [f"{facts['title']}{'' if t in (RETRIEVAL, MCQ) else f' {t}'}" for t in figures["task"]]
        what = {"benchmark": "negbench", "model": name, "dataset": facts["dataset"], "data": data}
        found.append(Evaluated(run, {**facts, "model": name}, frames.label(figures, **what)))
    return found


def together(runs: Sequence[Evaluated]) -> pd.DataFrame:
    """All figures; in the paper preset, those that its authors print stand behind those of their model."""
    parts = []
    for run in runs:
        parts.append(run.figures)
        if run.facts["preset"] == "paper" and run.facts["row"] is not None:
            features = run.facts["features"] or "normalised"
            parts.append(beside(run.figures, run.facts["row"], features, run.facts["quick_gelu"]))
    return frames.concat(parts)


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """As of `Benchmark.gaps`: what is lost in retrieval and in multiple choice, by wording."""
    return frames.concat(_gaps(run.figures).assign(run=run.name, model=run.name) for run in finished)


def _gaps(figures: pd.DataFrame) -> pd.DataFrame:
    """Of every model, data set, task and wording, in recall at `K` and in choices."""
    rows: list[Any] = []
    figures = frames.select(figures, source="")
    figures = figures.assign(**{name: "" for name in GROUP if name not in figures})
    for key, of_group in figures.groupby(GROUP, observed=True, sort=False):
        what = dict(zip(GROUP, key, strict=True))
        for name, metric, ends, lost, where in _LOST:
            affirmed, denied = (frames.pick(of_group, metric=metric, **end, **where) for end in ends)
            gap = frames.pick(of_group, metric=lost, **where)
            if affirmed and denied and gap and gap["value"] is not None:
                measure = f"{name}, {what['task']} ({what['variant']})"
                rows += frames.gap(affirmed["value"], denied["value"], gap, **what, measure=measure)
    return frames.frame(rows)


def finding(frame: pd.DataFrame) -> list[str]:
    """The widest negation gap of text-to-image retrieval in a sentence; without any, who chooses best."""
    rows = [row for row in frames.records(_gaps(frame)) if row["measure"].startswith("recall")]
    sentence = widest(
        frames.frame({**row, "model": _run(row)} for row in rows),
        what=f"text-to-image recall at {K}",
        change="a caption says what is absent",
        models="models and data sets",
    )
    if sentence:
        return [sentence]
    chosen = frames.select(frame, metric="accuracy", source="")
    totals = [f for f in frames.records(frames.select(chosen, type="all")) if f["value"] is not None]
    if not totals:
        return []
    best = max(totals, key=lambda figure: figure["value"])
    negation = frames.pick(
        chosen, type="negation", **{key: best[key] for key in ("model", "data", "variant")}
    )
    denied = f"; {tables.text(negation)} % where a negation is right" if negation else ""
    # "most" where the intervals lie apart: overlapping ones may be the same
    others = [figure["high"] for figure in totals if figure is not best]
    most = " most" if others and None not in others and best["low"] > max(others) else ""
    return [f"{_run(best)} gets{most} choices right: {tables.text(best)} %{denied}."]


def _run(figure: Mapping[str, Any]) -> str:
    return f"{figure['model']} ({figure['data']}, {figure['variant']})"


#: Of `ModelTasks.counts`, as a note says it.
_COUNTED = {
    "cut": "{count:,} of {of:,} captions are longer than what the model reads; their ends were not read.",
    "turned": "{count:,} of {of:,} images have an EXIF orientation, which is ignored.",
}


def notes(runs: Sequence[Evaluated]) -> list[str]:
    all_facts, lines = [run.facts for run in runs], []
    for key, what in (("protocol", "protocol"), ("features", "features"), ("limit", "--limit")):
        if len({facts[key] for facts in all_facts if facts["kind"] == "dual"}) > 1:
            lines.append(f"the rows differ in {what}; they are not comparable with each other.")
    for value, text in (
        ("paper", "protocol 'paper': the right option comes first and ties go to the first, as released."),
        ("unnormalised", "multiple choice compares features that are not normalised, as first published."),
    ):
        if any(value in (facts["protocol"], facts["features"]) for facts in all_facts):
            lines.append(text)
    lines += dict.fromkeys(flag for run in runs for flag in frames.values(run.figures, "flag"))
    for run in runs:
        otherwise = differs(run.facts["row"], run.facts["quick_gelu"])
        if run.facts["preset"] == "paper" and otherwise:
            lines.append(
                f"{run.name}: the printed figures beside it were computed {otherwise}, which this model is "
                "not; they are not comparable."
            )
    if limits := {facts["limit"] for facts in all_facts if facts["limit"]}:
        lines.append(
            f"--limit {max(limits)}: recall among fewer pictures is higher than on the whole set, and not "
            "comparable with it."
        )
    for run in runs:
        for what, counted in run.folder.manifest().get("counts", {}).items():
            if counted["count"] and what in _COUNTED:
                lines.append(f"{run.name}, {run.facts['title']}: {_COUNTED[what].format(**counted)}")
        for figure in frames.records(run.figures):
            total = figure["metric"] == f"recall@{KS[0]}" or figure.get("type") == "all"
            if total and figure["unscored"] and (reasons := frames.reasons(figure)):
                reason, count = next(iter(reasons.items()))
                named = (figure.get(key) for key in ("task", "variant", "kind", "direction"))
                baseline = figure["metric"] if figure["metric"] in BASELINES else ""
                where = ", ".join(filter(None, (*named, baseline)))
                lines.append(f"{run.name}, {where}: {figure['unscored']} unscored; {count} of them: {reason}")
    return lines


def questions(runs: Mapping[str, Sequence[ModelTasks]], limit: int = LIMIT) -> Iterator[cards.Card]:
    """What was asked of models, by their name; `limit` random questions if there are more."""
    every = [(model, run, task) for model, of_model in runs.items() for run in of_model for task in run.tasks]
    tasks = [(model, run, task) for model, run, task in every if isinstance(task, ChoiceTask)]
    by_id = {
        f"{run.data.name}/{task.key}/{question.id}": (run.data.title, task, question)
        for _, run, task in tasks
        for question in task.questions
    }
    drawn = {identity: by_id[identity] for identity in cards.drawn(list(by_id), limit)}
    chosen: dict[tuple[str, str], Row] = {}
    for model, run, task in tasks:
        try:
            named = ((f"{run.data.name}/{task.key}/{row['id']}", row) for row in scores.rows(run, task))
            chosen |= {(model, identity): row for identity, row in named if identity in drawn}
        except UserError as error:
            log.warning("no question of '%s' (%s) is shown: %s", run.folder.path, task.name, error)
    for name, (title, task, question) in drawn.items():
        replies = [chosen.get((model, name)) for model in runs]
        taken = {
            _template(question.options[k]) for row in replies if row and row["shares"] for k in _taken(row)
        }
        taken |= {"none"} if any(row and row["shares"] is None for row in replies) else set()
        seen = stages.picture(task.media, question.image)
        right = question.options[question.correct]
        yield cards.Card(
            name,
            question.asked or right.text,
            " · ".join(filter(None, (title, question.type))),
            {"Task": [f"{title}, {task.key}"], "Right": [_template(right)], "Chosen": sorted(taken)},
            [[row["credit"] if row else None] for row in replies],
            [("", {"none": seen} if isinstance(seen, str) else cards.of_picture(seen, SIDE))],
            [f"{o.shown}{' (right)' if o is right else ''}" for o in question.options],
            [_said(question, row) for row in replies],
        )


def _said(question: Question, row: Row | None) -> cards.CardReply | None:
    if row is None:
        return None
    line = row.get("answer") or ""
    if row["shares"] is None:
        return cards.CardReply(cells=[Cell("none", row["reason"], "none")], line=line)
    taken = [question.options[k] for k in _taken(row)]
    mark = {1.0: "right", 0.0: "wrong"}.get(row["credit"], "none")
    cell = Cell(" or ".join(o.shown for o in taken), " or ".join(dict.fromkeys(map(_template, taken))), mark)
    rows = []
    for letter, k in zip(LETTERS, row["shown"], strict=False):
        score = f"{row['scores'][k]:.3f}" if row.get("scores") else ""
        option, share = question.options[k], f"{100 * row['shares'][k]:.0f} %"
        rows.append((f"{letter}: {option.shown}", _template(option), share, score))
    return cards.CardReply(cells=[cell], line=line, rows=rows)


def _taken(row: Row) -> list[int]:
    """The options that a choice fell on: several where scores are equal."""
    return [k for k, share in enumerate(row["shares"]) if share > 0]


def _template(option: Option) -> str:
    return option.template or UNKNOWN


#: Source -> what a table says of it.
_PRINTED = {"paper_table1": "paper", "paper_figures": "paper", "repo_baseline": "repository"}
_PRINTED |= {"repo_scaling": "repository, scaling", "repo_finetuned": "repository"}
OF = ("dataset", "variant", "task", "metric", "kind", "direction", "type")


@lru_cache(maxsize=1)
def paper_numbers() -> pd.DataFrame:
    """What authors print, as figures: its `source`, the `row` there (a model and its data of fine-tuning) and
    the columns `OF`. The file has values as printed, in per cent."""
    file = Path(__file__).with_name("paper_numbers.csv")
    rows: Any = pd.read_csv(file, keep_default_na=False).to_dict("records")
    printed = frames.frame(rows)
    return printed.assign(value=printed["value"] / 100)


def differs(row: str | None, quick_gelu: bool | None) -> str:
    """What sets a model apart from the printed figures of a row of `models.MODELS`, or ""."""
    listed = MODELS.get(row or "")
    if listed is None or not listed.published or quick_gelu in (None, listed.quick_gelu):
        return ""
    return f"{'with' if listed.quick_gelu else 'without'} QuickGELU"


def beside(figures: pd.DataFrame, model: str, features: str, quick_gelu: bool | None = None) -> pd.DataFrame:
    """The printed figures of a model of `models.MODELS` beside its own; the model's name says that they are
    printed, and if they were computed otherwise. features: of multiple choice the paper prints those of
    "unnormalised", the repository those of "normalised"."""
    rows: list[dict[str, Any]] = []
    otherwise, known = differs(model, quick_gelu), MODELS[model].published if model in MODELS else {}
    for group in frames.records(figures[["model", "dataset", "data", "task", "variant"]].drop_duplicates()):
        by_paper = group["task"] == RETRIEVAL or features == "unnormalised"
        where = {key: group[key] for key in ("dataset", "task", "variant")}
        for source in (source for source in _PRINTED if source in known):
            if source.startswith("paper") != by_paper:
                continue
            printed = frames.records(paper_numbers(), source=source, row=_named(known[source]), **where)
            recalls = {row["kind"]: row["value"] for row in printed if row["kind"]}
            if len(recalls) == 2:
                lost = recalls[ORIGINAL] - recalls[NEGATED]
                apart = number(lost, unit="points", metric=f"gap@{K}", direction=TEXT_TO_IMAGE)
                printed.append({**printed[0], "kind": "", **apart})
            words = ", ".join(filter(None, (_PRINTED[source], otherwise)))
            more = {**group, "model": f"{group['model']}, as printed ({words})", "source": "printed"}
            rows += [{**row, **more, "row": "", "benchmark": "negbench"} for row in printed]
    return frames.frame(rows)


def gaps() -> Iterator[dict[str, Any]]:
    """What is printed, as a leaderboard has it."""
    printed = frames.select(paper_numbers(), source=tuple(_PRINTED))
    place = ["source", "row", "dataset", "task"]
    for (_, name, data, task), rows in printed.groupby(place, observed=True, sort=False):
        for measure, metric, ends, _, _ in _LOST:
            affirmed, denied = (frames.pick(rows, metric=metric, **end) for end in ends)
            if affirmed and denied:
                what = {"model": name, "data": data, "measure": f"{measure}, {task} ({REPHRASED})"}
                yield {**what, "affirmed": affirmed["value"], "negated": denied["value"]}


def _named(model: tuple[str, str]) -> str:
    return model[0] if model[1] == "none" else " + ".join(model)


def published(source: str, run: Mapping[str, Any] | None) -> Iterator[Printed]:
    """The figures of a source: of the model and data set of a run, by its manifest, or all."""
    printed = frames.select(paper_numbers(), source=source)
    if run:
        listed = MODELS.get(run["summary"].get("row") or "")
        mine = listed.published.get(source) if listed else None
        where = run["summary"].get("dataset")
        where = "coco" if where == NANO else where  # which drawn data stand for
        printed = frames.select(printed, row=_named(mine) if mine else (), dataset=where)
    for row in frames.records(printed):
        of = {key: row[key] for key in OF if row[key]}
        yield Printed(row["row"], of, row["value"], row["unit"], whole=row["task"] == RETRIEVAL)
