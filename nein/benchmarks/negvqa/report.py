"""What a report of finished runs says besides its tables and plots, and what stands beside Table 1."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from nein.benchmarks.negvqa import data, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.data import ANSWERS, Answer, is_negvqa, printed_as
from nein.benchmarks.negvqa.estimates import OUTCOMES
from nein.benchmarks.runner import Finished, PaperEstimate, select_rows
from nein.datasets import negvqa as questions
from nein.datasets.negvqa import AVERAGE, HUB, VARIANTS, Item
from nein.engine.folder import Row
from nein.loading.errors import UserError
from nein.metrics.letters import LETTERS
from nein.reporting import cards
from nein.reporting import figures as frames
from nein.reporting.cards import Cell
from nein.reporting.page import Page
from nein.reporting.tables import widest

SIDE = 256
_OUTCOMES: dict[tuple[float | None, ...], str] = {
    values: sections.OUTCOME_TITLES[name] for name, values in OUTCOMES.items()
}
MARKS = {1.0: "right", 0.0: "wrong", None: "none"}
MEASURES = tuple(cards.Measure(variant, f"{variant} question") for variant in VARIANTS)
COLUMNS = ("question", "answer", "read as", "log p")


def page(finished: Sequence[Finished], options: NegvqaConfig | ReportConfig) -> Page:
    """Raises UserError when runs asked different questions."""
    first, *others = finished
    for other in others:
        if other.manifest["data"]["sha256"] != first.manifest["data"]["sha256"]:
            raise UserError(
                f"'{first.name}' and '{other.name}' were asked different questions; report them apart."
            )
    finding = widest(negation_gaps(finished), what="accuracy", change="a question becomes its negation")
    comparable = {
        run.name: (run.figures, run.manifest["reference"])
        for run in finished
        if is_negvqa(run.manifest["data"])
    }
    figures = [part for name, given in comparable.items() for part in _own_by_size(name, *given)]
    figures += [by_size()] if comparable else []
    figures += [table_1(comparable), over_models({run.name: run.figures for run in finished})]
    as_published = {run.manifest["protocol"] for run in finished} == {"paper"}
    chief = frames.select(frames.concat(run.figures for run in finished), headline="yes")
    chief = chief.drop_duplicates("model")
    headlines = dict(zip(chief["model"], chief["scoring"], strict=True))
    samples = cards.Samples(
        [cards.Member(run.name) for run in finished],
        MEASURES,
        chosen=VARIANTS[1],
        rivals=(*VARIANTS, "Negation decides"),
        words=("questions", "Model", "Asked"),
        heads=VARIANTS,
        columns=COLUMNS,
    )
    parts = []
    if isinstance(options, ReportConfig) and options.shown:  # an evaluation writes no page
        count = max(run.manifest["limit"] for run in finished)
        note = f"{options.shown} of {count:,} questions, drawn at random." if count > options.shown else ""
        read = functools.partial(asked, finished, find_items(first, options), options.shown, headlines)
        parts = [cards.browser(samples, read, title="Answers", note=note)]
    return Page(
        "NegVQA",
        _subtitle(finished),
        _notes(finished),
        [finding] if finding else [],
        parts,
        figures=figures,
        sections=[section for section in sections.SECTIONS if comparable or section.key != sections.PAPER],
        headline=[*([sections.accuracy("paper", "clustered")] if as_published else []), sections.OVER_ALL],
    )


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """As of `Benchmark.gaps`: over all categories, by the scoring that counts for a model."""
    rows: list[Row] = []
    where = {"task": "gap", "category": AVERAGE, "protocol": "fixed", "headline": "yes"}
    for run in finished:
        by = {row["metric"]: row for row in frames.records(run.figures, **where)}
        if by.get("gap", {}).get("value") is not None:
            what = {"run": run.name, "model": run.name, "measure": f"accuracy ({by['gap']['scoring']})"}
            rows += frames.gap(by["original"]["value"], by["negated"]["value"], by["gap"], **what)
    return frames.frame(rows)


def _subtitle(finished: Sequence[Finished]) -> str:
    """Data, number of questions and date of all runs: they have the first two in common, but for a limit."""
    manifests = [run.manifest for run in finished]
    origin = manifests[0]["data"]
    source = origin.get("file", "drawn questions of the miniature world")
    if "name" in origin:
        source = f"hub:{origin['name']}{'@' + origin['revision'] if origin.get('revision') else ''}"
    counts = sorted({manifest["limit"] for manifest in manifests})
    number = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
    whole = "" if counts == [origin["questions"]] else f" of {origin['questions']:,}"
    last = max(call["started"] for manifest in manifests for call in manifest["invocations"])
    return f"Data: {source}. n = {number}{whole} questions, each as it is and negated. Date: {last[:10]}."


def _notes(finished: Sequence[Finished]) -> list[str]:
    manifests = [run.manifest for run in finished]
    presets = {manifest["preset"] for manifest in manifests}
    nano = "Miniature models on drawn questions: real measurements, not comparable with the paper's"
    prompts = ", ".join(sorted({manifest["identity"]["prompt"] for manifest in manifests}))
    matchers = ", ".join(sorted({manifest["matcher"] for manifest in manifests}))
    notes = [
        f"Preset: {nano if presets == {'nano'} else ', '.join(sorted(presets))}. Prompt: {prompts}. "
        f"Letters under protocol 'paper': VLMEvalKit's rule, matcher {matchers}."
    ]
    if not all(is_negvqa(manifest["data"]) for manifest in manifests):
        notes.append("These are not NegVQA's own questions, so nothing here is comparable with its Table 1.")
    for run in finished:
        if run.manifest["identity"].get("asking") == "options":
            notes.append(
                f"{run.name}: asked about one option at a time in its yes/no question about a caption; "
                "'generated' is the only option with a yes, 'logprob' the one whose yes is likelier."
            )
    return notes


# --- single questions ------------------------------------------------------------------------------


def find_items(run: Finished, options: Any) -> Sequence[Item]:
    """The questions that runs were asked, where they can be found."""
    origin = run.manifest["data"]
    if "world" in origin:
        return questions.load(origin["world"], questions=origin["questions"]).items
    if options.data is None:
        return ()
    found = questions.load(
        options.data,
        negated=getattr(options, "negated", None),
        pictures=options.images,
        columns=origin.get("columns"),
        split=origin.get("split", "test"),
    )
    if found.sha256 != origin["sha256"]:
        raise UserError(f"'{options.data}' does not hold the questions that '{run.folder.path}' was asked.")
    return found.items


def asked(
    finished: Sequence[Finished], items: Sequence[Item], limit: int, headlines: Mapping[str, str]
) -> Iterator[cards.Card]:
    """The first model's questions in data order, `limit` random ones if there are more. items: with their
    images, where they can be found. headlines: model -> the scoring that makes an answer right or wrong."""
    rows: dict[str, dict[str, Answer]] = {}
    for row in select_rows(finished[0].folder, ANSWERS):
        rows.setdefault(row.id, {})[row.variant] = row
    whole = [name for name, both in rows.items() if [*both] == [*VARIANTS]]
    rows = {name: rows[name] for name in cards.drawn(whole, limit)}
    replies: dict[tuple[str, str, str], Reply] = {}
    for run in finished:
        order = sorted(
            run.manifest["scoring"], key=lambda scoring: (scoring != headlines.get(run.name), scoring)
        )
        for row in select_rows(run.folder, ANSWERS):
            if row.id in rows:
                replies[run.name, row.id, row.variant] = _reply(row, order)
    pictures = {item.id: cards.of_file(item.picture, SIDE) for item in items if item.id in rows}
    for name, both in rows.items():
        said = [[replies.get((run.name, name, variant), Reply()) for variant in VARIANTS] for run in finished]
        values = [[half.value for half in pair] for pair in said]
        one = both[VARIANTS[0]]
        options = (f"{letter}: {text}" for letter, text in zip(LETTERS, one.options, strict=False))
        outcomes = {_OUTCOMES.get(tuple(pair), "unscored") for pair in values}
        yield cards.Card(
            name,
            one.question,
            one.subset,
            {"Subset": [one.subset], "Pair": sorted(outcomes)},
            values,
            [("", pictures[name])] if name in pictures else [],
            [
                *(f"{v.capitalize()}: {both[v].question} ({both[v].answer})" for v in both),
                " · ".join(options),
            ],
            [cards.CardReply(cells=[h.cell for h in p], rows=[h.row for h in p if h.row]) for p in said],
        )


class Reply(NamedTuple):
    """An answer in the page: 1.0 right, 0.0 wrong, None unscored or not asked; its cell and its row below."""

    value: float | None = None
    cell: Cell = Cell("not asked", mark="none")
    row: tuple[str, ...] = ()


def _reply(row: Answer, scorings: Sequence[str]) -> Reply:
    """Read under the protocol "fixed"; by the first scoring it is right or wrong."""
    verdicts = [scores.read(row, scoring, "fixed") for scoring in scorings]
    read = ", ".join(f"{s} {v['letter'] or v['reason']}" for s, v in zip(scorings, verdicts, strict=True))
    text, value = row.error or row.text or "", verdicts[0]["value"]
    logs = " / ".join("–" if p is None else f"{p:.2f}" for p in row.logprobs or ())
    return Reply(value, Cell(text, read, MARKS[value]), (row.question, text, read, logs))


# --- what is printed -------------------------------------------------------------------------------


def paper_gaps() -> Iterator[Row]:
    """The averages of Table 1 as a leaderboard has them."""
    for model, part in frames.select(data.cells(), category=AVERAGE).groupby("model", sort=False):
        shares = dict(zip(part["variant"], part["value"], strict=True))
        ends = {"affirmed": shares["original"], "negated": shares["negated"]}
        yield {"model": model, "data": HUB, "measure": "accuracy (generated)", **ends}


def paper_estimates(source: str, run: Mapping[str, Any] | None) -> Iterator[PaperEstimate]:
    """Table 1 for `nein reproduce`: of the model of a run, by its manifest, or all. A model that lies in a
    folder is known by the name that it was given: the end of its hub id."""
    wanted = {"model": printed_as(run["reference"]) or printed_as(run["name"])} if run else {}
    facts = {"task": "accuracy", "protocol": "paper", "scoring": "generated", "interval": "clustered"}
    for cell in frames.records(data.cells(), **wanted):
        of = {**facts, "variant": cell["variant"], "category": cell["category"]}
        yield PaperEstimate(cell["model"], of, cell["value"], "%", cell["n"])


def _as_printed(figures: pd.DataFrame, name: str, **where: str) -> pd.DataFrame:
    """A model's accuracies as Table 1 has them (`source` "here"), of what it wrote where it was asked to."""
    shares = frames.select(figures, task="accuracy", protocol="paper", interval="normal", **where)
    shares = shares[shares["value"].notna()]
    return shares[shares["scoring"] == shares["scoring"].min()].assign(model=name, source="here")


