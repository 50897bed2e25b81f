"""The judges of a report as figures: beside what corrects them, agreement, best of several edits, grades."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.nein.runs import REMOVALS, RunDir
from nein.engine.errors import UserError
from nein.engine.folder import Folder, runs_below
from nein.reporting import figures as frames
from nein.reporting.figures import figure, number
from nein.statistics import calibration
from nein.statistics.calibration import Corrected
from nein.statistics.estimates import Estimate, bounded_mean


def beside(
    judged: Estimate, result: Corrected, how: str, run: RunDir, metric: str
) -> Iterator[dict[str, Any]]:
    """A figure as judged, and what is made of it."""
    what: dict[str, Any] = {"task": how, "metric": metric, **_of(run)}
    yield figure(judged, unit="%", statistic="judged", **what)
    ends = {"value": result.value, "low": result.low, "high": result.high, "n": result.n}
    yield {**what, **ends, "unit": "%", "statistic": how, "refused": result.refused}


def agreements(loaded: Sequence[RunDir]) -> Iterator[dict[str, Any]]:
    """How far the two removal judges agree on the same edited pictures (task "agreement")."""
    for run in loaded:
        one, other, clusters = run.of("removal_vqa").pair(run.of("removal_ovd"))
        if not clusters:
            continue
        first, second = (run.values(metric) for metric in REMOVALS)
        what: dict[str, Any] = {"task": "agreement", "metric": "removal", **_of(run)}
        yield number(float((one == other).mean()), unit="%", n=len(clusters), statistic="same", **what)
        estimates = {
            "kappa": calibration.cohen_kappa(first, second, run.sources),
            "alpha": calibration.krippendorff_alpha([first, second], run.sources),
        }
        yield from (figure(one, unit="", statistic=name, **what) for name, one in estimates.items())


def _of(run: RunDir) -> dict[str, Any]:
    return {"model": run.name, "variant": run.track}


def best_of(loaded: Sequence[RunDir]) -> Iterator[dict[str, Any]]:
    """Of every arm that chooses the best of several edits, the gain in Removal over the editor's own edits of
    the same samples (task "best-of")."""
    for run in loaded:
        if run.model("editor").get("mended", {}).get("arm") != "best-of":
            continue
        base = (run.out, run.editor.partition("+best-of-")[0], run.track)
        for other in (entry for entry in loaded if (entry.out, entry.editor, entry.track) == base):
            for metric in (name for name in REMOVALS if name in run.metrics and name in other.metrics):
                chosen, own, clusters = run.of(metric).pair(other.of(metric))
                gain = bounded_mean(chosen - own, clusters, -1.0, 1.0)
                yield figure(gain, unit="points", task="best-of", metric=metric, statistic="gain", **_of(run))


def read_grades(paths: Sequence[Path]) -> list[tuple[Mapping[str, Any], pd.DataFrame]]:
    """(manifest, figures) of every run of `nein negvqa --model judge` below the folders. Raises UserError."""
    graded: list[tuple[Mapping[str, Any], pd.DataFrame]] = []
    for path in paths:
        runs = [(Folder(run).manifest(), run / "figures.csv") for run in runs_below(path)]
        runs = [(manifest, file) for manifest, file in runs if manifest["identity"].get("role") == "judge"]
        if not runs:
            raise UserError(f"'{path}' holds no grade of a judge; make one with nein negvqa --model judge.")
        graded += [(manifest, frames.read(file)) for manifest, file in runs]
    return graded


#: How a graded judge was asked, and what was read.
MANNERS = {
    ("letters", "generated"): "for the letter",
    ("options", "generated"): "about each option: the only yes",
    ("options", "logprob"): "about each option: the likelier yes",
}
#: What is shown of a grade -> which figure it is.
_GRADE = {
    "original questions": {"task": "accuracy", "variant": "original", "interval": "clustered"},
    "negated questions": {"task": "accuracy", "variant": "negated", "interval": "clustered"},
    "negation gap": {"task": "gap", "metric": "gap"},
    "both": {"task": "outcomes", "metric": "both"},
}


def grades(
    loaded: Sequence[RunDir], graded: Sequence[tuple[Mapping[str, Any], pd.DataFrame]]
) -> list[dict[str, Any]]:
    """How well the judges that decide Removal answer questions and their negations (NegVQA; task
    "negvqa")."""
    rows = []
    for manifest, grade in graded:
        judge = manifest["models"]["model"]
        used = [run.label for run in loaded if run.model("vqa").get("fingerprint") == judge["judge"]]
        overall = frames.select(grade, headline="yes", protocol="fixed", category="Average")
        for statistic, where in _GRADE.items():
            row = frames.pick(overall, **where) or {}
            what = {"task": "negvqa", "metric": "accuracy", "variant": "", "category": "", "model": ""}
            what |= {"used": ", ".join(used) or "none of these runs", "judge": judge.get("class", "")}
            what["asked"] = MANNERS[manifest["identity"]["asking"], row["scoring"]]
            rows.append({**row, **what, "statistic": statistic, "fingerprint": judge["judge"]})
    return rows
