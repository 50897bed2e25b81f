"""Loads models of the library open_clip as dual encoders, and writes checkpoints as its folders (`convert`).

References:
    open_clip:ViT-B-32/openai                     a published tag; QuickGELU if the tag's weights need it
    open_clip:ViT-B-32/laion400m_e32#gelu         the same without QuickGELU, or with it (#quickgelu)
    open_clip:ViT-B-32/path/to/weights.safetensors
    open_clip:hf-hub:OWNER/NAME                   such as BioMedCLIP
    FOLDER                                        open_clip_config.json and open_clip_model.safetensors
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nein.loading.digests import Json, folder_digest, tensor_digest
from nein.loading.errors import choose, message
from nein.loading.references import TEXTS, Need
from nein.loading.weights import DTYPES, check_tokenizer, read_checkpoint
from nein.metrics import loading
from nein.metrics.base import MetricError, check_image, split_chunks
from nein.metrics.encoders import TwoTowers, join_features
from nein.metrics.preprocess import map_images

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
PREFIX = "open_clip:"
#: Errors of open_clip, torch and safetensors for weights that do not fit a configuration.
UNFIT = (*loading.UNREADABLE, TypeError, AttributeError, AssertionError, IndexError, ZeroDivisionError)
ACTIVATIONS = {"gelu": False, "quickgelu": True}  # name -> whether it is QuickGELU


class OpenClipDual(TwoTowers):
    """A model of open_clip. transform: PIL image -> (3, S, S) float32; tokenizer: N sentences -> (N, L)."""

    def __init__(
        self, model: Any, transform: Any, tokenizer: Any, source: loading.Source, batch_size: int
    ) -> None:
        self.model, self.transform, self.source, self.batch_size = model, transform, source, batch_size
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        first = next(model.parameters())
        self.dtype, self.device = first.dtype, first.device
        self.set_properties()

    def describe(self) -> Json:
        config = getattr(self.model.visual, "preprocess_cfg", None) or {}
        preprocess = {k: list(v) if isinstance(v, tuple) else v for k, v in sorted(config.items())}
        about = {"quick_gelu": self.quick_gelu, "preprocess": preprocess}
        library = f"open_clip {version('open_clip_torch')}"
        return loading.describe_model("dual", self.model, self.source, **about, library=library)

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        checked = [check_image(image) for image in images]
        inputs = map_images(lambda image: self.transform(Image.fromarray(image)), checked)  # 3 S S each
        batches = map(torch.stack, split_chunks(inputs, self.batch_size))  # N 3 S S each
        features = (self.model.encode_image(batch.to(self.device, self.dtype)) for batch in batches)  # N D
        return join_features(features, self.width)

    def overlong(self, texts: Sequence[str]) -> list[bool]:
        """Tell for each sentence whether it has more tokens than the model reads: if the tokenizer gets room
        for one more, the last token is then not padding."""
        length = self.tokenizer(["."]).shape[1]
        try:
            padding = self.tokenizer(["."], context_length=length + 1)[0, -1]
        except TypeError:  # a tokenizer with a fixed length
            return [False] * len(texts)
        last = self.tokenizer(list(texts), context_length=length + 1)[:, -1]  # (N,)
        return [bool(token != padding) for token in last]

    def text_features(self, texts: Sequence[str]) -> torch.Tensor:
        return self.model.encode_text(self.tokenizer(list(texts)).to(self.device))


def load(path_or_id: str, *, device: str, dtype: str, batch_size: int = 32) -> OpenClipDual:
    """Load a model by reference. Raises MetricError."""
    choose("dtype", dtype, DTYPES)
    open_clip = _import_library()
    name, tag, activation = _split_reference(open_clip, path_or_id)
    is_published = tag is not None and not Path(tag).is_file()
    published = (open_clip.get_pretrained_cfg(name, tag) if is_published else None) or {}
    quick_gelu = ACTIVATIONS.get(activation, bool(published.get("quick_gelu", False)))
    precision = {"float32": "fp32", "float16": "pure_fp16", "bfloat16": "pure_bf16"}[dtype]
    # open_clip draws random weights first; the global generator is left unchanged.
    with torch.random.fork_rng(devices=[]):
        try:
            model, transform = open_clip.create_model_from_pretrained(
                name, tag, precision=precision, device=device, force_quick_gelu=quick_gelu, weights_only=True
            )
            tokenizer = open_clip.get_tokenizer(name)
        except UNFIT as error:
            raise MetricError(f"Cannot load '{path_or_id}' with open_clip: {message(error)}") from error
    hub_tokenizer = getattr(tokenizer, "tokenizer", None)  # that of transformers; None: one of open_clip
    if hub_tokenizer is not None:
        from transformers import PretrainedConfig

        config: Any = PretrainedConfig()
        config.vocab_size = getattr(model, "vocab_size", 0) or None
        check_tokenizer(hub_tokenizer, config, path_or_id)
    model.eval().requires_grad_(False)
    folder = name.removeprefix("local-dir:")
    is_folder = folder != name
    digest = folder_digest(Path(folder)) if is_folder else tensor_digest(model.state_dict())
    source = loading.Source(path_or_id, None, digest)
    return OpenClipDual(model, transform, tokenizer, source, batch_size)


def check(path_or_id: str) -> None:
    """Raise MetricError for a reference that `load` cannot take."""
    _split_reference(_import_library(), path_or_id)


def origins(path_or_id: str) -> list[Need]:
    """List the downloads: weights, and the files of a text tower of transformers. Raises MetricError."""
    open_clip = _import_library()
    name, tag, _ = _split_reference(open_clip, path_or_id)
    if name.startswith("hf-hub:"):
        return [Need(name.removeprefix("hf-hub:"), files=("open_clip_*", *TEXTS))]
    if tag is None or Path(tag).is_file():
        return []
    repository, _, file = open_clip.get_pretrained_cfg(name, tag)["hf_hub"].rpartition("/")
    weights = (file, f"{file.rpartition('.')[0]}.safetensors") if file else ("open_clip_*",)
    needs = [Need(repository, files=(*weights, *TEXTS))]
    text_config = open_clip.get_model_config(name)["text_cfg"]
    towers = dict.fromkeys(text_config.get(key) for key in ("hf_model_name", "hf_tokenizer_name"))  # distinct
    return needs + [Need(tower, files=TEXTS) for tower in towers if tower]


def convert(source: Path, folder: Path, *, architecture: str, quick_gelu: bool = False) -> dict[str, Any]:
    """Write a checkpoint as a folder of open_clip with safetensors; return how. Raises MetricError.

    source        A PyTorch pickle (nothing in it runs) or .safetensors with a state dict, a training
                  checkpoint that has one (NegCLIP, CoN-CLIP, NegBench), or OpenAI's `clip` (NegationCLIP).
    architecture  Name in open_clip's table, such as "ViT-B-32", or a JSON file with such a configuration.
    quick_gelu    Whether the weights need QuickGELU. NegBench's released command line names "ViT-B-32",
                  without it, for all its files."""
    from safetensors.torch import save_file

    open_clip = _import_library()
    config = _read_architecture(open_clip, architecture)
    if quick_gelu:
        config["quick_gelu"] = True
    state = _read_state_dict(source)
    # Written twice: the library's loader reads the first draft and maps other layouts to its own.
    with loading.new_folder(folder) as draft, torch.random.fork_rng(devices=[]):
        save_file({key: value.clone().contiguous() for key, value in state.items()}, draft / WEIGHTS)
        try:
            preprocess = asdict(open_clip.transform.PreprocessCfg(size=config["vision_cfg"]["image_size"]))
            described = {"model_cfg": config, "preprocess_cfg": preprocess}
            (draft / CONFIG).write_text(f"{json.dumps(described, indent=2)}\n", encoding="utf-8")
            model = open_clip.create_model(f"local-dir:{draft}", pretrained_hf=False, weights_only=True)
        except UNFIT as error:
            raise MetricError(f"'{source}' does not fit '{architecture}': {message(error)}") from None
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, draft / WEIGHTS)
        save_tokenizer(config, draft)
    return {"architecture": architecture, "quick_gelu": quick_gelu, "tensors": len(state)}


def _read_state_dict(file: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a checkpoint by name, without DistributedDataParallel's prefix "module."."""
    state = read_checkpoint(file)[0]
    for key in ("state_dict", "model", "model_state_dict"):  # one of them in a training checkpoint
        if isinstance(state, Mapping) and key in state:
            state = state[key]
            break
    if not isinstance(state, Mapping) or not state or not all(torch.is_tensor(v) for v in state.values()):
        raise MetricError(f"'{file}' has no state dict of tensors.")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def save_tokenizer(config: Mapping[str, Any], folder: Path, source: Path | None = None) -> None:
    """Save the tokenizer of a text tower of transformers in `folder`. source: its folder; None: the hub."""
    name = config["text_cfg"].get("hf_tokenizer_name")
    if name:
        from transformers import AutoTokenizer

        loading.load_pretrained(AutoTokenizer, str(source or name)).save_pretrained(folder)


