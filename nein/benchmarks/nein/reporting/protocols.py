"""The two protocols side by side for one finished run: which named quirk moves which figure by how much.

Works from the evidence in score rows (raw answers, scores of boxes, objects asked about) and the features
of the Frechet distance. No model is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nein.benchmarks.nein.figures import read_features
from nein.benchmarks.nein.runs import RunDir
from nein.metrics import METRICS
from nein.metrics.base import paper_present, paper_removed, parse_yes_no
from nein.reporting.figures import number

Rule = Literal["paper", "fixed"]

#: Named quirk -> what the paper's side of it does.
QUIRKS = {
    "answers": 'only "No" to the letter removes, only "yes" in any case is present; any other answer counts '
    "as the opposite",
    "objects": "every root of a noun chunk as written is an object, pronouns and repetitions included",
    "reference": "FID against every target once, not against the target of every sample",
    "denominator": "samples without an edited picture count as failures (constant denominators of the "
    "scripts)",
}
#: Quirks of `--protocol paper`. The denominator of the released scripts is shown beside it: the protocol here
#: leaves failed edits unscored.
IN_PROTOCOL = ("answers", "objects", "reference")
MOVES = {
    "removal_vqa": ("answers", "denominator"),
    "retention_vqa": ("answers", "objects", "denominator"),
    "removal_ovd": ("denominator",),
    "retention_ovd": ("objects", "denominator"),
    "fid": ("reference",),
}
NOT_FROM_EVIDENCE = {
    "article": "the article in the judge's question",
    "align": "how the target is compared",
    "models.ovd_pad": "the detector's padding",
    "models.ovd_backend": "the detector's resize",
    "models.vqa_quantization": "the judge's dtype",
}


@dataclass(frozen=True)
class Rules:
    """Which side of every quirk is taken."""

    answers: Rule = "fixed"
    objects: Rule = "fixed"
    denominator: Rule = "fixed"


#: No quirk, and all of `--protocol paper`.
FIXED, ALL = "", "all"
#: Metric -> the ways to read its scores: without any quirk, with each of them, and with all.
SIDES = {
    metric: {
        FIXED: Rules(),
        **{quirk: Rules(**{quirk: "paper"}) for quirk in quirks},  # type: ignore[arg-type]
        **({ALL: Rules("paper", "paper")} if len(set(quirks) & set(IN_PROTOCOL)) > 1 else {}),
    }
    for metric, quirks in MOVES.items()
    if metric != "fid"
}


class NoEvidence(ValueError):
    """The record does not hold what the other protocol needs."""


def verdict(metric: str, row: Mapping[str, Any], rules: Rules) -> float | None:
    """The value of a score row under `rules`; None: unscored. `row`: `value`, `reason`, `detail`.

    Raises NoEvidence when the other protocol's questions were not asked (`evidence: own`).
    """
    detail = row["detail"]
    if str(row["reason"]).startswith("not edited: "):
        return 0.0 if rules.denominator == "paper" else None
    if metric == "removal_vqa":
        if "answer" not in detail:
            return None
        if rules.answers == "paper":
            return float(paper_removed(detail["answer"]))
        seen = parse_yes_no(detail["answer"])
        return None if seen is None else float(not seen)
    if metric == "removal_ovd":
        return float(detail["score"] <= detail["threshold"]) if "score" in detail else None
    if metric.startswith("retention_"):
        return _retention(metric.removeprefix("retention_"), detail, rules)
    raise AssertionError(f"no protocol changes {metric}")


def _retention(kind: str, detail: Mapping[str, Any], rules: Rules) -> float | None:
    if "before" not in detail:
        return None
    if "objects_of" not in detail:
        if detail["protocol"] != rules.objects or (kind == "vqa" and detail["protocol"] != rules.answers):
            raise NoEvidence(f"retention_{kind} was scored with evidence: own")
        objects = detail["objects"]
    else:
        objects = detail["objects_of"][rules.objects]
    if kind == "ovd":
        objects = list(dict.fromkeys(objects))

    def present(reply: Any) -> bool | None:
        if kind == "ovd":
            return bool(reply > detail["threshold"])
        return paper_present(reply) if rules.answers == "paper" else parse_yes_no(reply)

    before, after = detail["before"], detail["after"]
    if any(isinstance(before[name], Mapping) for name in objects):  # the judge failed on one
        return None
    held = [name for name in objects if present(before[name]) is True]
    if not held or any(isinstance(after[name], Mapping) for name in held):
        return None
    seen = [present(after[name]) for name in held]
    return None if None in seen else sum(map(bool, seen)) / len(held)


def rows(run: RunDir) -> list[dict[str, Any]]:
    """Rows of the frame (task "protocols"): of every quirk that moves a metric of the run, alone and together
    ("all"), the figure "fixed" and "paper", and "flips": samples whose value differs, or that are scored on
    one side only."""
    values: dict[tuple[str, str], dict[str, float | None]] = {}
    refused: dict[tuple[str, str], str] = {}
    for row in run.score_rows():
        metric = row["metric"]
        for quirk, rules in SIDES.get(metric, {}).items():
            side = values.setdefault((metric, quirk), {})
            try:
                side[row["id"]] = verdict(metric, row, rules)
            except NoEvidence as error:
                refused[metric, quirk] = f"{error}; score again with evidence: both"
    found = []
    for metric, quirk in values:
        if quirk == FIXED:
            continue
        note = refused.get((metric, FIXED)) or refused.get((metric, quirk)) or ""
        fixed, paper = ({} if note else values[metric, side] for side in (FIXED, quirk))
        flips = None if note else sum(fixed[name] != paper[name] for name in fixed)
        scored = ([value for value in side.values() if value is not None] for side in (fixed, paper))
        before, after = ((sum(side) / len(side) if side else None, len(side)) for side in scored)
        found += _shift(metric, quirk, before, after, flips, note)
    features = read_features(run) if run.corpus().get("fid", {}).get("value") is not None else None
    if features is not None and len(once := features.unique_targets()) > 1:
        from nein.metrics.fid import frechet_distance

        targets = features.target, features.target[once]
        fixed_, paper_ = ((frechet_distance(features.edited, real), len(features.ids)) for real in targets)
        found += _shift("fid", "reference", fixed_, paper_, None)
    what = {"task": "protocols", "model": run.name, "variant": run.track}
    return [{**row, **what} for row in sorted(found, key=lambda row: list(MOVES).index(row["metric"]))]


def _shift(
    metric: str, quirk: str, fixed: tuple[Any, int], paper: tuple[Any, int], flips: int | None, note: str = ""
) -> list[dict[str, Any]]:
    unit = "%" if METRICS[metric].unit == "per cent" else ""
    what: dict[str, Any] = {"metric": metric, "quirk": quirk, "note": note}
    return [
        number(fixed[0], unit=unit, n=fixed[1], statistic="fixed", **what),
        number(paper[0], unit=unit, n=paper[1], statistic="paper", **what),
        number(flips, unit="count", statistic="flips", **what),
    ]
