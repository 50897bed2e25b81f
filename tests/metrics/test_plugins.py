import math
import sys
import types
from importlib import metadata

import numpy as np
import pytest

from nein import editors, metrics
from nein.metrics import METRICS, MetricError, Score
from nein.metrics.judges.base import Detection
from tests import rehearsal

IMAGES = [np.zeros((4, 4, 3), np.uint8)]


def test_a_judge_or_what_makes_one_is_found_by_module_and_attribute(installed):
    judge = metrics.load_judge("vqa", "tests.rehearsal:no")
    for one in (judge, metrics.load_judge("vqa", f"{rehearsal.__file__}:no")):
        assert one.ask(IMAGES[:1], [["a?"]])[0][0].text == "No"
    [found] = metrics.load_judge("ovd", "tests.rehearsal:score_05").detect(IMAGES[:1], [["car"]])
    assert found["car"] == Detection(0.5, 1, (0.0, 0.0, 4.0, 4.0))
    assert judge.fingerprint != metrics.load_judge("vqa", "tests.rehearsal:yes").fingerprint
    sys.modules["third_party"].here = here = Echo()
    found = metrics.load_judge("vqa", "third_party:here")
    assert found.ask == here.ask
    assert found.fingerprint.startswith("echo-echo-")


class Echo:
    fingerprint = "echo-echo"
    template = "question"

    def __init__(self, **options):
        self.options = options

    def describe(self):
        return {"kind": "vqa"}

    def ask(self, images, questions):
        return []

    def detect(self, images, labels, threshold=0.1):
        return []


class Mirror:
    fingerprint = "mirror-mirror"

    def __init__(self, *, name, device, dtype, batch_size, flip=True):
        self.name, self.flip = name, flip

    def describe(self):
        return {"flip": self.flip}

    def edit(self, requests):
        return [editors.EditResult(r.id, r.image[:, ::-1].copy()) for r in requests]


@pytest.fixture
def installed(monkeypatch):
    """An installed package that offers a judge and an editor, a broken one, and one that takes our name."""
    module = types.ModuleType("third_party")
    module.Echo, module.Mirror = Echo, Mirror
    monkeypatch.setitem(sys.modules, "third_party", module)
    points = {
        "nein.judges": {"echo": "third_party:Echo", "gone": "third_party:Nothing"},
        "nein.editors": {**dict.fromkeys(("mirror", "identity"), "third_party:Mirror"), "gone": "nowhere:X"},
    }

    def entry_points(*, group, name=None):
        return [metadata.EntryPoint(name, value, group) for name, value in points.get(group, {}).items()]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    editors.find_plugins.cache_clear()
    yield
    editors.find_plugins.cache_clear()


def test_a_plugged_in_judge_is_found_by_name(installed):
    judge = metrics.load_judge("vqa", "plugin:echo", device="cpu")
    assert judge.options == {"kind": "vqa", "device": "cpu", "dtype": "float32"}
    for kind, name, said in (
        ("vqa", "ecco", "did you mean 'echo'"),
        ("vqa", "gone", "cannot be loaded"),
        ("itm", "echo", "not a judge 'itm': it has no match"),
    ):
        with pytest.raises(MetricError, match=said):
            metrics.load_judge(kind, f"plugin:{name}")


def test_a_plugged_in_editor_is_found_by_name_and_cannot_take_ours(installed):
    assert "mirror" in editors.available()
    editor = editors.get_editor("mirror", flip=False)
    assert isinstance(editor, Mirror)
    assert not editor.flip
    assert type(editors.get_editor("identity")).__name__ == "Identity"
    with pytest.raises(editors.EditorError, match="cannot be loaded"):
        editors.get_editor("gone")
    with pytest.raises(editors.EditorError, match="cannot be made"):
        editors.get_editor("mirror", wrong=1)


def test_the_metrics_stand_in_the_order_of_the_papers_table():
    assert list(METRICS) == [
        "l1", "l2", "clip_i", "dino", "fid", "lpips",
        "removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd", "clip_t",
        "obeyed",
    ]  # fmt: skip
    assert all(name == metric.name and metric.title and metric.source for name, metric in METRICS.items())
    assert [name for name, info in METRICS.items() if info.by_judge] == list(METRICS)[6:11]


def test_directions_scales_and_kinds_are_those_of_the_paper():
    assert {n for n, i in METRICS.items() if not i.higher_is_better} == {"l1", "l2", "fid", "lpips"}
    assert {n for n, i in METRICS.items() if i.scale == 1} == {"fid", "lpips"}
    assert {n for n, i in METRICS.items() if i.kind == "corpus"} == {"fid"}
    assert {n for n, i in METRICS.items() if i.kind == "proportion"} == {
        "removal_vqa", "removal_ovd", "obeyed",
    }  # fmt: skip
    assert METRICS["fid"].range == (0, math.inf)
    assert METRICS["clip_i"].range == (-1, 1)
    assert {(i.range, i.better) for i in METRICS.values() if i.by_judge} == {((0, 1), "higher")}


@pytest.mark.parametrize("value", [None, float("nan")])
def test_an_unscored_value_needs_a_reason_and_a_score_must_be_finite(value):
    with pytest.raises(AssertionError):
        Score(value)
    assert Score(None, "broken").value is None
