"""A metric is one object: what it is called, how it is read, what it needs, and how it scores a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from nein.loading.errors import choose, isolated
from nein.loading.references import Need
from nein.metrics.base import MetricError, Score
from nein.metrics.batch import PICTURES, Batch, EditPair


@dataclass(frozen=True)
class Metric:
    """One metric, as `metrics.table.METRICS` holds them.

    name, title  Key in files and on the command line ("clip_i"); column title ("CLIP-I").
    unit      "per cent": values from 0 to 1 are shown as percentages; "raw": as they are.
    range     Closed interval of possible values, before percentages.
    kind      "proportion" (per sample 0 or 1), "bounded" (often at an end of `range`: its interval is that of
              a share), "mean" (any other value per sample), "corpus" (none per sample: FID).
    needs     Pictures ("edited", "target", "sample", "things"), and models: a kind of `ENCODERS` or `JUDGES`,
              or "module:function", called with `device=` for a network with `fingerprint` and `describe()`.
    score     One Score per item. Every item has the pictures named in `needs`.
    settings  Fields of `Settings` that decide its values: part of the identity of a score.
    source    Paper and equation, or URL.
    origins   What its "module:function" networks download, for `nein fetch`.
    corpus    (edited rows, target rows, source image of every edited row, of every target row) -> something
              with the fields of `metrics.fid.FidInterval`.
    """

    name: str
    title: str
    unit: Literal["per cent", "raw"]
    better: Literal["higher", "lower"]
    range: tuple[float, float]
    kind: Literal["mean", "bounded", "proportion", "corpus"]
    needs: tuple[str, ...]
    score: Callable[[Batch], Sequence[Score]]
    settings: tuple[str, ...] = ()
    source: str = ""
    origins: tuple[Need, ...] = ()
    corpus: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        choose("unit", self.unit, ("per cent", "raw"))
        choose("direction", self.better, ("higher", "lower"))
        choose("kind of metric", self.kind, ("mean", "bounded", "proportion", "corpus"))
        if (self.kind == "corpus") != (self.corpus is not None):
            raise MetricError(f"The metric '{self.name}' is of kind 'corpus' if and only if it has `corpus`.")

    @property
    def pictures(self) -> tuple[str, ...]:
        return tuple(need for need in self.needs if need in PICTURES)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(need for need in self.needs if need not in PICTURES)

    @property
    def by_judge(self) -> bool:
        """Whether a judge looks at the pictures."""
        return bool({"vqa", "ovd", "itm"} & set(self.models))

    @property
    def by_truth(self) -> bool:
        """Whether it needs data that say which things a picture shows, beyond NeIn's layout."""
        return "things" in self.needs

    @property
    def span(self) -> float | None:
        """How far apart two values can be, where that bounds a mean; else None."""
        return self.range[1] - self.range[0] if self.kind in ("proportion", "bounded") else None

    @property
    def higher_is_better(self) -> bool:
        return self.better == "higher"

    @property
    def scale(self) -> float:
        """Factor for display: 100 for percentages, 1 for raw values."""
        return 100.0 if self.unit == "per cent" else 1.0


def score(wanted: Sequence[Metric], batch: Batch) -> dict[str, list[Score]]:
    """Metric name -> one Score per item; one that lacks a picture, or that a metric fails on, is unscored.
    Judges are asked as if the metrics of `batch.names` were wanted too. Raises MetricError."""
    rows: dict[str, list[Score]] = {}
    names = [*batch.names, *(metric.name for metric in wanted)]
    parts: dict[tuple[str, ...], tuple[list[str | None], Batch]] = {}  # metrics of the same pictures share it
    for metric in wanted:
        for kind in metric.models:
            if kind not in batch.models:
                raise MetricError(f"The metric '{metric.name}' needs the model '{kind}', which is not there.")
    for metric in wanted:
        if metric.pictures not in parts:
            lacking = [item.lacks(metric.pictures) for item in batch.items]
            usable = [item for item, why in zip(batch.items, lacking, strict=True) if why is None]
            parts[metric.pictures] = lacking, batch.of(usable, list(dict.fromkeys(names)))
        lacking, part = parts[metric.pictures]
        found = isolated(partial(_scored, metric, part), part.items)
        scores = (Score(None, one) if isinstance(one, str) else one for one in found)
        rows[metric.name] = [next(scores) if why is None else Score(None, why) for why in lacking]
    return rows


def _scored(metric: Metric, batch: Batch, items: Sequence[EditPair]) -> Sequence[Score]:
    return metric.score(batch.of(items))
