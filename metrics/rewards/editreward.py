"""EditReward: heads on Qwen2.5-VL give a number for an edit, from the hidden state at a token <|Reward|>.

Source: arXiv:2509.26346; github.com/TIGER-AI-Lab/EditReward, EditReward/inference_edit.py,
model/qwen2_5_vl_trainer.py and config/ at 246ab58. A head gives (mean, logarithm of the deviation); the mean
is the reward. "ranknet_multi_head" has two heads, for instruction and quality, each with its own question.

A folder holds the authors' model.safetensors or model.pth, *.yaml (heads, pooling, token, base model), and
prompts.py and data_collator_qwen_edit.py, which are read and not run.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from nein.loading.digests import DTYPES, file_sha256, torch_dtype
from nein.loading.errors import choose, first_line
from nein.loading.references import expanded
from nein.metrics import loading
from nein.metrics.base import MetricError, Score
from nein.metrics.rewards import SingleJudge, constants

TOKEN = "<|Reward|>"
#: Tokens of a picture: 256 squares of the processor, 200,704 pixels for Qwen2.5-VL.
SQUARES = 256
AUTHORS = "EditReward/dataset/prompts.py and data_collator_qwen_edit.py of github.com/TIGER-AI-Lab/EditReward"
#: Kind of head -> the questions that are asked, by their names in the authors' file.
_BOTH = ("INSTRUCTION_EDIT_FOLLOWING", "INSTRUCTION_EDIT_QUALITY")
HEADS = {"ranknet_multi_head": _BOTH, "ranknet_share_head": _BOTH, "ranknet": ()}
#: What a single head is asked, by `reward_dim`.
SINGLE = {
    "dim1": _BOTH[0],
    "dim2": _BOTH[1],
    "overall": "INSTRUCTION_EDIT_OVERALL",
    "overall_detail": "INSTRUCTION_EDIT_OVERALL_DETAILED",
}


@dataclass(frozen=True)
class Settings:
    """The authors' configuration.

    heads, pooling  One of `HEADS`; "min", "mean" or "sum" over the heads' outputs.
    outputs, kwargs Numbers that a head gives; of the heads' layers, or None for the usual ones.
    questions       In the order of the heads; {text_prompt} stands for the instruction.
    """

    heads: str
    pooling: str
    outputs: int
    kwargs: Mapping[str, Any] | None
    questions: tuple[str, ...]
    base: str


class EditReward(SingleJudge):
    """Rewards without a bound, higher is better; `detail` has what each head gave."""

    def __init__(
        self, model: Any, heads: nn.ModuleList, processor: Any, settings: Settings, source: loading.Source
    ) -> None:
        super().__init__(model)
        self.heads, self.processor = heads, processor
        self.settings, self.source = settings, source
        self._token = processor.tokenizer.convert_tokens_to_ids(TOKEN)
        images = processor.image_processor
        self._square = int(images.patch_size) * int(images.merge_size)  # side of one token, in pixels
        self._pixels = self._square**2 * SQUARES  # of a picture

    def describe(self) -> dict[str, Any]:
        texts = hashlib.sha256("\0".join(self.settings.questions).encode()).hexdigest()
        return {
            **loading.model_fields("editreward", self.model, self.source),
            "library": loading.library(),
            "heads": self.settings.heads,
            "pooling": self.settings.pooling,
            "questions": texts,
        }

    def one(self, source: np.ndarray, edit: np.ndarray, instruction: str) -> Score:
        outputs = []
        with loading.exact():
            pictures = [self._resized(picture) for picture in (source, edit)]
            for k, question in enumerate(self.settings.questions):
                state = self.state(pictures, question.replace("{text_prompt}", instruction))
                head = self.heads[min(k, len(self.heads) - 1)]
                outputs.append(head(state.float()))
            pooled = pool(torch.stack(outputs), self.settings.pooling)
        each = [[round(float(x), 6) for x in row] for row in outputs]
        if not bool(torch.isfinite(pooled).all()):
            return Score(None, "the reward is not finite", {"heads": [str(row) for row in each]})
        return Score(float(pooled[0]), ", ".join(f"{row[0]:.3f}" for row in each), {"heads": each})

    def state(self, pictures: Sequence[Any], text: str) -> torch.Tensor:
        """(D,), the last hidden state at the reward's token. As released, positions are counted in sequence,
        pictures too, and not by Qwen2.5-VL's three axes."""
        content: list[dict[str, Any]] = [{"type": "image"} for _ in pictures]
        turn = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        prompt = self.processor.apply_chat_template([turn], add_generation_prompt=True)
        inputs = self.processor(
            text=[prompt], images=list(pictures), return_tensors="pt",
            images_kwargs={"size": {"shortest_edge": self._pixels, "longest_edge": self._pixels}},
        ).to(self.model.device)  # fmt: skip
        ids = inputs["input_ids"]
        places = (ids[0] == self._token).nonzero().flatten()
        if len(places) != 1:
            raise ValueError(f"the question has the token {TOKEN} {len(places)} times, not once")
        length = ids.shape[1]
        output = self.model.model(
            input_ids=ids, attention_mask=inputs["attention_mask"],
            pixel_values=inputs["pixel_values"].to(self.model.dtype), image_grid_thw=inputs["image_grid_thw"],
            position_ids=torch.arange(length, device=ids.device).expand(3, 1, length), use_cache=False,
        )  # fmt: skip
        return output.last_hidden_state[0, places[0]]

    def _resized(self, picture: np.ndarray) -> Any:
        from PIL import Image
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

        high, wide = picture.shape[:2]
        height, width = smart_resize(high, wide, self._square, self._pixels, self._pixels)
        return Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC)


