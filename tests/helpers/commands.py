"""`nein ARGUMENTS`, inside the process of the tests or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from nein import cli

ROOT = Path(__file__).resolve().parents[2]
#: What the tests offer by entry points, as an installed package would.
PLUGINS = ROOT / "tests" / "plugins"


class Outcome(NamedTuple):
    """Exit code and what the command printed."""

    code: int
    stdout: str
    stderr: str


def exit_code(*words: object) -> int:
    """Runs `nein WORDS` inside this process."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(ended.value.code or 0)


def outcome(capture: pytest.CaptureFixture[str], *words: object) -> Outcome:
    """The same with what it prints, and nothing that was printed before."""
    capture.readouterr()
    code = exit_code(*words)
    printed = capture.readouterr()
    return Outcome(code, printed.out, printed.err)


def environment(path: Sequence[Path] = ()) -> dict[str, str]:
    """Of a process of its own: this working tree and the folders of `path` to import from, one thread."""
    places = os.pathsep.join(map(str, (ROOT, PLUGINS, *path)))
    return {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def on_two_processes(port: int) -> tuple[str, ...]:
    """The script that starts `nein` as two processes under accelerate."""
    # "multi_gpu" is how accelerate says "several processes without MPI"; it works without a GPU as well.
    options = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    launcher = ("-m", "accelerate.commands.launch", *options.split(), "--main_process_port", str(port))
    return (*launcher, "-m", "nein")


def in_a_process(
    *words: object,
    script: tuple[object, ...] = ("-m", "nein"),
    cwd: Path = ROOT,
    path: Sequence[Path] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m nein WORDS`, or another script, in a process of its own."""
    line = [sys.executable, *(str(part) for part in (*script, *words))]
    return subprocess.run(
        line, env=environment(path), capture_output=True, text=True, timeout=600, cwd=cwd, check=False
    )
