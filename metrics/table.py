"""METRICS, the table of metrics: ours in the order of the paper's Table 3, then plug-ins, each a
`metrics.Metric` as an entry point of the group "nein.metrics" of an installed package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import metadata
from typing import ClassVar

from nein.metrics import images, presence
from nein.metrics.base import MetricError
from nein.metrics.metric import Metric

GROUP = "nein.metrics"

_OURS = (*images.METRICS, *presence.METRICS, *images.OTHER_METRICS)


class Table(Mapping[str, Metric]):
    """Name -> metric. Plug-ins are imported on iteration, or for a name that is not ours."""

    _ours: ClassVar[dict[str, Metric]] = {metric.name: metric for metric in _OURS}

    def __getitem__(self, name: str) -> Metric:
        return self._ours[name] if name in self._ours else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> dict[str, Metric]:
        metrics = dict(self._ours)
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
