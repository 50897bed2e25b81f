"""Collects all metrics in the table METRICS: ours in the order of the paper's Table 3, then the plug-ins'.

A plug-in is a `metrics.Metric` that an installed package names as an entry point of the group "nein.metrics".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import metadata

from nein.metrics import images, presence
from nein.metrics.base import MetricError
from nein.metrics.metric import Metric

GROUP = "nein.metrics"
_OURS = {m.name: m for m in (*images.METRICS, *presence.METRICS, *images.OTHER_METRICS)}  # name -> metric


class Table(Mapping[str, Metric]):
    """Name -> metric. Plug-ins are imported on iteration, or for a name that is not ours."""

    def __getitem__(self, name: str) -> Metric:
        return _OURS[name] if name in _OURS else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Metric]:
        """All metrics by name. Raises MetricError for a plug-in that is none, or has a taken name."""
        metrics = dict(_OURS)
        for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
            try:
                metric = point.load()
            except (ImportError, AttributeError) as error:
                raise MetricError(f"The metric plug-in '{point.name}' cannot be loaded: {error}.") from None
            if not isinstance(metric, Metric):
                raise MetricError(f"The plug-in '{point.name}' is {metric!r}; it must be a metrics.Metric.")
            if metric.name in metrics:
                raise MetricError(f"The metric plug-in '{point.name}' has the taken name '{metric.name}'.")
            metrics[metric.name] = metric
        return metrics


METRICS = Table()
