"""Thumbnails of many files, made beside this process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nein.engine import images
from nein.reporting import thumbnails
from nein.reporting.thumbnails import Place


@pytest.fixture
def samples(tmp_path: Path) -> list[list[Place]]:
    """Twelve samples: a picture each, one that several share, a file that is none, and a reason."""
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    made: list[list[Place]] = []
    for number in range(12):
        path = tmp_path / f"a\n{number}é.png"
        images.write_png(path, np.full((9, 8, 3), 20 * number, np.uint8))
        made.append([str(path), str(tmp_path / "a\n0é.png"), str(broken), {"none": "failed: <b>é</b>\n"}])
    return made


def made(samples: list[list[Place]], side: int = 128) -> list[list[Any]]:
    with thumbnails.of_samples(iter(samples), side) as pictures:
        return list(pictures)


def test_processes_make_what_this_one_makes(
    samples: list[list[Place]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = made(samples)
    assert [row[3] for row in here] == [{"none": "failed: <b>é</b>\n"}] * 12
    assert "this is not an image file" in here[0][2]["none"]
    assert len({row[0] for row in here}) == 12
    monkeypatch.setattr(thumbnails, "MANY", 5)
    monkeypatch.setattr(thumbnails, "TOGETHER", 5)
    monkeypatch.setattr(thumbnails, "_of_part", None)  # here nothing is made
    monkeypatch.setattr(thumbnails.cores, "count", lambda: 2)
    assert made(samples) == here
    assert made(samples, 0) == [[]] * 12


def test_processes_end_with_whoever_asked_and_one_that_is_killed_is_an_error(
    samples: list[list[Place]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    monkeypatch.setattr(thumbnails, "MANY", 5)
    monkeypatch.setattr(thumbnails, "TOGETHER", 1)
    with thumbnails.of_samples(samples * 200, 128) as rows:
        assert len(next(rows)) == 4
        assert all(process.poll() is None for process in started)
    assert started
    assert all(process.returncode is not None for process in started)
    with thumbnails.of_samples(samples * 200, 128) as rows:
        next(rows)
        os.kill(started[-1].pid, signal.SIGKILL)
        with pytest.raises(subprocess.CalledProcessError, match="SIGKILL"):
            list(rows)


def test_a_script_that_asks_for_a_page_is_run_once(tmp_path: Path, samples: list[list[Place]]) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the folder was imported')")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys; sys.path.pop(0)\nprint('once')\nfrom nein.reporting import thumbnails\n"
        f"thumbnails.MANY = 1\nwith thumbnails.of_samples({samples!r}, 128) as made:\n"
        "    print(len(list(made)))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["once", "12"], "")
