"""Models that answer about a picture (VQA, detection, image-text matching), and those of other packages:
`--models.vqa plugin:NAME`, or `--models.vqa module:attribute` or `file.py:attribute`.

A package names a judge by an entry point of the group "nein.judges": a judge as
`metrics.judges.base` describes it, or `load(kind=..., device=..., dtype=..., **options)` that makes one.
"""

from __future__ import annotations

import inspect
from importlib import metadata
from typing import Any

from nein.loading.attributes import load_attribute
from nein.loading.digests import source_digest
from nein.loading.errors import choose
from nein.loading.references import parse_reference
from nein.metrics.base import MetricError

GROUP = "nein.judges"
#: Kind -> the method a judge of that kind must have.
METHODS = {"vqa": "ask", "ovd": "detect", "itm": "match"}


def available() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def load_plugin(path_or_id: str, *, kind: str, **options: Any) -> Any:
    """Of `plugin:NAME` or `module:attribute`. Raises MetricError."""
    judge = made_by = offered(path_or_id)
    # A judge, as opposed to its class, has what it says about itself.
    if not hasattr(judge, METHODS[kind]) or isinstance(judge, type):
        options = {"kind": kind, **options}
        try:
            inspect.signature(judge).bind(**options)
        except (TypeError, ValueError):
            raise MetricError(
                f"'{path_or_id}' is not a judge, and cannot be called with {', '.join(options)} to make one."
            ) from None
        judge = judge(**options)
    needed = ("fingerprint", "describe", METHODS[kind], *(("template",) if kind == "vqa" else ()))
    if lacking := [part for part in needed if not hasattr(judge, part)]:
        raise MetricError(f"The judge '{path_or_id}' is no '{kind}' judge: it has no {', '.join(lacking)}.")
    return _Plugin(judge, source_digest(made_by))


class _Plugin:
    """A judge whose fingerprint also changes with its source text, so that no old answer is reused."""

    def __init__(self, judge: Any, source: str) -> None:
        self._judge, self.fingerprint = judge, f"{judge.fingerprint}-{source[:12]}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._judge, name)


def offered(reference: str) -> Any:
    """The judge, or what makes it. Raises MetricError."""
    given = parse_reference(reference)
    if given.kind == "attribute":
        judge = load_attribute(reference)
    else:
        name, points = given.name, available()
        if not points:
            raise MetricError(f"'{reference}': no package offers a judge (entry points of '{GROUP}').")
        try:
            judge = points[choose("judge plug-in", name, points)].load()
        except (ImportError, AttributeError) as error:
            raise MetricError(f"The judge plug-in '{name}' cannot be loaded: {error}.") from None
    if not callable(judge) and not any(hasattr(judge, method) for method in METHODS.values()):
        raise MetricError(f"'{reference}' is not a judge, and cannot be called to make one.")
    return judge
