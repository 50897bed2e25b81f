"""Judges of other packages, found by entry point: `--models.vqa plugin:NAME`.

A package offers a judge with

    [project.entry-points."nein.judges"]
    my-judge = "my_package.judge:load"

where `load(kind=..., device=..., dtype=..., **options)` returns an object that speaks one of the protocols in
`metrics.judges.base`. `nein check --judge KIND plugin:my-judge` says whether it keeps them.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from metrics.base import MetricError, choose

GROUP = "nein.judges"
#: Kind -> the method a judge of that kind must have.
METHODS = {"vqa": "ask", "ovd": "detect", "itm": "match"}


def available() -> dict[str, metadata.EntryPoint]:
    """Name -> entry point of every judge that installed packages offer."""
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def load(path_or_id: str, *, kind: str, revision: str | None, device: str, dtype: str, **options: Any) -> Any:
    """The judge behind `plugin:NAME`. Raises MetricError when there is none, or it is not of that kind."""
    name = path_or_id.removeprefix("plugin:")
    known = available()
    if not known:
        raise MetricError(f"'{path_or_id}': no installed package offers a judge (entry points of '{GROUP}').")
    try:
        factory = known[choose("judge plug-in", name, known)].load()
    except (ImportError, AttributeError) as error:
        raise MetricError(f"The judge plug-in '{name}' cannot be loaded: {error}.") from None
    judge = factory(kind=kind, device=device, dtype=dtype, **options)
    lacking = [part for part in ("fingerprint", "describe", METHODS[kind]) if not hasattr(judge, part)]
    if kind == "vqa" and not hasattr(judge, "template"):
        lacking.append("template")
    if lacking:
        raise MetricError(f"The judge plug-in '{name}' is no '{kind}' judge: it has no {', '.join(lacking)}.")
    return judge
