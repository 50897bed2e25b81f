"""Pipelines: read from a folder or the hub. Weights are safetensors, or else plain tensors of .bin files, of
which nothing runs (weights_only=True).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from diffusers import AutoencoderKL, ModelMixin, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from huggingface_hub import hf_hub_download
from safetensors import safe_open
from transformers import CLIPTextModel, PreTrainedModel
from transformers.utils import logging as transformers_logging

from nein.editors.base import EditorError
from nein.editors.presets import split_lora
from nein.loading.digests import Json
from nein.loading.errors import UserError, message, out_of_memory
from nein.loading.references import check_hub, expand_user, is_local, parse_reference
from nein.loading.weights import align, check_loaded, check_tokenizer

_PARTS: dict[str, Any] = {
    "unet": UNet2DConditionModel, "vae": AutoencoderKL, "text_encoder": CLIPTextModel,
}  # fmt: skip
#: The two matrices of a module of LoRA, as peft, diffusers and kohya name them.
_HALF = re.compile(r"(.*)[._](?:lora_A|lora_B|lora_down|lora_up|down|up)(?:\.\w+)?\.weight")
#: Written beside a converted pipeline: what it was made of.
ORIGIN = "origin.json"

logger = logging.getLogger(__name__)


def find_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise EditorError(f"unknown device {name!r}; use for instance 'cpu' or 'cuda:1'") from error


def place(module: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The module for inference."""
    return align(module.to(device=device, dtype=dtype).eval()).requires_grad_(False)


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline on the CPU in float32, and what is known of its origin.

    weights_sha256  Over tensors and configuration of UNet, VAE, text encoder and tokenizer, in float32.
    published       The class that the checkpoint declares, and what it was converted from.
    """

    pipeline: Any
    weights_sha256: str
    published: Json = field(default_factory=dict)


def load_pipeline(
    checkpoint: str,
    revision: str | None = None,
    *,
    channels: tuple[int, ...] = (8,),
    tuned: str | None = None,
) -> LoadedPipeline:
    """Load `checkpoint`: a folder in diffusers' layout or a hub id, optionally "owner/name@revision".

    The class is StableDiffusionInstructPix2PixPipeline, whatever model_index.json declares (published
    MagicBrush copies declare StableDiffusionPipeline), without the safety checker, which would black out
    images. channels: what its UNet may have as input. tuned: LoRA weights to fuse into its own, as
    `presets.split_lora` reads their name. Raises EditorError.
    """
    if (file := expand_user(checkpoint)).is_file():
        raise EditorError(
            f"'{checkpoint}' is a file of Python; name a function in it: {checkpoint}:FUNCTION"
            if file.suffix == ".py"
            else f"'{checkpoint}' is a single file, and an editor is a folder; write one with `nein convert "
            f"{file.name} FOLDER --ema` (or --no-ema), which runs nothing of it"
        )
    with explained(checkpoint):
        source, revision = locate(checkpoint, revision)
        # Before gigabytes are read or fetched.
        unet = UNet2DConditionModel.load_config(source, subfolder="unet", revision=revision)
        check_channels(unet.get("in_channels", 4), checkpoint, channels)
        parts = {
            part: whole(kind, checkpoint, source, revision, subfolder=part) for part, kind in _PARTS.items()
        }
        absent = dict.fromkeys(("safety_checker", "feature_extractor", "image_encoder"))
        pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
            source, revision=revision, requires_safety_checker=False, **absent, **parts
        )
        index = StableDiffusionInstructPix2PixPipeline.load_config(source, revision=revision)
        published: Json = {"class": index.get("_class_name")}
        if (made_of := Path(source, ORIGIN)).is_file():
            published["converted_from"] = json.loads(made_of.read_text(encoding="utf-8"))
        pipeline.to(torch.float32)
        if tuned is not None:
            add_lora(pipeline, tuned)
    pipeline.set_progress_bar_config(disable=True)
    return _known(pipeline, checkpoint, published)


def in_memory(pipeline: Any) -> LoadedPipeline:
    """A StableDiffusionInstructPix2PixPipeline that the caller has made, as it is. Raises EditorError."""
    check_channels(pipeline.unet.config.in_channels, "the pipeline in memory", (8,))
    return _known(pipeline, "the pipeline in memory", {})


def _known(pipeline: Any, name: str, published: Json) -> LoadedPipeline:
    check_tokenizers(pipeline, name)
    parts = {part: getattr(pipeline, part) for part in _PARTS}
    return LoadedPipeline(pipeline, content_hash(parts, [pipeline.tokenizer]), published)


def check_channels(channels: int, checkpoint: str, allowed: tuple[int, ...]) -> None:
    """Raise EditorError unless the UNet takes what an instruction editor's does."""
    if channels not in allowed:
        raise EditorError(
            f"{checkpoint!r} is not an instruction editor: its UNet takes {channels} channels, but "
            f"InstructPix2Pix needs 8 (4 of the noisy latent and 4 of the source image)"
        )


