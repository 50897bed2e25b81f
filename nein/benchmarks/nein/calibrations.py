"""Computes the rows on judges in a NeIn report: how often they err, and estimates corrected for it.

Parts: calibrations written by `nein calibrate`, error rates and corrected estimates; agreement of two judges;
controls, which change an image or a question; labels by people. All rows are of `nein.reporting.figures`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from typing_extensions import NotRequired

from nein.benchmarks.nein import estimates
from nein.benchmarks.nein.runs import REMOVAL_JUDGES, RunDir
from nein.engine import atomic
from nein.loading.errors import UserError
from nein.reporting import figures as frames
from nein.reporting.figures import Figure, figure, number
from nein.reporting.labels import UNSURE, Label, Question, measure_agreement
from nein.statistics import Estimate, bounded_mean, calibration
from nein.statistics.calibration import Corrected, Rates

# --- calibrations, error rates, corrected estimates ------------------------------------------
KINDS = {"vqa": "VQA", "ovd": "OVD"}  # kind of judge -> its title
_QUANTITIES: tuple[Literal["removal", "retention"], ...] = ("removal", "retention")  # what a judge decides
#: The option that a judge must share with a run, besides its fingerprint.
_OPTIONS = {"vqa": "article", "ovd": "threshold"}
#: The entries of a row that are checked when it is read.
_VERDICTS = {"verdict_fixed": bool | None, "verdict_paper": bool | None, "score": float | None}
_NAMES = {"set": str, "cluster": str, "role": str, "present": bool, "control": NotRequired[str]}
_ROW = atomic.record({**_NAMES, **_VERDICTS})


@dataclass(frozen=True)
class Calibration:
    """One judge's answers about images of known truth, as written by `nein calibrate`."""

    kind: str  # of the judge: a key of `KINDS`
    manifest: Mapping[str, Any]
    rows: Sequence[atomic.Row]  # one per question; "control" names the control, if there is one

    @property
    def plain(self) -> list[atomic.Row]:
        """The rows without a control."""
        return [row for row in self.rows if not row.get("control")]

    def fits(self, run_manifest: Mapping[str, Any]) -> bool:
        """Whether the run with this manifest was scored by this judge with this option."""
        option = _OPTIONS[self.kind]
        judge = run_manifest.get("models", {}).get(self.kind, {})
        is_same_option = run_manifest.get("config", {}).get(option) == self.manifest[option]
        return judge.get("fingerprint") == self.manifest["fingerprint"] and is_same_option

    def rates(self, protocol: str, role: str | None = None, image_set: str | None = None) -> Rates:
        """Error rates under a protocol, of all absent words and the present ones of `role` ("object" or
        "caption"; None: both). image_set: only images of this set; None: of all."""
        rows = [row for row in self.plain if image_set in (None, row["set"])]
        rows = [row for row in rows if role is None or not row["present"] or row["role"] == role]
        columns = ("present", f"verdict_{protocol}", "cluster", "score")
        present, verdicts, clusters, scores = ([row[name] for row in rows] for name in columns)
        return calibration.measure_rates(present, verdicts, clusters, scores)


def load(folders: Sequence[Path], explicit: bool) -> list[Calibration]:
    """The calibrations in the folders. With `explicit`, a folder without one is a UserError."""
    calibrations = []
    for folder in folders:
        files = sorted(folder.glob("*.json"))
        if not files and explicit:
            raise UserError(f"'{folder}' has no calibration; run nein calibrate RUN.")
        for file in files:
            manifest = atomic.read_json(file, atomic.Row)
            kind = str(manifest.get("kind"))
            lines = file.with_suffix(".jsonl")
            if kind not in KINDS or not lines.is_file():
                raise UserError(f"'{file}' is not a calibration written by nein calibrate.")
            fields = {"fingerprint": str, _OPTIONS[kind]: str | float | None}
            atomic.parse(manifest, atomic.record(fields), f"'{file}'")
            calibrations.append(Calibration(kind, manifest, atomic.read_lines(lines, _ROW)))
    return calibrations


