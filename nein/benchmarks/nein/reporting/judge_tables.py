"""The judges of a report as figures: error rates, corrections, agreement, soft scores that can be trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.nein import figures
from nein.benchmarks.nein.records import REMOVALS, Records
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder, runs_below
from nein.reporting import figures as frames
from nein.reporting.figures import figure, number
from nein.statistics import agreement, calibration
from nein.statistics.calibration import Corrected, Rates
from nein.statistics.estimates import Estimate, bounded_mean

KINDS = {"vqa": "VQA", "ovd": "OVD"}


@dataclass(frozen=True)
class Calibration:
    """One judge's answers about pictures whose truth is known, as `nein calibrate` wrote them.

    manifest  Judge, fingerprint, threshold, article.
    rows      One case per line: set, role, word, present, ...
    """

    kind: str
    manifest: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def fits(self, run: Records) -> bool:
        """Whether the run was scored by this judge, asked in this way."""
        config = run.manifest.get("config", {})
        same = run.model(self.kind).get("fingerprint") == self.manifest["fingerprint"]
        option = "article" if self.kind == "vqa" else "threshold"
        return same and config.get(option) == self.manifest[option]

    def rates(self, protocol: str, role: str | None = None, where: str | None = None) -> Rates:
        """Error rates under a protocol. role: "object" or "caption" for present words of that kind only;
        where: one set only."""
        rows = [r for r in self.rows if where in (None, r["set"])]
        rows = [r for r in rows if role is None or not r["present"] or r["role"] == role]
        return calibration.rates(
            [r["present"] for r in rows],
            [r[f"verdict_{protocol}"] for r in rows],
            [r["cluster"] for r in rows],
            [r["score"] for r in rows],
        )


@dataclass(frozen=True)
class Reward:
    """What a judge of edits prefers where it is known which edit obeys, as `nein calibrate` wrote it.

    sets  Family of pairs -> "affirmed", "negated", "gap", "position", "ties", "n_unscored"
          (`nein.judges.preferences.rates`).
    """

    name: str
    fingerprint: str
    sets: Mapping[str, Mapping[str, Any]]

    def share(self, family: str, which: str, **what: Any) -> dict[str, Any]:
        """The row of one of its figures."""
        rates, share = self.sets[family], self.sets[family][which]
        unit = "points" if which in ("gap", "position") else "%"
        return figure(
            share and Estimate.from_dict(share), unit=unit, unscored=rates["n_unscored"],
            metric=which, judge=self.name, group=family, **what,
        )  # fmt: skip


#: What a calibration's two files hold, as far as it is read back.
_ASKED: Mapping[str, Mapping[str, Any]] = {
    "vqa": {"article": (str, None)}, "ovd": {"threshold": (float, None)},
}  # fmt: skip
_FACTS = {kind: {"kind": str, "fingerprint": str, **asked} for kind, asked in _ASKED.items()}
_VERDICT = {
    "set": str, "cluster": str, "role": str, "present": bool, "score": (float, None),
    "verdict_fixed": (bool, None), "verdict_paper": (bool, None),
}  # fmt: skip


_SHARE = {
    "value": float, "n": int, "clusters": int,
    **dict.fromkeys(("low", "high", "standard_error"), (float, None)),
}  # fmt: skip
_SHARES = ("affirmed", "negated", "gap", "position")
_FAMILY = {**dict.fromkeys(_SHARES, (_SHARE, None)), "ties": int, "n_unscored": int}
_REWARD = {"reference": str, "fingerprint": str, "sets": dict}


def load(folders: Sequence[Path], explicit: bool) -> list[Calibration]:
    """The calibrations in the folders. With `explicit`, a folder without one is a UserError."""
    calibrations = []
    for folder in folders:
        files = sorted(folder.glob("*.json"))
        if not files and explicit and not any(folder.glob("rewards/*.json")):
            raise UserError(f"'{folder}' holds no calibration; make one with nein calibrate RUN.")
        for file in files:
            manifest = atomic.read_json(file)
            lines = file.with_suffix(".jsonl")
            known = isinstance(manifest, dict) and str(manifest.get("kind")) in _FACTS
            if not known or not lines.is_file():
                raise UserError(f"'{file}' is not a calibration written by nein calibrate.")
            manifest = atomic.read_json(file, _FACTS[str(manifest["kind"])])
            rows = atomic.read_lines(lines, _VERDICT)
            calibrations.append(Calibration(manifest["kind"], manifest, rows))
    return calibrations


def load_rewards(folders: Sequence[Path]) -> list[Reward]:
    """The calibrated judges of edits in the folders; where two go by one name, with their fingerprints."""
    read = {}
    for file in (file for folder in folders for file in sorted(folder.glob("rewards/*.json"))):
        families = atomic.read_json(file, _REWARD)["sets"]
        one = atomic.read_json(file, {**_REWARD, "sets": dict.fromkeys(families, _FAMILY)})
        read[one["fingerprint"]] = one
    names = Counter(one["reference"] for one in read.values())
    ends = {key: f" ({key[:8]})" if names[one["reference"]] > 1 else "" for key, one in read.items()}
    return [Reward(one["reference"] + ends[key], key, one["sets"]) for key, one in read.items()]


def rewarded(loaded: Sequence[Records], rewards: Sequence[Reward]) -> list[dict[str, Any]]:
    """Rows of the frame: how often each judge of edits prefers the edit that obeys (task "rewards"), and of
    every arm that chooses the best of several edits, what its judge is worth and what it gained (task
    "best-of")."""
    rows = [
        {**reward.share(family, which, task="rewards"), "ties": str(rates["ties"])}
        for reward in rewards
        for family, rates in reward.sets.items()
        for which in _SHARES
        if rates[which] is not None
    ]
    for run in loaded:
        arm = run.model("editor").get("mended", {})
        if arm.get("arm") == "best-of":
            rows += _best_of(run, arm, loaded, rewards)
    return [{**row, "benchmark": "nein"} for row in rows]


def _best_of(
    run: Records, arm: Mapping[str, Any], loaded: Sequence[Records], rewards: Sequence[Reward]
) -> Iterator[dict[str, Any]]:
    """The shares of the judge that chose, under the wording of the run's track; Removal of the editor as it
    is, of the arm, and the difference over the same samples."""
    what = {"task": "best-of", "model": run.name, "variant": run.track}
    which = "negated" if run.track == "negative" else "affirmed"
    for reward in (one for one in rewards if one.fingerprint == arm["judge"]):
        for family in reward.sets:
            yield {**reward.share(family, which, **what), "metric": "preferred", "judge": ""}
    base = run.run.editor.partition("+best-of-")[0]
    for other in loaded:
        if (other.run.out, other.run.editor, other.track) != (run.run.out, base, run.track):
            continue
        for metric in REMOVALS:
            if metric in run.metrics and metric in other.metrics:
                chosen, own, clusters = run.of(metric).pair(other.of(metric))
                gain = bounded_mean(chosen - own, clusters, -1.0, 1.0)
                yield {**figure(gain, unit="points"), **what, "metric": metric, "statistic": "gain"}


def judged(loaded: Sequence[Records], calibrations: Sequence[Calibration]) -> list[dict[str, Any]]:
    """Rows of the frame: error rates of the judges, the corrected figures, reliability of their soft scores,
    and agreement between the judges of every run."""
    rows = list(agreements(loaded))
    if calibrations:
        rows += [*rates(calibrations), *corrected(loaded, calibrations), *reliability(calibrations)]
    return [{**row, "benchmark": "nein"} for row in rows]


def rates(calibrations: Sequence[Calibration]) -> Iterator[dict[str, Any]]:
    """Sensitivity and specificity of every calibrated judge, by set of pictures and altogether (task
    "calibration", sets in `group`)."""
    for judge in calibrations:
        for where in [*dict.fromkeys(row["set"] for row in judge.rows), None]:
            for protocol in ("fixed", "paper") if judge.kind == "vqa" else ("fixed",):
                rate = judge.rates(protocol, where=where)
                name = f"{KINDS[judge.kind]} ({protocol})" if judge.kind == "vqa" else KINDS[judge.kind]
                for metric in ("sensitivity", "specificity", "auc"):
                    yield figure(
                        getattr(rate, metric), unit="%", unscored=rate.n_unscored, task="calibration",
                        metric=metric, judge=name, group=where or "all",
                    )  # fmt: skip


def corrected(loaded: Sequence[Records], calibrations: Sequence[Calibration]) -> Iterator[dict[str, Any]]:
    """Removal and Retention as judged, and corrected for the judge's own error (task "corrected")."""
    for run in loaded:
        for metric in ("removal_vqa", "retention_vqa", "removal_ovd", "retention_ovd"):
            entry = _judged(run, metric)
            if entry is None:
                continue
            kind = metric.rpartition("_")[2]
            fitting = [judge for judge in calibrations if judge.kind == kind and judge.fits(run)]
            if not fitting:
                result = Corrected(None, None, None, "this judge was not calibrated")
            else:
                result = correct(entry, metric, fitting[0], run.manifest["config"]["protocol"])
            what = {"task": "corrected", "metric": metric, "model": run.name, "variant": run.track}
            yield {**figure(entry, unit="%"), **what, "statistic": "judged"}
            ends = {"value": result.value, "low": result.low, "high": result.high}
            yield {**what, **ends, "unit": "%", "statistic": "corrected", "refused": result.refused}


