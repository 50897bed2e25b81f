"""A kill at any moment (signal 9) and the same command again give the same bytes; so do two processes."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

import metrics
from nein import cli
from nein.benchmarks.negbench import run, sections  # noqa: F401 - here, so that no forked process has to import them
from tests.helpers import commands, killing
from tests.negbench.conftest import write_data

HOW: tuple[Literal["before", "torn", "after"], ...] = ("before", "torn", "after")


def arguments(data: Path, pictures: Path, model: Path, out: Path) -> list[str]:
    """Retrieval, questions and binary questions to a CLIP, and the questions to a generative model."""
    return [
        "eval", "--data", str(data), "--image-root", str(pictures), "--model", str(model),
        "--vlm", "tests.rehearsal:b", "--batch-size", "2", "--device", "cpu", "--out", str(out),
    ]  # fmt: skip


def contents(out: Path) -> dict[str, bytes]:
    """Every file that must not depend on how the work was done."""
    kept = (".jsonl", ".csv", ".md", ".png")
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
        and (path.suffix in kept or path.name in ("summary.json", "figures.csv"))
        and not path.name.startswith(".")
    }


def times(out: Path) -> dict[Path, int]:
    """When each block was written."""
    return {path: path.stat().st_mtime_ns for path in out.rglob("[0-9]*.jsonl")}


def forked(
    line: Sequence[str], count: int | None = None, how: Literal["before", "torn", "after"] = "before"
) -> int:
    """Exit code of the command in a forked process, which is killed at its COUNT-th write to disk."""
    moment = None if count is None else killing.File("*", count, how)
    return killing.run(cli.main, ["negbench", *line], moment)


@dataclass(frozen=True)
class Whole:
    """An evaluation that nothing disturbed."""

    line: Callable[[Path], list[str]]
    files: dict[str, bytes]
    writes: int


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, pictures: Path, clip_folder: Path) -> Whole:
    root = tmp_path_factory.mktemp("whole")
    metrics.load_dual(str(clip_folder)).encode_text(["."])
    data = write_data(root / "data")

    def line(out: Path) -> list[str]:
        return arguments(data, pictures, clip_folder, out)

    writes = killing.files_written(cli.main, ["negbench", *line(root / "out")], root / "writes")
    files = contents(root / "out")
    assert len([name for name in files if "/samples/" in name]) == 4 + 3
    assert {"table.md", "figures.csv", "recall.png", "mcq.png"} <= set(files)
    return Whole(line, files, writes)


def test_twenty_kills_in_a_row_and_a_last_run_give_the_same_bytes(whole: Whole, tmp_path: Path) -> None:
    written: dict[Path, int] = {}
    for moment, how in zip(range(2, 22), itertools.cycle(HOW), strict=False):
        assert forked(whole.line(tmp_path), moment, how) == killing.KILLED
        assert "table.md" not in contents(tmp_path)
        found = times(tmp_path)
        assert written.items() <= found.items()  # nothing that was on disk is made again
        written = found
    assert forked(whole.line(tmp_path)) == 0
    assert contents(tmp_path) == whole.files
    before = times(tmp_path)
    assert forked(whole.line(tmp_path)) == 0  # finished, it makes no block again
    assert times(tmp_path) == before
    assert contents(tmp_path) == whole.files


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_a_kill_anywhere_gives_the_same_bytes(whole: Whole, tmp_path: Path, part: int) -> None:
    moment = 1 + part * (whole.writes - 1) // 19
    assert forked(whole.line(tmp_path), moment, HOW[part % 3]) == killing.KILLED
    assert forked(whole.line(tmp_path)) == 0
    assert contents(tmp_path) == whole.files


@pytest.mark.slow
@pytest.mark.parametrize(
    "mark",
    ["*/coco/manifest.json", "*/coco/pictures/000/000000.jsonl", "*/coco/samples/mcq*", "*/*/summary.json"],
)
def test_the_command_killed_from_outside_goes_on(whole: Whole, tmp_path: Path, mark: str) -> None:
    """A process of its own, killed as soon as a file is there."""
    out = tmp_path / "out"
    line = [sys.executable, "-m", "nein", "negbench", *whole.line(out)]
    process = subprocess.Popen(
        line, env=commands.environment(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 300
        while process.poll() is None and not any(p.stat().st_size for p in out.glob(mark)):
            assert time.monotonic() < end
            time.sleep(0.002)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    done = subprocess.run(
        line, env=commands.environment(), cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert contents(out) == whole.files
    assert done.stdout.encode() == whole.files["table.md"]


def launch(whole: Whole, out: Path, folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    script = commands.on_two_processes(port)
    return commands.in_a_process("negbench", *whole.line(out), script=script, cwd=folder)


@pytest.mark.slow
def test_two_processes_give_the_same_bytes_also_after_one(whole: Whole, tmp_path: Path) -> None:
    done = launch(whole, tmp_path / "two", tmp_path, 29671)
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(tmp_path / "two") == whole.files
    assert done.stdout.count("## Multiple choice") == 1

    assert forked(whole.line(tmp_path / "mixed"), 9, "torn") == killing.KILLED
    done = launch(whole, tmp_path / "mixed", tmp_path, 29672)
    assert done.returncode == 0, done.stderr[-3000:]
    assert contents(tmp_path / "mixed") == whole.files
