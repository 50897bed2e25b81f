"""Workers that come, go and die: who does what, what is set aside, and what the files tell about it."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nein.engine import attendance, progress, walk
from nein.engine.attendance import Presence
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.executors.debug import Debug
from nein.engine.executors.threads import Threads
from nein.engine.folder import Folder
from nein.engine.stages import Stage, Step
from nein.engine.walk import Order, Walk
from nein.engine.worker import Worker
from tests.engine.squares import COUNT, SIZE, results, squares
from tests.helpers import commands, killing
from tests.nein.conftest import write_data

BLOCKS = -(-COUNT // SIZE)


def opened(path: Path) -> Folder:
    folder = Folder(path)
    folder.open({"numbers": COUNT}, {}, overwrite=False)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return opened(tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = opened(tmp_path_factory.mktemp("whole") / "run")
    Threads("cpu").compute(lambda device: two_stages(folder))
    return results(folder.path)


def two_stages(folder: Folder, **changed: Any) -> list[Step]:
    """Squares, and halves which are made of them block by block."""

    def read(number: int) -> list[int]:
        return [row["id"] for row in folder.read("squares", number)]

    halves = squares(folder, name="halve", outputs=("halves",), read=read, needs="squares")
    return [Step(folder, squares(folder, **changed)), Step(folder, halves)]


def compute(words: Sequence[str]) -> None:
    """For a process of its own: folder, pause in seconds, the deadly block."""
    path, pause, deadly = words
    Threads("cpu").compute(
        lambda device: two_stages(Folder(Path(path)), pause=float(pause), deadly=int(deadly))
    )


def start(path: Path, pause: float = 0.0, deadly: int = -1) -> Any:
    return killing.start(compute, [str(path), str(pause), str(deadly)])


def test_debug_does_one_block_after_the_other_in_order_and_gives_the_same(
    folder: Folder, whole: dict[str, bytes]
) -> None:
    made: list[tuple[str, int]] = []
    steps = [
        Step(folder, watched(step.stage, made)) for step in two_stages(folder)
    ]  # the thread that calls does it all
    assert Debug("cpu").compute(lambda device: steps) == [BLOCKS, BLOCKS]
    assert made == [(output, number) for output in ("squares", "halves") for number in range(BLOCKS)]
    assert results(folder.path) == whole


def watched(stage: Stage, made: list[tuple[str, int]]) -> Stage:
    def work(model: Any, inputs: Any, missing: tuple[str, ...]) -> Any:
        assert threading.current_thread() is threading.main_thread()
        made.append((missing[0], inputs[0] // SIZE))
        return stage.work(model, inputs, missing)

    return dataclasses.replace(stage, work=work)


def test_a_second_command_joins_and_both_end_with_everything_done(
    folder: Folder, whole: dict[str, bytes]
) -> None:
    both = [start(folder.path, pause=0.2) for _ in range(2)]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert results(folder.path) == whole
    made = Counter(
        line for path in folder.cost_files("square") for line in path.read_text().splitlines() if line
    )
    assert len(folder.cost_files("square")) == 2  # both had a part in it
    assert sum(made.values()) <= 2 * BLOCKS + 4  # what was in work at the very end is made twice
    assert attendance.workers(folder.path) == []


def test_a_block_that_kills_is_set_aside_after_three_deaths_of_which_it_alone_can_be_the_cause(
    folder: Folder, whole: dict[str, bytes]
) -> None:
    codes = []
    while not codes or codes[-1] != 0:
        process = start(folder.path, deadly=2)
        process.join(120)
        codes.append(process.exitcode)
        assert len(codes) < 8
    assert codes.count(killing.KILLED) in (3, 4)  # beside another one the first time, perhaps
    lost = folder.read("squares", 2)
    assert [row["id"] for row in lost] == list(range(8, 12))
    assert all(row["value"] is None and "set aside: 3 workers died" in row["reason"] for row in lost)
    intact = [name for name in whole if "000002" not in name]
    assert {name: results(folder.path)[name] for name in intact} == {name: whole[name] for name in intact}
    square, *_ = progress.states(folder)
    assert (square.done, square.aside, square.open) == (BLOCKS - 1, 1, 0)

    process = start(folder.path, deadly=2)  # it is not tried again by itself
    process.join(120)
    assert process.exitcode == 0
    assert walk.try_again(folder) == 1
    compute([str(folder.path), "0", "-1"])
    assert results(folder.path) == whole
    assert progress.states(folder)[0].aside == 0


def test_what_another_one_is_at_is_left_to_it_and_judging_goes_on_meanwhile(folder: Folder) -> None:
    other = Presence(folder.path, "other")
    steps = two_stages(folder)
    steps = [Step(folder, squares(folder, outputs=("squares",))), steps[1]]
    order: list[tuple[int, int]] = []
    next_one = Walk(steps, Order())
    worker = Worker(steps, "cpu")
    with other.at("square", 3):
        while not next_one.over():
            task = next_one.next()
            assert task is not None
            order.append((task.step, task.number))
            worker.make(task, worker.read(task) or ((),))
            next_one.finished(task)
    other.close()
    worker.close()
    assert set(order[: 2 * BLOCKS - 2]) == {(s, n) for s in (0, 1) for n in range(BLOCKS) if n != 3}
    assert order[-2:] == [(0, 3), (1, 3)]  # nobody waits for it either: it is made as well


def test_a_worker_is_dead_when_its_process_is_gone_or_when_it_is_silent(folder: Folder) -> None:
    presence = Presence(folder.path, "one")
    with presence.at("square", 1):
        [worker] = attendance.workers(folder.path)
        assert worker.alive
        assert worker.blocks == (("square", 1),)
        old = time.time() - 2 * attendance.SILENCE
        os.utime(folder.path / "workers" / "one.json", (old, old))
        assert not attendance.workers(folder.path)[0].alive
        deaths = attendance.Attendance(folder.path, ())
        assert deaths.deaths(("square", 1)) == [True]
        assert not deaths.busy(("square", 1))
    presence.close()
    assert attendance.workers(folder.path) == []


def test_a_clock_that_is_ahead_of_the_file_systems_takes_nobody_for_dead(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    presence = Presence(folder.path, "one")
    ahead = time.time() + 10 * attendance.SILENCE
    monkeypatch.setattr(time, "time", lambda: ahead)
    with presence.at("square", 1):
        assert attendance.workers(folder.path)[0].alive
        with pytest.raises(UserError, match="Another command is at work"):
            folder.open({"numbers": 5}, {}, overwrite=True)
        assert [path.name for path in (folder.path / "workers").iterdir()] == ["one.json"]
    presence.close()


def test_an_exception_or_a_signal_is_no_death(folder: Folder) -> None:
    def work(model: Any, numbers: range, missing: tuple[str, ...]) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Threads("cpu", at_once=1).compute(lambda device: [Step(folder, squares(folder, work=work))])
    assert attendance.workers(folder.path) == []


def test_a_folder_at_which_somebody_works_is_not_overwritten_by_another_command(folder: Folder) -> None:
    presence = Presence(folder.path, "one")
    with pytest.raises(UserError, match="with other options"):
        folder.open({"numbers": 5}, {}, overwrite=True)
    with pytest.raises(UserError, match="made with numbers 23, not 5"):
        folder.open({"numbers": 5}, {}, overwrite=False)
    folder.open({"numbers": COUNT}, {}, overwrite=True)  # the same options: it joins in
    presence.close()
    folder.open({"numbers": 5}, {}, overwrite=True)


def test_an_evaluation_needs_no_locks_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(fcntl, "lockf", flock)
    assert commands.exit_code(*evaluation(tmp_path)) == 0


def evaluation(folder: Path) -> list[str]:
    """A command that edits and scores four pictures without a model, in two blocks."""
    data = write_data(folder / "data", 2, 2)
    return [
        "eval", "--editor", "identity", "--data", str(data), "--metrics", "l1", "--device", "cpu",
        "--batch-size", "2", "--out", str(folder / "out"),
    ]  # fmt: skip


def test_the_state_of_a_run_is_told_from_its_files(folder: Folder) -> None:
    steps = [Step(folder, squares(folder, blocks=Blocks(COUNT, SIZE, [0, 1, 5, 22])))]
    progress.announce(steps)
    folder.write("squares", 0, [])
    folder.write("squares", 3, [])  # of a selection before this one
    presence = Presence(folder.path, "one")
    now = time.time()
    for second in range(10):
        folder.cost("square", 0, {"seconds": 0.5, "at": now - second}, "one")
    with presence.at("square", 1):
        [state] = progress.states(folder, now)
    assert (state.wanted, state.done, state.running, state.open) == (3, 1, 1, 2)
    assert state.rate == pytest.approx(10 / 9)
    assert state.seconds_left == pytest.approx(1.8)
    presence.close()
    assert progress.states(folder, now)[0].rate is None  # nobody is at work


def test_status_and_retry_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = evaluation(tmp_path)
    assert commands.in_a_fork(*words).returncode == 0
    done = commands.outcome(capsys, "status", tmp_path / "out")
    assert done.code == 0
    assert "edit: 2 of 2 blocks, 0 running, 0 failed\n" in done.stdout
    assert "score: 2 of 2 blocks, 0 running, 0 failed\n" in done.stdout
    assert "There is no run in" in commands.outcome(capsys, "status", tmp_path / "nowhere").stderr

    run = tmp_path / "out" / "identity" / "negative"
    whole = (run / "scores.csv").read_bytes()
    folder = Folder(run)
    folder.write("edit", 1, [])  # as if its worker had died of it
    outputs = ["edit", "scores/l1"]
    note = {"stage": "edit", "block": 1, "reason": "set aside", "outputs": outputs}
    folder.note(walk.ASIDE, "edit-000001", note)
    assert "edit, block 1: set aside; nein retry" in commands.outcome(capsys, "status", run).stdout
    retried = commands.outcome(capsys, "retry", run)
    assert retried.code == 0
    assert f"nein {shlex.join(words)}\n" in retried.stdout
    assert commands.in_a_fork(*words).returncode == 0
    assert (run / "scores.csv").read_bytes() == whole
    assert "0 failed" in commands.outcome(capsys, "status", run).stdout


@pytest.mark.parametrize("output", ["../../../victim", "/tmp/victim", "linked"])
def test_a_run_from_somebody_else_removes_nothing_elsewhere_and_runs_nothing(
    folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    victim = tmp_path / "victim" / "000" / "000000.jsonl"
    victim.parent.mkdir(parents=True)
    victim.write_text("mine")
    (folder.path / "linked").symlink_to(tmp_path / "victim")
    note = {"stage": "edit", "block": 0, "reason": "x", "outputs": [output.replace("/tmp", str(tmp_path))]}
    folder.note(walk.ASIDE, "edit-000000", note)
    told = {"started": "now", "command": ["eval", "\x1b[2J"], "directory": str(folder.path)}
    folder.note("invocations", "one", told)
    refused = commands.outcome(capsys, "retry", folder.path)
    assert refused.code == 2
    assert "leads out of" in refused.stderr
    assert victim.read_text() == "mine"
    folder.note(walk.ASIDE, "edit-000000", {**note, "outputs": ["squares"]})
    (folder.path / "nein").mkdir()
    (folder.path / "nein" / "__main__.py").write_text("open('ran', 'w')")
    shown = commands.outcome(capsys, "retry", folder.path)
    assert shown.stdout.endswith(f"  cd {folder.path} && nein eval '?[2J'\n")
    assert not list(tmp_path.rglob("ran"))
