"""Fixtures: one tiny checkpoint of every class per session, and what `metrics` loads from them."""

import pytest

from nein import metrics
from tests.metrics import tiny


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder with one checkpoint per class: clip, vit, lpips, llava, owlv2, blip."""
    root = tmp_path_factory.mktemp("models")
    for name in ("clip", "vit", "lpips", "llava", "owlv2", "blip"):
        seed = 2 if name == "llava" else 0  # of the seeds tried, the one with the most varied answers
        getattr(tiny, f"make_{name}")(root / name, seed=seed)
    return root


@pytest.fixture(scope="session")
def encoders(models):
    folders = {"clip": "clip", "dino": "vit", "fid": "vit", "lpips": "lpips"}
    return {kind: metrics.load_encoder(kind, str(models / name)) for kind, name in folders.items()}


@pytest.fixture(scope="session")
def llava(models):
    return metrics.load_judge("vqa", str(models / "llava"))


@pytest.fixture(scope="session")
def owlv2(models):
    return metrics.load_judge("ovd", str(models / "owlv2"))


@pytest.fixture(scope="session")
def blip(models):
    return metrics.load_judge("itm", str(models / "blip"))
