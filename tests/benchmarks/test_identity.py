"""What stands behind a name has changed: no old number is shown as its own."""

import shutil

import pandas as pd
import pytest

from nein.nano import zoo
from nein.reporting import figures as frames
from tests.helpers import commands

EDIT = "def edit(image, instruction):\n    return image{}\n"
JUDGE = """
from nein.metrics.judges.base import Answer

class Judge:
    fingerprint, template = "always the same", "plain"
    def describe(self):
        return {{"kind": "vqa"}}
    def ask(self, images, questions):
        return [[Answer("{}", 1) for _ in row] for row in questions]

judge = Judge()
"""
EVAL = "eval --limit 4 --control none --protocol fixed"
#: Command with THING for what changes, its role, its content before and after: text, or nano models.
CHANGES = {
    "editor": (f"{EVAL} --metrics l1 --editor THING.py:edit", "editor", EDIT, ("", ".rotate(90)")),
    "judge": (
        f"{EVAL} --metrics removal_vqa --editor identity --models.vqa THING.py:judge",
        "vqa", JUDGE, ("No", "Yes"),
    ),
    "encoder": (
        f"{EVAL} --metrics clip_i --editor identity --models.clip THING", "clip", "", ("clip", "clip")
    ),
    "answerer": (
        "negvqa --limit 8 --questions 16 --blind 0 --model THING", "model", "", ("negvqa", "negvqa-negated")
    ),
    "dual": ("negbench eval --limit 8 --scenes 16 --model THING", "model", "", ("clip", "clip")),
}  # fmt: skip


def other_weights(folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: t.flip(0) for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def put(place, text, content, changed):
    if text:
        place.with_suffix(".py").write_text(text.format(content))
        return
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(zoo.path(content), place)
    if changed and content == "clip":
        other_weights(place)


@pytest.mark.parametrize(("line", "role", "text", "contents"), CHANGES.values(), ids=CHANGES)
def test_another_model_under_the_same_name_is_refused_or_made_anew(line, role, text, contents, tmp_path):
    thing = tmp_path / "mine"

    def run(out, *words):
        given = line.replace("THING", str(thing)).split()
        done = commands.in_a_fork(*given, *words, "--device", "cpu", "--out", tmp_path / out)
        return done, pd.concat(map(frames.read, sorted((tmp_path / out).rglob("figures.csv"))))["value"]

    put(thing, text, contents[0], changed=False)
    done, before = run("out")
    assert done.returncode == 0, done.stderr
    put(thing, text, contents[1], changed=True)
    done, kept = run("out")
    assert (done.returncode, f"made with weights or source: {role} " in done.stderr) == (2, True), done.stderr
    pd.testing.assert_series_equal(kept, before)
    done, after = run("out", "--overwrite")
    assert done.returncode == 0, done.stderr
    pd.testing.assert_series_equal(after, run("other")[1])
    assert not after.equals(before)
