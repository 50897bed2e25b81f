"""`nein check`: every way to break the contract of an editor or a judge is found out and named."""

import re
import sys
import types

import numpy as np
import pytest

from nein.editors import EditResult
from nein.editors.base import Identity
from nein.judges.check import DetectorChecks, EditorChecks, JudgeChecks
from nein.metrics.judges.base import Answer
from tests.helpers import commands
from tests.rehearsal import ScriptedDetector, ScriptedJudge


class Noisy(Identity):
    def _paint(self, request):
        self.count = getattr(self, "count", 0) + 1
        return request.image // 2 + np.uint8(self.count % 100)


class Floating(Identity):
    def _paint(self, request):
        return request.image / 255


def whole(edit):
    return type("Broken", (Identity,), {"edit": lambda self, requests: edit(Identity.edit, self, requests)})()


def crowd(_, self, requests):
    """The picture depends on who else is in the batch."""
    shifted = (r.image.astype(int) + 9 * len(requests) for r in requests)
    pictures = (np.clip(one, 0, 255).astype(np.uint8) for one in shifted)
    return [EditResult(r.id, picture) for r, picture in zip(requests, pictures, strict=True)]


def fragile(_, self, requests):
    return [EditResult(r.id, np.ascontiguousarray(r.image[:, :, ::-1])) for r in requests]


def careless(edit, self, requests):
    for request in requests:
        request.image[0, 0] = 255 - request.image[0, 0]
    return edit(self, requests)


def failures(checks):
    return {name: seen for name, passed, seen in checks.run() if not passed}


ALONE, ORDER = "answers the same one at a time", "answers everything, in order"


@pytest.mark.parametrize(("editor", "broken"), [
    (Identity(), set()),
    (Noisy(), {"answers the same again"}),
    (whole(crowd), {ALONE}),
    (whole(fragile), {"refuses bad input with a reason, and only that"}),
    (whole(careless), {"leaves its input alone"}),
    (Floating(), {ORDER}),
    (whole(lambda edit, self, requests: edit(self, requests)[::-1]), {ORDER}),
    (whole(lambda edit, self, requests: edit(self, requests)[:-1]), {ORDER, ALONE}),
])  # fmt: skip
def test_every_way_to_break_the_contract_is_named(editor, broken):
    found = failures(EditorChecks(editor))
    assert broken <= set(found)
    assert bool(broken) == bool(found)
    assert all(found.values())


def test_judges_that_keep_the_contract_pass_everything_and_others_are_found_out():
    judge = ScriptedJudge(lambda image, prompt: "Yes" if image.mean() > 120 else "No.", "bright")
    detector = ScriptedDetector(lambda image, label: min(1.0, float(image.mean()) / 255), "bright")
    assert failures(JudgeChecks(judge)) == failures(DetectorChecks(detector)) == {}

    class Forgetful(ScriptedJudge):
        def ask(self, images, questions):
            self.asked += 1
            return [[Answer(f"Yes {self.asked}", 2, 1.5) for _ in row] for row in questions]

    found = failures(JudgeChecks(Forgetful(lambda i, p: "", "x")))
    assert "P(yes) and P(no) must lie in [0, 1]" in found[ORDER]
    assert "no answer is yes or no" in failures(JudgeChecks(ScriptedJudge(lambda i, p: "hm")))[ORDER]


def run(*arguments):
    return commands.exit_code("check", *arguments, "--device", "cpu")


def test_the_command_says_pass_or_fail_and_ends_accordingly(capsys, monkeypatch):
    module = types.ModuleType("own_editor")
    module.Noisy = Noisy
    monkeypatch.setitem(sys.modules, "own_editor", module)
    assert run("solid", "--editor-options.color", "#112233") == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"^pass  ", text, flags=re.M)) == 9
    assert "solid: all checks passed" in text
    assert run("own_editor:Noisy") == 1
    assert "FAIL  answers the same again: answers differ by up to" in capsys.readouterr().out
    assert run("--kind", "vqa", "tests.rehearsal:no") == 0
