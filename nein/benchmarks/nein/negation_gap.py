"""The negation gap, template by template: what is lost when "Remove the X." is said as "there is no X"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nein import statistics
from nein.wording import templates


class TemplateGap(NamedTuple):
    """One row of the breakdown.

    template   Index 0..12 into `templates.NEGATIVE_TEMPLATES`; None for sentences of another form.
    estimate   Mean of (affirmative - negative) over the pairs, of values from 0 to 1.
    low, high  Its 95 % interval, clustered by source image; None with fewer than two source images.
    n          Pairs: samples scored under both instructions.
    """

    template: int | None
    estimate: float
    low: float | None
    high: float | None
    n: int


def gap_by_template(
    rows_negative: Iterable[Mapping[str, Any]], rows_affirmative: Iterable[Mapping[str, Any]]
) -> list[TemplateGap]:
    """The gap of one editor and metric per template of the negative instruction, in template order.

    rows_negative     Score rows of the negative track: `id`, `value` (None: unscored), `template` (index or
                      None) and `source_id`.
    rows_affirmative  Score rows of the affirmative track: `id`, `value`.

    Rows are paired by id; a template without a pair is left out.
    """
    affirmative = {row["id"]: row["value"] for row in rows_affirmative}
    groups: dict[int | None, list[tuple[float, Any]]] = {}
    for row in rows_negative:
        other = affirmative.get(row["id"])
        if row["value"] is not None and other is not None:
            pair = (float(other) - float(row["value"]), row["source_id"])
            groups.setdefault(row["template"], []).append(pair)
    gaps = []
    for template in sorted(groups, key=lambda index: (index is None, index or 0)):
        differences, sources = zip(*groups[template], strict=True)
        estimate = statistics.bounded_mean(differences, sources, -1.0, 1.0)
        assert estimate is not None
        gaps.append(TemplateGap(template, estimate.value, estimate.low, estimate.high, estimate.n))
    return gaps


def template_name(template: int | None) -> str:
    """ "No {S} in the image." with X for the object; "another sentence" for None."""
    return (
        "another sentence" if template is None else templates.NEGATIVE_TEMPLATES[template].replace("{S}", "X")
    )
