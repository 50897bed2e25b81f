"""Tiny models of every kind, and the command run in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nein.train import finetune_clip
from nein.train.clip_finetuning.options import parse
from tests.metrics import tiny
from tests.negbench.conftest import open_clip_checkpoint, open_clip_folder  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_clip(tmp_path_factory.mktemp("clip") / "clip", seed=3)


@pytest.fixture(scope="session")
def half_clip_folder(clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import CLIPModel

    half = Path(shutil.copytree(clip_folder, tmp_path_factory.mktemp("clip") / "half"))
    CLIPModel.from_pretrained(half).half().save_pretrained(half)
    return half


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    folder = tmp_path_factory.mktemp("clip") / "siglip"
    words = tiny.tokenizer([], bos="<s>", eos="</s>", pad="<pad>", limit=20)
    words.model_input_names = ["input_ids"]
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with tiny.seeded(4):
        config = SiglipConfig(
            text_config={
                **size,
                "vocab_size": len(words),
                "max_position_embeddings": 20,
                "projection_size": 16,
            },
            vision_config={**size, "image_size": 32, "patch_size": 16},
        )
        SiglipModel(config).save_pretrained(folder)
    words.save_pretrained(folder)
    SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture
def line(clip_folder: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a short run; keywords are options."""

    def make(**options: object) -> list[str]:
        chosen: dict[str, object] = {
            "base": clip_folder, "nano-scenes": 24, "steps": 5, "batch-size": 6, "questions-per-step": 4,
            "learning-rate": 1e-3, "warmup": 0, "device": "cpu", "workers": 2, "save-every": 2, "alpha": 0.5,
            "trainable": "all", "log-every": 1, "out": tmp_path / "run", "features": tmp_path / "features",
        }  # fmt: skip
        chosen |= {name.replace("_", "-"): value for name, value in options.items()}
        return [f"--{name}={value}" for name, value in chosen.items() if value is not None]

    return make


@pytest.fixture
def tune(line: Callable[..., list[str]]) -> Callable[..., Path]:
    """Runs training in this process; returns the run's folder."""

    def run(**options: object) -> Path:
        config, _ = parse(line(**options))
        finetune_clip.run(config)
        return config.out_dir

    return run
