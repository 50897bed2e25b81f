"""Metrics as `torchmetrics.Metric`, for a training loop: update, compute, reset, on any number of processes.

>>> lpips = EditingMetric("lpips", "alex", device="cuda")
>>> lpips.update(edited, target)      # lists of pictures, or tensors (N, 3, H, W)
>>> lpips.compute()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torchmetrics
from torchmetrics.utilities import rank_zero_warn

from nein.loading.errors import choose
from nein.metrics import METRICS, load_encoder, load_judge
from nein.metrics.base import MetricError, Score
from nein.metrics.batch import Batch, Item, Settings
from nein.metrics.metric import Metric, score

#: (H, W, 3) uint8 arrays or PIL images; or one tensor (N, 3, H, W), uint8, or floating point in `data_range`.
Pictures = Sequence[Any] | torch.Tensor


class EditingMetric(torchmetrics.Metric):
    """The mean of one of `METRICS` over all pictures seen, or the distance of a corpus metric (FID).

    name      A key of `METRICS`.
    model     What its encoder or judge is, as `load_encoder` and `load_judge` take it; None for a metric of
              pixels. Loaded at once, kept out of checkpoints and pickles (a copy loads it when it is used).
    data_range  Values of black and white in floating point tensors; others are refused, not clipped.
    settings  As in `Batch`.

    A picture that cannot be scored is counted in `unscored` and in no mean. `compute` is NaN before anything
    is scored, and warns with the first reason if nothing could be. Raises MetricError for a wrong number of
    models.
    """

    full_state_update = False
    is_differentiable = False

    def __init__(
        self,
        name: str,
        model: str | None = None,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        data_range: tuple[float, float] = (0.0, 1.0),
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._name = choose("metric", name, METRICS)
        self._model: dict[str, Any] = {"model": model, "device": device, "dtype": dtype}
        self.data_range = data_range
        self.settings = settings or Settings()
        self._models: dict[str, Any] | None = _loaded(self.metric.models, name, **self._model)
        self._reason = ""
        self.total: torch.Tensor
        self.count: torch.Tensor
        self.unscored: torch.Tensor
        self.edited: list[torch.Tensor]
        self.target: list[torch.Tensor]
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("unscored", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("edited", [], dist_reduce_fx="cat")
        self.add_state("target", [], dist_reduce_fx="cat")

    @property
    def metric(self) -> Metric:
        return METRICS[self._name]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_models": None}

    @property
    def higher_is_better(self) -> bool:  # type: ignore[override]
        return self.metric.higher_is_better

    def update(
        self,
        edited: Pictures,
        target: Pictures | None = None,
        *,
        sample: Pictures | None = None,
        objects: Sequence[str] = (),
        captions: Sequence[str] = (),
    ) -> None:
        """Scores a batch.

        edited, target, sample  What was made, what should have been, what was edited: those that the metric
                                needs, equally many.
        objects, captions       For judges: what should not be there, and a sentence about what should.

        Raises MetricError for counts that differ, for values outside `data_range`, and where something that
        the metric needs is not given.
        """
        given = {"edited": edited, "target": target, "sample": sample}
        columns: dict[str, Sequence[Any]] = {
            name: _pictures(pictures, self.data_range)
            for name, pictures in given.items()
            if pictures is not None
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
        items = [Item(str(number), **row) for number, row in enumerate(rows)]
        if self._models is None:
            self._models = _loaded(self.metric.models, self._name, **self._model)
        batch = Batch(items, self._models, self.settings)
        for one in score([self.metric], batch)[self.metric.name]:
            self._add(one)

    def _add(self, one: Score) -> None:
        if one.features is not None:
            for rows, row in zip((self.edited, self.target), one.features, strict=True):
                rows.append(torch.from_numpy(np.array(row))[None].to(self.device))
        elif one.value is None:
            self.unscored += 1
            self._reason = self._reason or one.reason
            return
        else:
            self.total += float(one.value)
        self.count += 1

    def compute(self) -> torch.Tensor:
        """A scalar, float64; what is shown in per cent is 0 to 1 here."""
        if self.unscored and not self.count:
            rank_zero_warn(f"{self._name}: none of {int(self.unscored)} pictures is scored: {self._reason}")
        if self.metric.corpus is None:
            return self.total / self.count if self.count else torch.full((), torch.nan, dtype=torch.float64)
        edited, target = (
            torch.cat(rows).cpu().numpy() if isinstance(rows, list) and rows else _rows(rows)
            for rows in (self.edited, self.target)
        )
        if len(edited) < 2:
            return torch.full((), torch.nan, dtype=torch.float64)
        from nein.metrics.fid import frechet_distance

        return torch.tensor(frechet_distance(edited, target), dtype=torch.float64)


def _loaded(kinds: Sequence[str], name: str, model: str | None, device: str, dtype: str) -> dict[str, Any]:
    from nein.metrics import ENCODERS

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
        given = _bytes(given.detach().double(), *data_range)
    elif given.dtype != torch.uint8:
        raise MetricError(f"A tensor of pictures is uint8 or floating point, not {given.dtype}.")
    return list(given.cpu().permute(0, 2, 3, 1).numpy())  # N 3 H W => N H W 3


def _bytes(pictures: torch.Tensor, black: float, white: float) -> torch.Tensor:
    """uint8 of floating point values. Raises MetricError for those that are not finite or out of range."""
    low, high = (float(end) for end in torch.aminmax(pictures)) if pictures.numel() else (black, white)
    slack = (white - black) * 1e-3  # below half a step of uint8
    if not (black - slack <= low and high <= white + slack):  # also for NaN
        raise MetricError(
            f"Pictures range from {low:.4g} to {high:.4g}, outside data_range=({black:g}, {white:g}); "
            "state theirs, as data_range=(-1, 1)."
        )
    return ((pictures - black) / (white - black) * 255).round().clamp(0, 255).to(torch.uint8)


def _rows(rows: Any) -> np.ndarray:
    """(N, D) of what other processes have gathered, or nothing."""
    return rows.cpu().numpy() if isinstance(rows, torch.Tensor) else np.empty((0, 0), np.float32)
