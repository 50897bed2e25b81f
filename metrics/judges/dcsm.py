"""DCSM: a small convolutional network reads the cosines of all patches with all tokens.

Source: Kang et al., "Is CLIP Ideal? No. Can We Fix It? Yes!" (ICCV 2025, arXiv:2503.08723),
github.com/Raphoo/DCSM_Ideal_CLIP (MIT), src/util/models_and_dataloaders.py, src/evaluating/run_evals.py and
src/training/train.py at 380a19b; its weights are at a link there.

The map of a picture and a sentence has a row for the class token and every patch, and a column for each of
30 tokens. Where a word of the sentence (split at blanks) is one of `WORDS`, the column at the *word's* place
gives way to a fixed one of that word's. The maps of all sentences held against a picture are standardised
together, so that a score depends on the other options of a question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nein.loading.weights import read_checkpoint
from nein.metrics.base import MetricError
from nein.metrics.encoders.clip import ClipEncoder
from nein.metrics.judges.heads import Method

#: Words with a column of their own, where a file says nothing else (run_evals.py).
WORDS = (
    "above", "below", "left", "right", "small", "big", "not", "no", "without", "but", "absent",
)  # fmt: skip
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
        self.columns_of: torch.Tensor
        self.register_buffer("columns_of", torch.zeros(words, rows))

    @property
    def columns(self) -> int:
        """Of a map: tokens of a sentence."""
        return self.fc1.in_features // (self.conv2.out_channels * self.columns_of.shape[1])

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        x = self.conv2(self.conv1(maps[:, None]).relu()).relu()
        return self.fc2(self.fc1(x.flatten(1)).relu())[:, 0]


class Dcsm(Method):
    BASE = "openai/clip-vit-base-patch16"

    @classmethod
    def read(cls, file: Path, base: ClipEncoder) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        content = read_checkpoint(file, inert=True)[0]  # the file has a tokenizer and a module beside
        wanted = ("model_state_dict", "external_logic_token_embeddings")
        if not isinstance(content, Mapping) or any(content.get(key) is None for key in wanted):
            raise MetricError(f"'{file}' is no DCSM: it needs {' and '.join(wanted)}.")
        own = base.model.state_dict()
        for name, tensor in (content.get("clip_state_dict") or {}).items():
            if name in own and (
                own[name].shape != tensor.shape or not torch.allclose(own[name], tensor.cpu())
            ):
                raise MetricError(
                    f"'{file}' was made over another CLIP ('{name}' differs); name it with --base."
                )
        rows = getattr(content["external_logic_token_embeddings"], "_parameters", {}).get("weight")
        if not torch.is_tensor(rows):
            raise MetricError(f"'{file}' has no columns of words under external_logic_token_embeddings.")
        words = list(content.get("learned_lookup") or WORDS)
        if len(words) != len(rows):
            raise MetricError(f"'{file}' has {len(rows)} columns for the {len(words)} words {words}.")
        return {**content["model_state_dict"], "columns_of": rows.detach()}, {"words": words}

    @classmethod
    def build(cls, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        hidden, inputs = tensors["fc1.weight"].shape
        return Reader(len(tensors["conv1.weight"]), inputs, hidden, *tensors["columns_of"].shape)

    def scores(self, pixels: torch.Tensor, texts: Sequence[Sequence[str]]) -> list[torch.Tensor]:
        model, preprocess = self.base.model, self.base.preprocess
        seen = model.vision_model(pixel_values=preprocess.normalise(pixels).to(model.dtype)).last_hidden_state
        patches = _unit(model.visual_projection(model.vision_model.post_layernorm(seen)))
        return [self._row(one, row) for one, row in zip(patches, texts, strict=True)]

    def _row(self, patches: torch.Tensor, texts: Sequence[str]) -> torch.Tensor:
        if not texts:
            return torch.zeros(0)
        maps = torch.stack([self._map(patches, replaced(text)) for text in texts])
        return self.head((maps - maps.mean()) / maps.std())

    def _map(self, patches: torch.Tensor, text: str) -> torch.Tensor:
        """(rows, columns) float32."""
        model, head = self.base.model, self.head
        assert isinstance(head, Reader)
        columns = head.columns
        tokens = self.base.tokens([text], padding="max_length", limit=columns)
        states = model.text_model(
            input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
        ).last_hidden_state[0]
        cosines = patches @ _unit(model.text_projection(states)).T
        words = text.split(" ")
        for word, column in zip(self.config["words"], head.columns_of, strict=True):
            if word in words and (place := words.index(word)) < columns:
                cosines[:, place] = column
        return cosines


def replaced(text: str) -> str:
    """The sentence as the released evaluation puts it."""
    for word, instead in REPLACED:
        text = text.replace(word, instead)
    return text


def _unit(states: torch.Tensor) -> torch.Tensor:
    return (states / states.norm(dim=-1, keepdim=True)).float()
