"""What a report of finished runs says besides its tables and plots."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from nein.benchmarks.negvqa import paper_numbers, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.stages import ANSWERS, Answer
from nein.benchmarks.runner import Finished, selected
from nein.datasets.negvqa import AVERAGE, VARIANTS, Item
from nein.engine.errors import UserError
from nein.metrics.letters import LETTERS
from nein.reporting import cards
from nein.reporting import figures as frames
from nein.reporting.cards import Cell
from nein.reporting.format import widest
from nein.reporting.page import Page, Part

SIDE = 256
OUTCOMES: dict[tuple[float | None, ...], str] = {
    values: sections.OUTCOME_TITLES[name] for name, values in scores.OUTCOMES.items()
}
MARKS = {1.0: "right", 0.0: "wrong", None: "none"}
MEASURES = tuple(cards.Measure(variant, f"{variant} question") for variant in VARIANTS)
COLUMNS = ("question", "answer", "read as", "log p")


def describe(finished: Sequence[Finished], options: NegvqaConfig | ReportConfig) -> Page:
    """What a report says besides tables and plots. Raises UserError when runs asked different questions."""
    first, *others = finished
    for other in others:
        if other.manifest["data"]["sha256"] != first.manifest["data"]["sha256"]:
            raise UserError(
                f"'{first.name}' and '{other.name}' were asked different questions; report them apart."
            )
    finding = widest(negation_gaps(finished), what="accuracy", change="a question becomes its negation")
    manifests = {run.name: run.manifest for run in finished}
    comparable = {
        run.name: (run.figures, run.manifest["reference"])
        for run in finished
        if paper_numbers.is_negvqa(run.manifest["data"])
    }
    figures = [paper_numbers.beside(own, name, reference) for name, (own, reference) in comparable.items()]
    if comparable:
        figures.append(paper_numbers.by_size())
    figures.append(paper_numbers.table_1(comparable))
    figures.append(paper_numbers.over_models({run.name: run.figures for run in finished}))
    as_published = {manifest["protocol"] for manifest in manifests.values()} == {"paper"}
    return Page(
        "NegVQA",
        _subtitle(manifests),
        _notes(manifests),
        [finding] if finding else [],
        [_browser(finished, options)] if options.shown else [],
        figures=figures,
        sections=[section for section in sections.SECTIONS if comparable or section.key != sections.PAPER],
        headline=[*([sections.accuracy("paper", "clustered")] if as_published else []), sections.OVER_ALL],
    )


def _browser(finished: Sequence[Finished], options: NegvqaConfig | ReportConfig) -> Part:
    """The answers, question by question."""
    figures = frames.concat(run.figures for run in finished)
    chief = frames.select(figures, headline="yes").drop_duplicates("model")
    headlines = dict(zip(chief["model"], chief["scoring"], strict=True))
    answers = {
        run.name: (functools.partial(selected, run.folder, ANSWERS), run.manifest["scoring"])
        for run in finished
    }
    samples = cards.Samples(
        [cards.Member(model) for model in answers],
        MEASURES,
        chosen=VARIANTS[1],
        rivals=(*VARIANTS, "Negation decides"),
        words=("questions", "Model", "Asked"),
        heads=VARIANTS,
        columns=COLUMNS,
    )
    read = functools.partial(questions, answers, _items(finished[0], options), options.shown, headlines)
    return cards.browser(samples, read, title="Answers")


def negation_gaps(finished: Sequence[Finished]) -> pd.DataFrame:
    """As of `Benchmark.gaps`: over all categories, by the scoring that counts for a model."""
    rows: list[Mapping[str, Any]] = []
    where = {"task": "gap", "category": AVERAGE, "protocol": "fixed", "headline": "yes"}
    for run in finished:
        by = {row["metric"]: row for row in frames.records(run.figures, **where)}
        if by.get("gap", {}).get("value") is not None:
            what = {"run": run.name, "model": run.name, "measure": f"accuracy ({by['gap']['scoring']})"}
            rows += frames.gap(by["original"]["value"], by["negated"]["value"], by["gap"], **what)
    return frames.frame(rows)


def _subtitle(manifests: dict[str, dict[str, Any]]) -> str:
    """Data, number of questions and date of all runs: they have the first two in common, but for a limit."""
    data = next(iter(manifests.values()))["data"]
    source = data.get("file", "drawn questions of the miniature world")
    if "name" in data:
        source = f"hub:{data['name']}{'@' + data['revision'] if data.get('revision') else ''}"
    counts = sorted({manifest["limit"] or data["questions"] for manifest in manifests.values()})
    days = sorted({call["started"][:10] for m in manifests.values() for call in m["invocations"][-1:]})
    number = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
    whole = "" if counts == [data["questions"]] else f" of {data['questions']:,}"
    date = f" Date: {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else ""
    return f"Data: {source}. n = {number}{whole} questions, each as it is and negated.{date}"


def _notes(manifests: dict[str, dict[str, Any]]) -> list[str]:
    presets = {manifest["preset"] for manifest in manifests.values()}
    nano = "Miniature models on drawn questions: real measurements, not comparable with the paper's"
    prompts = ", ".join(sorted({manifest["identity"]["prompt"] for manifest in manifests.values()}))
    matchers = ", ".join(sorted({manifest["matcher"] for manifest in manifests.values()}))
    notes = [
        f"Preset: {nano if presets == {'nano'} else ', '.join(sorted(presets))}. Prompt: {prompts}. "
        f"Letters under protocol 'paper': VLMEvalKit's rule, matcher {matchers}."
    ]
    if not all(paper_numbers.is_negvqa(manifest["data"]) for manifest in manifests.values()):
        notes.append("These are not NegVQA's own questions, so nothing here is comparable with its Table 1.")
    for name, manifest in manifests.items():
        if manifest["identity"].get("asking") == "options":
            notes.append(
                f"{name}: asked about one option at a time in its yes/no question about a caption; "
                "'generated' is the only option with a yes, 'logprob' the one whose yes is likelier."
            )
        printed = paper_numbers.printed_as(manifest["reference"])
        for (model, variant, category), why in paper_numbers.MISPRINTS.items():
            if printed == model:
                notes.append(f"{name}: the printed figure for {category}, {variant}, is odd: {why}.")
    return notes


def _items(run: Finished, options: NegvqaConfig | ReportConfig) -> Sequence[Item]:
    """The questions that runs were asked, where they can be found."""
    from nein.datasets import negvqa as questions

    origin = run.manifest["data"]
    if "world" in origin:
        return questions.load(origin["world"], questions=origin["questions"]).items
    if options.data is None:
        return ()
    found = questions.load(
        options.data,
        negated=options.negated,
        pictures=options.images,
        columns=origin.get("columns"),
        split=origin.get("split", "test"),
    )
    if found.sha256 != origin["sha256"]:
        raise UserError(f"'{options.data}' does not hold the questions that '{run.folder.path}' was asked.")
    return found.items


def questions(
    answers: Mapping[str, tuple[Callable[[], Iterable[Answer]], Sequence[str]]],
    items: Sequence[Item],
    limit: int,
    headlines: Mapping[str, str],
) -> Iterator[cards.Card]:
    """The first model's questions in data order, `limit` random ones if there are more. Raises UserError for
    one without its other half.

    answers    Model -> (reads the rows of its answers, how they are scored).
    items      The questions with their images, where they can be found.
    headlines  Model -> the scoring that makes an answer right or wrong, where it has that.
    """
    first, (read, _) = next(iter(answers.items()))
    rows: dict[str, dict[str, Answer]] = {}
    for row in read():
        rows.setdefault(row.id, {})[row.variant] = row
    if half := next((name for name, both in rows.items() if [*both] != [*VARIANTS]), None):
        raise UserError(f"The answers of '{first}' lack a half of question '{half}'; give its command again.")
    rows = {name: rows[name] for name in cards.drawn([*rows], limit)}
    replies: dict[tuple[str, str, str], Reply] = {}
    for model, (read, scorings) in answers.items():
        order = sorted(scorings, key=lambda scoring: (scoring != headlines.get(model), scoring))
        for row in read():
            if row.id in rows:
                replies[model, row.id, row.variant] = _reply(row, order)
    pictures = {item.id: cards.of_file(item.picture, SIDE) for item in items if item.id in rows}
    for name, both in rows.items():
        said = [[replies.get((model, name, variant), Reply()) for variant in VARIANTS] for model in answers]
        values = [[half.value for half in pair] for pair in said]
        one = both[VARIANTS[0]]
        options = (f"{letter}: {text}" for letter, text in zip(LETTERS, one.options, strict=False))
        outcomes = {OUTCOMES.get(tuple(pair), "unscored") for pair in values}
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
