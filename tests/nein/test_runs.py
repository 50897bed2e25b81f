from __future__ import annotations

import subprocess

import pytest

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.runs import RunDir
from nein.engine import environment
from nein.engine.errors import UserError
from nein.engine.folder import Folder

IDENTITY = {"editor": "identity", "seed": 0, "data": "abc"}


def test_a_run_has_its_places_and_is_found_below_a_result_folder_or_given_alone(tmp_path):
    for editor, track in (("b", "negative"), ("a", "remove"), ("a", "negative")):
        RunDir(tmp_path, editor, track).open(IDENTITY, {}, overwrite=False)
    assert [run.label for run in runs.find(tmp_path)] == ["a/negative", "a/remove", "b/negative"]
    assert [run.label for run in runs.find(tmp_path / "a" / "remove")] == ["a/remove"]
    assert runs.find(tmp_path / "nothing") == []
    run = runs.of_folder(Folder(tmp_path / "a" / "remove"))
    assert (run.out, run.editor, run.track, run.label) == (tmp_path, "a", "remove", "a/remove")
    assert run.feature_path("fid", 3).parent == run.block_path(runs.scores_of("fid"), 3).parent


def test_metrics_may_be_added_but_not_changed(tmp_path):
    run = RunDir(tmp_path, "identity", "negative")
    run.open(IDENTITY, {}, overwrite=False)
    given = {"l1": {"align": "stretch"}, "removal_vqa": {"protocol": "fixed"}}
    for name in ("l1", "removal_vqa", "l1"):
        run.open_output(runs.scores_of(name), given[name], overwrite=False)
    with pytest.raises(UserError, match="l1 made with align stretch, not crop"):
        run.open_output(runs.scores_of("l1"), {"align": "crop"}, overwrite=False)
    assert run.metrics() == given


def test_the_environment_names_versions_and_the_state_of_a_checkout(tmp_path):
    found = environment.describe("cpu")
    assert found["packages"]["numpy"]
    assert found["device"] == "cpu"
    assert environment.git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "file").write_text("1")
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    clean = environment.git_state(tmp_path)
    (tmp_path / "file").write_text("2")
    dirty = environment.git_state(tmp_path)
    assert (clean["dirty"], dirty["dirty"]) == (False, True)
    assert clean["commit"] == dirty["commit"]
    assert len(clean["commit"]) == 40
