from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.runs import RunDir
from nein.engine import atomic, environment
from nein.engine.errors import UserError

IDENTITY = {"editor": "identity", "seed": 0, "data": "abc"}


def test_a_run_continues_with_the_same_identity_and_refuses_another(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "identity", "negative")
    run.open(IDENTITY, {"config": {"limit": 1}, "invocations": [{"n": 1}]}, overwrite=False)
    run.open(IDENTITY, {"config": {"limit": 2}, "invocations": [{"n": 2}]}, overwrite=False)
    manifest = run.manifest()
    assert manifest is not None
    assert manifest["config"] == {"limit": 2}
    assert manifest["invocations"] == [{"n": 1}, {"n": 2}]
    assert manifest["status"] == "incomplete"
    with pytest.raises(
        UserError, match="edits made with seed 0, not 1; choose another --out, or --overwrite"
    ):
        run.open({**IDENTITY, "seed": 1}, {}, overwrite=False)


def test_overwrite_removes_what_contradicts_and_nothing_else(tmp_path: Path) -> None:
    run, sister = RunDir(tmp_path, "identity", "negative"), RunDir(tmp_path, "identity", "remove")
    for one in (run, sister):
        one.open(IDENTITY, {}, overwrite=False)
        atomic.write_text(one.path / "edits.jsonl", "{}")
    run.open(IDENTITY, {}, overwrite=True)
    assert (run.path / "edits.jsonl").exists()
    run.open({**IDENTITY, "seed": 1}, {}, overwrite=True)
    assert not (run.path / "edits.jsonl").exists()
    assert (sister.path / "edits.jsonl").exists()


def test_metrics_may_be_added_but_not_changed(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "identity", "negative")
    run.open(IDENTITY, {}, overwrite=False)
    run.open_scores({"l1": {"align": "stretch"}}, overwrite=False)
    run.open_scores({"removal_vqa": {"protocol": "fixed"}}, overwrite=False)
    run.open_scores({"l1": {"align": "stretch"}}, overwrite=False)
    with pytest.raises(UserError, match="l1 scored with align stretch, not crop"):
        run.open_scores({"l1": {"align": "crop"}}, overwrite=False)
    assert (run.manifest() or {})["score_identity"] == {
        "l1": {"align": "stretch"},
        "removal_vqa": {"protocol": "fixed"},
    }


def test_scores_of_an_overwritten_identity_no_longer_count(tmp_path: Path) -> None:
    from nein.engine.journal import Journal

    run = RunDir(tmp_path, "identity", "negative")
    run.open(IDENTITY, {}, overwrite=False)
    run.open_scores({"l1": {"align": "stretch"}}, overwrite=False)
    row = {"value": 0.5, "reason": "", "detail": {}}
    with Journal(run.journals, "scores", 0) as log:
        seal = {"l1": runs.identity_hash({"align": "stretch"})}
        log.append({"block": 0, "ids": ["a"], "identity": seal, "scores": {"l1": [row]}})
    assert run.scores() == {0: {"l1": {"a": row}}}
    run.open_scores({"l1": {"align": "crop"}}, overwrite=True)
    assert run.scores() == {}


def test_replaced_weights_are_noticed(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "identity", "negative")
    run.open(IDENTITY, {}, overwrite=False)
    run.check_description("clip", "f1", {"class": "Clip"})
    run.check_description("clip", "f1", {"class": "Clip"})
    with pytest.raises(UserError, match="behind 'clip' have changed"):
        run.check_description("clip", "f2", {"class": "Clip"})


def test_a_second_command_on_a_busy_run_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    run = RunDir(tmp_path, "identity", "negative")
    code = (
        "import sys, time; from pathlib import Path; from nein.benchmarks.nein.runs import RunDir;"
        "lock = RunDir(Path(sys.argv[1]), 'identity', 'negative').lock();"
        "print('locked', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match="Another command is at work in"):
            run.lock()
    finally:
        holder.kill()  # as a crash would: nobody releases the lock
        holder.wait()
    run.lock().release()


def test_the_first_difference_is_the_first_key_in_order() -> None:
    assert runs.first_difference({"a": 1, "b": 2}, {"a": 1, "b": 2}) is None
    assert runs.first_difference({"a": 1, "b": 2}, {"b": 3, "a": 1}) == "b 2, not 3"
    assert runs.first_difference({"m": {"x": 1}}, {"m": {"x": 2}}) == "m: x 1, not 2"
    assert runs.first_difference({}, {"new": 1}) == "new None, not 1"


def test_runs_are_found_below_a_result_folder_or_given_alone(tmp_path: Path) -> None:
    for editor, track in (("b", "negative"), ("a", "remove"), ("a", "negative")):
        RunDir(tmp_path, editor, track).open(IDENTITY, {}, overwrite=False)
    assert [run.label for run in runs.find(tmp_path)] == ["a/negative", "a/remove", "b/negative"]
    assert [run.label for run in runs.find(tmp_path / "a" / "remove")] == ["a/remove"]
    assert runs.find(tmp_path / "nothing") == []


def test_the_environment_names_versions_and_the_state_of_a_checkout(tmp_path: Path) -> None:
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
    assert clean is not None
    assert dirty is not None
    assert (clean["dirty"], dirty["dirty"]) == (False, True)
    assert clean["commit"] == dirty["commit"]
    assert len(clean["commit"]) == 40


def test_an_atomic_write_leaves_the_old_file_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atomic.write_text(tmp_path / "f", "old")

    def fail(*_: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(atomic.os, "replace", fail)
    with pytest.raises(OSError, match="power cut"):
        atomic.write_text(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
