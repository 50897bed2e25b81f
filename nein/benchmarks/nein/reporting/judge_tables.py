"""The judges in a report: figures corrected for their errors, agreement, soft scores that can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from metrics import METRICS
from nein.benchmarks.nein import results_table
from nein.benchmarks.nein.reporting.collect import Run
from nein.benchmarks.nein.reporting.sections import REMOVALS, Table, percent, record, span
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import Folder, runs_below
from nein.reporting import figures as frames
from nein.statistics import agreement, calibration
from nein.statistics.calibration import Corrected, Rates
from nein.statistics.estimates import Estimate

KINDS = {"vqa": "VQA", "ovd": "OVD"}


@dataclass(frozen=True)
class Calibration:
    """One judge's answers about pictures whose truth is known, as `nein calibrate` wrote them.

    about  Judge, fingerprint, threshold, article.     rows  One case per line: set, role, word, present, ...
    """

    kind: str
    about: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def fits(self, run: Run) -> bool:
        """Whether the run was scored by this judge, asked in this way."""
        config = run.manifest.get("config", {})
        same = run.model(self.kind).get("fingerprint") == self.about["fingerprint"]
        option = "article" if self.kind == "vqa" else "threshold"
        return same and config.get(option) == self.about[option]

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


def load(folders: Sequence[Path], explicit: bool) -> list[Calibration]:
    """The calibrations in the folders. With `explicit`, a folder without one is a UserError."""
    found = []
    for folder in folders:
        files = sorted(folder.glob("*.json"))
        if not files and explicit:
            raise UserError(f"'{folder}' holds no calibration; make one with nein calibrate RUN.")
        for file in files:
            about = atomic.read_json(file)
            lines = file.with_suffix(".jsonl")
            if not isinstance(about, dict) or "fingerprint" not in about or not lines.is_file():
                raise UserError(f"'{file}' is not a calibration written by nein calibrate.")
            found.append(Calibration(about["kind"], about, atomic.read_lines(lines)))
    return found


def sections(loaded: Sequence[Run], known: Sequence[Calibration]) -> list[Table]:
    """Error rates of the judges, the corrected figures, and agreement between the judges of every run."""
    found = []
    if known:
        found += [rates_table(known), corrected_table(loaded, known)]
    together = agreement_table(loaded)
    return [*found, together] if together.rows else found


def rates_table(known: Sequence[Calibration]) -> Table:
    """Sensitivity and specificity of every calibrated judge, by set of pictures and altogether."""
    rows, data = [], []
    for judge in known:
        for where in [*dict.fromkeys(row["set"] for row in judge.rows), None]:
            for protocol in ("fixed", "paper") if judge.kind == "vqa" else ("fixed",):
                rates = judge.rates(protocol, where=where)
                counts = [str(rate.n) if rate else "0" for rate in (rates.sensitivity, rates.specificity)]
                name = f"{KINDS[judge.kind]} ({protocol})" if judge.kind == "vqa" else KINDS[judge.kind]
                rows.append([name, where or "all", span(rates.sensitivity), span(rates.specificity),
                             span(rates.auc), *counts, str(rates.n_unscored)])  # fmt: skip
                for what in ("sensitivity", "specificity", "auc"):
                    about = {"judge": judge.kind, "protocol": protocol, "set": where or "all", "rate": what}
                    data.append(record(getattr(rates, what), **about))
    note = (
        "Sensitivity: share of objects that are there and are seen; specificity: share of absent ones that "
        "are "
        "not seen; ROC-AUC of the soft score. Clustered by picture."
    )
    columns = ["judge", "pictures", "sensitivity", "specificity", "ROC-AUC", "present", "absent", "unscored"]
    return Table("calibration", "Judges on known truth", columns, rows, data, note)


def corrected_table(loaded: Sequence[Run], known: Sequence[Calibration]) -> Table:
    """Removal and Retention as judged, and corrected for the judge's own error."""
    rows, data = [], []
    for run in loaded:
        for metric in ("removal_vqa", "retention_vqa", "removal_ovd", "retention_ovd"):
            judged = _judged(run, metric)
            if judged is None:
                continue
            kind = metric.rpartition("_")[2]
            fitting = [judge for judge in known if judge.kind == kind and judge.fits(run)]
            if not fitting:
                result = Corrected(None, None, None, "this judge was not calibrated")
            else:
                result = correct(judged, metric, fitting[0], run.manifest["config"]["protocol"])
            rows.append(
                [
                    run.label,
                    results_table.heading(METRICS[metric]),
                    span(judged),
                    span(result),
                    result.refused,
                ]
            )
            data.append({**record(result, editor=run.name, track=run.track, metric=metric),
                         "judged": judged.value, "refused": result.refused})  # fmt: skip
    note = (
        "Rogan-Gladen: as if the judge erred on the edited pictures as often as on those of known truth. The "
        "interval contains the uncertainty of the error rates (Lang & Reiczigel)."
    )
    columns = ["run", "metric", "as judged", "corrected", "not corrected because"]
    return Table("corrected", "Corrected for the judge's error", columns, rows, data, note)


