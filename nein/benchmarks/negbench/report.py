"""The report of finished runs: OUT/table.md, figures.csv, report.html and plots. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench import judged, paper_numbers, sections
from nein.benchmarks.negbench import page as questions
from nein.benchmarks.negbench.config import ReportConfig
from nein.benchmarks.negbench.folder import Asked, ResultsDir
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import TEXT_TO_IMAGE
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.records import NEGATED, ORIGINAL
from nein.datasets.negbench.registry import MCQ, NANO, RETRIEVAL
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder
from nein.reporting import figures as frames
from nein.reporting import format, page
from nein.reporting import report as reporting
from nein.reporting.format import Gap, widest
from nein.reporting.page import Part

NANO_LABEL = "nano (miniature models on drawn scenes; not comparable with the paper)"
HOW = (
    "Percentages. ± and [ ]: 95 % interval, clustered by picture. ↑ higher is better, ↓ lower is better. "
    "Negation gap: recall with the original captions minus recall with the negated ones, paired."
)
FORMATS = ("md", "csv", "plots", "html")
Sets = Callable[[], Sequence[DataSet]]


@dataclass(frozen=True)
class Evaluated:
    """One finished run: what it says of itself (`summary` of its manifest), and its figures."""

    folder: ResultsDir
    facts: Mapping[str, Any]
    figures: pd.DataFrame

    @property
    def name(self) -> str:
        return f"{self.facts['model']}, {self.facts['title']}"

    @property
    def data(self) -> str:
        """SHA-256 of the records that were asked."""
        return str(self.folder.manifest()["data"]["records_sha256"])

    def figure(self, **where: Any) -> dict[str, Any] | None:
        """The first figure whose columns have the given entries, or None."""
        return frames.pick(self.figures, **where)


def run(options: ReportConfig) -> str:
    """The command `nein negbench report`: returns the tables as text. Raises UserError."""
    folders = [folder for path in options.runs for folder in finished(path)]
    out = options.out.with_suffix(".html")
    evaluated = _evaluated(folders)
    written = _write(out, evaluated, folders, lambda: files.sets_of(folders), options.formats)
    chief = [sections.RETRIEVED, sections.SATISFIED, sections.MULTIPLE_CHOICE]
    shown = reporting.headline(together(evaluated), chief)
    return f"{shown}\nReport: {out if out in written else out.parent}\n"


def report(out: Path, folders: Sequence[Folder], sets: Sets) -> str:
    """Writes the report of every finished run below `out` into it; returns the tables as text.

    folders  The runs of the command at hand: tables and plots have their models first, others follow by name.
    sets     Loads the data sets that these are about; the page shows questions of them.

    Raises UserError when there is none.
    """
    _write(out, read(out, [folder.path.parent.name for folder in folders]), folders, sets, FORMATS)
    return (out / "table.md").read_text(encoding="utf-8")


def _write(
    out: Path, runs: Sequence[Evaluated], folders: Sequence[Folder], sets: Sets, formats: Sequence[str]
) -> list[Path]:
    frame = together(runs)
    settings = {run.name: page.setting(run.facts) for run in runs}
    return reporting.write(
        out, frame, title=f"NegBench, {label(runs)}", subtitle=HOW, sections=sections.SECTIONS,
        findings=[*finding(frame), *findings(runs)], notes=notes(runs), settings=settings, formats=formats,
        stamp=label(runs) if label(runs) == NANO_LABEL else "", parts=_questions(runs, folders, sets),
    )  # fmt: skip


def _questions(runs: Sequence[Evaluated], folders: Sequence[Folder], sets: Sets) -> list[Part]:
    """The page's part with single questions, of all runs on the data of `folders`; none without any."""
    asked = [run for run in runs if len(frames.select(run.figures, metric="accuracy"))]
    here = {folder.path for folder in folders}
    at_hand = {run.data for run in asked if run.folder.path in here}
    shown = [run for run in asked if run.data in at_hand]

    def of_models() -> dict[str, list[Asked]]:
        there, by_model = sets(), dict[str, list[Asked]]()
        for run in shown:
            own = Asked.of_folder(run.folder, there)
            by_model.setdefault(run.facts["model"], []).extend([own] if own else [])
        return by_model

    return [questions.part(of_models)] if shown else []


