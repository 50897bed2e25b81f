"""Both protocols for one finished run: how much each quirk of the published protocol changes each estimate.

Recomputed from the evidence in score rows (raw answers, scores of boxes, objects asked about) and from FID's
features; no model is run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from nein.benchmarks.nein.estimates import read_features
from nein.benchmarks.nein.runs import NOT_EDITED, RunDir, ScoreRow
from nein.metrics import Score
from nein.metrics.judges.base import paper_says_present, paper_says_removed, parse_yes_no
from nein.reporting.figures import Figure, number

#: Quirk -> what protocol "paper" does.
QUIRKS = {
    "answers": 'only "No" to the letter removes, only "yes" in any case is present; any other answer counts '
    "as the opposite",
    "objects": "every root of a noun chunk as written is an object, pronouns and repetitions included",
    "reference": "FID against every target once, not against the target of every sample",
    "denominator": "samples without an edited picture count as failures (constant denominators of the "
    "scripts)",
}
#: Metric -> the quirks that change it. The denominator is a quirk of the released scripts, not of
#: `--protocol paper`, which leaves failed edits unscored.
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
ALL = "all"  # the quirks of `--protocol paper` together


class NoEvidence(ValueError):
    """The evidence does not cover the questions of the other protocol."""


def verdict(metric: str, row: ScoreRow | Score, quirks: Collection[str] = ()) -> float | None:
    """The value of a score row under these quirks; without any, under protocol "fixed". None: unscored.

    Raises NoEvidence when the other protocol's questions were not asked (`evidence: own`).
    """
    detail = row.detail
    if row.reason.startswith(NOT_EDITED):
        return 0.0 if "denominator" in quirks else None
    if metric.startswith("retention_"):
        return _retention(metric.removeprefix("retention_"), detail, quirks) if "before" in detail else None
    if metric == "removal_ovd":
        return float(detail["score"] <= detail["threshold"]) if "score" in detail else None
    if "answer" not in detail:
        return None
    if "answers" in quirks:
        return float(paper_says_removed(detail["answer"]))
    seen = parse_yes_no(detail["answer"])
    return None if seen is None else float(not seen)


def _retention(kind: str, detail: Mapping[str, Any], quirks: Collection[str]) -> float | None:
    """The share of the caption's objects that are still seen, among those seen before; None: unscored."""
    objects_of, answers_of = ("paper" if quirk in quirks else "fixed" for quirk in ("objects", "answers"))
    if "objects_of" in detail:
        objects = detail["objects_of"][objects_of]
    elif detail["protocol"] != objects_of or (kind == "vqa" and detail["protocol"] != answers_of):
        raise NoEvidence(f"retention_{kind} was scored with evidence: own")
    else:
        objects = detail["objects"]
    before, after = detail["before"], detail["after"]  # object -> answer, or score of its best box
    if kind == "ovd":
        objects = list(dict.fromkeys(objects))
    elif any(isinstance(before[name], Mapping) for name in objects):  # the judge failed on one
        return None
    present_before = [name for name in objects if _is_present(before[name], kind, detail, answers_of)]
    if not present_before or any(isinstance(after[name], Mapping) for name in present_before):
        return None
    present = [_is_present(after[name], kind, detail, answers_of) for name in present_before]
    return None if None in present else sum(map(bool, present)) / len(present_before)


def _is_present(reply: Any, kind: str, detail: Mapping[str, Any], answers_of: str) -> bool | None:
    if kind == "ovd":
        return bool(reply > detail["threshold"])
    return paper_says_present(reply) if answers_of == "paper" else parse_yes_no(reply)


def make_rows(run: RunDir) -> Iterator[Figure]:
    """For every quirk that changes a metric of the run, alone and together ("all"), three rows (task
    "protocols"): the estimates "fixed" and "paper", and "flips", the number of samples whose value differs or
    that only one of them scores."""
    labels: Figure = {"task": "protocols", "model": run.name, "variant": run.track}
    for metric in (name for name in MOVES if name in run.metrics):
        scores = [*run.score_rows([metric])]
        sides: dict[str, tuple[str, ...]] = {quirk: (quirk,) for quirk in MOVES[metric]}
        sides |= {ALL: ("answers", "objects")} if metric == "retention_vqa" else {}
        for quirk, quirks in sides.items():
            named = {**labels, "metric": metric, "quirk": quirk, "note": ""}
            try:
                fixed, paper = ([verdict(metric, row, side) for row in scores] for side in ((), quirks))
            except NoEvidence as error:
                fixed, paper, named["note"] = [], [], f"{error}; score again with evidence: both"
            for statistic, values in (("fixed", fixed), ("paper", paper)):
                scored = [value for value in values if value is not None]
                mean = sum(scored) / len(scored) if scored else None
                yield number(mean, unit="%", n=len(scored), statistic=statistic, **named)
            flips = (
                None
                if named["note"]
                else sum(
                    fixed_value != paper_value for fixed_value, paper_value in zip(fixed, paper, strict=True)
                )
            )
            yield number(flips, unit="count", statistic="flips", **named)
    if getattr(run.corpus().get("fid"), "value", None) is not None:
        yield from _compare_fid(run, **labels)


def _compare_fid(run: RunDir, **labels: Any) -> Iterator[Figure]:
    from nein.metrics.fid import frechet_distance

    features = read_features(run)
    if features is None or len(features.once) < 2:
        return
    labels |= {"metric": "fid", "quirk": "reference", "note": "", "n": len(features.edited)}
    for statistic, targets in (("fixed", features.target), ("paper", features.target[features.once])):
        yield number(frechet_distance(features.edited, targets), unit="", statistic=statistic, **labels)
    yield number(None, unit="count", statistic="flips", **labels | {"n": None})
