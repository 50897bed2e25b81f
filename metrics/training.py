"""Metrics as `torchmetrics.Metric`, for a training loop: update, compute, reset, on any number of processes.

>>> lpips = EditingMetric("lpips", "alex", device="cuda")
>>> lpips.update(edited, target)      # lists of pictures, or tensors (N, 3, H, W)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torchmetrics
from torchmetrics.utilities import rank_zero_warn

from nein.loading.errors import choose
from nein.metrics import ENCODERS, METRICS, load_encoder, load_judge
from nein.metrics.base import MetricError
from nein.metrics.metric import Batch, EditPair, Metric, Settings, score

#: (H, W, 3) uint8 arrays or PIL images; or one tensor (N, 3, H, W), uint8, or floating point in `data_range`.
Pictures = Sequence[Any] | torch.Tensor


class EditingMetric(torchmetrics.Metric):
    """The mean of one of `METRICS` over all pictures seen, or the distance of a corpus metric (FID).

    model     Of its encoder or judge, kept out of checkpoints and pickles; None for a metric of pixels.
    data_range  Values of black and white in floating point tensors; others are refused, not clipped.

    An unscored picture is counted in `unscored` alone; `compute` is NaN without scores. Raises MetricError.
    """

    full_state_update = False
    is_differentiable = False
    total: torch.Tensor
    count: torch.Tensor
    unscored: torch.Tensor
    edited: list[torch.Tensor]
    target: list[torch.Tensor]

    def __init__(
        self, name: str, model: str | None = None, *, device: str = "cpu", dtype: str = "float32",
        data_range: tuple[float, float] = (0.0, 1.0), settings: Settings | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self._name = choose("metric", name, METRICS)
        self._model: dict[str, Any] = {"model": model, "device": device, "dtype": dtype}
        self.data_range = data_range
        self.settings = settings or Settings()
        self._models: dict[str, Any] | None = _loaded(self.metric.models, name, **self._model)
        self._reason = ""
        for state, dtype_ in (("total", torch.float64), ("count", torch.int64), ("unscored", torch.int64)):
            self.add_state(state, torch.zeros((), dtype=dtype_), dist_reduce_fx="sum")
        for state in ("edited", "target"):
            self.add_state(state, [], dist_reduce_fx="cat")

    @property
    def metric(self) -> Metric:
        return METRICS[self._name]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_models": None}

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.metric.higher_is_better

    def update(
        self, edited: Pictures, target: Pictures | None = None, *, sample: Pictures | None = None,
        objects: Sequence[str] = (), captions: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Scores a batch; which pictures are needed depends on the metric. objects, captions: for judges,
        what should not be there, and a sentence about what should. Raises MetricError."""
        given = {"edited": edited, "target": target, "sample": sample}
        columns: dict[str, Sequence[Any]] = {
            name: _pictures(row, self.data_range) for name, row in given.items() if row is not None
        }
        columns |= {name: words for name, words in (("object", objects), ("caption", captions)) if words}
        lacking = [name for name in self.metric.pictures if name not in columns]
        if self.metric.by_judge and "object" not in columns:
            lacking.append("objects")
        if lacking:
            raise MetricError(f"The metric '{self._name}' needs {' and '.join(lacking)} in every update.")
        if len({len(column) for column in columns.values()}) > 1:
            counts = ", ".join(f"{len(column)} of {name}" for name, column in columns.items())
            raise MetricError(f"Equally many of everything are scored together, not {counts}.")
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        items = [EditPair(str(number), **row) for number, row in enumerate(rows)]
        if self._models is None:
            self._models = _loaded(self.metric.models, self._name, **self._model)
        batch = Batch(items, self._models, self.settings)
        for result in score([self.metric], batch)[self.metric.name]:
            if result.features is not None:
                for stored, row in zip((self.edited, self.target), result.features, strict=True):
                    stored.append(torch.from_numpy(np.array(row))[None].to(self.device))
            elif result.value is None:
                self.unscored += 1
                self._reason = self._reason or result.reason
                continue
            else:
                self.total += float(result.value)
            self.count += 1

    def compute(self) -> torch.Tensor:
        """A scalar, float64; what is shown in per cent is 0 to 1 here."""
        if self.unscored and not self.count:
            rank_zero_warn(f"{self._name}: none of {int(self.unscored)} pictures is scored: {self._reason}")
        if int(self.count) < (1 if self.metric.corpus is None else 2):
            return torch.full((), torch.nan, dtype=torch.float64)
        if self.metric.corpus is None:
            return self.total / self.count
        from nein.metrics.fid import frechet_distance

        # Gathered from other processes they are tensors already.
        rows = [torch.cat(side) if isinstance(side, list) else side for side in (self.edited, self.target)]
        return torch.tensor(frechet_distance(*(row.cpu().numpy() for row in rows)), dtype=torch.float64)


def _loaded(kinds: Sequence[str], name: str, model: str | None, device: str, dtype: str) -> dict[str, Any]:
    if len(kinds) > 1 or bool(kinds) != (model is not None):
        needed = f"needs the model of {' and '.join(kinds)}" if kinds else "needs no model"
        raise MetricError(f"The metric '{name}' {needed}, and was given {model!r}.")
    if not kinds or model is None:
        return {}
    load = load_encoder if kinds[0] in ENCODERS else load_judge
    return {kinds[0]: load(kinds[0], model, device=device, dtype=dtype)}


def _pictures(given: Pictures, data_range: tuple[float, float]) -> list[np.ndarray]:
    """[(H, W, 3) uint8]"""
    if not isinstance(given, torch.Tensor):
        return [np.asarray(picture) for picture in given]
    if given.ndim != 4 or given.shape[1] != 3:
        raise MetricError(f"A tensor of pictures has shape (N, 3, H, W), not {tuple(given.shape)}.")
    if given.is_floating_point():
        given, (black, white) = given.detach().double(), data_range
        low, high = (float(end) for end in torch.aminmax(given)) if given.numel() else data_range
        slack = (white - black) * 1e-3  # below half a step of uint8
        if not (black - slack <= low and high <= white + slack):  # also for NaN
            raise MetricError(
                f"Pictures range from {low:.4g} to {high:.4g}, outside data_range=({black:g}, {white:g}); "
                "state theirs, as data_range=(-1, 1)."
            )
        given = ((given - black) / (white - black) * 255).round().clamp(0, 255).to(torch.uint8)
    elif given.dtype != torch.uint8:
        raise MetricError(f"A tensor of pictures is uint8 or floating point, not {given.dtype}.")
    return list(given.cpu().permute(0, 2, 3, 1).numpy())  # N 3 H W => N H W 3
