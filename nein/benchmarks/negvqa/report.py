"""The page of finished NegVQA runs: heading, notes, single questions; and our numbers next to the paper's."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from nein.benchmarks.negvqa import data, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.data import ANSWERS, Answer, find_paper_name, is_negvqa
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
from nein.reporting.tables import describe_widest

SIDE = 256  # pixels of an image's longer side
#: (value of the original, value of the negated question) -> what the page calls it
_OUTCOMES: dict[tuple[float | None, ...], str] = {
    values: sections.OUTCOME_TITLES[name] for name, values in OUTCOMES.items()
}
MARKS = {1.0: "right", 0.0: "wrong", None: "none"}
MEASURES = tuple(cards.Measure(variant, f"{variant} question") for variant in VARIANTS)
COLUMNS = ("question", "answer", "read as", "log p")


def make_page(finished: Sequence[Finished], options: NegvqaConfig | ReportConfig) -> Page:
    """Raises UserError when runs asked different questions."""
    first, *others = finished
    for other in others:
        if other.manifest["data"]["sha256"] != first.manifest["data"]["sha256"]:
            raise UserError(
                f"'{first.name}' and '{other.name}' were asked different questions; give each a report."
            )
    finding = describe_widest(
        negation_gaps(finished), quantity="accuracy", change="a question becomes its negation"
    )
    # Only the published questions stand next to the paper's numbers.
    comparable = {
        run.name: (run.figures, run.manifest["reference"])
        for run in finished
        if is_negvqa(run.manifest["data"])
    }
    parts_of_page = [part for name, entry in comparable.items() for part in _scale_model(name, *entry)]
    parts_of_page += [scale_paper_models()] if comparable else []
    parts_of_page += [table_1(comparable), summarize_models({run.name: run.figures for run in finished})]
    as_published = {run.manifest["protocol"] for run in finished} == {"paper"}
    headline_rows = frames.select(frames.concat(run.figures for run in finished), headline="yes")
    headline_rows = headline_rows.drop_duplicates("model")
    headlines = dict(zip(headline_rows["model"], headline_rows["scoring"], strict=True))  # model -> scoring
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
        read = functools.partial(make_cards, finished, find_items(first, options), options.shown, headlines)
        parts = [cards.make_browser(samples, read, title="Answers", note=note)]
    manifests = [run.manifest for run in finished]  # of runs on the same data; their --limit may differ
    origin = manifests[0]["data"]
    source = origin.get("file", "drawn questions of the miniature world")
    if "name" in origin:
        source = f"hub:{origin['name']}{'@' + origin['revision'] if origin.get('revision') else ''}"
    counts = sorted({manifest["limit"] for manifest in manifests})
    number = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
    total = "" if counts == [origin["questions"]] else f" of {origin['questions']:,}"
    last = max(call["started"] for manifest in manifests for call in manifest["invocations"])
    return Page(
        "NegVQA",
        f"Data: {source}. n = {number}{total} questions, each original and negated. Date: {last[:10]}.",
        _notes(finished),
        [finding] if finding else [],
        parts,
        figures=parts_of_page,
        sections=[section for section in sections.SECTIONS if comparable or section.key != sections.PAPER],
        headline=[
            *([sections.accuracy_table("paper", "clustered")] if as_published else []),
            sections.OVER_ALL,
        ],
    )


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """See `Benchmark.gaps`: over all categories, by the scoring that headlines a model."""
    rows: list[Row] = []
    columns = {"task": "gap", "category": AVERAGE, "protocol": "fixed", "headline": "yes"}
    for run in finished:
        ends = {row["metric"]: row for row in frames.records(run.figures, **columns)}
        gap = ends.get("gap", {})
        if gap.get("value") is not None:
            labels = {"run": run.name, "model": run.name, "measure": f"accuracy ({gap['scoring']})"}
            rows += frames.gap(ends["original"]["value"], ends["negated"]["value"], gap, **labels)
    return frames.frame(rows)


def _notes(finished: Sequence[Finished]) -> list[str]:
    manifests = [run.manifest for run in finished]
    presets = {manifest["preset"] for manifest in manifests}
    nano = "nano (miniature models on drawn questions: real measurements, not comparable with the paper's)"
    prompts = ", ".join(sorted({manifest["identity"]["prompt"] for manifest in manifests}))
    matchers = ", ".join(sorted({manifest["matcher"] for manifest in manifests}))
    notes = [
        f"Preset: {nano if presets == {'nano'} else ', '.join(sorted(presets))}. Prompt: {prompts}. "
        f"Protocol 'paper' reads letters by VLMEvalKit's rule, with matcher {matchers}."
    ]
    if not all(is_negvqa(manifest["data"]) for manifest in manifests):
        notes.append("These are not NegVQA's own questions: no number here is comparable with its Table 1.")
    for run in finished:
        if run.manifest["identity"].get("asking") == "options":
            notes.append(
                f"{run.name}: the judge answers yes or no to one option at a time; 'generated' is the only "
                "option with a yes, 'logprob' the one with the likelier yes."
            )
    return notes


# --- single questions ------------------------------------------------------------------------------


def find_items(run: Finished, options: Any) -> Sequence[Item]:
    """The questions of a run, read again from its data; empty where these are not named. Raises UserError for
    other data."""
    origin = run.manifest["data"]
    if "world" in origin:
        return questions.load(origin["world"], questions=origin["questions"]).items
    if options.data is None:
        return ()
    data_set = questions.load(
        options.data,
        negated=getattr(options, "negated", None),
        pictures=options.images,
        columns=origin.get("columns"),
        split=origin.get("split", "test"),
    )
    if data_set.sha256 != origin["sha256"]:
        raise UserError(f"'{options.data}' has other questions than '{run.folder.path}'; pass its --data.")
    return data_set.items


def make_cards(
    finished: Sequence[Finished], items: Sequence[Item], limit: int, headlines: Mapping[str, str]
) -> Iterator[cards.Card]:
    """A card per question of the first model, in data order; `limit` random ones if there are more.

    items      The questions with their images, if the data are at hand.
    headlines  Model -> the scoring that makes an answer right or wrong.
    """
    rows: dict[str, dict[str, Answer]] = {}  # id -> variant -> answer
    for row in select_rows(finished[0].folder, ANSWERS):
        rows.setdefault(row.id, {})[row.variant] = row
    complete = [name for name, variants in rows.items() if [*variants] == [*VARIANTS]]
    rows = {name: rows[name] for name in cards.choose_ids(complete, limit)}
    replies: dict[tuple[str, str, str], Reply] = {}
    for run in finished:
        scorings = run.manifest["scoring"]
        order = sorted(scorings, key=lambda scoring: (scoring != headlines.get(run.name), scoring))
        for row in select_rows(run.folder, ANSWERS):
            if row.id in rows:
                replies[run.name, row.id, row.variant] = _read_reply(row, order)
    images = {item.id: cards.read_thumbnail(item.picture, SIDE) for item in items if item.id in rows}
    for name, variants in rows.items():
        keys = [[(run.name, name, variant) for variant in VARIANTS] for run in finished]  # (runs, 2)
        pairs = [[replies.get(key, Reply()) for key in pair] for pair in keys]
        values = [[reply.value for reply in pair] for pair in pairs]
        original = variants[VARIANTS[0]]
        lines = [f"{key.capitalize()}: {row.question} ({row.answer})" for key, row in variants.items()]
        lines += [" · ".join(f"{a}: {text}" for a, text in zip(LETTERS, original.options, strict=False))]
        outcomes = {_OUTCOMES.get(tuple(pair), "unscored") for pair in values}
        yield cards.Card(
            name,
            original.question,
            original.subset,
            {"Subset": [original.subset], "Pair": sorted(outcomes)},
            values,
            [("", images[name])] if name in images else [],
            lines,
            [cards.CardReply(cells=[r.cell for r in p], rows=[r.row for r in p if r.row]) for p in pairs],
        )


class Reply(NamedTuple):
    """An answer as the page shows it."""

    value: float | None = None  # 1.0 right, 0.0 wrong, None unscored or not asked
    cell: Cell = Cell("not asked", mark="none")
    row: tuple[str, ...] = ()  # entries of `COLUMNS`


def _read_reply(row: Answer, scorings: Sequence[str]) -> Reply:
    """Reads an answer under the protocol "fixed"; the first scoring decides whether it is right."""
    readings = [scores.read_answer(row, scoring, "fixed") for scoring in scorings]
    letters = ", ".join(f"{s} {r['letter'] or r['reason']}" for s, r in zip(scorings, readings, strict=True))
    text, value = row.error or row.text or "", readings[0]["value"]
    logs = " / ".join("–" if p is None else f"{p:.2f}" for p in row.logprobs or ())
    return Reply(value, Cell(text, letters, MARKS[value]), (row.question, text, letters, logs))


# --- the paper's numbers ---------------------------------------------------------------------------


def paper_gaps() -> Iterator[Row]:
    """See `Benchmark.paper_gaps`: the averages of Table 1."""
    for model, part in frames.select(data.read_table_1(), category=AVERAGE).groupby("model", sort=False):
        shares = dict(zip(part["variant"], part["value"], strict=True))
        ends = {"affirmed": shares["original"], "negated": shares["negated"]}
        yield {"model": model, "data": HUB, "measure": "accuracy (generated)", **ends}


def paper_estimates(source: str, run: Mapping[str, Any] | None) -> Iterator[PaperEstimate]:
    """See `Benchmark.paper_estimates`: Table 1. A model in a folder is recognized by the folder's name, if
    that is the end of its hub id."""
    model_row = {"model": find_paper_name(run["reference"]) or find_paper_name(run["name"])} if run else {}
    facts = {"task": "accuracy", "protocol": "paper", "scoring": "generated", "interval": "clustered"}
    for cell in frames.records(data.read_table_1(), **model_row):
        key = {**facts, "variant": cell["variant"], "category": cell["category"]}
        yield PaperEstimate(cell["model"], key, cell["value"], "%", cell["n"])


def _select_as_in_table(figures: pd.DataFrame, name: str, **columns: str) -> pd.DataFrame:
    """A model's accuracies in the form of Table 1 (`source` "here"): of generated letters, if there are."""
    shares = frames.select(figures, task="accuracy", protocol="paper", interval="normal", **columns)
    shares = shares[shares["value"].notna()]
    first = shares["scoring"].min()  # "generated" before "logprob"
    return shares[shares["scoring"] == first].assign(model=name, source="here")


