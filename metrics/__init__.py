"""Public names of this package, metrics that score edited images and loaders of their models.

METRICS holds every metric by name; `score(metrics, batch)` gives a Score per metric and item; `load_encoder`,
`load_judge` and others load models. Every name is imported on first use, so that this import is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nein.metrics.base import *  # noqa: F403
    from nein.metrics.metric import *  # noqa: F403
    from nein.metrics.models import *  # noqa: F403
    from nein.metrics.table import *  # noqa: F403

#: Module -> the public names that it defines; each is imported on first use.
_NAMES_BY_MODULE = {
    "base": "MetricError Score Store",
    "metric": "Batch EditPair Metric SceneObject Settings score",
    "models": "DUALS ENCODERS JUDGES ORIGINS REFERENCES check_reference check_reward dual_prefix "
    "load_choices load_dual load_encoder load_judge load_reward origins",
    "table": "METRICS",
}

__all__ = sorted(" ".join(_NAMES_BY_MODULE.values()).split())


def __getattr__(name: str) -> Any:
    for module, names in _NAMES_BY_MODULE.items():
        if name in names.split():
            return getattr(importlib.import_module(f"nein.metrics.{module}"), name)
    raise AttributeError(f"module 'metrics' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