def finished(out: Path) -> list[ResultsDir]:
    """The finished runs at or below `out`, by name. Raises UserError when there is none."""
    runs = [run for run in files.find(out) if run.manifest().get("status") == COMPLETE]
    if not runs:
        raise UserError(f"Nothing to report in '{out}': no run there is finished.")
    return runs


def read(out: Path, first: Sequence[str] = ()) -> list[Evaluated]:
    """The finished runs below `out`, in order of model (`first`, then by name) and data set."""
    place = {name: number for number, name in enumerate(first)}
    return _evaluated(sorted(finished(out), key=lambda run: place.get(run.path.parent.name, len(place))))


def _evaluated(runs: Sequence[ResultsDir]) -> list[Evaluated]:
    """Models of one name, from two folders say, are told apart by the names of their run directories; runs of
    one model on the same data by where they lie."""
    all_facts = [
        {**run.manifest()["summary"], "quick_gelu": run.notes("models")["model"].get("quick_gelu")}
        for run in runs
    ]
    folders: dict[str, set[str]] = {}
    for run, facts in zip(runs, all_facts, strict=True):
        folders.setdefault(facts["model"], set()).add(run.path.parent.name)
    times = Counter(run.path.parts[-2:] for run in runs)
    evaluated = []
    for run, facts in zip(runs, all_facts, strict=True):
        name = run.path.parent.name if len(folders[facts["model"]]) > 1 else facts["model"]
        if times[run.path.parts[-2:]] > 1:
            name = f"{name} ({run.path.parents[1]})"
        parts = [files.figures(run), judged.figures_file(run)]
        figures = frames.concat(frames.read(file) for file in parts if file.exists())
        facts = {**facts, "model": name}
        evaluated.append(Evaluated(run, facts, _labelled(facts, figures)))
    return evaluated


def _labelled(facts: Mapping[str, Any], figures: pd.DataFrame) -> pd.DataFrame:
    """With what it is of: benchmark, model, dataset, and `data`, the name of data set and task in tables."""
    tasks = ("" if task in (RETRIEVAL, MCQ) else f" {task}" for task in figures["task"])
    return frames.label(
        figures, benchmark="negbench", model=facts["model"], dataset=facts["dataset"],
        data=[f"{facts['title']}{task}" for task in tasks],
    )  # fmt: skip


def together(runs: Sequence[Evaluated]) -> pd.DataFrame:
    """All figures; in the paper preset, those that its authors print stand behind those of their model."""
    parts = []
    for run in runs:
        parts.append(run.figures)
        if run.facts["preset"] == "paper" and run.facts["row"] is not None:
            features = run.facts["features"] or "normalised"
            row, quick_gelu = run.facts["row"], run.facts["quick_gelu"]
            parts.append(paper_numbers.beside(run.figures, row, features, quick_gelu))
    return frames.concat(parts)


def label(runs: Sequence[Evaluated]) -> str:
    return (
        NANO_LABEL if {run.facts["dataset"].partition("-")[0] for run in runs} == {NANO} else "measured here"
    )


def finding(frame: pd.DataFrame) -> list[str]:
    """The widest negation gap of text-to-image retrieval in a sentence; without any, who chooses best."""
    recall, gap = f"recall@{KS[0]}", f"gap@{KS[0]}"
    retrieved = frames.select(frame, direction=TEXT_TO_IMAGE, metric=(recall, gap), source="")
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for figure in frames.records(retrieved):
        runs.setdefault(_run(figure), {})[figure["kind"]] = figure
    gaps = [Gap(name, by[ORIGINAL], by[NEGATED], by[""]) for name, by in runs.items() if len(by) == 3]
    what = f"text-to-image {recall.replace('@', ' at ')}"
    sentence = widest(gaps, what=what, change="a caption says what is absent", models="models and data sets")
    return [sentence] if sentence else _best_chooser(frame)