def estimate_judges(loaded: Sequence[RunDir], calibrations: Sequence[Calibration]) -> Iterator[Figure]:
    """The rows of each judge, and the corrected estimates of runs (`correct_runs`). Tasks of a judge:

    controls     See `check_controls`.
    calibration  Error rates by set of images (`group`).
    reliability  Share of present objects by bin of the soft score (`score`: mean of the bin, `group`: title).
    """
    for calibrated in calibrations:
        title, plain = KINDS[calibrated.kind], calibrated.plain
        yield from check_controls(calibrated.rows, title)
        names = {"fixed": title}  # protocol -> name of the judge under it
        if calibrated.kind == "vqa":
            names = {"fixed": f"{title} (fixed)", "paper": f"{title} (paper)"}
        for image_set in [*dict.fromkeys(row["set"] for row in plain), None]:
            for protocol, name in names.items():
                rates = calibrated.rates(protocol, image_set=image_set)
                for metric in ("sensitivity", "specificity", "auc"):
                    labels: Figure = {"task": "calibration", "judge": name, "group": image_set or "all"}
                    rate = getattr(rates, metric)
                    yield figure(rate, unit="%", unscored=rates.n_unscored, metric=metric, **labels)
        if scored := [row for row in plain if row["score"] is not None]:
            columns = ("score", "present", "cluster")
            scores, present, clusters = ([row[name] for row in scored] for name in columns)
            bins, error = calibration.reliability(scores, present, clusters)  # bin: (mean score, share)
            labels = {"task": "reliability", "metric": "present", "judge": title}
            labels["group"] = f"{title}: calibration error {error:.3f}"
            for mean, share in bins:
                yield figure(share, unit="%", score=repr(mean), **labels)
    if calibrations:
        yield from correct_runs(loaded, calibrations)


def correct_runs(loaded: Sequence[RunDir], calibrations: Sequence[Calibration]) -> Iterator[Figure]:
    """Removal and Retention as judged, and corrected for the judge's own error (task "corrected")."""
    for run in loaded:
        for kind, quantity in itertools.product(KINDS, _QUANTITIES):
            metric = f"{quantity}_{kind}"
            judged = estimates.estimate_mean(run.scores_by(metric), metric)
            if judged is None:
                continue
            result = Corrected(None, None, None, refused="this judge was not calibrated")
            if fitting := [item for item in calibrations if item.kind == kind and item.fits(run.about)]:
                protocol = run.about["config"]["protocol"]
                rule = "paper_retention" if (quantity, protocol) == ("retention", "paper") else protocol
                # Rates of object names only: many words of captions name nothing that a judge looks for.
                result = calibration.correct(judged, fitting[0].rates(rule, role="object"), quantity)
            yield from _make_pair(judged, result, task="corrected", run=run, metric=metric)


def _make_pair(judged: Estimate, result: Corrected, task: str, run: RunDir, metric: str) -> Iterator[Figure]:
    """Rows of a task: the estimate as judged (`statistic` "judged"), its correction (named like the task)."""
    labels: Figure = {"task": task, "metric": metric, "model": run.name, "variant": run.track}
    yield figure(judged, unit="%", statistic="judged", **labels)
    entries = {name: getattr(result, name) for name in ("value", "low", "high", "n", "refused")}
    yield {**labels, **entries, "unit": "%", "statistic": task}


# --- agreement of two judges -----------------------------------------------------------------
def compare_judges(loaded: Sequence[RunDir]) -> Iterator[Figure]:
    """Agreement of the two removal judges on the same edited images (task "agreement")."""
    for run in loaded:
        # (N,) each, of the images with both verdicts.
        by_vqa, by_ovd, clusters = run.scores_by("removal_vqa").pair(run.scores_by("removal_ovd"))
        if not clusters:
            continue
        # Chance-corrected; clustered by source image.
        verdicts = [run.values(metric) for metric in REMOVAL_JUDGES]
        kappa = calibration.cohen_kappa(verdicts[0], verdicts[1], run.sources)
        alpha = calibration.krippendorff_alpha(verdicts, run.sources)
        labels: Figure = {"task": "agreement", "metric": "removal", "model": run.name, "variant": run.track}
        same = float((by_vqa == by_ovd).mean())
        yield number(same, unit="%", n=len(clusters), statistic="same", **labels)
        yield figure(kappa, unit="", statistic="kappa", **labels)
        yield figure(alpha, unit="", statistic="alpha", **labels)


# --- controls --------------------------------------------------------------------------------
#: Control -> its title. Here, a judge that really looks and reads should no longer say yes.
NOTICED = {
    "black": "a black picture",
    "picture": "another picture",
    "question": "a question about another picture's object",
    "negated": "the question negated",
}
#: Controls under which it should answer as before.
INDIFFERENT = {"mirrored": "the mirrored picture", "reversed": "the options in the other order"}
CONTROLS = {**NOTICED, **INDIFFERENT}
STEADY = 0.9  # a judge is flagged if the interval of its share of unchanged answers lies below this


