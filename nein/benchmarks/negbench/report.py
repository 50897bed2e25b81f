"""The report of finished runs: OUT/table.md, figures.csv, report.html and plots. Needs no torch."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pandas as pd

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import judged, scores, stages
from nein.benchmarks.negbench.data import sets_of
from nein.benchmarks.negbench.models import MODELS
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import TEXT_TO_IMAGE
from nein.benchmarks.negbench.stages import ModelTasks
from nein.benchmarks.runner import FIGURES, Finished, Printed
from nein.datasets.negbench.records import AFFIRMATION, NEGATED, NEGATION, ORIGINAL, ChoiceTask, Question
from nein.datasets.negbench.registry import MCQ, NANO, REPHRASED, RETRIEVAL
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.metrics.letters import LETTERS
from nein.reporting import cards, format
from nein.reporting import figures as frames
from nein.reporting import page as pages
from nein.reporting.cards import Cell
from nein.reporting.figures import number
from nein.reporting.format import widest
from nein.reporting.page import Page, Part

log = logging.getLogger(__name__)
NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
HOW = (
    "Percentages. ± and [ ]: 95 % interval, clustered by picture. ↑ higher is better, ↓ lower is better. "
    "Negation gap: recall with the original captions minus recall with the negated ones, paired."
)
SIDE, LIMIT = 256, 400  # pixels of a picture's longer side; questions in a page
UNKNOWN = "made otherwise"  # an option of which no template is known
GROUP = ["model", "data", "task", "variant"]
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
        subtitle=f"Data: {NANO_LABEL}. {HOW}" if nano else HOW, findings=finding(frame),
        notes=notes(found), frame=frame,
        settings={run.name: pages.setting(run.facts) for run in found},
        stamp=NANO_LABEL if nano else "", parts=_questions(found, runs),
    )  # fmt: skip


def _questions(runs: Sequence[Evaluated], finished: Sequence[Finished]) -> list[Part]:
    """The page's part with single questions: of all runs on the data of the command's own, or of any."""
    own = [entry for entry in finished if entry.run] or finished
    here = {entry.folder.path for entry in own}
    choices = [
        (run, run.folder.manifest()["data"]["records_sha256"])
        for run in runs
        if len(frames.select(run.figures, metric="accuracy"))
    ]
    at_hand = {data for run, data in choices if run.folder.path in here}
    visible = [run for run, data in choices if data in at_hand]

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
    parts = [_gaps(run.figures, 5).assign(run=run.name, model=run.name) for run in finished]
    return frames.concat(parts)


def _gaps(figures: pd.DataFrame, k: int) -> pd.DataFrame:
    """Of every model, data set, task and wording, in recall at k and in choices."""
    measures = {
        f"recall@{k}": (f"recall@{k}", "kind", (ORIGINAL, NEGATED), f"gap@{k}", {"direction": TEXT_TO_IMAGE}),
        "choices": ("accuracy", "type", (AFFIRMATION, NEGATION), "gap", {}),
    }
    rows: list[dict[str, Any]] = []
    figures = frames.select(figures, source="")
    for _, part in figures.reindex(columns=GROUP, fill_value="").groupby(GROUP, sort=False):
        of_group = figures.loc[part.index]
        for name, (metric, column, ends, lost, where) in measures.items():
            affirmed, denied = (
                frames.pick(of_group, metric=metric, **where, **{column: end}) for end in ends
            )
            gap = frames.pick(of_group, metric=lost, **where)
            if affirmed and denied and gap and gap["value"] is not None:
                what = {key: gap.get(key, "") for key in GROUP}
                measure = f"{name}, {gap['task']} ({gap['variant']})"
                rows += frames.gap(affirmed["value"], denied["value"], gap, **what, measure=measure)
    return frames.frame(rows)


def finding(frame: pd.DataFrame) -> list[str]:
    """The widest negation gap of text-to-image retrieval in a sentence; without any, who chooses best."""
    rows = [row for row in frames.records(_gaps(frame, KS[0])) if row["measure"].startswith("recall")]
    sentence = widest(
        frames.frame({**row, "model": _run(row)} for row in rows),
        what=f"text-to-image recall at {KS[0]}",
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
    same = {key: best[key] for key in ("model", "data", "variant")}
    negation = frames.pick(chosen, type="negation", **same)
    denied = f"; {format.text(negation)} % where a negation is right" if negation else ""
    # "most" where the intervals lie apart: overlapping ones may be the same
    others = [figure["high"] for figure in totals if figure is not best]
    most = " most" if others and None not in others and best["low"] > max(others) else ""
    return [f"{_run(best)} gets{most} choices right: {format.text(best)} %{denied}."]


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


class Shown(NamedTuple):
    title: str  # of the data set
    task: ChoiceTask
    question: Question


def questions(runs: Mapping[str, Sequence[ModelTasks]], limit: int = LIMIT) -> Iterator[cards.Card]:
    """What was asked of models, by their name; `limit` random questions if there are more."""
    tasks = [
        (model, run, task, f"{run.data.name}/{task.key}")
        for model, runs_of_model in runs.items()
        for run in runs_of_model
        for task in run.tasks
        if isinstance(task, ChoiceTask)
    ]
    by_id = {
        f"{name}/{question.id}": Shown(run.data.title, task, question)
        for _, run, task, name in tasks
        for question in task.questions
    }
    drawn = {identity: by_id[identity] for identity in cards.drawn(list(by_id), limit)}
    chosen: dict[tuple[str, str], Row] = {}
    for model, run, task, name in tasks:
        try:
            rows = ((f"{name}/{row['id']}", row) for row in scores.rows(run, task))
            chosen |= {(model, identity): row for identity, row in rows if identity in drawn}
        except UserError as error:
            log.warning("no question of '%s' (%s) is shown: %s", run.folder.path, task.name, error)

    for name, item in drawn.items():
        question, replies = item.question, [chosen.get((model, name)) for model in runs]
        taken = {_template(question, k) for row in replies if row and row["shares"] for k in _taken(row)}
        none = ["none"] if any(row and row["shares"] is None for row in replies) else []
        picture = stages.picture(item.task.media, question.image)
        captions = [
            f"{option.shown}{' (right)' if k == question.correct else ''}"
            for k, option in enumerate(question.options)
        ]
        yield cards.Card(
            name,
            question.asked or question.options[question.correct].text,
            " · ".join(filter(None, (item.title, question.type))),
            {
                "Task": [f"{item.title}, {item.task.key}"],
                "Right": [_template(question, question.correct)],
                "Chosen": sorted({*taken, *none}),
            },
            [[row["credit"] if row else None] for row in replies],
            [("", {"none": picture} if isinstance(picture, str) else cards.of_picture(picture, SIDE))],
            captions,
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
    templates = " or ".join(dict.fromkeys(option.template or UNKNOWN for option in taken))
    cell = Cell(" or ".join(option.shown for option in taken), templates, mark)
    scores = row.get("scores")
    rows = [
        (f"{letter}: {question.options[k].shown}", _template(question, k),
         f"{100 * row['shares'][k]:.0f} %", f"{scores[k]:.3f}" if scores else "")
        for letter, k in zip(LETTERS, row["shown"], strict=False)
    ]  # fmt: skip
    return cards.CardReply(cells=[cell], line=line, rows=rows)


def _taken(row: Row) -> list[int]:
    """The options that a choice fell on: several where scores are equal."""
    return [k for k, share in enumerate(row["shares"]) if share > 0]


def _template(question: Question, option: int) -> str:
    return question.options[option].template or UNKNOWN


#: Source -> what a table says of it.
_PRINTED = {
    "paper_table1": "paper", "paper_figures": "paper", "repo_baseline": "repository",
    "repo_scaling": "repository, scaling", "repo_finetuned": "repository",
}  # fmt: skip
OF = ("dataset", "variant", "task", "metric", "kind", "direction", "type")


@lru_cache(maxsize=1)
def paper_numbers() -> pd.DataFrame:
    """What authors print, as figures: its `source`, the `row` there (a model and its data of fine-tuning) and
    the columns `OF`. The file has values as printed, in per cent."""
    file = Path(__file__).with_name("paper_numbers.csv")
    printed = frames.frame(pd.read_csv(file, keep_default_na=False).to_dict("records"))
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
                apart = number(lost, unit="points", metric="gap@5", direction=TEXT_TO_IMAGE)
                printed.append({**printed[0], "kind": "", **apart})
            words = ", ".join(filter(None, (_PRINTED[source], otherwise)))
            more = {**group, "model": f"{group['model']}, as printed ({words})", "source": "printed"}
            rows += [{**row, **more, "row": "", "benchmark": "negbench"} for row in printed]
    return frames.frame(rows)


def gaps() -> Iterator[dict[str, Any]]:
    """What is printed, as a leaderboard has it."""
    affirmed = {("recall@5", ORIGINAL): NEGATED, ("accuracy", AFFIRMATION): NEGATION}
    by: dict[tuple[tuple[str, ...], str], float] = {}
    for row in frames.records(paper_numbers(), source=tuple(_PRINTED)):
        place = tuple(row[key] for key in ("source", "row", "dataset", "task", "metric"))
        by[place, row["kind"] or row["type"]] = row["value"]
    for (place, end), value in by.items():
        _, name, data, task, metric = place
        denied = by.get((place, affirmed.get((metric, end), "none")))
        if denied is not None:
            measure = f"{'choices' if metric == 'accuracy' else metric}, {task} ({REPHRASED})"
            yield {"model": name, "data": data, "measure": measure, "affirmed": value, "negated": denied}


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
