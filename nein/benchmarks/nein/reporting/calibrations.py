"""The judges of a report as figures: their calibration, agreement, grades, and figures corrected by them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks import controls
from nein.benchmarks.nein import figures
from nein.benchmarks.nein.runs import REMOVALS, RunDir
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder, runs_below
from nein.reporting import figures as frames
from nein.reporting.figures import Figure, figure, number
from nein.statistics import calibration
from nein.statistics.calibration import Corrected, Rates
from nein.statistics.estimates import Estimate

KINDS = {"vqa": "VQA", "ovd": "OVD"}
#: What of its manifest a judge must have in common with a run, besides its fingerprint.
_OPTIONS = {"vqa": "article", "ovd": "threshold"}
_VERDICTS = {"verdict_fixed": (bool, None), "verdict_paper": (bool, None), "score": (float, None)}
_ROW = {"set": str, "cluster": str, "role": str, "present": bool, "control?": str, **_VERDICTS}


@dataclass(frozen=True)
class Calibration:
    """One judge's answers about pictures of known truth, as `nein calibrate` wrote them: a row per case, and
    per question of a control."""

    kind: str
    manifest: Mapping[str, Any]
    rows: Sequence[Figure]
    controls: Sequence[Mapping[str, Any]] = ()

    def fits(self, run: RunDir) -> bool:
        """Whether the run was scored by this judge, asked in this way."""
        option = _OPTIONS[self.kind]
        same = run.model(self.kind).get("fingerprint") == self.manifest["fingerprint"]
        return same and run.about.get("config", {}).get(option) == self.manifest[option]

    def rates(self, protocol: str, role: str | None = None, where: str | None = None) -> Rates:
        """Error rates under a protocol. role: "object" or "caption" for present words of that kind only;
        where: one set only."""
        rows = [r for r in self.rows if where in (None, r["set"])]
        rows = [r for r in rows if role is None or not r["present"] or r["role"] == role]
        columns = ("present", f"verdict_{protocol}", "cluster", "score")
        return calibration.rates(*([r[name] for r in rows] for name in columns))


def load(folders: Sequence[Path], explicit: bool) -> list[Calibration]:
    """The calibrations in the folders. With `explicit`, a folder without one is a UserError."""
    calibrations = []
    for folder in folders:
        files = sorted(folder.glob("*.json"))
        if not files and explicit:
            raise UserError(f"'{folder}' holds no calibration; make one with nein calibrate RUN.")
        for file in files:
            manifest, lines = atomic.read_json(file, dict), file.with_suffix(".jsonl")
            if (kind := str(manifest.get("kind"))) not in KINDS or not lines.is_file():
                raise UserError(f"'{file}' is not a calibration written by nein calibrate.")
            atomic.check(manifest, {"fingerprint": str, _OPTIONS[kind]: (str, float, None)}, f"'{file}'")
            rows = atomic.read_lines(lines, _ROW)
            plain, of_controls = ([r for r in rows if bool(r.get("control")) == c] for c in (False, True))
            calibrations.append(Calibration(kind, manifest, plain, of_controls))
    return calibrations


def judged(loaded: Sequence[RunDir], calibrations: Sequence[Calibration]) -> Iterator[Figure]:
    """Rows of the frame: error rates by set of images (task "calibration", sets in `group`), controls,
    reliability, and the corrected figures of runs."""
    for judge in calibrations:
        title = KINDS[judge.kind]
        yield from controls.figures(judge.rows, judge.controls, title)
        for where in [*dict.fromkeys(row["set"] for row in judge.rows), None]:
            for protocol in ("fixed", "paper") if judge.kind == "vqa" else ("fixed",):
                rate = judge.rates(protocol, where=where)
                what: dict[str, Any] = {"task": "calibration", "group": where or "all"}
                what["judge"] = f"{title} ({protocol})" if judge.kind == "vqa" else title
                for metric in ("sensitivity", "specificity", "auc"):
                    estimate, lost = getattr(rate, metric), rate.n_unscored
                    yield figure(estimate, unit="%", unscored=lost, metric=metric, **what)
        yield from _reliability(judge, title)
    yield from corrected(loaded, calibrations) if calibrations else ()


def _reliability(judge: Calibration, title: str) -> Iterator[Figure]:
    """Share of objects really there in bins of the judge's soft score (task "reliability", mean score of the
    bin in `score`); the calibration error stands in `group`, the name of its panel."""
    if rows := [row for row in judge.rows if row["score"] is not None]:
        scores, present, clusters = ([row[name] for row in rows] for name in ("score", "present", "cluster"))
        bins, error = calibration.reliability(scores, present, clusters)
        what: dict[str, Any] = {"task": "reliability", "metric": "present", "judge": title}
        what["group"] = f"{title}: calibration error {error:.3f}"
        yield from (figure(share, unit="%", score=repr(score), **what) for score, share in bins)


def corrected(loaded: Sequence[RunDir], calibrations: Sequence[Calibration]) -> Iterator[Figure]:
    """Removal and Retention as judged, and corrected for the judge's own error (task "corrected")."""
    for run in loaded:
        for metric in ("removal_vqa", "retention_vqa", "removal_ovd", "retention_ovd"):
            entry = figures.estimate(run.of(metric), metric)
            if entry is None:
                continue
            what: Any = metric.rpartition("_")[0]
            kind = metric.rpartition("_")[2]
            judge = next((known for known in calibrations if known.kind == kind and known.fits(run)), None)
            result = Corrected(None, None, None, "this judge was not calibrated")
            if judge is not None:
                # By names of objects alone: many words of captions name what no judge looks for.
                rule = run.about["config"]["protocol"]
                rule = "paper_retention" if (what, rule) == ("retention", "paper") else rule
                result = calibration.correct(entry, judge.rates(rule, role="object"), what)
            yield from beside(entry, result, "corrected", run, metric)


