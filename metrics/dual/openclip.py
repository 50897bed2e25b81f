"""Models of open_clip: by architecture and tag, from the hub, or from a folder that `convert` wrote.

open_clip:ViT-B-32/openai                     a published tag; QuickGELU where the tag's weights need it
open_clip:ViT-B-32/laion400m_e32#gelu         the same without QuickGELU, or with it (#quickgelu)
open_clip:ViT-B-32/path/to/weights.safetensors
open_clip:hf-hub:OWNER/NAME                   BioMedCLIP, say
FOLDER                                        open_clip_config.json and open_clip_model.safetensors
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nein.loading.digests import Json, folder_digest, tensor_digest
from nein.loading.errors import choose, message
from nein.loading.references import TEXTS, Need
from nein.loading.weights import DTYPES, check_tokenizer
from nein.metrics import loading
from nein.metrics.base import MetricError, check_image, split_chunks
from nein.metrics.encoders import TwoTowers, join_features
from nein.metrics.preprocess import map_images

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
PREFIX = "open_clip:"
#: What open_clip, torch and safetensors raise for files and descriptions that do not fit each other.
UNFIT = (*loading.UNREADABLE, TypeError, AttributeError, AssertionError, IndexError, ZeroDivisionError)
ACTIVATIONS = {"gelu": False, "quickgelu": True}


class OpenClipDual(TwoTowers):
    """A model of open_clip behind the library's own transform for it.

    transform  A PIL image -> (3, S, S) float32 tensor.
    tokenizer  A list of sentences -> (N, L) int64 tensor.
    """

    def __init__(
        self, model: Any, transform: Any, tokenizer: Any, source: loading.Source, batch_size: int
    ) -> None:
        self.model, self.transform, self.source, self.batch_size = model, transform, source, batch_size
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        first = next(model.parameters())
        self.dtype, self.device = first.dtype, first.device
        self.set_properties()

    def describe(self) -> Json:
        from importlib.metadata import version

        preprocess = getattr(self.model.visual, "preprocess_cfg", None) or {}
        return {
            **loading.model_fields("dual", self.model, self.source),
            "quick_gelu": self.quick_gelu,
            "preprocess": {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(preprocess.items())},
            "library": f"open_clip {version('open_clip_torch')}",
        }

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        from PIL import Image

        checked = [check_image(image) for image in images]
        inputs = map_images(lambda image: self.transform(Image.fromarray(image)), checked)  # 3 S S each
        parts = (
            torch.stack(part).to(self.device, self.dtype) for part in split_chunks(inputs, self.batch_size)
        )
        return join_features(map(self.model.encode_image, parts), self.width)

    def overlong(self, texts: Sequence[str]) -> list[bool]:
        """(N,) whether a sentence is longer than what the model reads: one place more is no padding."""
        length = self.tokenizer(["."]).shape[1]
        try:
            padding = self.tokenizer(["."], context_length=length + 1)[0, -1]
        except TypeError:  # a tokenizer of its own
            return [False] * len(texts)
        more = self.tokenizer(list(texts), context_length=length + 1)[:, -1]  # (N,) the last token
        return [bool(token != padding) for token in more]

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        return self.model.encode_text(self.tokenizer(list(texts)).to(self.device))


def load(path_or_id: str, *, device: str, dtype: str, batch_size: int = 32) -> OpenClipDual:
    choose("dtype", dtype, DTYPES)
    open_clip = _library()
    name, tag, activation = _parts(open_clip, path_or_id)
    published = (
        open_clip.get_pretrained_cfg(name, tag) if tag is not None and not Path(tag).is_file() else None
    )
    quick = ACTIVATIONS.get(activation, bool((published or {}).get("quick_gelu", False)))
    precision = {"float32": "fp32", "float16": "pure_fp16", "bfloat16": "pure_bf16"}[dtype]
    with torch.random.fork_rng(devices=[]):
        try:
            model, transform = open_clip.create_model_from_pretrained(
                name, tag, precision=precision, device=device, force_quick_gelu=quick, weights_only=True
            )
            tokenizer = open_clip.get_tokenizer(name)
        except UNFIT as error:
            raise MetricError(f"Cannot load '{path_or_id}' with open_clip: {message(error)}") from error
    if (of_transformers := getattr(tokenizer, "tokenizer", None)) is not None:
        from transformers import PretrainedConfig

        config: Any = PretrainedConfig()
        config.vocab_size = getattr(model, "vocab_size", 0) or None
        check_tokenizer(of_transformers, config, path_or_id)
    model.eval().requires_grad_(False)
    folder = name.removeprefix("local-dir:")
    digest = folder_digest(Path(folder)) if folder != name else tensor_digest(model.state_dict())
    source = loading.Source(path_or_id, None, digest)
    return OpenClipDual(model, transform, tokenizer, source, batch_size)


def check(path_or_id: str) -> None:
    """Raises MetricError for a reference that `load` could not take."""
    _parts(_library(), path_or_id)


def origins(path_or_id: str) -> list[Need]:
    """The repository of the weights, and what a text tower of transformers' is built from, without weights.
    Raises MetricError."""
    open_clip = _library()
    name, tag, _ = _parts(open_clip, path_or_id)
    if name.startswith("hf-hub:"):
        return [Need(name.removeprefix("hf-hub:"), files=("open_clip_*", *TEXTS))]
    if tag is None or Path(tag).is_file():
        return []
    repository, _, file = open_clip.get_pretrained_cfg(name, tag)["hf_hub"].rpartition("/")
    weights = (file, f"{file.rpartition('.')[0]}.safetensors") if file else ("open_clip_*",)
    text = open_clip.get_model_config(name)["text_cfg"]
    names = dict.fromkeys(text.get(key) for key in ("hf_model_name", "hf_tokenizer_name"))
    return [Need(repository, files=(*weights, *TEXTS)), *(Need(name, files=TEXTS) for name in names if name)]


def convert(source: Path, folder: Path, *, architecture: str, quick_gelu: bool = False) -> dict[str, Any]:
    """Write a state dict of open_clip as a folder of safetensors; returns its origin. Raises MetricError.

    source        A PyTorch pickle (nothing in it runs) or .safetensors; a state dict, or a training
                  checkpoint with one (NegCLIP, CoN-CLIP, NegBench), or OpenAI's `clip` (NegationCLIP).
    architecture  Name in open_clip's table, such as "ViT-B-32", or a JSON file with such a configuration.
    quick_gelu    NegBench's released command line names "ViT-B-32", without, for all its files.
    """
    from safetensors.torch import save_file

    open_clip = _library()
    config = _architecture(open_clip, architecture)
    if quick_gelu:
        config["quick_gelu"] = True
    state = loading.read_state_dict(source)
    with loading.new_folder(folder) as draft, torch.random.fork_rng(devices=[]):
        save_file({key: value.clone().contiguous() for key, value in state.items()}, draft / WEIGHTS)
        try:
            preprocess = asdict(open_clip.transform.PreprocessCfg(size=config["vision_cfg"]["image_size"]))
            described = {"model_cfg": config, "preprocess_cfg": preprocess}
            (draft / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
            model = open_clip.create_model(f"local-dir:{draft}", pretrained_hf=False, weights_only=True)
        except UNFIT as error:
            raise MetricError(f"'{source}' does not fit '{architecture}': {message(error)}") from None
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, draft / WEIGHTS)
        save_tokenizer(config, draft)
    return {"architecture": architecture, "quick_gelu": quick_gelu, "tensors": len(state)}


def save_tokenizer(config: Mapping[str, Any], folder: Path, source: Path | None = None) -> None:
    """Put the tokenizer of a text tower of transformers', of the folder `source`, into a model folder."""
    name = config["text_cfg"].get("hf_tokenizer_name")
    if name:
        from transformers import AutoTokenizer

        loading.load_pretrained(AutoTokenizer, str(source or name)).save_pretrained(folder)


