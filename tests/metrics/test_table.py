"""The table of metrics, light imports, and the small shared types."""

from __future__ import annotations

import math
import pkgutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import metrics
from metrics import INFO, MetricError, Score
from metrics.base import MemoryFeatures, MemoryRecords, reason

ROOT = Path(metrics.__file__).resolve().parents[1]


def test_importing_metrics_loads_no_model_library() -> None:
    code = (
        "import sys, metrics; heavy = {'torch', 'torchvision', 'transformers', 'diffusers', 'PIL', 'spacy',"
        " 'scipy', 'torchmetrics', 'lpips', 'cleanfid'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_metrics_stand_in_the_order_of_the_papers_table() -> None:
    assert list(INFO) == [
        "l1", "l2", "clip_i", "dino", "fid", "lpips",
        "removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd", "clip_t",
    ]  # fmt: skip
    assert all(name == info.name and info.title and info.source for name, info in INFO.items())
    assert set(INFO) == set(metrics.IMAGE_METRICS) | set(metrics.PRESENCE_METRICS)


def test_directions_scales_and_kinds_are_those_of_the_paper() -> None:
    assert {n for n, i in INFO.items() if not i.higher_is_better} == {"l1", "l2", "fid", "lpips"}
    assert {n for n, i in INFO.items() if i.scale == 1} == {"fid", "lpips"}
    assert {n for n, i in INFO.items() if i.kind == "corpus"} == {"fid"}
    assert {n for n, i in INFO.items() if i.kind == "proportion"} == {"removal_vqa", "removal_ovd"}
    assert INFO["fid"].range == (0, math.inf)
    assert INFO["clip_i"].range == (-1, 1)


@pytest.mark.parametrize("entry", [*metrics.ENCODERS.values(), *metrics.JUDGES.values()])
def test_every_entry_of_the_loading_tables_resolves(entry) -> None:
    assert callable(pkgutil.resolve_name(entry))


def test_an_unscored_value_needs_a_reason_and_a_score_must_be_finite() -> None:
    with pytest.raises(AssertionError):
        Score(None)
    with pytest.raises(AssertionError):
        Score(float("nan"))
    assert Score(None, "broken").value is None


def test_memory_stores_keep_spaces_apart_and_copy_what_they_keep() -> None:
    features, records = MemoryFeatures(), MemoryRecords()
    row = np.ones(3, np.float32)
    features.put("a", "k", row)
    row[:] = 7
    records.put("a", "k", {"x": 1})
    assert features.get("b", "k") is None
    assert records.get("b", "k") is None
    assert features.get("a", "k").tolist() == [1, 1, 1]
    assert records.get("a", "k") == {"x": 1}


def test_a_reason_is_one_line_with_the_kind_of_error() -> None:
    assert reason(ValueError("first\nsecond")) == "ValueError: first"
    assert reason(RuntimeError()) == "RuntimeError"


def test_scripted_judges_say_what_the_name_says() -> None:
    image = np.zeros((4, 6, 3), np.uint8)
    judge = metrics.load_judge("vqa", "scripted:No")
    assert judge.ask([image], [["a <image>", "b <image>"]])[0][1].text == "No"
    found = metrics.load_judge("ovd", "scripted:0.7").detect([image], [["car"]])[0]["car"]
    assert (found.score, found.count, found.box) == (0.7, 1, (0, 0, 6, 4))
    assert metrics.load_judge("itm", "scripted:0.2").match([image], [["x", "y"]])[0].tolist() == [0.2, 0.2]
    assert judge.fingerprint != metrics.load_judge("vqa", "scripted:Yes").fingerprint


@pytest.mark.parametrize("name", ["scripted:often", "scripted:1.5"])
def test_a_scripted_detector_needs_a_score_from_0_to_1(name) -> None:
    with pytest.raises(MetricError, match="0 to 1"):
        metrics.load_judge("ovd", name)
