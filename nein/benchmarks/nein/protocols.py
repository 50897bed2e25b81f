"""Computes how much each quirk of the published protocol changes each estimate of a finished run.

Scores are recomputed from the evidence in score rows (raw answers, scores of boxes, objects asked about), and
FID from its features; no model is run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nein.benchmarks.nein.estimates import read_features
from nein.benchmarks.nein.runs import NOT_EDITED, RunDir, ScoreRow
from nein.metrics import Score
from nein.metrics.judges.base import paper_says_present, paper_says_removed, parse_yes_no
from nein.reporting.figures import Figure, number

#: Quirk -> what the published protocol does.
QUIRKS = {
    "answers": 'only "No" to the letter removes, only "yes" in any case is present; any other answer counts '
    "as the opposite",
    "objects": "every root of a noun chunk as written is an object, pronouns and repetitions included",
    "reference": "FID against every target once, not against the target of every sample",
    "denominator": "samples without an edited picture count as failures (constant denominators of the "
    "scripts)",
}
#: Metric -> the quirks that change it. Only the released scripts, not `--protocol paper`, have "denominator".
QUIRKS_OF = {
    "removal_vqa": ("answers", "denominator"),
    "retention_vqa": ("answers", "objects", "denominator"),
    "removal_ovd": ("denominator",),
    "retention_ovd": ("objects", "denominator"),
    "fid": ("reference",),
}
#: Options of `--protocol paper` that decide what judges are asked: another run shows their effect.
NOT_FROM_EVIDENCE = {
    "article": "the article in the judge's question",
    "align": "how the target is compared",
    "models.ovd_pad": "the detector's padding",
    "models.ovd_backend": "the detector's resize",
    "models.vqa_quantization": "the judge's dtype",
}
ALL = "all"  # the quirks of `--protocol paper` together


class NoEvidence(ValueError):
    """The evidence does not cover the questions of the other protocol."""


def recompute(metric: str, row: ScoreRow | Score, quirks: Collection[str] = ()) -> float | None:
    """The value of a score row under these quirks; without any, under protocol "fixed". None: unscored.

    Raises NoEvidence when the other protocol's questions were not asked (`evidence: own`).
    """
    detail = row.detail
    if row.reason.startswith(NOT_EDITED):
        return 0.0 if "denominator" in quirks else None
    if metric.startswith("retention_"):
        kind = metric.removeprefix("retention_")
        return _recompute_retention(kind, detail, quirks) if "before" in detail else None
    if metric == "removal_ovd":
        return float(detail["score"] <= detail["threshold"]) if "score" in detail else None
    if "answer" not in detail:
        return None
    if "answers" in quirks:
        return float(paper_says_removed(detail["answer"]))
    seen = parse_yes_no(detail["answer"])
    return None if seen is None else float(not seen)


def _recompute_retention(kind: str, detail: Mapping[str, Any], quirks: Collection[str]) -> float | None:
    """Of the caption's objects seen before, the share still seen; None: unscored. kind: "vqa" or "ovd"."""
    # The protocols that choose the objects, and read the answers.
    object_protocol = "paper" if "objects" in quirks else "fixed"
    answer_protocol = "paper" if "answers" in quirks else "fixed"
    if "objects_of" in detail:
        objects = detail["objects_of"][object_protocol]
    elif detail["protocol"] != object_protocol or (kind == "vqa" and detail["protocol"] != answer_protocol):
        raise NoEvidence(f"retention_{kind} was scored with evidence: own")
    else:
        objects = detail["objects"]
    before, after = detail["before"], detail["after"]  # object -> answer, or score of its best box
    if kind == "ovd":
        objects = list(dict.fromkeys(objects))
    elif any(isinstance(before[name], Mapping) for name in objects):  # the judge failed on one
        return None
    seen = [name for name in objects if _is_present(before[name], kind, detail, answer_protocol)]
    if not seen or any(isinstance(after[name], Mapping) for name in seen):
        return None
    kept = [_is_present(after[name], kind, detail, answer_protocol) for name in seen]
    return None if None in kept else kept.count(True) / len(seen)


def _is_present(reply: Any, kind: str, detail: Mapping[str, Any], protocol: str) -> bool | None:
    """Whether a judge sees an object, by its answer or its best box; None: neither yes nor no."""
    if kind == "ovd":
        return bool(reply > detail["threshold"])
    return paper_says_present(reply) if protocol == "paper" else parse_yes_no(reply)


def make_rows(run: RunDir) -> Iterator[Figure]:
    """For every quirk that changes a metric of the run, alone and together ("all"), three rows (task
    "protocols"): the estimates "fixed" and "paper", and "flips", the number of samples that differ."""
    labels: Figure = {"task": "protocols", "model": run.name, "variant": run.track}
    for metric in (name for name in QUIRKS_OF if name in run.metrics):
        scores = [*run.score_rows([metric])]
        sets: dict[str, tuple[str, ...]] = {quirk: (quirk,) for quirk in QUIRKS_OF[metric]}
        if metric == "retention_vqa":
            sets[ALL] = ("answers", "objects")
        for quirk, quirks in sets.items():
            named = {**labels, "metric": metric, "quirk": quirk, "note": ""}
            try:
                fixed = [recompute(metric, row) for row in scores]
                paper = [recompute(metric, row, quirks) for row in scores]
            except NoEvidence as error:
                fixed = paper = []
                named["note"] = f"{error}; score again with evidence: both"
            for statistic, values in (("fixed", fixed), ("paper", paper)):
                scored = [value for value in values if value is not None]
                mean = sum(scored) / len(scored) if scored else None
                yield number(mean, unit="%", n=len(scored), statistic=statistic, **named)
            flips = sum(value != other for value, other in zip(fixed, paper, strict=True))
            yield number(None if named["note"] else flips, unit="count", statistic="flips", **named)
    if getattr(run.corpus().get("fid"), "value", None) is not None:
        yield from _compare_fid(run, **labels)


def _compare_fid(run: RunDir, **labels: Any) -> Iterator[Figure]:
    """The rows of FID against all targets, and against every target once."""
    from nein.metrics.fid import frechet_distance

    features = read_features(run)
    if features is None or len(features.once) < 2:
        return
    labels |= {"metric": "fid", "quirk": "reference", "note": "", "n": len(features.edited)}
    for statistic, targets in (("fixed", features.target), ("paper", features.target[features.once])):
        yield number(frechet_distance(features.edited, targets), unit="", statistic=statistic, **labels)
    yield number(None, unit="count", statistic="flips", **labels | {"n": None})