def _import_library() -> Any:
    try:
        import open_clip
    except ImportError:
        raise MetricError("Models of open_clip need open_clip_torch: pip install -e '.[negbench]'.") from None
    return open_clip


def _split_reference(open_clip: Any, reference: str) -> tuple[str, str | None, str]:
    """Split into (model name, tag or file, activation): None and "" if not given. Raises MetricError."""
    if Path(reference, CONFIG).is_file():
        if not (Path(reference) / WEIGHTS).is_file():
            raise MetricError(f"The model folder '{reference}' has no {WEIGHTS}.")
        return f"local-dir:{reference}", None, ""
    text = reference.removeprefix(PREFIX)
    if text.startswith("hf-hub:"):
        return text, None, ""
    model, hash_, activation = text.partition("#")
    if hash_:
        choose("activation", activation, ACTIVATIONS)
    name, slash, tag = model.partition("/")
    choose("open_clip architecture", name, sorted(open_clip.list_models()))
    tags = open_clip.list_pretrained_tags_by_model(name)
    if not slash:
        advice = f"pass {PREFIX}{name}/TAG, TAG one of {', '.join(tags)}"
        raise MetricError(f"'{reference}' names no weights; {advice}.")
    if Path(tag).suffix in (".pt", ".pth", ".bin", ".ckpt"):
        command = f"nein negbench convert --architecture {name} {tag} FOLDER"
        raise MetricError(f"'{tag}' is a pickle; first {command}.")
    if Path(tag).suffix != ".safetensors":
        choose(f"tag of {name}", tag, tags)
    elif not Path(tag).is_file():
        raise MetricError(f"There is no file '{tag}'.")
    return name, tag, activation


def _read_architecture(open_clip: Any, architecture: str) -> dict[str, Any]:
    """Find a configuration by name, or read it from a JSON file. Raises MetricError."""
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
