"""DCSM: a small convolutional network reads the cosines of all patches with all tokens of a frozen CLIP.

Source: Kang et al., ICCV 2025, arXiv:2503.08723; github.com/Raphoo/DCSM_Ideal_CLIP (MIT),
src/util/models_and_dataloaders.py, src/evaluating/run_evals.py and src/training/train.py at 380a19b.
`convert` (nein negbench convert --architecture dcsm) reads the authors' file once and writes a folder.

The map of a picture and a sentence has a row for the class token and every patch, and a column for each of
30 tokens. Where a word of the sentence (split at blanks) is one of `WORDS`, the column at the *word's* place
gives way to a fixed one. The maps of all sentences held against a picture are standardised together, so that
a score depends on the other options of a question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from nein.loading.digests import file_sha256
from nein.loading.errors import message
from nein.loading.references import located
from nein.loading.weights import read_checkpoint
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, Texts
from nein.metrics.encoders import ClipEncoder, load_clip
from nein.metrics.judges.base import check_batch
from nein.metrics.preprocess import map_images, normalised

#: The CLIP of the authors.
BASE = "openai/clip-vit-base-patch16"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
#: Words with a column of their own, where a file says nothing else (run_evals.py).
WORDS = ("above", "below", "left", "right", "small", "big", "not", "no", "without", "but", "absent")
#: What the released evaluation replaces in every sentence, in this order (run_evals.py).
REPLACED = ((" behind ", " above "), (" in front of ", " below "), (" bottom", " below"), (" top", " above"))


class Reader(nn.Module):
    """(N, rows, columns) maps -> (N,).

    words  How many have a column of their own: `columns_of`, (words, rows), which is not learned.
    """

    def __init__(self, channels: int, inputs: int, hidden: int, words: int, rows: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, 1)
        self.columns = inputs // (channels * rows)  # of a map: tokens of a sentence
        self.columns_of: torch.Tensor
        self.register_buffer("columns_of", torch.zeros(words, rows))

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        x = self.conv2(self.conv1(maps[:, None]).relu()).relu()
        return self.fc2(self.fc1(x.flatten(1)).relu())[:, 0]


class Dcsm(Described):
    """A judge "itm". config: what config.json says; digest: of the network's weights."""

    def __init__(self, base: ClipEncoder, head: Reader, config: Mapping[str, Any], digest: str) -> None:
        self.base, self.head, self.config, self.digest = base, head, config, digest

    def describe(self) -> dict[str, Any]:
        named = {"kind": "itm", "method": "dcsm", "head": self.digest, "words": self.config["words"]}
        return {**self.base.describe(), **named}

    def match(self, images: Images, texts: Texts, head: Literal["itc", "itm"] = "itm") -> list[np.ndarray]:
        check_batch(images, texts, "texts")
        if not images:
            return []
        model, preprocess = self.base.model, self.base.preprocess
        with loading.exact():
            crops = torch.from_numpy(np.stack(map_images(preprocess, images))).to(model.device)  # N S S 3
            pixels = normalised(crops, preprocess.mean, preprocess.std).to(model.dtype)  # N 3 S S
            seen = model.vision_model(pixel_values=pixels).last_hidden_state
            patches = _unit(model.visual_projection(model.vision_model.post_layernorm(seen)))  # N rows D
            rows = [torch.zeros(0, dtype=torch.float32)] * len(texts)
            for k, row in enumerate(texts):
                if row:
                    maps = torch.stack([self._map(patches[k], replaced(text)) for text in row])
                    rows[k] = self.head((maps - maps.mean()) / maps.std())
        return [row.double().cpu().numpy() for row in rows]

    def _map(self, patches: torch.Tensor, text: str) -> torch.Tensor:
        model, columns = self.base.model, self.head.columns
        tokens = self.base.tokens([text], padding="max_length", max_length=columns)
        states = model.text_model(**loading.on_device(model, tokens)).last_hidden_state[0]
        cosines = patches @ _unit(model.text_projection(states)).T
        words = text.split(" ")
        for word, column in zip(self.config["words"], self.head.columns_of, strict=True):
            if word in words and (index := words.index(word)) < columns:
                cosines[:, index] = column
        return cosines


def replaced(text: str) -> str:
    for word, instead in REPLACED:
        text = text.replace(word, instead)
    return text


def convert(source: Path, folder: Path, *, base: str = "") -> dict[str, Any]:
    """Writes the authors' file as a folder; returns its origin. base: the CLIP. Raises MetricError."""
    from safetensors.torch import save_file

    base = base or BASE
    content = read_checkpoint(source, inert=True)[0]  # the file has a tokenizer and a module beside
    wanted = ("model_state_dict", "external_logic_token_embeddings")
    if not isinstance(content, Mapping) or any(content.get(key) is None for key in wanted):
        raise MetricError(f"'{source}' is not a DCSM: it needs {' and '.join(wanted)}.")
    encoder = load_clip(located(base), device="cpu", dtype="float32")
    own = encoder.model.state_dict()
    for name, tensor in (content.get("clip_state_dict") or {}).items():
        if name in own and (own[name].shape != tensor.shape or not torch.allclose(own[name], tensor.cpu())):
            raise MetricError(
                f"'{source}' was made over another CLIP ('{name}' differs); name it with --base."
            )
    rows = getattr(content["external_logic_token_embeddings"], "_parameters", {}).get("weight")
    if not torch.is_tensor(rows):
        raise MetricError(f"'{source}' has no columns of words under external_logic_token_embeddings.")
    words = list(content.get("learned_lookup") or WORDS)
    if len(words) != len(rows):
        raise MetricError(f"'{source}' has {len(rows)} columns for the {len(words)} words {words}.")
    tensors = {**content["model_state_dict"], "columns_of": rows.detach()}
    _filled(tensors, source)
    with loading.new_folder(folder) as draft:
        save_file({name: raw.float().contiguous().clone() for name, raw in tensors.items()}, draft / WEIGHTS)
        config = {"model_type": "dcsm", "base": base, "words": words}
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return {"architecture": "dcsm", "base": base, "tensors": len(tensors)}


def load(path_or_id: str, *, device: str, dtype: str) -> Dcsm:
    from safetensors.torch import load_file

    folder = Path(path_or_id)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MetricError(f"'{folder / CONFIG}' cannot be read: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("base"), str):
        raise MetricError(f"'{folder / CONFIG}' is neither BLIP nor DCSM; convert DCSM's file again.")
    file = folder / WEIGHTS
    base = load_clip(located(config["base"]), device=device, dtype=dtype)
    head = _filled(load_file(file), file).to(base.model.device, torch.float32)
    return Dcsm(base, head.eval().requires_grad_(False), config, file_sha256(file))


def _filled(tensors: Mapping[str, torch.Tensor], file: Path) -> Reader:
    try:
        hidden, inputs = tensors["fc1.weight"].shape
        with torch.random.fork_rng(devices=[]):
            head = Reader(len(tensors["conv1.weight"]), inputs, hidden, *tensors["columns_of"].shape)
    except (KeyError, IndexError, RuntimeError) as error:
        raise MetricError(f"'{file}' lacks weights of DCSM: {error}.") from None
    try:
        head.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise MetricError(f"The weights in '{file}' do not fit: {message(error)}") from None
    return head


def _unit(states: torch.Tensor) -> torch.Tensor:
    return (states / states.norm(dim=-1, keepdim=True)).float()