def reliability(calibrations: Sequence[Calibration]) -> Iterator[dict[str, Any]]:
    """Share of objects really there in bins of the judge's soft score (task "reliability", mean score of the
    bin in `score`); the calibration error stands in `group`, the name of its panel."""
    for judge in calibrations:
        rows = [row for row in judge.rows if row["score"] is not None]
        if not rows:
            continue
        bins, error = calibration.reliability(
            [r["score"] for r in rows], [r["present"] for r in rows], [r["cluster"] for r in rows]
        )
        name = KINDS[judge.kind]
        what: dict[str, Any] = {"task": "reliability", "metric": "present", "judge": name}
        for part in bins:
            yield figure(
                part.present,
                unit="%",
                score=repr(part.score),
                group=f"{name}: calibration error {error:.3f}",
                **what,
            )


def correct(judged: Estimate, metric: str, judge: Calibration, protocol: str) -> Corrected:
    """A run's figure corrected by a calibration, with the rates on names of objects. Words of captions
    are left out: many name what no judge looks for, and Retention asks only about what it has seen."""
    if metric.startswith("removal"):
        return calibration.correct_removal(judged, judge.rates(protocol, role="object"))
    rule = "paper_retention" if protocol == "paper" else protocol
    return calibration.correct_retention(judged, judge.rates(rule, role="object"))


