"""Files of a user named like folders of ours change nothing: from the checkout and from the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("editors", "metrics", "train", "configs", "research")
SCRIPT = """
import metrics, train, editors
import nein.metrics, nein.editors, nein.train.loop
from nein.metrics.base import MetricError
from nein import cli
assert metrics.MINE and train.MINE and editors.MINE
assert nein.metrics.MetricError is MetricError
print(nein.metrics.__file__, nein.editors.__file__, nein.train.__file__)
cli.main(["list", "editors"])
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it lies in site-packages."""
    folder = tmp_path_factory.mktemp("wheel")
    line = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(line, cwd=ROOT, capture_output=True, timeout=300, check=True)
    [file] = folder.glob("nein-*.whl")
    zipfile.ZipFile(file).extractall(folder / "site")
    return folder / "site"


@pytest.mark.parametrize("installed", [False, True], ids=["checkout", "wheel"])
def test_a_users_files_beside_a_script_shadow_nothing(
    installed: bool, unpacked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = unpacked if installed else ROOT
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(home))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    places = done.stdout.splitlines()[0].split()
    parent = home / "nein" if installed else ROOT
    assert places == [str(parent / name / "__init__.py") for name in ("metrics", "editors", "train")]
    assert "magicbrush" in done.stdout


def test_the_wheel_puts_one_package_into_site_packages(unpacked: Path) -> None:
    tops = {path.name for path in unpacked.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"nein"}
    for name in ("editors", "metrics", "train", "configs"):
        assert (unpacked / "nein" / name).is_dir()
