"""Tiny models of every kind, and the command run in this process."""

import functools

import pytest
import torch

from nein.nano import zoo
from nein.train import finetune_clip
from nein.train.clip_finetuning.options import ClipConfig
from tests.metrics import tiny
from tests.negbench.conftest import open_clip_checkpoint, open_clip_folder  # noqa: F401 - fixtures
from tests.negbench.test_dual import make_towers
from tests.train import runs


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory):
    return tiny.make_clip(tmp_path_factory.mktemp("clip") / "clip", seed=3)


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory):
    return make_towers(tmp_path_factory.mktemp("siglip"), "Siglip")


@pytest.fixture(scope="session")
def half_clip_folder():
    return zoo.path("clip")


def words(base, place, /, **options):
    """The arguments of a short run in a folder."""
    return runs.words({
        "base": base, "nano-scenes": 24, "steps": 5, "batch-size": 6, "questions-per-step": 4,
        "learning-rate": 1e-3, "warmup": 0, "device": "cpu", "workers": 2, "save-every": 2, "alpha": 0.5,
        "trainable": "all", "log-every": 1, "out": place / "run", "features": place / "features",
    }, options)  # fmt: skip


@pytest.fixture
def line(clip_folder, tmp_path):
    return functools.partial(words, clip_folder, tmp_path)


def trained(line):
    config, _ = ClipConfig.parse_line(line)
    finetune_clip.run(config)
    return config.out_dir


@pytest.fixture
def tune(line):
    return lambda **options: trained(line(**options))


@pytest.fixture(scope="session")
def whole(clip_folder, tmp_path_factory):
    """A run without further options."""
    with torch.random.fork_rng(devices=[]):
        return trained(words(clip_folder, tmp_path_factory.mktemp("whole")))