def pool(outputs: torch.Tensor, pooling: str) -> torch.Tensor:
    """(heads, outputs) -> (outputs,). "sum": the mean of a sum and the logarithm of its deviation, heads
    taken to be independent; else "min" or "mean", each output for itself."""
    if pooling == "sum":
        deviation = outputs[:, 1].exp().square().sum().sqrt()
        return torch.stack([outputs[:, 0].sum(), deviation.log()])
    return outputs.amin(0) if pooling == "min" else outputs.mean(0)


def head(width: int, outputs: int, kwargs: Mapping[str, Any] | None) -> nn.Sequential:
    """The layers of a head. kwargs: `num_layers` (3), `hidden_size`, `dropout` (0.1), `bias` of the last."""
    sizes, drops, bias = [width, 1024, 16], [0.05, None], True
    if kwargs is not None:
        count = int(kwargs.get("num_layers", 3)) - 1
        sizes = [width, *[int(kwargs["hidden_size"])] * count]
        drops, bias = [float(kwargs.get("dropout", 0.1))] * count, bool(kwargs.get("bias", False))
    layers: list[nn.Module] = []
    for size, drop in zip(itertools.pairwise(sizes), drops, strict=True):
        layers += [nn.Linear(*size), nn.ReLU(), *([nn.Dropout(drop)] if drop is not None else [])]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs, bias=bias))


def check(reference: str) -> tuple[Path, Settings]:
    """The file of weights and the configuration of a folder; loads nothing. Raises MetricError."""
    folder = expanded(reference)
    if not folder.is_dir():
        raise MetricError(
            f"There is no folder '{reference}'; EditReward is read from a folder with its weights, its "
            f"configuration (*.yaml) and {AUTHORS}."
        )
    return _weights(folder), settings(folder)


