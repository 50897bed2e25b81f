"""A tiny text-to-image pipeline of random weights."""

from __future__ import annotations

import json
from pathlib import Path

from tests.editors.tiny import build_pipeline


def make_text_to_image(folder: Path) -> Path:
    """The parts of a tiny editor whose UNet reads noise alone, declared a StableDiffusionPipeline."""
    build_pipeline(folder, seed=1, in_channels=4)
    index = folder / "model_index.json"
    content = json.loads(index.read_text())
    content["_class_name"] = "StableDiffusionPipeline"
    index.write_text(json.dumps(content))
    return folder