def check_controls(rows: Sequence[Figure], judge: str) -> Iterator[Figure]:
    """Rows (task "controls") from a calibration's rows. The column `flag` says what the judge fails; metrics:

    before, after  Share of yes to objects that are there, and to the control's questions, over images.
    fall           Before minus after.
    same           Share of answers that stay.
    """
    key = ["set", "id"]  # names an image
    names = ("control", *key, "cluster", "word", "present")
    table = pd.DataFrame({name: [row.get(name, "") for row in rows] for name in names})
    # 1.0: yes, 0.0: no, NaN: neither.
    table["yes"] = pd.Series([row["verdict_fixed"] for row in rows], dtype=object).astype(float)
    plain = table[table["control"] == ""]
    # Image -> its share of yes to objects that are there.
    before = plain[plain["present"].astype(bool)].groupby(key)["yes"].mean().rename("before")
    for control in (name for name in CONTROLS if name in set(table["control"])):
        part = table[table["control"] == control]
        labels: Figure = {"task": "controls", "judge": judge, "group": control}
        if control in INDIFFERENT:
            paired = part.merge(plain, on=[*key, "word"], suffixes=("", "_before"))
            paired = paired.dropna(subset=["yes", "yes_before"])
            unchanged = (paired["yes"] == paired["yes_before"]).to_numpy()  # (N,) bool
            same = bounded_mean(unchanged, paired["cluster"].tolist())
            is_steady = same is not None and (same.high is None or same.high >= STEADY)
            labels |= {"metric": "same", "flag": "" if is_steady else "changes its answers"}
            yield figure(same, unit="%", unscored=len(part) - len(paired), **labels)
            continue
        after = part.groupby(key).agg(after=("yes", "mean"), cluster=("cluster", "first"))
        paired = after.join(before).dropna()
        clusters = paired["cluster"].tolist()
        for metric in ("before", "after"):
            yield figure(bounded_mean(paired[metric].to_numpy(), clusters), unit="%", metric=metric, **labels)
        fall = bounded_mean((paired["before"] - paired["after"]).to_numpy(), clusters, -1.0, 1.0)
        is_noticed = fall is not None and fall.low is not None and fall.low > 0
        labels |= {"metric": "fall", "flag": "" if is_noticed else "not shown to notice it"}
        yield figure(fall, unit="points", unscored=int(part["yes"].isna().sum()), **labels)


def list_flags(figures: pd.DataFrame, judges: Iterable[str]) -> list[str]:
    """A sentence for every judge that fails a control, or was calibrated without controls."""
    sentences = []
    for judge in judges:
        rows = frames.records(figures, task="controls", judge=judge)
        failed = [row["group"] for row in rows if row["flag"]]
        unseen = [title for name, title in NOTICED.items() if name in failed]
        moved = [title for name, title in INDIFFERENT.items() if name in failed]
        parts = [f"is not shown to notice {' or '.join(unseen)}"] if unseen else []
        parts += [f"changes its answers for {' or '.join(moved)}"] if moved else []
        parts += [] if rows else ["was calibrated without controls: rerun nein calibrate"]
        if parts:
            sentences.append(f"the judge {judge} {', and '.join(parts)} (table 'Judges under controls').")
    return sentences


# --- labels by people ------------------------------------------------------------------------
_GONE = {"gone": "gone", "partly": "partly gone", "there": "still there", UNSURE: UNSURE}
_KEPT = {"mostly": "mostly", "some": "some changes", "changed": "changed"}
#: The questions about one edit; `gone` decides Removal.
QUESTIONS = (
    Question("gone", "Is it gone?", _GONE),
    Question("kept", "Is the rest of the picture kept?", _KEPT),
    Question("artefacts", "Artefacts?", {"none": "none", "some": "some", "serious": "serious"}),
)
#: Label, also as people write it by hand ("1", "yes") -> Removal. None: the label is not used.
REMOVED = {"gone": 1.0, "1": 1.0, "yes": 1.0, UNSURE: None, "": None}
REMOVED |= {"partly": 0.0, "there": 0.0, "0": 0.0, "no": 0.0}
KEY = ("editor", "track", "id")  # the columns that name an edit


