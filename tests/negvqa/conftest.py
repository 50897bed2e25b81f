from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.metrics import tiny_judges
from tests.negvqa import tiny_vlms
from tests.negvqa.tiny import make_instructblip


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vlms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one tiny checkpoint per class: llava (1.5), llava_next, qwen (2), qwen25, qwen3,
    deepseek, instructblip."""
    root = tmp_path_factory.mktemp("vlms")
    tiny_judges.make_llava_15(root / "llava", seed=1)
    tiny_judges.make_qwen2_vl(root / "qwen", seed=1)
    make_instructblip(root / "instructblip", seed=1)
    tiny_vlms.make_llava_next(root / "llava_next", seed=1)
    tiny_vlms.make_qwen25_vl(root / "qwen25", seed=1)
    tiny_vlms.make_qwen3_vl(root / "qwen3", seed=1)
    tiny_vlms.make_deepseek_vl(root / "deepseek", seed=1)
    return root
