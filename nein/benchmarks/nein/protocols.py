"""The two protocols side by side for one finished run: which named quirk moves which figure by how much.

Works from the evidence in score rows (raw answers, scores of boxes, objects asked about) and the features
of the Frechet distance. No model is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from metrics import METRICS
from metrics.base import paper_present, paper_removed, parse_yes_no
from nein import statistics
from nein.benchmarks.nein import corpus
from nein.benchmarks.nein.records import Records
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
    "--article": "the article in the judge's question",
    "--align": "how the target is compared",
    "--models.ovd_pad": "the detector's padding",
    "--models.ovd_backend": "the detector's resize",
    "--models.vqa_quantization": "the judge's number type",
}


@dataclass(frozen=True)
class Rules:
    """Which side of every quirk is taken."""

    answers: Rule = "fixed"
    objects: Rule = "fixed"
    denominator: Rule = "fixed"

    @classmethod
    def of(cls, protocol: Rule) -> Rules:
        return cls(protocol, protocol, "fixed")


#: Sides of a metric beside its quirks: none of them, and all of `--protocol paper`.
FIXED, ALL = "", "all"
ALONE = {
    "answers": Rules(answers="paper"),
    "objects": Rules(objects="paper"),
    "denominator": Rules(denominator="paper"),
}


class NoEvidence(ValueError):
    """The record does not hold what the other protocol needs."""


def verdict(metric: str, row: Mapping[str, Any], rules: Rules) -> float | None:
    """The value of a score row under `rules`; None: unscored. `row`: `value`, `reason`, `detail`.

    Raises NoEvidence when the other protocol's questions were not asked (`--evidence own`).
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
            raise NoEvidence(f"retention_{kind} was scored with --evidence own")
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


@dataclass(frozen=True)
class Shift:
    """What one quirk, or all of a protocol, does to one figure.

    quirk     Name of the quirk, or "all": every quirk of `--protocol paper`.
    fixed     The figure without, `paper` with it; None where nothing is scored.
    n_fixed, n_paper   Samples scored either way.
    flips     Samples whose value differs, or that are scored on one side only; None for FID.
    change    Paired interval of paper - fixed over the samples scored either way; None for FID.
    note      Why there is no figure, else empty.
    """

    metric: str
    quirk: str
    fixed: float | None
    paper: float | None
    n_fixed: int
    n_paper: int
    flips: int | None
    change: statistics.Estimate | None
    note: str = ""


def shifts(run: Records) -> list[Shift]:
    """Every quirk that concerns a metric of the run, alone and together, metric by metric."""
    wanted = {metric: _sides(quirks) for metric, quirks in MOVES.items() if metric != "fid"}
    sides: dict[str, dict[str, dict[str, float | None]]] = {}
    refused: dict[tuple[str, str], NoEvidence] = {}
    for row in run.run.scores():
        metric = row["metric"]
        for name, rules in wanted.get(metric, {}).items():
            values = sides.setdefault(metric, {}).setdefault(name, {})
            try:
                values[row["id"]] = verdict(metric, row, rules)
            except NoEvidence as error:
                refused[metric, name] = error
    moved: list[Shift] = []
    for metric in MOVES:
        if metric == "fid":
            moved += _fid_shift(run)
        for name in sides.get(metric, {}):
            if name != FIXED:
                why = refused.get((metric, FIXED)) or refused.get((metric, name))
                moved.append(_shift(metric, name, sides[metric], why, run.sources))
    return moved


def _sides(quirks: Sequence[str]) -> dict[str, Rules]:
    """What every score of a metric is worth without any quirk, with each of them, and with all."""
    together = [quirk for quirk in quirks if quirk in IN_PROTOCOL]
    both = {ALL: Rules.of("paper")} if len(together) > 1 else {}
    return {FIXED: Rules(), **{quirk: ALONE[quirk] for quirk in quirks}, **both}


def rows(run: Records) -> list[dict[str, Any]]:
    """`shifts` as rows of the frame (task "protocols")."""
    made = []
    for shift in shifts(run):
        unit = "%" if METRICS[shift.metric].unit == "per cent" else ""
        what = {"benchmark": "nein", "task": "protocols", "metric": shift.metric, "quirk": shift.quirk}
        what |= {"model": run.name, "variant": run.track, "note": shift.note}
        made += [
            {**number(shift.fixed, unit=unit, n=shift.n_fixed), **what, "statistic": "fixed"},
            {**number(shift.paper, unit=unit, n=shift.n_paper), **what, "statistic": "paper"},
            {**number(shift.flips, unit="count"), **what, "statistic": "flips"},
        ]
    return made


def _shift(
    metric: str,
    quirk: str,
    sides: Mapping[str, Mapping[str, float | None]],
    why: NoEvidence | None,
    source_of: Mapping[str, str],
) -> Shift:
    if why is not None:
        return Shift(metric, quirk, None, None, 0, 0, None, None, f"{why}; score again with --evidence both")
    fixed, paper = sides[FIXED], sides[quirk]
    flips = sum(fixed[name] != paper[name] for name in fixed)
    # A quirk of the denominator changes which samples count, not what any of them is worth.
    change = (
        None
        if quirk == "denominator"
        else statistics.paired_difference(paper, fixed, source_of, METRICS[metric].span)
    )
    n_fixed, n_paper = (sum(value is not None for value in side.values()) for side in (fixed, paper))
    return Shift(metric, quirk, _mean(fixed.values()), _mean(paper.values()), n_fixed, n_paper, flips, change)


def _fid_shift(run: Records) -> list[Shift]:
    features = corpus.read(run)
    if features is None or len(features.ids) < 2:
        return []
    from metrics.fid import frechet_distance

    once = features.unique_targets()
    if len(once) < 2:
        return []
    fixed = frechet_distance(features.edited, features.target)
    paper = frechet_distance(features.edited, features.target[once])
    return [Shift("fid", "reference", fixed, paper, len(features.ids), len(features.ids), None, None)]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
