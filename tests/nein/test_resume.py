"""A kill at any moment and a rerun give the same bytes; so do two processes; so does a longer limit."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from nein import cli
from tests.editors.tiny import build_pipeline
from tests.nein.conftest import Outcome, write_data

Command = Callable[..., "subprocess.CompletedProcess[str]"]
Evaluate = Callable[..., Outcome]
KILLER = (str(Path(__file__).with_name("killer.py")),)
CANONICAL = ("edits.jsonl", "scores.jsonl", "corpus.json", "summary.json")


METRICS = "l1,l2,removal_vqa,removal_ovd,auc_removal"


def arguments(data: Path, out: Path, *more: str, metrics: str = METRICS) -> list[str]:
    """A whole evaluation without a network: a flaky editor, two tracks, pixels and scripted judges."""
    return [
        *(
            "--editor",
            "flaky",
            "--data",
            str(data),
            "--out",
            str(out),
            "--device",
            "cpu",
            "--batch-size",
            "2",
        ),
        *("--metrics", metrics),
        *("--models.vqa", "tests.rehearsal:no", "--models.ovd", "tests.rehearsal:score_025", *more),
    ]


def contents(out: Path) -> dict[str, bytes]:
    """Every file of the run directories that must not depend on how the work was done."""
    found = {}
    for path in sorted(out.rglob("*")):
        if path.name in (*CANONICAL, "table.md", "table.csv") or path.suffix == ".png":
            found[str(path.relative_to(out))] = path.read_bytes()
    return found


@dataclass(frozen=True)
class Whole:
    """An evaluation that nothing disturbed."""

    data: Path
    out: Path
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    root = tmp_path_factory.mktemp("whole")
    data, out = write_data(root / "data", 4, 2), root / "out"
    with pytest.raises(SystemExit) as caught:
        cli.main(["eval", *arguments(data, out)])
    assert caught.value.code == 0
    found = contents(out)
    assert len([name for name in found if name.endswith("scores.jsonl")]) == 2
    return Whole(data, out, found)


def statuses(out: Path) -> set[str]:
    return {json.loads(path.read_text())["status"] for path in out.glob("*/*/manifest.json")}


@pytest.mark.parametrize(
    ("mark", "count", "how"),
    [
        ("images", 3, "before"),
        ("edits", 2, "torn"),
        ("edits", 4, "after"),
        ("scores", 1, "before"),
        ("scores", 6, "torn"),
        pytest.param("edits", 1, "before", marks=pytest.mark.slow),
        pytest.param("edits", 8, "torn", marks=pytest.mark.slow),
        pytest.param("scores", 4, "after", marks=pytest.mark.slow),
        pytest.param("scores", 8, "after", marks=pytest.mark.slow),
    ],
)
def test_a_kill_and_a_rerun_give_the_same_bytes(
    whole: Whole, command: Command, evaluate: Evaluate, tmp_path: Path, mark: str, count: int, how: str
) -> None:
    killed = command(mark, count, how, *arguments(whole.data, tmp_path), script=KILLER)
    assert killed.returncode == -signal.SIGKILL
    before = {path: path.read_bytes() for path in tmp_path.rglob("journal/*.jsonl")}
    assert contents(tmp_path) != whole.files
    assert statuses(tmp_path) == {"incomplete"}

    again = evaluate(*arguments(whole.data, tmp_path))
    assert again.code == 0, again.stderr
    assert contents(tmp_path) == whole.files
    assert statuses(tmp_path) == {"complete"}
    for path, written in before.items():
        assert path.read_bytes().startswith(written)  # nothing that was written is lost


def test_a_finished_run_is_not_done_again(whole: Whole, evaluate: Evaluate) -> None:
    sizes = {path: path.stat().st_size for path in whole.out.rglob("journal/*.jsonl")}
    assert evaluate(*arguments(whole.data, whole.out)).code == 0
    assert {path: path.stat().st_size for path in whole.out.rglob("journal/*.jsonl")} == sizes
    assert contents(whole.out) == whole.files


def test_limits_metrics_and_stages_may_grow_and_give_the_same_bytes(
    whole: Whole, evaluate: Evaluate, tmp_path: Path
) -> None:
    steps: tuple[tuple[tuple[str, ...], str], ...] = (
        (("--limit", "3", "--stages", "edit"), "l1"),
        (("--limit", "3", "--stages", "score,report"), "l2"),
        (("--limit", "5"), "removal_ovd,l1"),
        (("--limit", "2"), "l1"),
        ((), METRICS),
    )
    for more, metrics in steps:
        done = evaluate(*arguments(whole.data, tmp_path, *more, metrics=metrics))
        assert done.code == 0, done.stderr
    assert contents(tmp_path) == whole.files


def test_an_image_that_vanished_is_made_again(whole: Whole, evaluate: Evaluate, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole.out, tmp_path / "copy"))
    next((out / "flaky" / "negative" / "images").glob("*.png")).unlink()
    assert evaluate(*arguments(whole.data, out)).code == 0
    assert contents(out) == whole.files


def launch(data: Path, out: Path, command: Command, port: int) -> subprocess.CompletedProcess[str]:
    # "multi_gpu" is how accelerate says "several processes without MPI"; it works without a GPU as well.
    launcher = (
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--num_machines",
        "1",
    )
    options = ("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", port)
    return command("-m", "nein", "eval", *arguments(data, out), script=(*launcher, *options))


@pytest.mark.slow
def test_two_processes_give_the_same_bytes_also_after_one(
    whole: Whole, command: Command, tmp_path: Path
) -> None:
    done = launch(whole.data, tmp_path / "two", command, 29611)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "two") == whole.files
    ranks = {path.name for path in (tmp_path / "two").rglob("journal/*.jsonl") if path.stat().st_size}
    assert ranks == {"edits-0000.jsonl", "edits-0001.jsonl", "scores-0000.jsonl", "scores-0001.jsonl"}
    assert done.stdout.count("### Image quality") == 1

    killed = command("scores", 2, "torn", *arguments(whole.data, tmp_path / "mixed"), script=KILLER)
    assert killed.returncode == -signal.SIGKILL
    done = launch(whole.data, tmp_path / "mixed", command, 29612)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "mixed") == whole.files


def test_a_diffusion_editor_resumes_to_the_same_bytes(
    make_data: Callable[..., Path], command: Command, evaluate: Evaluate, tmp_path: Path
) -> None:
    data, model = make_data(2, 2), build_pipeline(tmp_path / "model")
    options = [
        *(
            "--editor",
            str(model),
            "--data",
            str(data),
            "--device",
            "cpu",
            "--batch-size",
            "2",
            "--steps",
            "2",
        ),
        *("--metrics", "l1", "--control", "none"),
    ]
    done = evaluate(*options, "--out", tmp_path / "whole")
    assert done.code == 0, done.stderr
    expected = contents(tmp_path / "whole")
    assert len({value for name, value in expected.items() if name.endswith(".png")}) == 4
    killed = command("edits", 2, "torn", *options, "--out", tmp_path / "killed", script=KILLER)
    assert killed.returncode == -signal.SIGKILL
    again = evaluate(*options, "--out", tmp_path / "killed")
    assert again.code == 0, again.stderr
    assert contents(tmp_path / "killed") == expected
    manifest = json.loads(next((tmp_path / "killed").glob("*/negative/manifest.json")).read_text())
    assert manifest["models"]["editor"]["steps"] == 2

    shutil.rmtree(model)
    build_pipeline(model, seed=1)  # other weights under the same name
    shutil.rmtree(next((tmp_path / "killed").glob("*/negative/images")))
    refused = evaluate(*options, "--out", tmp_path / "killed")
    assert refused.code == 2
    assert "weights or settings behind 'editor' have changed" in refused.stderr
