"""The report of finished runs: one page, and the same tables and plots as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.negvqa import folder as files
from nein.benchmarks.negvqa import page, paper_numbers, sections
from nein.benchmarks.negvqa.config import ReportConfig
from nein.benchmarks.negvqa.folder import AnswersDir
from nein.benchmarks.runner import FIGURES
from nein.config.groups import FORMATS
from nein.datasets.negvqa.categories import AVERAGE
from nein.datasets.negvqa.questions import Item
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder
from nein.reporting import figures as frames
from nein.reporting import report
from nein.reporting.findings import Gap, widest


def write(
    folders: Sequence[Folder],
    out: Path,
    *,
    samples: int = 400,
    items: Sequence[Item] | None = None,
    formats: Sequence[str] = FORMATS,
) -> str:
    """Writes `out` (.html) with .md, .csv, .tex, .png and .svg beside it; returns the headline as text.

    samples  Questions with their answers in the page.
    items    The questions with their pictures; without them the page shows none.

    Raises UserError when a run is not complete, or when runs asked different questions.
    """
    named = _by_name(folders)
    manifests = {name: folder.manifest() for name, folder in named.items()}
    figures = read(named, manifests)
    parts = []
    if samples:
        chief = frames.select(figures, headline="yes").drop_duplicates("model")
        headlines = dict(zip(chief["model"], chief["scoring"], strict=True))
        parts = [page.part(named, items, samples, headlines)]
    written = report.write(
        out, figures, title="NegVQA", subtitle=_subtitle(manifests), sections=sections.SECTIONS,
        findings=finding(figures), notes=_notes(manifests), parts=parts, formats=formats,
    )  # fmt: skip
    protocols = {manifest["protocol"] for manifest in manifests.values()}
    protocol = protocols.pop() if len(protocols) == 1 else "fixed"
    shown = [sections.accuracy(protocol, "clustered"), sections.BLIND, sections.GAP]
    place = out if out in written else out.parent
    return f"{report.headline(figures, shown)}\nReport: {place}\n"


def read(named: Mapping[str, Folder], manifests: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """The figures of all runs, and the paper's Table 1; beside it stand runs on the paper's data only."""
    parts, comparable = [], {}
    for name, folder in named.items():
        figures = frames.label(frames.read(folder.path / FIGURES), benchmark="negvqa", model=name)
        parts.append(figures)
        if paper_numbers.is_negvqa(manifests[name]["data"]):
            comparable[name] = (figures, manifests[name]["reference"])
            parts.append(paper_numbers.beside(figures, name, manifests[name]["reference"]))
    return frames.concat([*parts, paper_numbers.table_1(comparable)])


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


def _by_name(folders: Sequence[Folder]) -> dict[str, AnswersDir]:
    """The runs by the name of their folder, or by its path where that is taken."""
    named: dict[str, AnswersDir] = {}
    for folder in (AnswersDir(folder.path) for folder in folders):
        if folder.manifest().get("status") != COMPLETE:
            raise UserError(f"'{folder.path}' is not complete; give its nein negvqa command again.")
        named[folder.path.name if folder.path.name not in named else str(folder.path)] = folder
    hashes = {name: folder.manifest()["data"]["sha256"] for name, folder in named.items()}
    if len(set(hashes.values())) > 1:
        one = next(iter(hashes))
        other = next(name for name in hashes if hashes[name] != hashes[one])
        raise UserError(f"'{one}' and '{other}' were asked different questions; report them apart.")
    return named


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


def run(options: ReportConfig) -> str:
    """Writes the report of finished runs; returns the headline as text. Raises UserError."""
    folders = [folder for path in options.runs for folder in files.find(path)]
    if not folders:
        raise UserError(f"'{options.runs[0]}' holds no run of nein negvqa; give the folder passed to --out.")
    items = _items(folders, options.data, options.negated, options.images)
    out = options.out.with_suffix(".html")
    return write(folders, out, samples=options.samples, items=items, formats=options.formats)


def _items(
    folders: Sequence[Folder], source: str | None, negated: str | None, pictures: str | None
) -> Sequence[Item] | None:
    """The questions the runs were asked, where they can be found; None otherwise."""
    from nein.datasets.negvqa import questions

    origin = folders[0].manifest()["data"]
    if source is None and "world" in origin:
        return questions.load(origin["world"], questions=origin["questions"]).items
    if source is None:
        return None
    source_items = questions.load(
        source, negated=negated, pictures=pictures, columns=origin.get("columns"),
        split=origin.get("split", "test"),
    )  # fmt: skip
    if source_items.sha256 != origin["sha256"]:
        raise UserError(f"'{source}' does not hold the questions that '{folders[0].path}' was asked.")
    return source_items.items