def beside(judged: Estimate, result: Corrected, how: str, run: RunDir, metric: str) -> Iterator[Figure]:
    """A figure as judged, and what is made of it."""
    what: dict[str, Any] = {"task": how, "metric": metric, **_of(run)}
    yield figure(judged, unit="%", statistic="judged", **what)
    ends = {"value": result.value, "low": result.low, "high": result.high, "n": result.n}
    yield {**what, **ends, "unit": "%", "statistic": how, "refused": result.refused}


def _of(run: RunDir) -> dict[str, Any]:
    return {"model": run.name, "variant": run.track}


def agreements(loaded: Sequence[RunDir]) -> Iterator[Figure]:
    """How far the two removal judges agree on the same edited pictures (task "agreement")."""
    for run in loaded:
        one, other, clusters = run.of("removal_vqa").pair(run.of("removal_ovd"))
        if not clusters:
            continue
        first, second = (run.values(metric) for metric in REMOVALS)
        kappa = calibration.cohen_kappa(first, second, run.sources)
        alpha = calibration.krippendorff_alpha([first, second], run.sources)
        what: dict[str, Any] = {"task": "agreement", "metric": "removal", **_of(run)}
        yield number(float((one == other).mean()), unit="%", n=len(clusters), statistic="same", **what)
        yield figure(kappa, unit="", statistic="kappa", **what)
        yield figure(alpha, unit="", statistic="alpha", **what)


#: How a graded judge was asked, and what was read.
_ASKED = {
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


def grades(loaded: Sequence[RunDir], paths: Sequence[Path]) -> Iterator[Figure]:
    """How well the judges that decide Removal answer questions and their negations (task "negvqa"), by the
    runs of `nein negvqa --model judge` below the folders. Raises UserError."""
    for path in paths:
        runs = [(Folder(run).manifest(), run / "figures.csv") for run in runs_below(path)]
        runs = [(manifest, file) for manifest, file in runs if manifest["identity"].get("role") == "judge"]
        if not runs:
            raise UserError(f"'{path}' holds no grade of a judge; make one with nein negvqa --model judge.")
        for manifest, file in runs:
            yield from _graded(loaded, manifest, frames.read(file))


def _graded(loaded: Sequence[RunDir], manifest: Mapping[str, Any], grade: pd.DataFrame) -> Iterator[Figure]:
    judge, asking = manifest["models"]["model"], manifest["identity"]["asking"]
    used = [run.label for run in loaded if run.model("vqa").get("fingerprint") == judge["judge"]]
    what = {"task": "negvqa", "metric": "accuracy", "variant": "", "category": "", "model": ""}
    what |= {"used": ", ".join(used) or "none of these runs", "judge": judge.get("class", "")}
    overall = frames.select(grade, headline="yes", protocol="fixed", category="Average")
    for statistic, where in _GRADE.items():
        row = frames.pick(overall, **where) or {}
        asked = _ASKED[asking, row["scoring"]]
        yield {**row, **what, "asked": asked, "statistic": statistic, "fingerprint": judge["judge"]}
