"""The page of finished NegVQA runs: heading, notes, and single questions with the answers of all models.

`sections` defines the tables and plots; `paper` makes the estimates that stand next to the paper's.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from nein.benchmarks.negvqa import paper, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.data import ANSWERS, Answer
from nein.benchmarks.negvqa.estimates import OUTCOMES
from nein.benchmarks.negvqa.paper import is_negvqa
from nein.benchmarks.runner import Finished, select_rows
from nein.datasets import negvqa as questions
from nein.datasets.negvqa import AVERAGE, VARIANTS, Item
from nein.engine.folder import Row
from nein.loading.errors import UserError
from nein.metrics.letters import LETTERS
from nein.reporting import cards
from nein.reporting import figures as frames
from nein.reporting.cards import Cell
from nein.reporting.page import Page, Part
from nein.reporting.tables import describe_widest


def make_page(finished: Sequence[Finished], options: NegvqaConfig | ReportConfig) -> Page:
    """The page of runs on the same questions. Raises UserError if runs were asked different ones."""
    first, *others = finished
    for other in others:
        if other.manifest["data"]["sha256"] != first.manifest["data"]["sha256"]:
            raise UserError(f"'{first.name}' and '{other.name}' have other questions; give each a report.")
    change = "a question becomes its negation"
    finding = describe_widest(negation_gaps(finished), quantity="accuracy", change=change)

    # Only the published questions stand next to the paper's numbers.
    published = [run for run in finished if is_negvqa(run.manifest["data"])]
    comparable = {run.name: (run.figures, run.manifest["reference"]) for run in published}
    further: list[pd.DataFrame] = []  # estimates besides those of the runs
    for name, (estimates, reference) in comparable.items():
        further += paper.scale_model(name, estimates, reference)
    if comparable:
        further.append(paper.scale_paper_models())
    further.append(paper.compare_with_table_1(comparable))
    further.append(paper.summarize_models({run.name: run.figures for run in finished}))

    headline = [sections.OVER_ALL]
    if all(run.manifest["protocol"] == "paper" for run in finished):
        headline.insert(0, sections.accuracy_table("paper", "clustered"))
    parts = []  # of `nein report` alone
    if isinstance(options, ReportConfig) and options.shown:
        parts.append(_make_browser(finished, options))
    return Page(
        "NegVQA", subtitle=_describe_data(finished), notes=_notes(finished),
        findings=[finding] if finding else [], parts=parts,
        figures=further, headline=headline,
        sections=[section for section in sections.SECTIONS if comparable or section.key != sections.PAPER],
    )  # fmt: skip


def _describe_data(finished: Sequence[Finished]) -> str:
    manifests = [run.manifest for run in finished]  # of runs on the same data; their --limit may differ
    origin = manifests[0]["data"]
    source = origin.get("file", "drawn questions of the miniature world")
    if "name" in origin:
        revision = origin.get("revision")
        source = f"hub:{origin['name']}@{revision}" if revision else f"hub:{origin['name']}"
    counts = sorted({manifest["limit"] for manifest in manifests})  # of questions that were asked
    number = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    total = "" if counts == [origin["questions"]] else f" of {origin['questions']:,}"
    last = max(call["started"] for manifest in manifests for call in manifest["invocations"])
    return f"Data: {source}. n = {number}{total} questions, each original and negated. Date: {last[:10]}."


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """The gap of every run over all categories, by its headline's scoring, for `Benchmark.gaps`."""
    rows: list[Row] = []
    columns = {"task": "gap", "category": AVERAGE, "protocol": "fixed", "headline": "yes"}
    for run in finished:
        by_metric = {row["metric"]: row for row in frames.records(run.figures, **columns)}
        gap = by_metric.get("gap", {})
        if gap.get("value") is not None:
            labels = {"run": run.name, "model": run.name, "measure": f"accuracy ({gap['scoring']})"}
            rows += frames.gap(by_metric["original"]["value"], by_metric["negated"]["value"], gap, **labels)
    return frames.frame(rows)


def _notes(finished: Sequence[Finished]) -> list[str]:
    manifests = [run.manifest for run in finished]
    preset = ", ".join(sorted({manifest["preset"] for manifest in manifests}))
    if preset == "nano":
        preset += " (miniature models on drawn questions: real measurements, not comparable with the paper's)"
    prompts = ", ".join(sorted({manifest["identity"]["prompt"] for manifest in manifests}))
    matchers = ", ".join(sorted({manifest["matcher"] for manifest in manifests}))
    notes = [
        f"Preset: {preset}. Prompt: {prompts}. Protocol 'paper' reads letters by VLMEvalKit's rule, with "
        f"matcher {matchers}."
    ]
    if not all(is_negvqa(manifest["data"]) for manifest in manifests):
        notes.append("These are not NegVQA's own questions: no number here is comparable with its Table 1.")
    for run in finished:
        if run.manifest["identity"].get("asking") == "options":
            asks = "the judge answers yes or no to one option at a time; 'generated' is the only option with"
            notes.append(f"{run.name}: {asks} a yes, 'logprob' the one with the likelier yes.")
    return notes


# --- single questions ------------------------------------------------------------------------------
SIDE = 256  # pixels of an image's longer side
COLUMNS = ("question", "answer", "read as", "log p")  # of the table about one question