def _library() -> Any:
    try:
        import open_clip
    except ImportError:
        raise MetricError("Models of open_clip need open_clip_torch: pip install -e '.[negbench]'.") from None
    return open_clip


def _parts(open_clip: Any, reference: str) -> tuple[str, str | None, str]:
    """(model name, tag or file, activation) as open_clip takes them. Raises MetricError."""
    if Path(reference, CONFIG).is_file():
        if not (Path(reference) / WEIGHTS).is_file():
            raise MetricError(f"The model folder '{reference}' has no {WEIGHTS}.")
        return f"local-dir:{reference}", None, ""
    text = reference.removeprefix(PREFIX)
    if text.startswith("hf-hub:"):
        return text, None, ""
    text, hash_, activation = text.partition("#")
    if hash_:
        choose("activation", activation, ACTIVATIONS)
    name, slash, tag = text.partition("/")
    choose("open_clip architecture", name, sorted(open_clip.list_models()))
    tags = open_clip.list_pretrained_tags_by_model(name)
    if not slash:
        raise MetricError(
            f"'{reference}' names no weights; say {PREFIX}{name}/TAG, TAG one of {', '.join(tags)}."
        )
    if Path(tag).suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise MetricError(
            f"'{tag}' is a pickle; first nein negbench convert --architecture {name} {tag} FOLDER."
        )
    if Path(tag).suffix != ".safetensors":
        choose(f"tag of {name}", tag, tags)
    elif not Path(tag).is_file():
        raise MetricError(f"There is no file '{tag}'.")
    return name, tag, activation


def _architecture(open_clip: Any, architecture: str) -> dict[str, Any]:
    if architecture.endswith(".json"):
        try:
            config = json.loads(Path(architecture).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MetricError(f"'{architecture}' is not a readable JSON file ({error}).") from None
        config = config.get("model_cfg", config) if isinstance(config, dict) else {}
        if not {"embed_dim", "vision_cfg", "text_cfg"} <= set(config):
            raise MetricError(f"'{architecture}' must have embed_dim, vision_cfg and text_cfg.")
        return dict(config)
    choose("open_clip architecture", architecture, sorted(open_clip.list_models()))
    return dict(open_clip.get_model_config(architecture))
