from __future__ import annotations

import sys
import types
from importlib import metadata
from typing import Any

import numpy as np
import pytest

from nein import editors, metrics
from nein.metrics import MetricError
from nein.metrics.judges.base import Detection
from tests.rehearsal import ScriptedDetector, ScriptedJudge, Weakened

IMAGES = [
    np.full((4, 4, 3), i % 250, np.uint8) + np.arange(3, dtype=np.uint8) * (i // 250) for i in range(800)
]


def test_a_weakened_judge_errs_at_the_rates_it_is_given() -> None:
    sees, blind = ScriptedJudge(lambda i, p: "Yes", "sees"), ScriptedJudge(lambda i, p: "No.", "blind")
    told = [[f"is there a {k}?"] for k in range(800)]
    missed = [row[0].text for row in Weakened(sees, 0.2, 0.05).ask(IMAGES, told)].count("No")
    made_up = [row[0].text for row in Weakened(blind, 0.2, 0.05).ask(IMAGES, told)].count("Yes")
    assert 0.15 <= missed / 800 <= 0.25  # three standard errors are 0.042
    assert 0.02 <= made_up / 800 <= 0.08


def test_a_weakened_judge_gives_the_same_answer_in_any_company() -> None:
    judge = Weakened(ScriptedJudge(lambda i, p: "Yes", "sees"), 0.5, 0.5)
    together = judge.ask(IMAGES[:40], [["a?", "b?"]] * 40)
    assert together[::-1] == judge.ask(IMAGES[:40][::-1], [["a?", "b?"]] * 40)
    assert [row[1:] for row in together] == judge.ask(IMAGES[:40], [["b?"]] * 40)
    assert judge.describe()["weakened"] == {"miss": 0.5, "invent": 0.5}
    assert judge.fingerprint != Weakened(judge.judge, 0.4, 0.5).fingerprint


def test_unclear_answers_stay_and_detections_cross_the_threshold() -> None:
    unclear = Weakened(ScriptedJudge(lambda i, p: "perhaps", "unclear"), 1.0, 1.0)
    assert unclear.ask(IMAGES[:1], [["a?"]])[0][0].text == "perhaps"
    detector = ScriptedDetector(lambda image, label: 0.9 if label == "cat" else 0.05, "d")
    found = Weakened(detector, 1.0, 1.0).detect(IMAGES[:1], [["cat", "dog"]], 0.1)[0]
    assert found["cat"].score <= 0.1 < found["dog"].score
    assert (found["cat"].count, found["dog"].count) == (0, 1)


def test_a_judge_is_found_by_module_and_attribute() -> None:
    judge = metrics.load_judge("vqa", "tests.rehearsal:no")
    assert judge.ask(IMAGES[:1], [["a?"]])[0][0].text == "No"
    assert metrics.load_judge("ovd", "tests.rehearsal:score_05").detect(IMAGES[:1], [["car"]])[0]["car"] == (
        Detection(0.5, 1, (0.0, 0.0, 4.0, 4.0))
    )
    assert judge.fingerprint != metrics.load_judge("vqa", "tests.rehearsal:yes").fingerprint


def test_what_is_no_judge_and_makes_none_is_refused_before_anything_is_asked() -> None:
    metrics.check_reference("tests.rehearsal:no")
    with pytest.raises(MetricError, match="'math:pi' is no judge, and cannot be called to make one"):
        metrics.check_reference("math:pi")


def test_a_judge_that_is_already_there_is_found_by_module_and_attribute(installed: None) -> None:
    sys.modules["third_party"].here = Echo()  # type: ignore[attr-defined]
    assert metrics.load_judge("vqa", "third_party:here") is sys.modules["third_party"].here  # type: ignore[attr-defined]


@pytest.mark.parametrize("reference", ["tests.rehearsal:nothing", "no_such_module:load"])
def test_a_judge_that_cannot_be_imported_is_a_sentence(reference: str) -> None:
    with pytest.raises(MetricError, match="cannot be imported"):
        metrics.load_judge("vqa", reference)


class Echo:
    fingerprint = "echo-echo"
    template = "question"

    def __init__(self, **options: Any) -> None:
        self.options = options

    def describe(self) -> dict[str, Any]:
        return {"kind": "vqa"}

    def ask(self, images: Any, questions: Any) -> Any:
        return []

    def detect(self, images: Any, labels: Any, threshold: float = 0.1) -> list[dict[str, Detection]]:
        return []


class Mirror:
    fingerprint = "mirror-mirror"

    def __init__(self, *, name: str, device: str, dtype: str, batch_size: int, flip: bool = True) -> None:
        self.name, self.flip = name, flip

    def describe(self) -> dict[str, Any]:
        return {"flip": self.flip}

    def edit(self, requests: Any) -> Any:
        return [editors.EditResult(r.id, r.image[:, ::-1].copy()) for r in requests]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that offers a judge and an editor, a broken one, and one that takes our name."""
    module = types.ModuleType("third_party")
    module.Echo, module.Mirror = Echo, Mirror  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "third_party", module)
    points = {
        "nein.judges": {"echo": "third_party:Echo", "gone": "third_party:Nothing"},
        "nein.editors": {
            "mirror": "third_party:Mirror",
            "identity": "third_party:Mirror",
            "gone": "nowhere:X",
        },
    }

    def entry_points(*, group: str, name: str | None = None) -> list[metadata.EntryPoint]:
        return [metadata.EntryPoint(name, value, group) for name, value in points.get(group, {}).items()]

    monkeypatch.setattr(metadata, "entry_points", entry_points)


def test_a_plugged_in_judge_is_found_by_name(installed: None) -> None:
    judge = metrics.load_judge("vqa", "plugin:echo", device="cpu")
    assert isinstance(judge, Echo)
    assert judge.options == {"kind": "vqa", "device": "cpu", "dtype": "float32"}
    with pytest.raises(MetricError, match="did you mean 'echo'"):
        metrics.load_judge("vqa", "plugin:ecco")
    with pytest.raises(MetricError, match="cannot be loaded"):
        metrics.load_judge("vqa", "plugin:gone")
    with pytest.raises(MetricError, match="no 'itm' judge: it has no match"):
        metrics.load_judge("itm", "plugin:echo")


def test_a_plugged_in_editor_is_found_by_name_and_cannot_take_ours(installed: None) -> None:
    assert "mirror" in editors.available()
    assert not editors.needs_checkpoint("mirror")
    editor = editors.get_editor("mirror", flip=False)
    assert isinstance(editor, Mirror)
    assert not editor.flip
    assert type(editors.get_editor("identity")).__name__ == "Identity"
    with pytest.raises(editors.EditorError, match="cannot be loaded"):
        editors.get_editor("gone")
    with pytest.raises(editors.EditorError, match="cannot be made"):
        editors.get_editor("mirror", wrong=1)


def test_without_plug_ins_the_message_says_so() -> None:
    with pytest.raises(MetricError, match="no installed package offers a judge"):
        metrics.load_judge("vqa", "plugin:echo")