def _make_browser(finished: Sequence[Finished], options: ReportConfig) -> Part:
    """The part of the page with single questions and the answers of all runs."""
    samples = cards.Samples(
        [cards.Member(run.name) for run in finished],
        [cards.Measure(variant, f"{variant} question") for variant in VARIANTS],
        chosen=VARIANTS[1],
        rivals=(*VARIANTS, "Negation decides"),  # a button: one variant is right, the other is wrong
        words=("questions", "Model", "Asked"),  # names of samples, members and measures
        heads=VARIANTS, columns=COLUMNS,
    )  # fmt: skip
    rows = frames.select(frames.concat(run.figures for run in finished), headline="yes")
    rows = rows.drop_duplicates("model")
    headlines = dict(zip(rows["model"], rows["scoring"], strict=True))  # model -> scoring
    items = find_items(finished[0], options)
    count = max(run.manifest["limit"] for run in finished)
    note = f"{options.shown} of {count:,} questions, drawn at random." if count > options.shown else ""
    make = functools.partial(make_cards, finished, items, options.shown, headlines)
    return cards.make_browser(samples, make, title="Answers", note=note)


def find_items(run: Finished, options: Any) -> Sequence[Item]:
    """The questions of a run, with their images; empty if neither the run nor `--data` tells where they are.
    Raises UserError if `--data` has other questions."""
    origin = run.manifest["data"]
    if "world" in origin:
        return questions.load(origin["world"], questions=origin["questions"]).items
    if options.data is None:
        return ()
    data_set = questions.load(
        options.data, negated=getattr(options, "negated", None),  # some commands have no such option
        image_folder=options.images, columns=origin.get("columns"), split=origin.get("split", "test"),
    )  # fmt: skip
    if data_set.sha256 != origin["sha256"]:
        raise UserError(f"'{options.data}' has other questions than '{run.folder.path}'; pass its --data.")
    return data_set.items


def make_cards(
    finished: Sequence[Finished], items: Sequence[Item], limit: int, headlines: Mapping[str, str]
) -> Iterator[cards.Card]:
    """A card per question of the first model, in data order; `limit` random ones if there are more.
    items: with their images, if the data are at hand; headlines: model -> the scoring that decides."""
    # The questions to show.
    rows: dict[str, dict[str, Answer]] = {}  # id -> variant -> answer of the first model
    for row in select_rows(finished[0].folder, ANSWERS):
        rows.setdefault(row.id, {})[row.variant] = row
    complete = [name for name, variants in rows.items() if [*variants] == [*VARIANTS]]
    rows = {name: rows[name] for name in cards.choose_ids(complete, limit)}

    # The replies of all models. Each one's headline scoring comes first: it decides.
    replies: dict[tuple[str, str, str], Reply] = {}
    for run in finished:
        scorings = run.manifest["scoring"]
        order = sorted(scorings, key=lambda scoring: (scoring != headlines.get(run.name), scoring))
        for row in select_rows(run.folder, ANSWERS):
            if row.id in rows:
                replies[run.name, row.id, row.variant] = _read_reply(row, order)
    titles: dict[tuple[float | None, ...], str] = {}  # values of a pair of replies -> the outcome
    for outcome, outcome_values in OUTCOMES.items():
        titles[outcome_values] = sections.OUTCOME_TITLES[outcome]
    images = {item.id: cards.read_thumbnail(item.image, SIDE) for item in items if item.id in rows}
    for name, variants in rows.items():
        # Per run, the replies to the original and to the negated question.
        pairs = [[replies.get((run.name, name, v), Reply()) for v in VARIANTS] for run in finished]
        values = [[reply.value for reply in pair] for pair in pairs]
        outcomes = {titles.get((first, second), "unscored") for first, second in values}
        said = []
        for pair in pairs:
            cells, table = [reply.cell for reply in pair], [reply.row for reply in pair if reply.row]
            said.append(cards.CardReply(cells=cells, rows=table))
        original = variants["original"]
        lines = [f"{key.capitalize()}: {row.question} ({row.answer})" for key, row in variants.items()]
        options = zip(LETTERS, original.options, strict=False)
        lines.append(" · ".join(f"{letter}: {text}" for letter, text in options))
        yield cards.Card(
            name, title=original.question, aside=original.subset,
            facets={"Subset": [original.subset], "Pair": sorted(outcomes)},
            pictures=[("", images[name])] if name in images else [], lines=lines, values=values, said=said,
        )  # fmt: skip


class Reply(NamedTuple):
    """An answer as the page shows it."""

    value: float | None = None  # 1.0 right, 0.0 wrong, None unscored or not asked
    cell: Cell = Cell("not asked", mark="none")
    row: tuple[str, ...] = ()  # entries of `COLUMNS`


def _read_reply(row: Answer, scorings: Sequence[str]) -> Reply:
    """Reads an answer under the protocol "fixed"; the first scoring decides whether it is right."""
    readings = {scoring: scores.read_answer(row, scoring, "fixed") for scoring in scorings}
    value = readings[scorings[0]]["value"]
    mark = {1.0: "right", 0.0: "wrong", None: "none"}[value]
    text = row.error or row.text or ""
    read_as = ", ".join(f"{scoring} {read['letter'] or read['reason']}" for scoring, read in readings.items())
    logs = " / ".join("–" if p is None else f"{p:.2f}" for p in row.logprobs or ())
    return Reply(value, cell=Cell(text, read_as, mark), row=(row.question, text, read_as, logs))