def read_labels(files: Sequence[Path]) -> list[Label]:
    """The lines of CSV files with the columns editor, track, id, gone (a key of `REMOVED`), optionally rater
    and the other questions, as written by `nein study RUN --labels`. Raises UserError."""
    rows: list[Label] = []
    removed_of: dict[tuple[str, ...], float | None] = {}  # (rater, editor, track, id) -> Removal
    allowed = ", ".join(filter(None, REMOVED))
    for file in files:
        for line, row in atomic.read_csv(file, (*KEY, "gone")):
            row = {"rater": "", **row, "gone": row["gone"].strip().lower()}
            place = f"'{file}', line {line}:"
            if row["gone"] not in REMOVED or not all(row[name] for name in KEY):
                raise UserError(f"{place} expected editor, track, id and gone ({allowed}), not {row}.")
            key = (row["rater"], *(row[name] for name in KEY))
            if key in removed_of and removed_of[key] != REMOVED[row["gone"]]:
                edit = f"'{row['id']}' of {row['editor']}/{row['track']}"
                advice = "keep one of them, or name each rater in a column rater."
                raise UserError(f"{place} {edit} has another label above; {advice}")
            removed_of[key] = REMOVED[row["gone"]]
            rows.append(row)
    return rows


def use_labels(loaded: Sequence[RunDir], rows: Sequence[Label]) -> Iterator[Figure]:
    """Removal from verdicts and the labels of some samples (prediction-powered; task "labelled"), every judge
    against people (task "judge-people"), and the raters against each other."""
    table = pd.DataFrame(rows, columns=[*KEY, "gone"])
    table = table.assign(value=table["gone"].map(REMOVED)).dropna(subset="value")
    # (editor, track) -> sample -> share of its raters who find the object gone
    removal_by_people = {
        key: part.groupby("id", sort=False)["value"].mean().to_dict()
        for key, part in table.groupby(["editor", "track"], sort=False)
    }
    runs = {(run.editor, run.track): run for run in loaded if (run.editor, run.track) in removal_by_people}
    if not runs:
        names_here = "; ".join(f"{run.editor}/{run.track}" for run in loaded)
        names_given = "; ".join("/".join(key) for key in removal_by_people) or "none"
        raise UserError(f"The labels are of {names_given}; pass labels of these runs: {names_here}.")
    for key, run in runs.items():
        by_people = removal_by_people[key]
        for name in by_people:
            if name not in run.edits:
                raise UserError(f"The labels name '{name}', which is not a sample of {run.label}.")
        for metric in REMOVAL_JUDGES:
            if (judged := estimates.estimate_mean(run.scores_by(metric), metric)) is not None:
                result = calibration.prediction_powered(run.values(metric), by_people, run.sources)
                further_labels_needed = "more samples"  # no number of labels suffices
                if result.needed is not None:
                    further_labels_needed = str(max(0, result.needed - len(by_people)))
                for row in _make_pair(judged, result, task="labelled", run=run, metric=metric):
                    yield {**row, "more": further_labels_needed}
    yield from _compare_with_people(runs, removal_by_people)
    # Agreement of the raters, about the questions that all files answer.
    named = [row | {"item": "/".join(row[name] for name in KEY)} for row in rows if row["rater"]]
    questions = [question for question in QUESTIONS if all(question.key in row for row in named)]
    source_of = {name: source for run in loaded for name, source in run.sources.items()}
    sources = {row["item"]: source_of.get(row["id"], row["id"]) for row in named}
    yield from measure_agreement(named, questions, sources)


def _compare_with_people(runs: dict[Any, RunDir], removal_by_people: dict[Any, Any]) -> Iterator[Figure]:
    """Agreement of each judge with people, over all labels and by editor, object and template; and its
    sensitivity and specificity if the majority of raters is taken as the truth, as in `nein calibrate`."""
    for metric in REMOVAL_JUDGES:
        parts = []
        for key, run in runs.items():
            frame = run.scores_by(metric).frame
            labeled = frame["id"].astype(object).map(removal_by_people[key])
            parts.append(frame.assign(editor=run.label, people=labeled))
        table = pd.concat(parts, ignore_index=True).dropna(subset=["people", "value"]).assign(all="")
        for column in ("all", "editor", "object", "template"):
            for group, part in table.groupby(column, observed=True, sort=False):
                labels: Figure = {"task": "judge-people", "metric": metric, "by": column, "group": group}
                same = bounded_mean(1 - (part["people"] - part["value"]).abs(), part["source"].tolist())
                yield figure(same, unit="%", statistic="same", **labels)
                sure = part[part["people"] != 0.5]  # without ties of the raters
                present, seen = sure["people"] < 0.5, sure["value"] == 0  # by people, by the judge
                rates = calibration.measure_rates(present.tolist(), seen.tolist(), sure["source"].tolist())
                for statistic in ("sensitivity", "specificity"):
                    yield figure(getattr(rates, statistic), unit="%", statistic=statistic, **labels)