def table_1(runs: Mapping[str, tuple[pd.DataFrame, str]]) -> pd.DataFrame:
    """Table 1 (task "table1", `source` "printed"), with the runs of its models ("here", protocol "paper")
    below each, other runs at the end. runs: name -> (estimates, reference)."""
    measured = [
        (find_paper_name(reference), _select_as_in_table(estimates, name))
        for name, (estimates, reference) in runs.items()
    ]
    parts = []
    for model, part in data.read_table_1().groupby("model", sort=False):
        parts += [part.assign(source="printed"), *(rows for name, rows in measured if name == model)]
    return frames.concat([*parts, *(rows for name, rows in measured if name is None)], task="table1")


def summarize_models(runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The best model on each kind of questions, and the mean drop over models (task "overall", protocol
    "paper"): of Table 1 ("printed"), and of runs if there are several ("here")."""
    rows: list[Row] = []
    measured = frames.concat(_select_as_in_table(figures, name) for name, figures in runs.items())
    for source, part in (("printed", data.read_table_1()), ("here", measured)):
        if not len(part := frames.select(part, category=AVERAGE)):
            continue
        # (models, 2): accuracy on original and on negated questions
        wide = part.pivot(index="model", columns="variant", values="value").reindex(columns=VARIANTS).dropna()
        if len(wide) > 1:
            labels: Row = {"task": "overall", "source": source, "n": len(wide)}
            drop = float((wide["original"] - wide["negated"]).mean())
            rows.append(frames.number(drop, unit="points", metric="mean drop", **labels))
            for variant, column in wide.items():
                best = frames.number(column.max(), unit="%", metric="best", variant=variant, **labels)
                rows.append({**best, "model": column.idxmax()})
    return frames.frame(rows)


def scale_paper_models() -> pd.DataFrame:
    """The accuracies of the models that the paper plots, by family and size: of Table 1 (task "scaling"), and
    of the notebook by subset (task "subset scaling")."""
    parts = []
    for task, table in (("scaling", data.read_table_1()), ("subset scaling", data.read_notebook())):
        table = table.assign(source="printed", low=None, high=None)
        for model, part in table.groupby("model", sort=False):
            if model in data.HUB_IDS and model != "Molmo-7B-D":  # as in the paper's plots
                parts.append(_add_size(part, task, str(model)))
    return frames.concat(parts)


def _scale_model(model: str, figures: pd.DataFrame, reference: str) -> list[pd.DataFrame]:
    """The same for a model measured here."""
    name = find_paper_name(reference) or reference
    subsets = frames.select(figures, task="subsets", metric="accuracy", headline="yes")
    subsets = subsets[subsets["value"].notna()].assign(model=model, source="here")
    averages = _select_as_in_table(figures, model, headline="yes")
    return [_add_size(averages, "scaling", name), _add_size(subsets, "subset scaling", name)]


def _add_size(figures: pd.DataFrame, task: str, name: str) -> pd.DataFrame:
    """Adds family and size to a model's estimates; no rows if its name does not tell them."""
    if (size := data.parse_size(name)) is None:
        return figures.head(0)
    line = {"line": f"{size[0]}, " + figures["variant"]} if task == "subset scaling" else {}
    return figures.assign(task=task, family=size[0], size=f"{size[1]:g}", **line)
