"""What the report of finished runs says besides its tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from nein.benchmarks.negvqa import page, paper_numbers, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.runs import Finished, Page
from nein.datasets.negvqa.categories import AVERAGE
from nein.datasets.negvqa.questions import Item
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from nein.reporting.format import Gap, widest


def describe(finished: Sequence[Finished], options: NegvqaConfig | ReportConfig) -> Page:
    """What a report says besides tables and plots. Raises UserError when runs asked different questions."""
    _check_same(finished)
    named = {one.name: one for one in finished}
    figures = frames.concat(one.figures for one in finished)
    parts = []
    if options.samples:
        chief = frames.select(figures, headline="yes").drop_duplicates("model")
        headlines = dict(zip(chief["model"], chief["scoring"], strict=True))
        folders: dict[str, Any] = {name: one.folder for name, one in named.items()}
        parts = [page.part(folders, _items(finished, options), options.samples, headlines)]
    manifests = {name: one.manifest for name, one in named.items()}
    protocols = {manifest["protocol"] for manifest in manifests.values()}
    protocol = protocols.pop() if len(protocols) == 1 else "fixed"
    return Page(
        "NegVQA", _subtitle(manifests), _notes(manifests), finding(figures), parts,
        figures=beside_the_paper(finished),
        headline=[sections.accuracy(protocol, "clustered"), sections.BLIND, sections.GAP],
    )  # fmt: skip


def beside_the_paper(finished: Sequence[Finished]) -> list[pd.DataFrame]:
    """The paper's Table 1; beside it stand runs on the paper's data only."""
    comparable = {
        one.name: (one.figures, one.manifest["reference"])
        for one in finished
        if paper_numbers.is_negvqa(one.manifest["data"])
    }
    beside = [paper_numbers.beside(own, name, reference) for name, (own, reference) in comparable.items()]
    return [*beside, paper_numbers.table_1(comparable)]


def finding(figures: pd.DataFrame) -> list[str]:
    """The widest negation gap in a sentence, over all categories, by the scoring that counts for a model."""
    where = {"task": "gap", "category": AVERAGE, "protocol": "fixed", "headline": "yes"}
    gaps = []
    for model in frames.values(figures, "model"):
        by = {f["metric"]: f for f in frames.records(frames.select(figures, model=model, **where))}
        if {"original", "negated", "gap"} <= by.keys():
            gaps.append(Gap(model, by["original"], by["negated"], by["gap"]))
    sentence = widest(gaps, what="accuracy", change="a question becomes its negation")
    return [sentence] if sentence else []


def _check_same(finished: Sequence[Finished]) -> None:
    first, *others = finished
    for other in others:
        if other.manifest["data"]["sha256"] != first.manifest["data"]["sha256"]:
            raise UserError(
                f"'{first.name}' and '{other.name}' were asked different questions; report them apart."
            )


def _subtitle(manifests: dict[str, dict[str, Any]]) -> str:
    """Data, number of questions and date of all runs: they have the first two in common, but for a limit."""
    data = next(iter(manifests.values()))["data"]
    source = data.get("file", "drawn questions of the miniature world")
    if "name" in data:
        source = f"hub:{data['name']}{'@' + data['revision'] if data.get('revision') else ''}"
    asked = sorted({manifest["limit"] or data["questions"] for manifest in manifests.values()})
    days = sorted({call["started"][:10] for m in manifests.values() for call in m["invocations"][-1:]})
    number = " to ".join(f"{n:,}" for n in dict.fromkeys((asked[0], asked[-1])))
    whole = "" if asked == [data["questions"]] else f" of {data['questions']:,}"
    date = f" Date: {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else ""
    return f"Data: {source}. n = {number}{whole} questions, each as it is and negated.{date}"


def _notes(manifests: dict[str, dict[str, Any]]) -> list[str]:
    presets = {manifest["preset"] for manifest in manifests.values()}
    nano = "Miniature models on drawn questions: real measurements, not comparable with the paper's"
    prompts = ", ".join(sorted({manifest["identity"]["prompt"] for manifest in manifests.values()}))
    rules = "; ".join(sorted({f"{m['letters']}, matcher {m['matcher']}" for m in manifests.values()}))
    ours = [name for name, manifest in manifests.items() if not paper_numbers.is_negvqa(manifest["data"])]
    notes = [
        f"Preset: {nano if presets == {'nano'} else ', '.join(sorted(presets))}. Prompt: {prompts}. "
        f"Letters under protocol 'paper': {rules}."
    ]
    if ours:
        notes.append("These are not NegVQA's own questions: nothing measured here stands beside its Table 1.")
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


def _items(finished: Sequence[Finished], options: NegvqaConfig | ReportConfig) -> Sequence[Item] | None:
    """The questions the runs were asked, where they can be found; None otherwise."""
    from nein.datasets.negvqa import questions

    origin = finished[0].manifest["data"]
    if "world" in origin:
        return questions.load(origin["world"], questions=origin["questions"]).items
    if options.data is None:
        return None
    found = questions.load(
        options.data, negated=options.negated, pictures=options.images, columns=origin.get("columns"),
        split=origin.get("split", "test"),
    )  # fmt: skip
    if found.sha256 != origin["sha256"]:
        raise UserError(
            f"'{options.data}' does not hold the questions that '{finished[0].folder.path}' was asked."
        )
    return found.items
