from __future__ import annotations

import subprocess

import pytest

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.runs import RunDir
from nein.engine import atomic, environment
from nein.engine.errors import UserError
from nein.engine.folder import Folder

IDENTITY = {"editor": "identity", "seed": 0, "data": "abc"}


def test_a_run_knows_its_editor_and_track_and_where_things_lie(tmp_path):
    run = RunDir(tmp_path, "identity", "negative")
    assert (run.out, run.editor, run.track, run.label) == (
        tmp_path, "identity", "negative", "identity/negative",
    )  # fmt: skip
    assert run.image_path("a") == tmp_path / "identity" / "negative" / "images" / "a.png"
    assert run.feature_path("fid", 3).parent == run.block_path(runs.scores_of("fid"), 3).parent
    assert runs.of_folder(Folder(run.path)).label == run.label


def test_metrics_may_be_added_but_not_changed(tmp_path):
    run = RunDir(tmp_path, "identity", "negative")
    run.open(IDENTITY, {}, overwrite=False)
    given = {"l1": {"align": "stretch"}, "removal_vqa": {"protocol": "fixed"}}
    for name in ("l1", "removal_vqa", "l1"):
        run.open_output(runs.scores_of(name), given[name], overwrite=False)
    with pytest.raises(UserError, match="l1 made with align stretch, not crop"):
        run.open_output(runs.scores_of("l1"), {"align": "crop"}, overwrite=False)
    assert run.metrics() == given


def test_runs_are_found_below_a_result_folder_or_given_alone(tmp_path):
    for editor, track in (("b", "negative"), ("a", "remove"), ("a", "negative")):
        RunDir(tmp_path, editor, track).open(IDENTITY, {}, overwrite=False)
    assert [run.label for run in runs.find(tmp_path)] == ["a/negative", "a/remove", "b/negative"]
    assert [run.label for run in runs.find(tmp_path / "a" / "remove")] == ["a/remove"]
    assert runs.find(tmp_path / "nothing") == []


def test_the_environment_names_versions_and_the_state_of_a_checkout(tmp_path):
    found = environment.describe("cpu")
    assert found["packages"]["numpy"]
    assert found["device"] == "cpu"
    assert environment.git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    clean = environment.git_state(tmp_path)
    (tmp_path / "file").write_text("2")
    dirty = environment.git_state(tmp_path)
    assert (clean["dirty"], dirty["dirty"]) == (False, True)
    assert clean["commit"] == dirty["commit"]
    assert len(clean["commit"]) == 40


def test_an_atomic_write_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    atomic.write_text(tmp_path / "f", "old")

    def fail(*_: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(atomic.os, "replace", fail)
    with pytest.raises(OSError, match="power cut"):
        atomic.write_text(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
