"""Figures with intervals from the rows of `nein.benchmarks.negbench.results`, as rows of the frame.

Columns besides the usual: kind and direction (retrieval), type (of questions), template (of what was chosen).

Metrics: "recall@k", and the same of the baselines, "text only@k" and "picture only@k"; "gap@k", recall with
original minus recall with negated captions, paired; "accuracy"; "text only" and "picture only", accuracy of
the baselines, and "gain over text", accuracy minus the former, paired; "gap", accuracy where the right option
affirms minus accuracy where it denies; "chance", what a constant scorer gets; "selected", the share of
choices that fall on a template; "offered", the share of options made with it; "wrong", the share of wrong
choices that fall on it; "joint", the share of groups of questions that are all answered right, by score
(type), and "joint chance", what guessing gets; "pair", of groups of two, which are answered right (outcome);
"joint by difficulty", "joint" of the groups that are as difficult as level says in what axis names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nein import statistics
from nein.benchmarks.baselines import BASELINES, GAIN, TEXT_ONLY
from nein.benchmarks.negbench.results import IMAGE_TO_TEXT, TEXT_TO_IMAGE
from nein.benchmarks.negbench.retrieval import KS
from nein.datasets.negbench.pairs import GROUP
from nein.datasets.negbench.records import (
    AFFIRMATION,
    KINDS,
    NEGATED,
    NEGATION,
    ORIGINAL,
    TEMPLATES,
)
from nein.reporting.figures import figure, number
from nein.statistics.estimates import Estimate

Rows = Sequence[Mapping[str, Any]]


def of_retrieval(rows: Rows) -> list[dict[str, Any]]:
    """Recall of both kinds in both directions, and the negation gap."""
    figures = []
    for direction in (TEXT_TO_IMAGE, IMAGE_TO_TEXT):
        parts = {
            kind: [row for row in rows if row["direction"] == direction and row["kind"] == kind]
            for kind in KINDS
        }
        for k in KS:
            name = f"recall@{k}"
            figures += [
                _share(members, one, {"metric": one, "kind": kind, "direction": direction})
                for one in (name, *(f"{baseline}@{k}" for baseline in BASELINES))
                for kind, members in parts.items()
                if members and one in members[0]
            ]
            if all(parts.values()):
                gap, unscored = _gap(parts[ORIGINAL], parts[NEGATED], name)
                row = figure(gap, unit="points", unscored=unscored, metric=f"gap@{k}", direction=direction)
                figures.append(row)
    return figures


def of_choices(rows: Rows) -> list[dict[str, Any]]:
    """Accuracy in total and by type, chance, which templates are chosen, and how wrong answers fall."""
    figures = [_share(rows, "credit", {"metric": "accuracy", "type": "all"})]
    types = [t for t in TEMPLATES if any(row["type"] == t for row in rows)]
    for type_ in types:
        members = [row for row in rows if row["type"] == type_]
        figures.append(_share(members, "credit", {"metric": "accuracy", "type": type_}))
    if {AFFIRMATION, NEGATION} <= set(types):
        figures.append(_choice_gap(rows))
    for type_ in ("all", *types):
        figures += _baselines([row for row in rows if type_ in ("all", row["type"])], type_)
    chance = float(np.mean([1 / len(row["templates"]) for row in rows]))
    figures.append(number(chance, unit="%", n=len(rows), metric="chance", type="all"))
    typed = [row for row in rows if all(row["templates"]) and len(set(row["templates"])) > 1]
    scored = [row for row in typed if row["shares"] is not None]
    clusters = [row["source"] for row in scored]
    for template in TEMPLATES:
        if not any(template in row["templates"] for row in typed):
            continue
        hits = [_mass(row, template) for row in scored]
        share, unscored = statistics.bounded_mean(hits, clusters), len(typed) - len(scored)
        figures.append(figure(share, unit="%", unscored=unscored, metric="selected", template=template))
        offered = float(np.mean([row["templates"].count(template) / len(row["templates"]) for row in typed]))
        figures.append(number(offered, unit="%", n=len(typed), metric="offered", template=template))
    for type_ in ["all", *types]:
        figures += _wrong([row for row in typed if type_ in ("all", row["type"])], type_)
    return figures


#: Score of questions that share scores -> the share that random ones get: of four, the two that belong
#: together are the highest once in six (Winoground, arXiv:2204.03162, Table 3).
RANDOM = {GROUP: 1 / 6}
#: Of two questions that belong together, which are answered right.
OUTCOMES = ("both", "first alone", "second alone", "neither")


def of_groups(rows: Rows) -> list[dict[str, Any]]:
    """Of questions that belong together, how often all are answered right; of pairs, which of the two are.

    A group with an unscored question is unscored; one that `--limit` has cut is none. Where a tie shares a
    credit, it stands for its expectation.
    """
    groups: dict[str, dict[tuple[str, int], list[Mapping[str, Any]]]] = {}
    for row in rows:
        for score, name, size in row["groups"]:
            groups.setdefault(score, {}).setdefault((name, size), []).append(row)
    figures = []
    for score, by_name in groups.items():
        members = [group for (_, size), group in by_name.items() if len(group) == size]
        if not members:
            continue
        joint = [_together(group, [False] * len(group)) for group in members]
        figures.append(_share(joint, "credit", {"metric": "joint", "type": score}))
        chance = float(np.mean([_guessed(score, group) for group in members]))
        figures.append(number(chance, unit="%", n=len(members), metric="joint chance", type=score))
        if all(len(group) == 2 for group in members):
            for k, outcome in enumerate(OUTCOMES):
                falls = [_together(group, (k >= 2, k in (1, 3))) for group in members]
                figures.append(_share(falls, "credit", {"metric": "pair", "type": score, "outcome": outcome}))
        if all(len(group) == 4 for group in members):
            figures += _by_difficulty(joint, score)
    return figures


def _by_difficulty(joint: Rows, score: str) -> list[dict[str, Any]]:
    """Of groups of four, which are all of a pair; an axis is read where those behind it are at 0."""
    figures = []
    axes = list(dict.fromkeys(axis for row in joint for axis in row["difficulty"]))
    for place, axis in enumerate(axes):
        easy = [row for row in joint if not any(row["difficulty"][other] for other in axes[place + 1 :])]
        for level in sorted({row["difficulty"][axis] for row in easy}):
            members = [row for row in easy if row["difficulty"][axis] == level]
            what = {"metric": "joint by difficulty", "type": score, "axis": axis, "level": str(level)}
            figures.append(_share(members, "credit", what))
    return figures


def _guessed(score: str, group: Rows) -> float:
    """What random scores get; where four questions are those of GROUP by another name, as there."""
    if len(group) == 4 and all(GROUP in {of for of, _, _ in row["groups"]} for row in group):
        score = GROUP
    if score in RANDOM:
        return RANDOM[score]
    return float(np.prod([1 / len(row["templates"]) for row in group]))


def _together(group: Rows, wrong: Sequence[bool]) -> dict[str, Any]:
    """A row whose credit says whether every question of a group is answered right, or wrong where `wrong`."""
    lost = next((row for row in group if row["credit"] is None), None)
    if lost is not None:
        return dict(lost)
    credits = [1 - row["credit"] if no else row["credit"] for row, no in zip(group, wrong, strict=True)]
    return {**group[0], "credit": float(np.prod(credits))}


def _baselines(rows: Rows, type_: str) -> list[dict[str, Any]]:
    """What is right without the picture and without the text, of the questions that were asked so, and what
    the picture adds to the text there, paired."""
    figures = []
    for name in BASELINES:
        members = [row for row in rows if name in row]
        if members:
            figures.append(_share(members, name, {"metric": name, "type": type_}, lost="not read"))
    both = [row for row in rows if row.get(TEXT_ONLY) is not None]
    right, alone = ({row["id"]: row[name] for row in both} for name in ("credit", TEXT_ONLY))
    gain = statistics.paired_difference(right, alone, {row["id"]: row["source"] for row in both})
    if gain is not None:
        figures.append(figure(gain, unit="points", metric=GAIN, type=type_))
    return figures


def _choice_gap(rows: Rows) -> dict[str, Any]:
    """Share of right choices where the right option affirms minus that where it denies."""
    parts, unscored = [], 0
    for type_ in (AFFIRMATION, NEGATION):
        members = [row for row in rows if row["type"] == type_]
        scored = [row for row in members if row["credit"] is not None]
        unscored += len(members) - len(scored)
        parts += [[row["credit"] for row in scored], [row["source"] for row in scored]]
    difference = statistics.difference_of_means(*parts)
    return figure(difference, unit="points", unscored=unscored, metric="gap", type="all")


def _wrong(rows: Rows, type_: str) -> list[dict[str, Any]]:
    """Of the choices that are wrong, the share that falls on each template; n is how many are wrong."""
    unscored = sum(row["shares"] is None for row in rows)
    rows = [row for row in rows if row["shares"] is not None]
    total = [1.0 - row["credit"] for row in rows]
    if sum(total) == 0:
        return []
    clusters: list[Hashable] = [row["source"] for row in rows]
    figures = []
    for template in TEMPLATES:
        hits = [_mass(row, template) - (row["credit"] if row["type"] == template else 0.0) for row in rows]
        shares = [hit / w if w else 0.0 for hit, w in zip(hits, total, strict=True)]
        estimate = statistics.bounded_mean(shares, clusters, weights=total)
        row = figure(estimate, unit="%", unscored=unscored, metric="wrong", type=type_, template=template)
        figures.append({**row, "n": round(sum(total), 3)})
    return figures


def _mass(row: Mapping[str, Any], template: str) -> float:
    return float(sum(s for s, t in zip(row["shares"], row["templates"], strict=True) if t == template))


def _share(rows: Rows, name: str, what: Mapping[str, Any], lost: str = "") -> dict[str, Any]:
    """lost: why there is no value where a row does not say it."""
    scored = [row for row in rows if row[name] is not None]
    estimate = statistics.bounded_mean([row[name] for row in scored], [row["source"] for row in scored])
    reasons = Counter(row["reason"] or lost for row in rows if row[name] is None)
    commonest = dict(reasons.most_common(3))
    return figure(estimate, unit="%", unscored=len(rows) - len(scored), reasons=commonest, **what)


def _gap(original: Rows, negated: Rows, name: str) -> tuple[Estimate | None, int]:
    """The negation gap with how many pairs are unscored: original minus negated over the items that have
    both, paired.

    Where an item has as many captions of the one kind as of the other, the k-th belong together and both have
    to be scored. Where it has not (a paraphrase was lost), all of its scored captions enter; then
    the pairing is by picture alone.
    """
    kinds: list[dict[str, list[Mapping[str, Any]]]] = [{}, {}]
    for by_item, rows in zip(kinds, (original, negated), strict=True):
        for row in rows:
            by_item.setdefault(row["item"], []).append(row)
    values: tuple[list[float], list[float]] = ([], [])
    clusters: tuple[list[Hashable], list[Hashable]] = ([], [])
    n = total = 0
    for item in {**kinds[0], **kinds[1]}:
        both = [by_item.get(item, []) for by_item in kinds]
        total += max(map(len, both))
        if len(both[0]) == len(both[1]):
            pairs = [pair for pair in zip(*both, strict=True) if all(row[name] is not None for row in pair)]
            scored = [[pair[side] for pair in pairs] for side in (0, 1)]
        else:
            scored = [[row for row in rows if row[name] is not None] for rows in both]
        if not all(scored):
            continue
        n += max(map(len, scored))
        for side in (0, 1):
            values[side].extend(row[name] for row in scored[side])
            clusters[side].extend(both[0][0]["source"] for _ in scored[side])
    estimate = statistics.difference_of_means(values[0], clusters[0], values[1], clusters[1])
    if estimate is not None:
        estimate = replace(estimate, n=n)
    return estimate, total - n