def correct(judged: Estimate, metric: str, judge: Calibration, protocol: str) -> Corrected:
    """A run's figure corrected by a calibration, with the rates on names of objects. Words of captions
    are left out: many name what no judge looks for, and Retention asks only about what it has seen."""
    if metric.startswith("removal"):
        return calibration.correct_removal(judged, judge.rates(protocol, role="object"))
    rule = "paper_retention" if protocol == "paper" else protocol
    return calibration.correct_retention(judged, judge.rates(rule, role="object"))


def _judged(run: Run, metric: str) -> Estimate | None:
    entry = run.summary["metrics"].get(metric)
    if entry is None or entry["value"] is None:
        return None
    names = ("value", "low", "high", "standard_error", "n", "clusters")
    return Estimate(**{name: entry[name] for name in names})


def read_labels(file: Path) -> dict[tuple[str, str], dict[str, float]]:
    """(editor, track) -> sample id -> 1.0 where a person found the object gone, 0.0 where it is still there.

    A CSV file with the columns editor, track, id, gone (1/0, yes/no). Raises UserError naming the first bad
    line.
    """
    import csv

    words = {"1": 1.0, "yes": 1.0, "0": 0.0, "no": 0.0}
    found: dict[tuple[str, str], dict[str, float]] = {}
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            for number, row in enumerate(csv.DictReader(lines), start=2):
                gone = words.get(str(row.get("gone", "")).strip().lower())
                if gone is None or not all(row.get(name) for name in ("editor", "track", "id")):
                    raise UserError(
                        f"'{file}', line {number}: expected editor, track, id, gone (1 or 0), not {row}."
                    )
                own = found.setdefault((row["editor"], row["track"]), {})
                if own.get(row["id"], gone) != gone:
                    raise UserError(
                        f"'{file}', line {number}: '{row['id']}' of {row['editor']}/{row['track']} has "
                        "another label above; keep the one that was agreed on."
                    )
                own[row["id"]] = gone
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"'{file}' cannot be read: {error}.") from None
    if not found:
        raise UserError(f"'{file}' holds no labels; expected lines of editor,track,id,gone.")
    return found


def labelled_table(loaded: Sequence[Run], labels: Mapping[tuple[str, str], Mapping[str, float]]) -> Table:
    """Removal with people's labels of some samples behind it (prediction-powered)."""
    rows, data = [], []
    for run in loaded:
        own = labels.get((run.directory.editor, run.track), {})
        strangers = [name for name in own if name not in run.edits]
        if strangers:
            raise UserError(f"The labels name '{strangers[0]}', which is no sample of {run.label}.")
        for metric in REMOVALS:
            judged = _judged(run, metric)
            found = calibration.prediction_powered(run.values.get(metric, {}), own, run.sources)
            if judged is None or found is None:
                continue
            rows.append(
                [run.label, results_table.heading(METRICS[metric]), span(judged), span(found), str(found.n)]
            )
            data.append(record(found, editor=run.name, track=run.track, metric=metric))
    note = (
        "Mean verdict plus mean of (label - verdict): right however bad the judge, if the labelled samples "
        "are random."
    )
    columns = ["run", "metric", "as judged", "with labels", "labels"]
    return Table("labelled", "Removal with people's labels", columns, rows, data, note)


