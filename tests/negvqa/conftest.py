import pytest

from tests.metrics import tiny
from tests.negvqa import tiny_vlms
from tests.negvqa.tiny import make_instructblip


@pytest.fixture(scope="session")
def vlms(tmp_path_factory):
    """A folder with a tiny checkpoint: llava (1.5)."""
    root = tmp_path_factory.mktemp("vlms")
    tiny.make_llava_15(root / "llava", seed=1)
    return root


@pytest.fixture(scope="session")
def classes(vlms):
    """The same folder with one of every class: llava_next, qwen (2), qwen25, qwen3, deepseek and
    instructblip beside it."""
    tiny.make_qwen2_vl(vlms / "qwen", seed=1)
    make_instructblip(vlms / "instructblip", seed=1)
    tiny_vlms.make_llava_next(vlms / "llava_next", seed=1)
    tiny_vlms.make_qwen25_vl(vlms / "qwen25", seed=1)
    tiny_vlms.make_qwen3_vl(vlms / "qwen3", seed=1)
    tiny_vlms.make_deepseek_vl(vlms / "deepseek", seed=1)
    return vlms