def _judged(run: Records, metric: str) -> Estimate | None:
    """The figure as the judge has it; None where nothing was scored."""
    return figures.estimate(run.of(metric), metric)


def read_labels(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """(editor, track) -> sample id -> 1.0 where a person found the object gone, 0.0 where it is still there.

    A CSV file with the columns editor, track, id, gone (1/0, yes/no). Raises UserError naming the first bad
    line.
    """
    import csv

    words = {"1": 1.0, "yes": 1.0, "0": 0.0, "no": 0.0}
    labels: dict[tuple[str, str], dict[str, float]] = {}
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=2):
                gone = words.get(str(row.get("gone", "")).strip().lower())
                if gone is None or not all(row.get(name) for name in ("editor", "track", "id")):
                    raise UserError(
                        f"'{file}', line {number}: expected editor, track, id, gone (1 or 0), not {row}."
                    )
                of_run = labels.setdefault((row["editor"], row["track"]), {})
                if of_run.get(row["id"], gone) != gone:
                    raise UserError(
                        f"'{file}', line {number}: '{row['id']}' of {row['editor']}/{row['track']} has "
                        "another label above; keep the one that was agreed on."
                    )
                of_run[row["id"]] = gone
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{file}' cannot be read: {error}.") from None
    if not labels:
        raise UserError(f"'{file}' holds no labels; expected lines of editor,track,id,gone.")
    return labels