def read_grades(paths: Sequence[Path]) -> list[tuple[Mapping[str, Any], pd.DataFrame]]:
    """(manifest, figures) of every run of `nein negvqa --model judge` at or below the folders. Raises
    UserError."""
    found: list[tuple[Mapping[str, Any], pd.DataFrame]] = []
    for path in paths:
        runs = [(Folder(run).manifest(), run / "figures.csv") for run in runs_below(path)]
        judges = [(about, file) for about, file in runs if about["identity"].get("role") == "judge"]
        if not judges:
            raise UserError(f"'{path}' holds no grade of a judge; make one with nein negvqa --model judge.")
        found += [(about, frames.read(file)) for about, file in judges]
    return found


#: How a graded judge was asked, and what was read.
MANNERS = {
    ("letters", "generated"): "for the letter",
    ("options", "generated"): "about each option: the only yes",
    ("options", "logprob"): "about each option: the likelier yes",
}


def grades_table(loaded: Sequence[Run], grades: Sequence[tuple[Mapping[str, Any], pd.DataFrame]]) -> Table:
    """How well the judges that decide Removal answer questions and their negations (NegVQA)."""
    rows, data = [], []
    for about, figures in grades:
        judge = about["models"]["model"]
        used = [run.label for run in loaded if run.model("vqa").get("fingerprint") == judge["judge"]]
        overall = frames.select(figures, headline="yes", protocol="fixed", category="Average")
        named = {
            "original questions": {"task": "accuracy", "variant": "original", "interval": "clustered"},
            "negated questions": {"task": "accuracy", "variant": "negated", "interval": "clustered"},
            "negation gap": {"task": "gap", "metric": "gap"},
        }
        picked = {
            name: SimpleNamespace(**(frames.pick(overall, **where) or {})) for name, where in named.items()
        }
        both = frames.pick(overall, task="outcomes", metric="both") or {}
        data += [record(found, judge=judge["judge"], figure=name) for name, found in picked.items()]
        lost = sum(picked[name].unscored for name in ("original questions", "negated questions"))
        manner = MANNERS[about["identity"]["asking"], both["scoring"]]
        rows.append([", ".join(used) or "none of these runs", judge.get("class", ""), manner,
                     *map(span, picked.values()), f"{round((both['value'] or 0) * both['n'])} of {both['n']}",
                     str(lost)])  # fmt: skip
    note = (
        "Two-choice questions and their negations, put to the very judge (same weights and settings) that "
        "decided about the runs named first; per cent right, chance 50. A judge with a gap must not be asked "
        "negated questions: Removal and Retention ask it affirmative ones only. Asked about each option: in "
        "its own yes/no question about a caption, which is the question followed by the option."
    )
    columns = ["judge of", "class", "asked", "original questions", "negated questions", "negation gap",
               "both right", "unscored answers"]  # fmt: skip
    return Table("negvqa", "The judge on NegVQA", columns, rows, data, note)


def agreement_table(loaded: Sequence[Run]) -> Table:
    """How far the two removal judges agree on the same edited pictures."""
    rows, data = [], []
    for run in loaded:
        judges = [run.values[metric] for metric in REMOVALS if metric in run.values]
        if len(judges) < 2:
            continue
        first, second = judges
        both = [key for key in first if first[key] is not None and second.get(key) is not None]
        if not both:
            continue
        same = sum(first[key] == second[key] for key in both) / len(both)
        kappa = agreement.cohen_kappa(first, second, run.sources)
        alpha = agreement.krippendorff_alpha(judges, run.sources)
        rows.append([run.label, percent(same), span(kappa, 1, 2), span(alpha, 1, 2), str(len(both))])
        data += [record(kappa, editor=run.name, track=run.track, statistic="kappa"),
                 record(alpha, editor=run.name, track=run.track, statistic="alpha"),
                 {"editor": run.name, "track": run.track, "statistic": "same", "value": same,
                  "n": len(both)}]  # fmt: skip
    note = "Removal by VQA against removal by detection. – where there is one verdict only."
    columns = ["run", "same verdict %", "Cohen's kappa", "Krippendorff's alpha", "samples"]
    return Table("agreement", "Agreement of the judges", columns, rows, data, note)
