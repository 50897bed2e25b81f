"""A tiny editor of random weights, a tiny data set in NeIn's layout, and the command run in this process."""

import functools
import shutil
from pathlib import Path

import pytest
import torch

from nein.nano import data as nano_data
from nein.train import finetune_ip2p
from nein.train.editor_finetuning.options import TuneConfig
from tests.editors.tiny import build_pipeline
from tests.train import runs


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return build_pipeline(tmp_path_factory.mktemp("instruct") / "base", seed=3)


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """About 24 samples of six drawn scenes in the official layout, split "train"."""
    return nano_data.ensure_data_set("train", 6, tmp_path_factory.mktemp("instruct-data"))


@pytest.fixture
def data(world, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(world, tmp_path / "data"))


def words(base, world, place, /, **options):
    """The arguments of a short run in a folder."""
    return runs.words({
        "base": base, "data": world, "resolution": 64, "align-resolution": 64, "steps": 6, "batch-size": 4,
        "learning-rate": 1e-3, "ema": 0.9, "trackers": "none", "device": "cpu", "workers": 2, "log-every": 1,
        "out": place / "run", "features": base.parent / "features",
    }, options)  # fmt: skip


@pytest.fixture
def line(base, world, tmp_path):
    return functools.partial(words, base, world, tmp_path)


@pytest.fixture
def tune(line, tmp_path):
    def run(**options):
        finetune_ip2p.main(line(**options))
        return Path(str(options.get("out", tmp_path / "run")))

    return run


@pytest.fixture(scope="module")
def whole(base, world, tmp_path_factory):
    """A run without further options, which nothing has broken off."""
    place = tmp_path_factory.mktemp("whole")
    with torch.random.fork_rng(devices=[]):
        finetune_ip2p.main(words(base, world, place, trackers="tensorboard", save_every=2))
    return place / "run"


@pytest.fixture
def again(whole, tmp_path):
    """A copy of it that a test may damage, in the place where `tune` works."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


@pytest.fixture
def config(line):
    return lambda **options: TuneConfig.parse_line(line(**options))[0]
