"""A folder of a model as those use it who have its library and nothing of this project."""

import json
import multiprocessing
import os
import sys
from pathlib import Path

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
#: What is imported once, by the process of which those that use a folder are forks.
LIBRARIES = [
    "tests.helpers.unswept",
    "diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion_instruct_pix2pix",
    "transformers.models.clip.modeling_clip",
    "open_clip",
]
OURS = {"editors", "metrics", "nein", "train"}


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


def runs(folder, what, scratch):
    """Loads a folder without saying a number type, and uses it once, where only the library is known.

    what     One of USES.
    scratch  Folder to run in.
    """
    libraries = multiprocessing.get_context("forkserver")  # a process that has never seen anything of ours
    libraries.set_forkserver_preload(LIBRARIES)
    process = libraries.Process(target=_use, args=(str(folder), what, str(scratch)))
    process.start()
    process.join(300)
    assert process.exitcode == 0, (scratch / "said").read_text(encoding="utf-8")[-3000:]


def _use(folder, what, scratch):
    os.chdir(scratch)
    with open("said", "w", encoding="utf-8") as said:  # noqa: PTH123
        os.dup2(said.fileno(), 2)
    sys.path[:] = [place for place in sys.path if not (Path(place) / "nein").is_dir()]
    result = np.asarray(USES[what](folder))
    assert result.size
    assert np.isfinite(result).all(), result
    assert not OURS & {name.partition(".")[0] for name in sys.modules}
