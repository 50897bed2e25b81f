"""Results split by family of negation, for data sets whose samples name one.

In a family whose object must stay, Removal is a mistake: such samples are left out of the figures for the
whole run and stand in a row of their own, where lower is better. Their target is the sample itself
(`Sample.source_path`), so that all other metrics mean the same in every family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tabulate

from metrics import METRICS
from nein.benchmarks.nein.results_table import TRACK_NAMES, figure, heading
from nein.wording.families import FAMILIES, STAYS

REMOVAL = ("removal_vqa", "removal_ovd", "auc_removal")
Values = Mapping[str, Mapping[str, float | None]]
Entry = Callable[[str, Mapping[str, float | None], Mapping[str, str]], dict[str, Any]]


def families_of(edits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Sample id -> family, for the samples that name one."""
    return {edit["id"]: edit["family"] for edit in edits if edit.get("family")}


def without_staying(values: Values, families: Mapping[str, str]) -> dict[str, dict[str, float | None]]:
    """`values` with the Removal metrics restricted to samples whose object must go."""
    return {
        metric: {k: v for k, v in row.items() if metric not in REMOVAL or families.get(k) not in STAYS}
        for metric, row in values.items()
    }


def split(
    values: Values, families: Mapping[str, str], clusters: Mapping[str, str], entry: Entry
) -> dict[str, dict[str, Any]]:
    """Family -> metric -> entry of a summary, in the order of `FAMILIES`; empty without families."""
    found: dict[str, dict[str, Any]] = {}
    for family in FAMILIES:
        own = {
            metric: {key: value for key, value in row.items() if families.get(key) == family}
            for metric, row in values.items()
        }
        entries = {metric: entry(metric, row, clusters) for metric, row in own.items() if row}
        if entries:
            found[family] = entries
    return found


def markdown(summaries: Sequence[Mapping[str, Any]]) -> str:
    """A table of Removal and Retention by family over all runs, or "" where no run has families."""
    rows = []
    names = [
        name
        for name in METRICS
        if METRICS[name].by_judge
        and any(name in found for s in summaries for found in s.get("families", {}).values())
    ]
    for summary in summaries:
        track = TRACK_NAMES.get(summary["track"], summary["track"])
        for family, found in summary.get("families", {}).items():
            label = f"{family} (object must stay: Removal ↓)" if family in STAYS else family
            cells = [figure(METRICS[name], found.get(name)) for name in names]
            n = max((entry["n"] + entry["n_unscored"] for entry in found.values()), default=0)
            rows.append([summary["editor"], track, label, *cells, str(n)])
    if not rows or not names:
        return ""
    headers = ["editor", "instruction", "family", *(heading(METRICS[name]) for name in names), "n"]
    table = tabulate.tabulate(rows, headers, tablefmt="pipe", disable_numparse=True)
    note = (
        "\n\nSamples whose object must stay are not in the Removal figures above." if _stay(summaries) else ""
    )
    return f"### By family of negation\n\n{table}{note}"


def _stay(summaries: Sequence[Mapping[str, Any]]) -> bool:
    return any(family in STAYS for summary in summaries for family in summary.get("families", {}))
