"""The page of finished NegVQA runs: heading, notes, and single questions with the answers of all models.

`sections` defines the tables and plots; `paper` makes the figures that stand next to the paper's.
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
    gaps, change = negation_gaps(finished), "a question becomes its negation"
    finding = describe_widest(gaps, quantity="accuracy", change=change)

    # Only the published questions stand next to the paper's numbers.
    published = [run for run in finished if is_negvqa(run.manifest["data"])]
    comparable = {run.name: (run.figures, run.manifest["reference"]) for run in published}
    further = [part for name, entry in comparable.items() for part in paper.scale_model(name, *entry)]
    if comparable:
        further.append(paper.scale_paper_models())
    further.append(paper.compare_with_table_1(comparable))
    further.append(paper.summarize_models({run.name: run.figures for run in finished}))

    headline = [sections.OVER_ALL]
    if all(run.manifest["protocol"] == "paper" for run in finished):
        headline.insert(0, sections.accuracy_table("paper", "clustered"))
    return Page(
        "NegVQA",
        _describe_data(finished),
        _notes(finished),
        [finding] if finding else [],
        [_make_browser(finished, options)] if isinstance(options, ReportConfig) and options.shown else [],
        figures=further,
        sections=[section for section in sections.SECTIONS if comparable or section.key != sections.PAPER],
        headline=headline,
    )


def _describe_data(finished: Sequence[Finished]) -> str:
    manifests = [run.manifest for run in finished]  # of runs on the same data; their --limit may differ
    origin = manifests[0]["data"]
    source = origin.get("file", "drawn questions of the miniature world")
    if "name" in origin:
        source = f"hub:{origin['name']}{'@' + origin['revision'] if origin.get('revision') else ''}"
    counts = sorted({manifest["limit"] for manifest in manifests})
    number = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    total = "" if counts == [origin["questions"]] else f" of {origin['questions']:,}"
    last = max(call["started"] for manifest in manifests for call in manifest["invocations"])
    return f"Data: {source}. n = {number}{total} questions, each original and negated. Date: {last[:10]}."


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """The gap over all categories, by the scoring that headlines a model, for `Benchmark.gaps`."""
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
            asked = "the judge answers yes or no to one option at a time; 'generated' is the only option with"
            notes.append(f"{run.name}: {asked} a yes, 'logprob' the one with the likelier yes.")
    return notes


# --- single questions ------------------------------------------------------------------------------
SIDE = 256  # pixels of an image's longer side
COLUMNS = ("question", "answer", "read as", "log p")


def _make_browser(finished: Sequence[Finished], options: ReportConfig) -> Part:
    """The part of the page with single questions and the answers of all runs."""
    samples = cards.Samples(
        [cards.Member(run.name) for run in finished],
        [cards.Measure(variant, f"{variant} question") for variant in VARIANTS],
        chosen=VARIANTS[1],
        rivals=(*VARIANTS, "Negation decides"),
        words=("questions", "Model", "Asked"),
        heads=VARIANTS,
        columns=COLUMNS,
    )
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
    negated, folder = getattr(options, "negated", None), options.images
    read: Any = {"columns": origin.get("columns"), "split": origin.get("split", "test")}
    data_set = questions.load(options.data, negated=negated, image_folder=folder, **read)
    if data_set.sha256 != origin["sha256"]:
        raise UserError(f"'{options.data}' has other questions than '{run.folder.path}'; pass its --data.")
    return data_set.items


def make_cards(
    finished: Sequence[Finished], items: Sequence[Item], limit: int, headlines: Mapping[str, str]
) -> Iterator[cards.Card]:
    """A card per question of the first model, in data order; `limit` random ones if there are more.
    items: with their images, if the data are at hand; headlines: model -> the scoring that decides."""
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
    titles = {values: sections.OUTCOME_TITLES[name] for name, values in OUTCOMES.items()}
    images = {item.id: cards.read_thumbnail(item.image, SIDE) for item in items if item.id in rows}
    for name, variants in rows.items():
        # Per run, the replies to the original and to the negated question.
        pairs = [[replies.get((run.name, name, v), Reply()) for v in VARIANTS] for run in finished]
        values = [[reply.value for reply in pair] for pair in pairs]
        outcomes = {titles.get((first, second), "unscored") for first, second in values}
        original = variants[VARIANTS[0]]
        lines = [f"{key.capitalize()}: {row.question} ({row.answer})" for key, row in variants.items()]
        lines += [" · ".join(f"{a}: {text}" for a, text in zip(LETTERS, original.options, strict=False))]
        said = [cards.CardReply(cells=[r.cell for r in p], rows=[r.row for r in p if r.row]) for p in pairs]
        yield cards.Card(
            name,
            original.question,
            original.subset,
            facets={"Subset": [original.subset], "Pair": sorted(outcomes)},
            values=values,
            pictures=[("", images[name])] if name in images else [],
            lines=lines,
            said=said,
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
    mark = {1.0: "right", 0.0: "wrong", None: "none"}[value]
    return Reply(value, Cell(text, letters, mark), (row.question, text, letters, logs))
