import pytest

from tests.metrics import tiny
from tests.negvqa.tiny import make_instructblip


@pytest.fixture(scope="session")
def vlms(tmp_path_factory):
    root = tmp_path_factory.mktemp("vlms")
    tiny.make_llava_15(root / "llava", seed=1)
    return root


@pytest.fixture(scope="session")
def classes(vlms):
    tiny.make_llava(vlms / "llava_next", seed=1)
    (vlms / "llava_next" / "chat_template.jinja").write_text(tiny.TEMPLATE)
    tiny.make_qwen2_5_vl(vlms / "qwen", seed=1)
    make_instructblip(vlms / "instructblip", seed=1)
    return vlms
