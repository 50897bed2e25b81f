"""A folder of a model as its library uses it."""

import json

import numpy as np
from PIL import Image


def _edit(folder):
    from diffusers import StableDiffusionInstructPix2PixPipeline

    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(folder)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    return pipeline("The image lacks dog.", picture, num_inference_steps=2, output_type="np").images


def _transformers(folder):
    import torch
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))
    pixels = AutoImageProcessor.from_pretrained(folder)(picture, return_tensors="pt")
    words = tokenizer(["There is no dog."], padding="max_length", max_length=16, return_tensors="pt")
    with torch.no_grad():
        return model(input_ids=words.input_ids, **pixels).logits_per_image.numpy()


def _open_clip(folder):
    import open_clip
    import torch

    model, _, preprocess = open_clip.create_model_and_transforms("local-dir:" + folder)
    tokenizer = open_clip.get_tokenizer("local-dir:" + folder)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8))
    with torch.no_grad():
        image, text = model.encode_image(preprocess(picture)[None]), model.encode_text(tokenizer(["no dog"]))
    return (image @ text.T).numpy()


USES = {"edit": _edit, "transformers": _transformers, "open_clip": _open_clip}


def number_types(folder):
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


def rob(folder):
    """Takes one tensor, the last by its name, out of the only file of weights in a folder."""
    from safetensors.torch import load_file, save_file

    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    del weights[max(weights)]
    save_file(weights, file, metadata={"format": "pt"})


def runs(folder, what):
    """Loads a folder by one of USES without saying a dtype, and uses it once."""
    for file in folder.glob("model_index.json"):
        parts = [part[0] for part in json.loads(file.read_text()).values() if isinstance(part, list)]
        assert set(parts) <= {"diffusers", "transformers", None}
    assert np.isfinite(np.asarray(USES[what](str(folder)))).all()
