"""What the engine owes every benchmark and data maker: the same bytes after any kill, by any processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from nein import cli
from nein.engine.run import SHARE_VARIABLE
from tests.build.conftest import OBJECTS, write_set
from tests.engine.test_slurm import cluster
from tests.helpers import commands, killing
from tests.negbench.conftest import write_data as write_negbench
from tests.negbench.conftest import write_pictures
from tests.negvqa.tiny import write_questions
from tests.nein.conftest import write_data as write_nein

__all__ = ["cluster"]  # a fixture
HOW = ("before", "torn", "after")


@dataclass(frozen=True)
class Case:
    """A whole command without a network and without a model: editors that fail, judges that are scripted.

    words    What is typed, but for --out.
    parts    Words that ask for less, one command after the other; the whole comes last.
    refused  Words that another run decides, and what is said of them.
    outputs  How many files must not depend on how the work was done, at least.
    """

    words: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]
    refused: tuple[tuple[str, ...], str]
    outputs: int


def nein_eval(root):
    words = ("eval", "--editor", "flaky", "--data", str(write_nein(root / "data", 4, 2)), "--batch-size", "2")
    judges = ("--models.vqa", "tests.rehearsal:no", "--models.ovd", "tests.rehearsal:score_025")
    metrics = ("--metrics", "l1,l2,removal_vqa,removal_ovd,auc_removal")
    parts = (("--limit", "3", "--stages", "edit"), ("--limit", "3", "--stages", "score,report"))
    return Case((*words, *judges, *metrics), parts, (("--seed", "1"), "seed 0, not 1"), 40)


def negbench_eval(root):
    data, pictures = write_negbench(root / "data"), write_pictures(root / "pictures")
    asked = (["a car, no dog", "a dog?", "a car?"], ["no cup", "a cup?", "a room?"])
    (data / "simpleneg.json").write_text(json.dumps(asked), encoding="utf-8")
    words = ("negbench", "eval", "--data", str(data), "--image-root", str(pictures), "--batch-size", "2")
    models = ("--model", "random", "--vlm", "tests.rehearsal:b", "--judge", "tests.rehearsal:varied")
    chosen = ("--datasets", "coco,simpleneg")
    parts = (("--limit", "3", "--tasks", "mcq"), ("--limit", "2"))
    return Case((*words, *models, *chosen), parts, (("--seed", "1"), "seed 0, not 1"), 30)


def negvqa(root):
    words = ("negvqa", "--data", str(write_questions(root / "data")), "--batch-size", "2")
    judge = ("--model", "judge", "--judge", "tests.rehearsal:varied")
    refused = (("--prompt", "vlmevalkit"), "prompt paper, not vlmevalkit")
    return Case((*words, *judge), (("--limit", "3"),), refused, 8)


def nein_generate(root):
    data = write_set(root / "data")
    words = (
        "generate", "--source", str(data / "captions.json"), "--images", str(data / "images"),
        "--objects", str(data / "objects.txt"), "--queried", str(len(OBJECTS) // 2),
        "--models.itm", "tests.rehearsal:fits", "--models.vqa", "tests.rehearsal:varied",
        "--editor", "flaky", "--editor-options.fail_every", "7", "--families", "all",
        "--absent-below", "0.5", "--match-above", "0.25", "--shard-size", "2", "--batch-size", "4",
        "--evaluation-share", "0.5",
    )  # fmt: skip
    return Case(words, (("--limit", "3"),), (("--match-above", "0.3"), "match_above 0.25, not 0.3"), 20)


def negbench_generate(root):
    words = ("negbench", "generate", "--source", "nano", "--scenes", "9", "--shard-size", "3")
    more = ("--verify", "negatives", "--detector", "tests.rehearsal:score_005")
    return Case((*words, *more), (("--limit", "7"),), (("--wording", "paper"), "wording"), 15)


def generators(root):
    rows = "".join(f"{k},a cup and no dog {k},cup,dog;it runs.,a cup with a dog {k}\n" for k in range(5))
    (root / "prompts.csv").write_text(f"id,prompt,wanted,forbidden,affirmed\n{rows}", encoding="utf-8")
    words = ("generators", "--prompts", str(root / "prompts.csv"), "--generator", "tests.rehearsal:paint")
    judges = ("--judge", "tests.rehearsal:varied", "--detector", "tests.rehearsal:score_025")
    parts = (("--limit", "2"), ("--limit", "4"))
    return Case((*words, *judges, "--batch-size", "4"), parts, (("--samples", "2"), "samples 1, not 2"), 20)


CASES = (nein_eval, negbench_eval, negvqa, generators, nein_generate, negbench_generate)


def line(case, out, *more):
    return [*case.words, "--device", "cpu", "--out", str(out), *more]


def contents(out):
    """Every file but what says when and where, caches, and pages, which show that."""
    apart = {"notes", "cache", "slurm"}
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
        and not apart & {*path.relative_to(out).parts}
        and not path.name.startswith(".")
        and path.name != "manifest.json"
        and path.suffix not in (".html", ".sqlite")
    }


def blocks(out):
    files = (path for path in out.rglob("[0-9]*.jsonl") if "list" not in path.relative_to(out).parts)
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def statuses(out):
    return {json.loads(path.read_text())["status"] for path in out.rglob("manifest.json")}


@dataclass(frozen=True)
class Whole:
    """A command that nothing disturbed: where it worked, what is there, and how many files it wrote."""

    case: Case
    out: Path
    files: dict[str, bytes]
    writes: int


@pytest.fixture(scope="module", params=CASES, ids=lambda make: make.__name__)
def whole(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    case, out = request.param(root), root / "out"
    # One block after the other; forked processes then import nothing.
    assert commands.exit_code(*line(case, root / "warm", "--on", "debug")) == 0
    writes = killing.files_written(cli.main, line(case, out), root / "writes")
    files = contents(out)
    assert files == contents(root / "warm")
    assert len(files) >= case.outputs
    assert statuses(out) == {"complete"}
    return Whole(case, out, files, writes)


def run(whole, out, share="0/1", moment=None):
    """Exit code of the command, or of a share of it, in a process of its own that dies at a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARE_VARIABLE, share)
        return killing.run(cli.main, line(whole.case, out), moment)


