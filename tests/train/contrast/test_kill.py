"""Training that is killed by signal 9, and goes on alone or as two processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.contrast.test_finetune import ROOT, losses, same, weights

LONG: dict[str, Any] = {"steps": 60, "save_every": 7, "alpha": 0.5}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def kill_at(given: list[str], log: Path, lines: int) -> None:
    """Starts training in a process of its own, and ends it when it has logged so many steps."""

    process = subprocess.Popen(
        [sys.executable, "train/finetune_clip.py", *given],
        cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while process.poll() is None and not (log.is_file() and log.read_bytes().count(b"\n") >= lines):
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("trainable", ["all", "text"])
def test_killed_twice_it_ends_in_the_same_weights(
    trainable: str, tune: Callable[..., Path], line: Callable[..., list[str]], tmp_path: Path
) -> None:
    whole = tune(out=tmp_path / "whole", trainable=trainable, **LONG)
    given = {"out": tmp_path / "killed", "trainable": trainable, **LONG}
    for lines in (2, 20):  # before the first checkpoint, and behind the second
        kill_at(line(**given), tmp_path / "killed" / "log.jsonl", lines)
        assert not (tmp_path / "killed" / "model").exists()
    steps = [int(path.name[5:]) for path in (tmp_path / "killed" / "checkpoints").glob("step-*")]
    assert max(steps) in (14, 21, 28, 35, 42, 49, 56)
    assert same(weights(whole), weights(tune(**given)))
    assert losses(tmp_path / "killed") == losses(whole)


@pytest.mark.slow
def test_killed_alone_it_goes_on_as_two_processes_over_the_same_examples(
    tune: Callable[..., Path], line: Callable[..., list[str]], tmp_path: Path
) -> None:
    whole = tune(out=tmp_path / "whole", **LONG)
    given = line(out=tmp_path / "killed", **LONG)
    kill_at(given, tmp_path / "killed" / "log.jsonl", 20)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29643"]
    done = subprocess.run(
        [sys.executable, *launcher, "train/finetune_clip.py", *given],
        cwd=ROOT, env=environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    np.testing.assert_allclose(losses(tmp_path / "killed"), losses(whole), atol=1e-4, rtol=0)
    first, second = weights(whole), weights(tmp_path / "killed")
    assert all(torch.allclose(first[name], second[name], atol=1e-3) for name in first)
