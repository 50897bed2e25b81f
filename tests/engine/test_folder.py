from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError
from nein.engine.folder import Folder, runs_below
from tests.helpers.commands import exit_code


def opened(path: Path, overwrite: bool = False, **identity: object) -> Folder:
    folder = Folder(path, "answers")
    folder.open(identity, {"invocation": {"started": "2026-01-01T00:00:00"}}, overwrite=overwrite)
    return folder


def test_another_identity_is_refused_by_the_first_key_that_differs(tmp_path: Path) -> None:
    opened(tmp_path / "a", seed=0, model={"name": "x"}).write("answers", 0, [{"id": 1}])
    with pytest.raises(UserError, match=r"holds answers made with model: name x, not y"):
        opened(tmp_path / "a", seed=1, model={"name": "y"})
    assert opened(tmp_path / "a", seed=0, model={"name": "x"}).done("answers") == {0}
    assert opened(tmp_path / "a", overwrite=True, seed=1, model={"name": "y"}).done("answers") == set()


def test_what_is_discarded_leaves_the_answers_of_models(tmp_path: Path) -> None:
    folder = opened(tmp_path / "a", seed=0)
    folder.write("work/answers", 0, [{"id": 1}])
    with AnswerCache(folder.answers) as cache:
        cache.put("model", "question", {"text": "Yes"})
    opened(tmp_path / "a", overwrite=True, seed=1)
    assert sorted(path.name for path in folder.path.iterdir()) == ["answers.sqlite", "manifest.json", "notes"]
    with AnswerCache(folder.answers) as cache:
        assert cache.get("model", "question") == {"text": "Yes"}


def test_one_output_may_be_made_anew_without_the_others(tmp_path: Path) -> None:
    folder = opened(tmp_path / "a", seed=0)
    for name in ("l1", "l2"):
        folder.open_output(f"scores/{name}", {"align": "crop"}, overwrite=False)
        folder.write(f"scores/{name}", 0, [{"value": 1.0}])
    with pytest.raises(UserError, match="holds l1 made with align crop, not stretch"):
        folder.open_output("scores/l1", {"align": "stretch"}, overwrite=False)
    folder.open_output("scores/l1", {"align": "stretch"}, overwrite=True)
    assert (folder.done("scores/l1"), folder.done("scores/l2")) == (set(), {0})
    assert folder.outputs("scores") == {"l1": {"align": "stretch"}, "l2": {"align": "crop"}}


def test_a_block_that_is_missing_is_said_with_the_next_step(tmp_path: Path) -> None:
    folder = opened(tmp_path / "a")
    folder.write("answers", 0, [{"id": 1}])
    with pytest.raises(UserError, match="lacks block 1 of answers; give the same command again"):
        list(folder.rows("answers", [0, 1]))


def test_every_command_on_a_folder_is_remembered(tmp_path: Path) -> None:
    folder = opened(tmp_path / "a")
    folder.open({}, {"invocation": {"started": "2026-01-02T00:00:00"}}, overwrite=False)
    assert [call["started"][:10] for call in folder.manifest()["invocations"]] == ["2026-01-01", "2026-01-02"]


def test_a_folder_of_another_version_is_left_alone(tmp_path: Path) -> None:
    folder = opened(tmp_path / "a")
    folder.update(format=1)
    with pytest.raises(UserError, match=r"another version \(format 1\)"):
        opened(tmp_path / "a", overwrite=True)
    with pytest.raises(UserError, match=r"another version \(format 1\); make it again"):
        folder.manifest()


def test_a_run_of_another_benchmark_is_named_with_what_to_do(tmp_path: Path) -> None:
    class Answers(Folder):
        benchmark = "negvqa"

    class Edits(Folder):
        benchmark = "nein"

    Answers(tmp_path).open({}, {}, overwrite=False)
    assert Answers(tmp_path).manifest()["benchmark"] == Folder(tmp_path).manifest()["benchmark"] == "negvqa"
    with pytest.raises(UserError, match=r"is a run of negvqa.* takes runs of nein; nein negvqa --help"):
        Edits(tmp_path).manifest()


def test_runs_are_found_at_any_depth_and_by_themselves(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "b" / "c"), opened(tmp_path / "a")
    assert runs_below(tmp_path) == [two.path, one.path]
    assert runs_below(one.path) == [one.path]


def test_two_half_runs_copied_together_are_one_run_of_which_nothing_is_made_again(tmp_path: Path) -> None:
    line = "eval --editor identity --metrics l1 --control none --limit 16 --batch-size 4 --device cpu"
    assert exit_code(*line.split(), "--out", tmp_path / "one") == 0
    runs = [tmp_path / name / "identity" / "negative" for name in ("one", "two")]
    whole = {name: (runs[0] / name).read_bytes() for name in ("figures.csv", "scores.csv")}
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    halves = (("000000", "000001"), ("000002", "000003"))
    for run, blocks in zip(runs, halves, strict=True):
        folder = Folder(run)
        folder.update(status="incomplete")
        for block in blocks:
            for row in folder.read("edit", int(block)):
                (run / row["image"]).unlink()
            for file in run.rglob(f"{block}.jsonl"):
                file.unlink()
        shutil.rmtree(run / "costs")
        for name in whole:
            (run / name).unlink()
    shutil.copytree(tmp_path / "two", tmp_path / "one", dirs_exist_ok=True)
    assert exit_code(*line.split(), "--out", tmp_path / "one") == 0
    assert not (runs[0] / "costs").exists()
    assert {name: (runs[0] / name).read_bytes() for name in whole} == whole
