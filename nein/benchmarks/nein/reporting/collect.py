"""Finished runs, read once."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nein.benchmarks.nein import figures, negation_gap, report, runs
from nein.benchmarks.nein.runs import RunDir
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE
from nein.reporting import figures as frames
from nein.statistics.estimates import Columns, cluster_columns
from nein.wording import templates


@dataclass
class Run:
    """One complete run with its records.

    name     What it is called in tables: its editor, with the folder in front where two folders are compared.
    edits    Sample id -> edit record, in data order.
    numbers  Metric -> the value of every edit, NaN where there is none, (n,) float64; what judges said is
             read again for who shows it (`said`).
    asked    Metric -> whether there is a score of the edit, with a value or without, (n,) bool.
    figures  As its evaluation wrote them, under its name (`nein.benchmarks.nein.figures`).
    """

    directory: RunDir
    name: str
    manifest: Mapping[str, Any]
    edits: dict[str, dict[str, Any]]
    figures: pd.DataFrame
    numbers: dict[str, np.ndarray]
    asked: dict[str, np.ndarray]
    sources: dict[str, str]
    places: dict[str, int]

    @cached_property
    def whole(self) -> dict[str, dict[str, Any]]:
        """What corpus.json says of the metrics that have a value."""
        return {
            name: entry for name, entry in self.directory.read_corpus().items() if entry["value"] is not None
        }

    def values(self, metric: str) -> dict[str, float | None]:
        """Sample id -> value or None, of the samples with a score; made anew, since there may be many."""
        if metric not in self.numbers:
            return {}
        numbers = self.numbers[metric]
        shown = [
            None if lost else value for value, lost in zip(numbers.tolist(), np.isnan(numbers), strict=True)
        ]
        return dict(itertools.compress(zip(self.edits, shown, strict=True), self.asked[metric]))

    @cached_property
    def clusters(self) -> Columns:
        """The source images of the edits."""
        return cluster_columns([*self.sources.values()])

    @property
    def track(self) -> str:
        return self.directory.track

    @property
    def label(self) -> str:
        return f"{self.name}/{self.track}"

    def said(self) -> AbstractContextManager[Callable[[str], list[dict[str, Any]]]]:
        """What gives the rows of the scores of a sample, with what judges said."""
        return self.directory.scores_at(self.places)

    def model(self, kind: str) -> Mapping[str, Any]:
        """What the manifest says about a loaded model: "editor", "vqa", ...; empty when it was not needed."""
        return self.manifest.get("models", {}).get(kind, {})


def load(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """(complete runs at or below the paths, labels of the others). All must be on the same data.

    Raises UserError when there is none, or when two were made on different records.
    """
    by_folder: dict[Path, RunDir] = {}
    for path in paths:
        below = runs.find(path)
        if not below:
            raise UserError(f"'{path}' holds no run (no manifest.json); give the folder passed to --out.")
        by_folder |= {run.path.resolve(): run for run in below}
    complete = [run for run in by_folder.values() if (run.manifest() or {}).get("status") == COMPLETE]
    unfinished = [run.label for run in by_folder.values() if run not in complete]
    if not complete:
        raise UserError(
            f"None of the {len(by_folder)} runs there is complete ({', '.join(unfinished)}); "
            "run the stages edit and score first."
        )
    several = len({run.out.resolve() for run in complete}) > 1
    with _for_good():
        loaded = [read(run, f"{run.out.name}/{run.editor}" if several else run.editor) for run in complete]
    names: dict[str, int] = {}
    for run in loaded:
        names[run.label] = names.get(run.label, 0) + 1
    for run in loaded:
        if names[run.label] > 1:
            run.name = str(run.directory.out / run.directory.editor)
    hashes = {run.manifest.get("data", {}).get("records_sha256") for run in loaded}
    if len(hashes) > 1:
        one, other = loaded[0], next(r for r in loaded if _data(r) != _data(loaded[0]))
        raise UserError(
            f"'{one.directory.path}' and '{other.directory.path}' were made on different data; "
            "report them apart."
        )
    order = list(dict.fromkeys(run.name for run in sorted(loaded, key=lambda r: report.order(r.directory))))
    loaded.sort(key=lambda run: (order.index(run.name), figures.TRACKS.index(run.track)))
    return loaded, unfinished


@contextlib.contextmanager
def _for_good() -> Iterator[None]:
    """Nothing that is made in the block is looked for garbage: millions of rows that are kept until the end,
    which the collector would walk through again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def read(run: RunDir, name: str) -> Run:
    """The records and figures of one complete run."""
    edits, places = run.read_edits(), dict[str, int]()
    values = figures.values_of(edits, run.scores(places))
    sources = {edit["id"]: edit["source_id"] for edit in edits}
    if stray := next((sample for sample in places if sample not in sources), ""):
        raise UserError(
            f"'{run.path}' has scores of the sample '{stray}' and no edit of it; give its nein eval "
            "again, which writes the files anew."
        )
    by_id = {edit["id"]: edit for edit in edits}
    return Run(
        run, name, run.manifest() or {}, by_id, frames.label(figures.of(run), model=name),
        {metric: np.array([*map(of.get, by_id)], dtype=np.float64) for metric, of in values.items()},
        {metric: np.array([*map(of.__contains__, by_id)]) for metric, of in values.items()},
        sources, places,
    )  # fmt: skip


def together(loaded: Sequence[Run]) -> pd.DataFrame:
    """The figures of all runs, with what the paper prints of its editors where the preset is the paper's."""
    parts = []
    for run in loaded:
        parts.append(run.figures)
        if report.preset(run.manifest) == "paper" and run.track == "negative":
            parts.append(figures.printed(run.directory.editor, run.name))
    return frames.concat(parts)


def gaps(loaded: Sequence[Run]) -> pd.DataFrame:
    """The negation gap of every editor whose control was run, in all and per template."""
    return report.gaps(
        {
            (run.name, run.track): (
                list(run.edits.values()),
                {metric: run.values(metric) for metric in figures.REMOVALS if metric in run.numbers},
            )
            for run in loaded
        }
    )


def breakdowns(loaded: Sequence[Run], sizes: Mapping[str, str], order: Sequence[str]) -> pd.DataFrame:
    """Removal and Retention by template, object and source image size. sizes: source id -> size class;
    order: of the classes."""
    kinds: dict[str, Any] = {
        "by_template": (
            lambda edit: edit["template"],
            negation_gap.template_name,
            range(len(templates.NEGATIVE_TEMPLATES)),
        ),
        "by_object": (lambda edit: edit["object"], str, ()),
        "by_size": (lambda edit: sizes.get(edit["source_id"]), str, order),
    }
    parts = []
    for task, (group_of, shown, places) in kinds.items():
        rows = [
            {**row, "model": run.name, "variant": run.track}
            for run in loaded
            for row in figures.breakdown(
                task, run.numbers, run.edits.values(), run.clusters, group_of, shown, places
            )
        ]
        if len({row["group"] for row in rows}) > 1:
            parts.append(frames.frame(rows))
    return frames.label(frames.concat(parts), benchmark="nein")


def _data(run: Run) -> Any:
    return run.manifest.get("data", {}).get("records_sha256")