def _best_chooser(frame: pd.DataFrame) -> list[str]:
    chosen = frames.select(frame, metric="accuracy", source="")
    totals = [f for f in frames.records(frames.select(chosen, type="all")) if f["value"] is not None]
    if not totals:
        return []
    best = max(totals, key=lambda figure: figure["value"])
    same = {key: best[key] for key in ("model", "data", "variant")}
    negation = frames.pick(chosen, type="negation", **same)
    denied = f"; {format.text(negation)} % where a negation is right" if negation else ""
    most = " most" if len(totals) > 1 else ""
    return [f"{_run(best)} gets{most} choices right: {format.text(best)} %{denied}."]


def _run(figure: Mapping[str, Any]) -> str:
    return f"{figure['model']} ({figure['data']}, {figure['variant']})"


def findings(runs: Sequence[Evaluated]) -> list[str]:
    """The negation gap in words, one sentence per run and wording of the captions."""
    said = []
    for run in runs:
        figures = frames.select(run.figures, direction=TEXT_TO_IMAGE)
        for variant in frames.values(figures, "variant"):
            parts = []
            for k in KS:
                gap = frames.pick(figures, variant=variant, metric=f"gap@{k}")
                recalls = [
                    frames.pick(figures, variant=variant, metric=f"recall@{k}", kind=kind)
                    for kind in (ORIGINAL, NEGATED)
                ]
                if gap is not None and gap["value"] is not None:
                    told, denied = (format.text(recall, interval="none") for recall in recalls)
                    parts.append(f"{told} % and {denied} % at {k} (gap {format.text(gap)} points)")
            if parts:
                said.append(
                    f"{run.name}: text-to-image recall with the original captions and with the {variant} "
                    f"negated ones is {'; '.join(parts)}."
                )
    return said


def notes(runs: Sequence[Evaluated]) -> list[str]:
    """What a reader has to know: rows that differ, quirks, limits, unscored samples."""
    all_facts, said = [run.facts for run in runs], []
    for key, what in (("protocol", "protocol"), ("features", "features"), ("limit", "--limit")):
        if len({facts[key] for facts in all_facts if facts["kind"] == "dual"}) > 1:
            said.append(f"the rows differ in {what}; they are not comparable with each other.")
    for value, text in (
        ("paper", "protocol 'paper': the right option comes first and ties go to the first, as released."),
        ("unnormalised", "multiple choice compares features that are not normalised, as first published."),
    ):
        if any(value in (facts["protocol"], facts["features"]) for facts in all_facts):
            said.append(text)
    for run in runs:
        otherwise = paper_numbers.differs(run.facts["row"], run.facts["quick_gelu"])
        if run.facts["preset"] == "paper" and otherwise:
            said.append(
                f"{run.name}: the printed figures beside it were computed {otherwise}, which this model is "
                "not; they are not comparable."
            )
    if limits := {facts["limit"] for facts in all_facts if facts["limit"]}:
        said.append(
            f"--limit {max(limits)}: recall among fewer pictures is higher than on the whole set, and not "
            "comparable with it."
        )
    for run in runs:
        for figure in frames.records(run.figures):
            if figure["unscored"] and (reasons := frames.reasons(figure)):
                if figure["metric"] == f"recall@{KS[0]}" or figure.get("type") == "all":
                    reason, count = next(iter(reasons.items()))
                    named = (figure.get(key) for key in ("task", "variant", "kind", "direction"))
                    baseline = figure["metric"] if figure["metric"] in BASELINES else ""
                    where = ", ".join(filter(None, (*named, baseline)))
                    said.append(
                        f"{run.name}, {where}: {figure['unscored']} unscored; {count} of them: {reason}"
                    )
    return said
