"""The table of metrics, light imports, and the small shared types."""

from __future__ import annotations

import math
import pkgutil

import numpy as np
import pytest

from nein import metrics
from nein.metrics import METRICS, Score
from nein.metrics.base import MemoryFeatures, MemoryRecords


def test_every_name_of_the_package_is_loaded_from_the_module_that_is_said_to_have_it() -> None:
    assert all(getattr(metrics, name) is not None for name in metrics.__all__)
    with pytest.raises(AttributeError, match="no attribute 'load_jugde'"):
        metrics.load_jugde  # noqa: B018


def test_the_metrics_stand_in_the_order_of_the_papers_table() -> None:
    assert list(METRICS) == [
        "l1", "l2", "clip_i", "dino", "fid", "lpips",
        "removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd", "clip_t",
        "obeyed",
    ]  # fmt: skip
    assert all(name == metric.name and metric.title and metric.source for name, metric in METRICS.items())
    assert [name for name, info in METRICS.items() if info.by_judge] == list(METRICS)[6:11]


def test_directions_scales_and_kinds_are_those_of_the_paper() -> None:
    assert {n for n, i in METRICS.items() if not i.higher_is_better} == {"l1", "l2", "fid", "lpips"}
    assert {n for n, i in METRICS.items() if i.scale == 1} == {"fid", "lpips"}
    assert {n for n, i in METRICS.items() if i.kind == "corpus"} == {"fid"}
    assert {n for n, i in METRICS.items() if i.kind == "proportion"} == {
        "removal_vqa", "removal_ovd", "obeyed",
    }  # fmt: skip
    assert METRICS["fid"].range == (0, math.inf)
    assert METRICS["clip_i"].range == (-1, 1)


LOADERS = [place for by_type in metrics.JUDGES.values() for place in by_type.values()]


@pytest.mark.parametrize("entry", [*metrics.ENCODERS.values(), *LOADERS])
def test_every_entry_of_the_loading_tables_resolves(entry) -> None:
    assert callable(pkgutil.resolve_name(entry))


@pytest.mark.parametrize("value", [None, float("nan")])
def test_an_unscored_value_needs_a_reason_and_a_score_must_be_finite(value) -> None:
    with pytest.raises(AssertionError):
        Score(value)
    assert Score(None, "broken").value is None


def test_memory_stores_keep_spaces_apart_and_copy_what_they_keep() -> None:
    features, records = MemoryFeatures(), MemoryRecords()
    row = np.ones(3, np.float32)
    features.put("a", "k", row)
    row[:] = 7
    records.put("a", "k", {"x": 1})
    assert features.get("b", "k") is records.get("b", "k") is None
    assert features.get("a", "k").tolist() == [1, 1, 1]
    assert records.get("a", "k") == {"x": 1}