def settings(folder: Path) -> Settings:
    files = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])
    if len(files) != 1:
        raise MetricError(
            f"'{folder}' has {len(files)} files *.yaml; one, EditReward's configuration, is needed."
        )
    try:
        given = yaml.safe_load(files[0].read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise MetricError(f"'{files[0]}' cannot be read: {first_line(error)}") from None
    if not isinstance(given, dict):
        raise MetricError(f"'{files[0]}' is not a configuration of EditReward.")
    heads = choose("rm_head_type", str(given.get("rm_head_type")), HEADS)
    pooling = choose("pooling_strategy", str(given.get("pooling_strategy", "min")), ("min", "mean", "sum"))
    if not given.get("use_special_tokens") or given.get("reward_token", "special") != "special":
        raise MetricError(
            f"'{files[0]}': only rewards at the token {TOKEN} can be read (use_special_tokens: true)."
        )
    names = HEADS[heads] or (SINGLE[choose("reward_dim", str(given.get("reward_dim")), SINGLE)],)
    end = "prompt_with_special_token"
    texts = constants(folder, [*names, end], AUTHORS)
    outputs = int(given.get("output_dim", 4))
    if pooling == "sum" and outputs != 2:
        raise MetricError(f"'{files[0]}': pooling 'sum' needs output_dim 2, not {outputs}.")
    questions = tuple(texts[name] + texts[end] for name in names)
    own = (folder / "config.json").is_file()
    base = str(folder) if own else str(given.get("model_name_or_path") or "")
    if not base:
        raise MetricError(f"'{files[0]}' names no base model (model_name_or_path).")
    return Settings(heads, pooling, outputs, given.get("rm_head_kwargs"), questions, base)


def load(path_or_id: str, *, device: str, dtype: str) -> EditReward:
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    choose("dtype", dtype, DTYPES)
    file, given = check(path_or_id)
    processor = loading.from_pretrained(AutoProcessor, given.base)
    config = loading.from_pretrained(AutoConfig, given.base)
    if config.model_type != "qwen2_5_vl":
        raise MetricError(
            f"'{given.base}' is a '{config.model_type}' checkpoint; EditReward needs 'qwen2_5_vl'."
        )
    processor.tokenizer.add_special_tokens({"additional_special_tokens": [TOKEN]})
    tensors = {renamed(name): value for name, value in loading.state_dict(file).items()}
    rows = tensors.get("model.language_model.embed_tokens.weight")
    if rows is None:
        raise MetricError(f"'{file}' has no embeddings of words; it is no EditReward.")
    config.text_config.vocab_size = rows.shape[0]
    with torch.random.fork_rng(devices=[]):
        model = AutoModelForImageTextToText.from_config(config, dtype=torch_dtype(dtype))
        count = len(HEADS[given.heads]) if given.heads == "ranknet_multi_head" else 1
        heads = nn.ModuleList(
            head(config.text_config.hidden_size, given.outputs, given.kwargs) for _ in range(count)
        )
    loading.fill(heads, {name.removeprefix(_OF_HEADS): value for name, value in tensors.items()
                  if name.startswith(_OF_HEADS)}, file)  # fmt: skip
    body = {name: value for name, value in tensors.items() if not name.startswith(_OF_HEADS)}
    if config.tie_word_embeddings:
        body.setdefault("lm_head.weight", rows)
    loading.fill(model, body, file)
    model.to(device, torch_dtype(dtype)).eval().requires_grad_(False)
    heads.to(device, torch.float32).eval().requires_grad_(False)
    return EditReward(
        model, heads, processor, given, loading.Source(str(file.parent), None, file_sha256(file))
    )


_OF_HEADS = "heads."


def renamed(name: str) -> str:
    """A tensor's name as this version of transformers has it, and our list of heads."""
    if match := re.match(r"rm_heads\.head_(\d+)\.", name):
        return f"{_OF_HEADS}{match[1]}.{name[match.end() :]}"
    if name.startswith("rm_head."):
        return f"{_OF_HEADS}0.{name.removeprefix('rm_head.')}"
    if name.startswith("visual."):
        return f"model.{name}"
    if name.startswith("model.") and not name.startswith(("model.language_model.", "model.visual.")):
        return f"model.language_model.{name.removeprefix('model.')}"
    return name


def _weights(folder: Path) -> Path:
    """The file that the released code would take. Raises MetricError."""
    for name in ("model.pth", "model.safetensors"):
        if (folder / name).is_file():
            return folder / name
    raise MetricError(f"'{folder}' has neither model.safetensors nor model.pth, EditReward's weights.")
