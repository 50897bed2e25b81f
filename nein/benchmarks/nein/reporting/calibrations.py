"""Calibrated judges: what `nein calibrate` wrote, and the figures that follow of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.benchmarks import controls
from nein.benchmarks.nein import figures
from nein.benchmarks.nein.reporting.judge_tables import beside
from nein.benchmarks.nein.runs import RunDir
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting.figures import figure
from nein.statistics import calibration
from nein.statistics.calibration import Corrected, Rates

KINDS = {"vqa": "VQA", "ovd": "OVD"}
#: What a calibration's two files hold, as far as it is read back.
_FACTS: Mapping[str, Mapping[str, Any]] = {
    "vqa": {"kind": str, "fingerprint": str, "article": (str, None)},
    "ovd": {"kind": str, "fingerprint": str, "threshold": (float, None)},
}
_VERDICT = {
    "set": str, "cluster": str, "role": str, "present": bool, "score": (float, None),
    "verdict_fixed": (bool, None), "verdict_paper": (bool, None), "control?": str,
}  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """One judge's answers about pictures of known truth, as `nein calibrate` wrote them: a row per case, and
    per question of a control."""

    kind: str
    manifest: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    controls: Sequence[Mapping[str, Any]] = ()

    def fits(self, run: RunDir) -> bool:
        """Whether the run was scored by this judge, asked in this way."""
        option = "article" if self.kind == "vqa" else "threshold"
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
            manifest, lines = atomic.read_json(file), file.with_suffix(".jsonl")
            kind = str(manifest.get("kind")) if isinstance(manifest, dict) else ""
            if kind not in _FACTS or not lines.is_file():
                raise UserError(f"'{file}' is not a calibration written by nein calibrate.")
            manifest = atomic.read_json(file, _FACTS[kind])
            rows = atomic.read_lines(lines, _VERDICT)
            plain, of_controls = ([r for r in rows if bool(r.get("control")) == c] for c in (False, True))
            calibrations.append(Calibration(kind, manifest, plain, of_controls))
    return calibrations


def judged(loaded: Sequence[RunDir], calibrations: Sequence[Calibration]) -> Iterator[dict[str, Any]]:
    """Rows of the frame: error rates by set of images (task "calibration", sets in `group`), controls,
    reliability, and the corrected figures of runs."""
    for judge in calibrations:
        yield from controls.figures(judge.rows, judge.controls, KINDS[judge.kind])
        for where in [*dict.fromkeys(row["set"] for row in judge.rows), None]:
            for protocol in ("fixed", "paper") if judge.kind == "vqa" else ("fixed",):
                rate = judge.rates(protocol, where=where)
                name = f"{KINDS[judge.kind]} ({protocol})" if judge.kind == "vqa" else KINDS[judge.kind]
                for metric in ("sensitivity", "specificity", "auc"):
                    yield figure(
                        getattr(rate, metric), unit="%", unscored=rate.n_unscored, task="calibration",
                        metric=metric, judge=name, group=where or "all",
                    )  # fmt: skip
    yield from reliability(calibrations)
    yield from corrected(loaded, calibrations) if calibrations else ()


def corrected(loaded: Sequence[RunDir], calibrations: Sequence[Calibration]) -> Iterator[dict[str, Any]]:
    """Removal and Retention as judged, and corrected for the judge's own error (task "corrected")."""
    for run in loaded:
        for metric in ("removal_vqa", "retention_vqa", "removal_ovd", "retention_ovd"):
            entry = figures.estimate(run.of(metric), metric)
            if entry is None:
                continue
            what, _, kind = metric.rpartition("_")
            judge = next((known for known in calibrations if known.kind == kind and known.fits(run)), None)
            result = Corrected(None, None, None, "this judge was not calibrated")
            if judge is not None:
                # By names of objects alone: many words of captions name what no judge looks for.
                rule = run.about["config"]["protocol"]
                rule = "paper_retention" if (what, rule) == ("retention", "paper") else rule
                result = calibration.correct(entry, judge.rates(rule, role="object"), what)
            yield from beside(entry, result, "corrected", run, metric)


def reliability(calibrations: Sequence[Calibration]) -> Iterator[dict[str, Any]]:
    """Share of objects really there in bins of the judge's soft score (task "reliability", mean score of the
    bin in `score`); the calibration error stands in `group`, the name of its panel."""
    for judge in calibrations:
        rows = [row for row in judge.rows if row["score"] is not None]
        if not rows:
            continue
        scores, present, clusters = ([row[name] for row in rows] for name in ("score", "present", "cluster"))
        bins, error = calibration.reliability(scores, present, clusters)
        name = KINDS[judge.kind]
        for score, share in bins:
            yield figure(
                share, unit="%", score=repr(score), task="reliability", metric="present",
                judge=name, group=f"{name}: calibration error {error:.3f}",
            )  # fmt: skip