def test_kills_in_a_row_and_a_last_run_give_the_same_bytes(whole, tmp_path):
    """Of a command and of both its shares, at moments spread over the work; nothing is done again."""
    written = {}
    moments = {"0/1": 2, "0/2": whole.writes // 8, "1/2": whole.writes // 6}
    for (share, moment), how in zip(moments.items(), HOW, strict=True):
        assert run(whole, tmp_path, share, killing.File("*", max(1, moment), how)) in (killing.KILLED, 0)
        there = blocks(tmp_path)
        assert written.items() <= there.items()
        written = there
    assert run(whole, tmp_path, "0/2") == 0
    assert statuses(tmp_path) <= {"incomplete"}
    assert commands.exit_code(*line(whole.case, tmp_path)) == 0
    assert contents(tmp_path) == whole.files
    assert written.items() <= blocks(tmp_path).items()
    assert statuses(tmp_path) == {"complete"}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_a_kill_anywhere_gives_the_same_bytes(whole, tmp_path, part):
    at = killing.File("*", 1 + part * (whole.writes - 1) // 9, HOW[part % 3])
    assert run(whole, tmp_path, moment=at) == killing.KILLED
    assert commands.exit_code(*line(whole.case, tmp_path)) == 0
    assert contents(tmp_path) == whole.files


@pytest.mark.slow
def test_two_processes_of_accelerate_give_the_same_bytes_also_after_one(whole, tmp_path):
    for name, port in (("two", 29671), ("mixed", 29672)):
        if name == "mixed":
            at = killing.File("*", whole.writes // 2, "torn")
            assert run(whole, tmp_path / name, moment=at) == killing.KILLED
        words = line(whole.case, tmp_path / name)
        done = commands.in_a_process(*words, script=commands.on_two_processes(port), cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert contents(tmp_path / name) == whole.files


@pytest.mark.slow
def test_ray_gives_the_same_bytes_and_its_driver_and_workers_may_be_killed(whole, tmp_path):
    on_ray = ("--on", "ray", "--executor.workers", "2")
    for name, rest in (("driver", on_ray), ("all", ())):
        out = tmp_path / name
        words = [sys.executable, "-m", "nein", *line(whole.case, out), *on_ray]
        driver = subprocess.Popen(words, cwd=tmp_path, env=commands.environment(), start_new_session=True)
        while not blocks(out) and driver.poll() is None:
            time.sleep(0.02)
        if name == "driver":
            driver.kill()
        else:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        done = commands.in_a_process(*line(whole.case, out), *rest, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert contents(out) == whole.files


@pytest.mark.slow
def test_jobs_of_slurm_give_the_same_bytes(whole, tmp_path, cluster):
    done = commands.in_a_process("slurm", *line(whole.case, tmp_path / "out", "--array", "2"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    deadline = time.monotonic() + 240
    while contents(tmp_path / "out") != whole.files and time.monotonic() < deadline:
        time.sleep(0.2)
    assert contents(tmp_path / "out") == whole.files


def test_pictures_that_vanished_or_were_emptied_are_made_again(whole, tmp_path):
    out = Path(shutil.copytree(whole.out, tmp_path / "copy"))
    pictures = [
        path for path in out.rglob("*.png") if {"images", "pictures"} & {*path.relative_to(out).parts}
    ]
    if not pictures:
        pytest.skip("it makes no pictures")
    for picture in pictures[::3]:
        picture.unlink()
    for picture in pictures[1::3]:
        picture.write_bytes(b"")
    assert commands.exit_code(*line(whole.case, out)) == 0
    assert contents(out) == whole.files


def test_parts_may_grow_into_the_whole(whole, tmp_path):
    for more in (*whole.case.parts, ()):
        assert commands.exit_code(*line(whole.case, tmp_path, *more)) == 0, more
    assert contents(tmp_path) == whole.files


def test_what_is_finished_loads_no_model_and_another_configuration_is_refused_by_name(
    whole, monkeypatch, capsys
):
    before = blocks(whole.out)
    loaders = ("metrics.load_judge", "metrics.load_dual", "metrics.load_encoder", "editors.get_editor")
    for loader in loaders:
        monkeypatch.setattr(f"nein.{loader}", lambda *args, **options: pytest.fail("a model was loaded"))
    assert commands.exit_code(*line(whole.case, whole.out)) == 0
    words, said = whole.case.refused
    refused = commands.outcome(capsys, *line(whole.case, whole.out, *words))
    assert refused.code == 2
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert blocks(whole.out) == before
    assert contents(whole.out) == whole.files
    assert statuses(whole.out) == {"complete"}
