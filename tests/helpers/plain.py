"""A folder of a model as those use it who have its library and nothing of this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

EDIT = """
import numpy as np, torch
from PIL import Image
from diffusers import StableDiffusionInstructPix2PixPipeline
pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(FOLDER)
picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
edited = pipeline("The image lacks dog.", picture, num_inference_steps=2, output_type="np").images
result = np.asarray(edited)
"""
TRANSFORMERS = """
import numpy as np, torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer
model, tokenizer = AutoModel.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))
pixels = AutoImageProcessor.from_pretrained(FOLDER)(picture, return_tensors="pt")
words = tokenizer(["There is no dog."], padding="max_length", max_length=16, return_tensors="pt")
with torch.no_grad():
    result = model(input_ids=words.input_ids, **pixels).logits_per_image.numpy()
"""
OPEN_CLIP = """
import numpy as np, open_clip, torch
from PIL import Image
model, _, preprocess = open_clip.create_model_and_transforms("local-dir:" + FOLDER)
tokenizer = open_clip.get_tokenizer("local-dir:" + FOLDER)
picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))
with torch.no_grad():
    image, text = model.encode_image(preprocess(picture)[None]), model.encode_text(tokenizer(["no dog"]))
result = (image @ text.T).numpy()
"""
SCRIPTS = {"edit": EDIT, "transformers": TRANSFORMERS, "open_clip": OPEN_CLIP}


def number_types(folder: Path) -> set[str]:
    """Types of the numbers of all weights in a folder, and those that its configurations name."""
    from safetensors import safe_open

    types = set()
    for file in folder.rglob("*.safetensors"):
        with safe_open(file, "pt") as handle:
            tensors = [handle.get_tensor(key) for key in handle.keys()]
        types |= {
            str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point()
        }
    for file in folder.rglob("config.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        types |= {content[key] for key in ("dtype", "torch_dtype") if content.get(key)}
    return types


def runs(folder: Path, what: str, scratch: Path) -> None:
    """Loads a folder without saying a number type, and uses it once, where only the library is known.

    what     "edit", "transformers" or "open_clip".
    scratch  Folder to run in.
    """
    check = "assert result.size and np.isfinite(result).all(), result"
    code = f"FOLDER = {str(folder)!r}\n{SCRIPTS[what]}\n{check}\n"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=scratch, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