def table_1(runs: Mapping[str, tuple[pd.DataFrame, str]]) -> pd.DataFrame:
    """Table 1 (task "table1", `source` "printed"), and below each of its models those measured here ("here",
    protocol "paper"); others stand at the end. runs: name -> (figures, reference)."""
    here = [(printed_as(reference), _as_printed(own, name)) for name, (own, reference) in runs.items()]
    parts = []
    for model, part in data.cells().groupby("model", sort=False):
        parts += [part.assign(source="printed"), *(own for printed, own in here if printed == model)]
    return frames.concat([*parts, *(own for printed, own in here if printed is None)], task="table1")


def over_models(runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The best model of either kind of questions, and the mean drop over models (task "overall"): of Table 1
    ("printed") and, where there are several, of the figures of runs ("here"), protocol "paper"."""
    rows: list[Row] = []
    here = frames.concat(_as_printed(figures, name) for name, figures in runs.items())
    for source, part in (("printed", data.cells()), ("here", here)):
        if not len(part := frames.select(part, category=AVERAGE)):
            continue
        wide = part.pivot(index="model", columns="variant", values="value").reindex(columns=VARIANTS).dropna()
        if len(wide) > 1:
            what: Row = {"task": "overall", "source": source, "n": len(wide)}
            drop = float((wide["original"] - wide["negated"]).mean())
            rows.append(frames.number(drop, unit="points", metric="mean drop", **what))
            for variant, column in wide.items():
                best = frames.number(column.max(), unit="%", metric="best", variant=variant, **what)
                rows.append({**best, "model": column.idxmax()})
    return frames.frame(rows)


def by_size() -> pd.DataFrame:
    """The printed figures of the models that the paper draws, by family and size (task "scaling"), and those
    of the notebook by subset (task "subset scaling")."""
    parts = []
    for task, table in (("scaling", data.cells()), ("subset scaling", data.subset_cells())):
        table = table.assign(source="printed", low=None, high=None)
        for model, part in table.groupby("model", sort=False):
            if model in data.HUB_IDS and model != "Molmo-7B-D":  # as in the paper's plots
                parts.append(_sized(part, task, str(model)))
    return frames.concat(parts)


def _own_by_size(model: str, figures: pd.DataFrame, reference: str) -> list[pd.DataFrame]:
    """The same of a model measured here."""
    name = printed_as(reference) or reference
    subsets = frames.select(figures, task="subsets", metric="accuracy", headline="yes")
    subsets = subsets[subsets["value"].notna()].assign(model=model, source="here")
    whole = _as_printed(figures, model, headline="yes")
    return [_sized(whole, "scaling", name), _sized(subsets, "subset scaling", name)]


def _sized(figures: pd.DataFrame, task: str, name: str) -> pd.DataFrame:
    """The figures of a model with its family and size; none where its name does not say them."""
    if (size := data.family(name)) is None:
        return figures.head(0)
    line = {"line": f"{size[0]}, " + figures["variant"]} if task == "subset scaling" else {}
    return figures.assign(task=task, family=size[0], size=f"{size[1]:g}", **line)
