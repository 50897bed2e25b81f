"""People's labels of edits: how they are written, the judges beside them, and Removal corrected by them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.nein import figures
from nein.benchmarks.nein.reporting.calibrations import beside
from nein.benchmarks.nein.runs import REMOVALS, RunDir
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting import labels
from nein.reporting.figures import Figure, figure
from nein.reporting.labels import UNSURE, Labelled, Question
from nein.statistics import bounded_mean, calibration

_GONE = {"gone": "gone", "partly": "partly gone", "there": "still there", UNSURE: UNSURE}
_KEPT = {"mostly": "mostly", "some": "some changes", "changed": "changed"}
#: What is asked about one edit; `gone` decides about Removal.
QUESTIONS = (
    Question("gone", "Is it gone?", _GONE),
    Question("kept", "Is the rest of the picture kept?", _KEPT),
    Question("artefacts", "Artefacts?", {"none": "none", "some": "some", "serious": "serious"}),
)
#: What counts as removed: an object of which a part is left is not. None: no label.
REMOVED = {"gone": 1.0, "1": 1.0, "yes": 1.0, UNSURE: None, "": None}
REMOVED |= dict.fromkeys(("partly", "there", "0", "no"), 0.0)
KEY = ("editor", "track", "id")


def read(files: Sequence[Path]) -> list[Labelled]:
    """The lines of CSV files with the columns editor, track, id, gone (a key of `REMOVED`), and perhaps rater
    and the other questions, as `nein study RUN --labels` writes them. Raises UserError."""
    rows: list[Labelled] = []
    verdicts: dict[tuple[str, ...], float | None] = {}
    allowed = ", ".join(filter(None, REMOVED))
    for file in files:
        for line, row in atomic.read_csv(file, (*KEY, "gone")):
            row = {"rater": "", **row, "gone": row["gone"].strip().lower()}
            where = f"'{file}', line {line}:"
            if row["gone"] not in REMOVED or not all(row[name] for name in KEY):
                raise UserError(f"{where} expected editor, track, id and gone ({allowed}), not {row}.")
            key = (row["rater"], *(row[name] for name in KEY))
            if verdicts.setdefault(key, REMOVED[row["gone"]]) != REMOVED[row["gone"]]:
                raise UserError(
                    f"{where} '{row['id']}' of {row['editor']}/{row['track']} has another label above; keep "
                    "the agreed one, or name each rater in a column rater."
                )
            rows.append(row)
    return rows


def labelled(loaded: Sequence[RunDir], rows: Sequence[Labelled]) -> list[Figure]:
    """Rows of the frame: Removal with labels of some samples behind it (prediction-powered; task "labelled"),
    every judge against people (task "judge-people"), and the raters against each other."""
    said: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if (value := REMOVED[row["gone"]]) is not None:
            said.setdefault((row["editor"], row["track"]), {}).setdefault(row["id"], []).append(value)
    #: Of every sample the share of the raters with a label who find the object gone.
    known = {key: {name: statistics.mean(given) for name, given in ids.items()} for key, ids in said.items()}
    runs = {(run.editor, run.track): run for run in loaded}
    if not known.keys() & runs.keys():
        given, here = ("; ".join("/".join(key) for key in keys) or "none" for keys in (known, runs))
        raise UserError(f"The labels are of other runs: {given}. Those here are {here}.")
    found: list[Figure] = []
    for key, run in ((key, run) for key, run in runs.items() if key in known):
        if stranger := next((name for name in known[key] if name not in run.edits), None):
            raise UserError(f"The labels name '{stranger}', which is no sample of {run.label}.")
        for metric in REMOVALS:
            if (entry := figures.estimate(run.of(metric), metric)) is not None:
                result = calibration.prediction_powered(run.values(metric), known[key], run.sources)
                more = "more samples"
                if result.needed is not None:
                    more = str(max(0, result.needed - len(known[key])))
                found += [{**row, "more": more} for row in beside(entry, result, "labelled", run, metric)]
    found += against(runs, known)
    named = [row | {"item": "/".join(row[name] for name in KEY)} for row in rows if row["rater"]]
    questions = [question for question in QUESTIONS if all(question.key in row for row in named)]
    source_of = {name: source for run in loaded for name, source in run.sources.items()}
    sources = {row["item"]: source_of.get(row["id"], row["id"]) for row in named}
    return [*found, *labels.agreement(named, questions, sources)]


def against(
    runs: Mapping[tuple[str, str], RunDir], known: Mapping[tuple[str, str], Mapping[str, float]]
) -> Iterator[Figure]:
    """How far each judge agrees with people, over all labels and by editor, object and template; and its
    sensitivity and specificity where most raters say the same, as `nein calibrate` gives them."""
    for metric in REMOVALS:
        parts = []
        for key, run in ((key, run) for key, run in runs.items() if key in known):
            frame = run.of(metric).frame
            parts.append(frame.assign(editor=run.label, people=frame["id"].astype(object).map(known[key])))
        table = pd.concat(parts, ignore_index=True).dropna(subset=["people", "value"])
        for by in ("all", "editor", "object", "template"):
            groups = [("", table)] if by == "all" else table.groupby(by, observed=True, sort=False)
            for group, part in groups:
                if part.empty:
                    continue
                what: dict[str, Any] = {"task": "judge-people", "metric": metric, "by": by, "group": group}
                same = bounded_mean(1 - (part["people"] - part["value"]).abs(), part["source"].tolist())
                yield figure(same, unit="%", statistic="same", **what)
                sure = part[part["people"] != 0.5]
                rates = calibration.rates(
                    (sure["people"] < 0.5).tolist(), (sure["value"] == 0).tolist(), sure["source"].tolist()
                )
                for statistic in ("sensitivity", "specificity"):
                    yield figure(getattr(rates, statistic), unit="%", statistic=statistic, **what)