def locate(reference: str, revision: str | None = None) -> tuple[str, str | None]:
    """(folder, None) or (hub id, revision or None). Raises EditorError."""
    if is_local(reference):
        return str(expand_user(reference)), None
    given = parse_reference(reference)
    if given.kind != "hub" or given.name.count("/") != 1:
        raise EditorError(
            f"{reference!r} is neither an existing folder nor a hub id of the form owner/name; check the path"
        )
    check_hub(given.name, revision or given.revision)
    return given.name, revision or given.revision


def whole(cls: Any, checkpoint: str, source: str, revision: str | None, **arguments: Any) -> Any:
    """A model of which no weight is missing. Raises EditorError; warns of what its class leaves out.
    arguments: of `from_pretrained`, which without `use_safetensors` reads plain tensors of .bin, too."""
    model, found = cls.from_pretrained(source, revision=revision, output_loading_info=True, **arguments)
    check_loaded(cls, found, checkpoint)
    if others := sorted(found["unexpected_keys"]):
        text = "%s has %d weights that its %s does not read, first '%s'"
        logger.warning(text, checkpoint, len(others), cls.__name__, others[0])
    if issubclass(cls, ModelMixin):
        config = cls.load_config(source, revision=revision, subfolder=arguments.get("subfolder"))
        if unknown := sorted(cls.extract_init_dict(dict(config))[1]):
            library, names = f"diffusers {version('diffusers')}", ", ".join(unknown)
            text = "%s: %s of %s does not know %s of its configuration, and leaves it out"
            logger.warning(text, checkpoint, cls.__name__, library, names)
    return model


def check_parts(index: Mapping[str, Any], checkpoint: str, source: str, revision: str | None) -> None:
    """`whole` of every model that the index of a pipeline names, on the device "meta": no memory is taken."""
    libraries: dict[Any, Any] = {"diffusers": diffusers, "transformers": transformers}
    for part, entry in index.items():
        library, name, *spec = entry if isinstance(entry, list) else (None, None)
        cls = getattr(libraries.get(library), name or "", None)
        if not (isinstance(cls, type) and issubclass(cls, ModelMixin | PreTrainedModel)):
            continue
        origin, folder, version = source, part, revision
        if spec and not (is_local(source) and Path(source, part).is_dir()):  # of blocks, from elsewhere
            origin, version = locate(spec[0]["pretrained_model_name_or_path"], spec[0]["revision"])
            folder = spec[0]["subfolder"]
        if is_local(origin) and not Path(origin, folder or "").is_dir():
            raise EditorError(f"{checkpoint!r} lacks the folder {part}, which its index names")
        how: dict[str, Any] = {"use_safetensors": True, "subfolder": folder, "device_map": "meta"}
        whole(cls, checkpoint, origin, version, **how)