def labelled(
    loaded: Sequence[Records], labels: Mapping[tuple[str, str], Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Removal with people's labels of some samples behind it (prediction-powered; task "labelled")."""
    rows = []
    for run in loaded:
        of_run = labels.get((run.run.editor, run.track), {})
        strangers = [name for name in of_run if name not in run.place]
        if strangers:
            raise UserError(f"The labels name '{strangers[0]}', which is no sample of {run.label}.")
        for metric in REMOVALS:
            entry = _judged(run, metric)
            if entry is None or not of_run:
                continue
            result = calibration.prediction_powered(run.values(metric), of_run, run.sources)
            what = {"benchmark": "nein", "task": "labelled", "metric": metric}
            what |= {"model": run.name, "variant": run.track}
            ends = {"value": result.value, "low": result.low, "high": result.high, "n": result.n}
            rows.append({**figure(entry, unit="%"), **what, "statistic": "judged"})
            rows.append({**what, **ends, "unit": "%", "statistic": "labelled", "refused": result.refused})
    return rows


def read_grades(paths: Sequence[Path]) -> list[tuple[Mapping[str, Any], pd.DataFrame]]:
    """(manifest, figures) of every run of `nein negvqa --model judge` at or below the folders. Raises
    UserError."""
    graded: list[tuple[Mapping[str, Any], pd.DataFrame]] = []
    for path in paths:
        runs = [(Folder(run).manifest(), run / "figures.csv") for run in runs_below(path)]
        judges = [(manifest, file) for manifest, file in runs if manifest["identity"].get("role") == "judge"]
        if not judges:
            raise UserError(f"'{path}' holds no grade of a judge; make one with nein negvqa --model judge.")
        graded += [(manifest, frames.read(file)) for manifest, file in judges]
    return graded


#: How a graded judge was asked, and what was read.
MANNERS = {
    ("letters", "generated"): "for the letter",
    ("options", "generated"): "about each option: the only yes",
    ("options", "logprob"): "about each option: the likelier yes",
}


def grades(
    loaded: Sequence[Records], graded: Sequence[tuple[Mapping[str, Any], pd.DataFrame]]
) -> list[dict[str, Any]]:
    """How well the judges that decide Removal answer questions and their negations (NegVQA; task
    "negvqa")."""
    rows = []
    for manifest, grade in graded:
        judge = manifest["models"]["model"]
        used = [run.label for run in loaded if run.model("vqa").get("fingerprint") == judge["judge"]]
        overall = frames.select(grade, headline="yes", protocol="fixed", category="Average")
        named = {
            "original questions": {"task": "accuracy", "variant": "original", "interval": "clustered"},
            "negated questions": {"task": "accuracy", "variant": "negated", "interval": "clustered"},
            "negation gap": {"task": "gap", "metric": "gap"},
            "both": {"task": "outcomes", "metric": "both"},
        }
        for statistic, where in named.items():
            row = frames.pick(overall, **where) or {}
            what = {"benchmark": "nein", "task": "negvqa", "metric": "accuracy", "variant": ""}
            what |= {"used": ", ".join(used) or "none of these runs", "judge": judge.get("class", "")}
            what |= {
                "asked": MANNERS[manifest["identity"]["asking"], row["scoring"]],
                "fingerprint": judge["judge"],
            }
            rows.append({**row, **what, "statistic": statistic, "category": "", "model": ""})
    return rows


def agreements(loaded: Sequence[Records]) -> Iterator[dict[str, Any]]:
    """How far the two removal judges agree on the same edited pictures (task "agreement")."""
    for run in loaded:
        if not all(metric in run.metrics for metric in REMOVALS):
            continue
        one, other, clusters = run.of("removal_vqa").pair(run.of("removal_ovd"))
        if not clusters:
            continue
        same = float((one == other).mean())
        judges = first, second = [run.values(metric) for metric in REMOVALS]
        kappa = agreement.cohen_kappa(first, second, run.sources)
        alpha = agreement.krippendorff_alpha(judges, run.sources)
        what: dict[str, Any] = {
            "task": "agreement",
            "metric": "removal",
            "model": run.name,
            "variant": run.track,
        }
        yield {**number(same, unit="%", n=len(clusters)), **what, "statistic": "same"}
        for statistic, estimate in (("kappa", kappa), ("alpha", alpha)):
            yield {**figure(estimate, unit=""), **what, "statistic": statistic}
