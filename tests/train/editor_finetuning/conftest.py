"""A tiny editor of random weights, a tiny data set in NeIn's layout, and the command run in this process."""

import shutil
from pathlib import Path

import pytest

from nein.nano import data as nano_data
from nein.train import finetune_ip2p
from nein.train.editor_finetuning.options import parse
from tests.editors.tiny import build_pipeline


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return build_pipeline(tmp_path_factory.mktemp("instruct") / "base", seed=3)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """About 24 samples of six drawn scenes in the official layout, split "train"."""
    return nano_data.ensure("train", 6, tmp_path_factory.mktemp("instruct-data"))


@pytest.fixture
def data(world, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(world, tmp_path / "data"))


@pytest.fixture
def line(base, world, tmp_path):
    """The arguments of a short run; keywords are options, None leaves one out."""

    def make(**options):
        chosen = {
            "base": base,
            "data": world,
            "resolution": 64,
            "align-resolution": 64,
            "steps": 6,
            "batch-size": 4,
            "learning-rate": 1e-3,
            "trackers": "none",
            "device": "cpu",
            "workers": 2,
            "log-every": 1,
            "out": tmp_path / "run",
            "features": tmp_path / "features",
        }
        chosen.update({key.replace("_", "-"): value for key, value in options.items()})
        words = []
        for key, value in chosen.items():
            if isinstance(value, bool):
                words.append(f"--{key}" if value else f"--no-{key}")
            elif value is not None:
                words.append(f"--{key}={value}")
        return words

    return make


@pytest.fixture
def tune(line, tmp_path):
    def run(**options):
        finetune_ip2p.main(line(**options))
        return Path(str(options.get("out", tmp_path / "run")))

    return run


@pytest.fixture
def config(line):
    return lambda **options: parse(line(**options))[0]