def check_tokenizers(pipeline: Any, checkpoint: str) -> None:
    """Raises UserError for a tokenizer that does not fit the text encoder of its number."""
    for name, part in pipeline.components.items():
        tokenizer, encoder = getattr(part, "tokenizer", part), name.replace("tokenizer", "text_encoder")
        model = pipeline.components.get("text_encoder" if name == "processor" else encoder)
        if hasattr(tokenizer, "get_vocab") and isinstance(model, PreTrainedModel):
            check_tokenizer(tokenizer, model.config, f"{checkpoint}/{name}")


def add_lora(pipeline: Any, reference: str) -> None:
    """Fuse LoRA weights into a pipeline's own; `reference`: see `presets.split_lora`. Raises EditorError."""
    where, file = split_lora(reference)
    source, revision = locate(where)
    with explained(reference):
        from peft.tuners.tuners_utils import BaseTunerLayer

        local = is_local(source)
        path = Path(source, file) if local else Path(hf_hub_download(source, file, revision=revision))
        with safe_open(path, "pt") as tensors:
            halves = Counter(match[1] for match in map(_HALF.fullmatch, tensors.keys()) if match)
        pipeline.load_lora_weights(str(path.parent), weight_name=path.name, use_safetensors=True)
        parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
        used = sum(isinstance(layer, BaseTunerLayer) for part in parts for layer in part.modules())
        if used < len(halves) or {*halves.values()} != {2}:
            raise EditorError(
                f"{type(pipeline).__name__} has {used} of the {len(halves)} modules of lora {reference!r}, "
                f"{sum(count == 2 for count in halves.values())} of which have both matrices; it is damaged "
                "or of another model"
            )
        pipeline.fuse_lora(safe_fusing=True)
        pipeline.unload_lora_weights()


@contextmanager
def explained(checkpoint: str) -> Iterator[None]:
    """Loading within it is silent, leaves the global generator as it was, and fails with an EditorError."""
    with torch.random.fork_rng(devices=[]), quiet():
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # the libraries raise everything, the one of tokenizers a bare Exception
            if out_of_memory(error):
                raise
            raise EditorError(
                f"cannot load {checkpoint!r} ({type(error).__name__}: {message(error)}); check its files, or "
                "the id and the revision, or fetch it anew (nein fetch)"
            ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice from the loaders; their errors are turned into sentences above."""
    libraries: tuple[Any, ...] = (diffusers_logging, transformers_logging)
    before = [(library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity(logging.CRITICAL)
        library.disable_progress_bar()
    # diffusers names an argument that huggingface_hub has given up.
    warnings.filterwarnings("ignore", message=".*local_dir_use_symlinks.*", category=UserWarning)
    try:
        yield
    finally:
        for library, (verbosity, bars) in zip(libraries, before, strict=True):
            library.set_verbosity(verbosity)
            if bars:
                library.enable_progress_bar()


def content_hash(modules: Mapping[str, Any], tokenizers: Iterable[Any] = ()) -> str:
    """SHA-256 over the configuration and every tensor of the modules, and over what the tokenizers do."""
    sha = hashlib.sha256()
    volatile = ("transformers_version", "torch_dtype", "dtype")  # by which version it was saved, and how
    for part, module in modules.items():
        items = dict(module.config if isinstance(module.config, Mapping) else module.config.to_dict())
        config = {k: value for k, value in items.items() if not k.startswith("_") and k not in volatile}
        sha.update(json.dumps([part, config], sort_keys=True, default=str).encode())
        for name, tensor in sorted(module.state_dict().items()):
            sha.update(f"{name}{tuple(tensor.shape)}".encode())
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            sha.update(plain.view(torch.uint8).numpy().data)
    for tokenizer in tokenizers:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
        sha.update(json.dumps([rules, tokenizer.model_max_length]).encode())
    return sha.hexdigest()
