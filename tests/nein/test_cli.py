from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nein import cli
from nein.engine import errors
from tests.helpers import commands


def data(*argv):
    return commands.exit_code("data", *argv)


def test_nein_data_draws_the_miniature_world_and_finds_it_in_order(tmp_path, capsys):
    assert data("nano", "--split", "dev", "--sources", 3, "--out", tmp_path) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert folder.parent == tmp_path
    assert data("check", folder, "--split", "dev", "--full") == 0
    assert "samples of 3 source images are in order" in capsys.readouterr().out
    assert data("nano", "--split", "nowhere", "--out", tmp_path) == 2
    assert "unknown nano split 'nowhere'" in capsys.readouterr().err


def test_nein_data_check_finds_a_truncated_picture_only_in_full(make_data, capsys):
    folder = make_data(2, 1)
    picture = folder / "nein_val" / "NeIn_000000000002_1.png"
    picture.write_bytes(picture.read_bytes()[:700])
    assert data("check", folder) == 0
    assert data("check", folder, "--full") == 2
    assert "NeIn_000000000002_1.png: the image cannot be decoded" in capsys.readouterr().err


def test_a_closed_pipe_is_no_traceback():
    line = f"{sys.executable} -m nein eval --dry-run | head -1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("editor:")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("error", "code", "said"), [
    (OSError(28, "No space left on device", "/a/b.png"), 2, "The disk is full (/a/b.png)"),
    (KeyboardInterrupt(), 130, "run the same command again to go on"),
])  # fmt: skip
def test_a_full_disk_and_control_c_are_a_sentence(capsys, error, code, said):
    def failing():
        raise error

    with pytest.raises(SystemExit) as caught:
        errors.exit_with(failing)
    assert caught.value.code == code
    assert said in capsys.readouterr().err


def test_the_name_in_the_cards_is_the_same_command(capsys):
    assert commands.exit_code("eval", "--limit", 3, "--dry-run") == 0
    printed = capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main_eval(["--limit", "3", "--dry-run"])
    assert not ended.value.code
    assert capsys.readouterr().out == printed
