"""Reading a StableDiffusionInstructPix2PixPipeline from a local folder or the hub, with checks that explain.

Weights are read from safetensors. Some published repositories have only PyTorch's .bin files; those are
read as plain tensors (torch.load with weights_only=True, the libraries' default), which runs no code from the
file, and anything that would need more is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from editors.base import EditorError

_COMPONENTS = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")
_WEIGHTS = ("unet", "vae", "text_encoder")
_PICKLES = (".ckpt", ".pt", ".pth", ".bin")
_CONVERT = (
    "convert it once with StableDiffusionInstructPix2PixPipeline.from_single_file(FILE, "
    "config='timbrooks/instruct-pix2pix', extract_ema=True).save_pretrained(FOLDER) and give the folder"
)
# What the loaders raise for files they cannot use; everything else is a bug and should surface as one.
_LOAD_ERRORS = (
    OSError,
    ValueError,
    RuntimeError,
    KeyError,
    TypeError,
    ImportError,
    SafetensorError,
    pickle.UnpicklingError,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline on the CPU in float32, and what is known of its origin.

    weights_format  "safetensors" or "bin".
    weights_sha256  Over every tensor and the configuration of UNet, VAE, text encoder and tokenizer, after
                    conversion to float32: the same for a copied folder, different for any changed weight.
    """

    pipeline: Any
    weights_format: str
    weights_sha256: str


def load_pipeline(
    checkpoint: str, revision: str | None = None, channels: tuple[int, ...] = (8,)
) -> LoadedPipeline:
    """Load `checkpoint`, a local folder in diffusers' layout or a hub id, optionally "owner/name@revision".

    The class is always StableDiffusionInstructPix2PixPipeline, whatever model_index.json declares (published
    MagicBrush copies declare StableDiffusionPipeline), and the safety checker is left out: it would black
    out pictures and count as an edit. `channels` are the numbers of input channels its UNet may have; an
    editor has 8, a model yet to become one 4. Raises EditorError with one sentence when the checkpoint is
    unusable.
    """
    source = str(Path(checkpoint).expanduser()) if checkpoint.startswith("~") else checkpoint
    if Path(source).exists():
        _check_folder(Path(source), checkpoint)
    else:
        source, revision = _split_hub_id(source, revision)
    # Building a module draws initial weights from the global generator; put its state back afterwards.
    with torch.random.fork_rng(devices=[]), quiet():
        _check_unet(source, revision, checkpoint, channels)
        pipeline, weights_format = _read(source, revision, checkpoint)
        pipeline.to(torch.float32)
    _check_fit(pipeline, checkpoint)
    pipeline.set_progress_bar_config(disable=True)
    return LoadedPipeline(pipeline, weights_format, _content_hash(pipeline))


def _check_folder(path: Path, checkpoint: str) -> None:
    if path.is_file():
        if path.suffix in _PICKLES:
            raise EditorError(
                f"{checkpoint!r} is a pickle checkpoint, which may run code when read; if you trust it, "
                f"{_CONVERT}"
            )
        raise EditorError(f"{checkpoint!r} is a single file, not a folder in diffusers' layout; {_CONVERT}")
    if not (path / "model_index.json").is_file():
        pickles = sorted(entry.name for entry in path.iterdir() if entry.suffix in _PICKLES)
        if pickles:
            raise EditorError(
                f"{checkpoint!r} holds the pickle checkpoint {pickles[0]} and no model_index.json; if you "
                f"trust the file, {_CONVERT}"
            )
        raise EditorError(
            f"{checkpoint!r} has no model_index.json, so it is not a diffusers pipeline; expected that file "
            f"and the folders {', '.join(_COMPONENTS)}, as save_pretrained writes them"
        )
    missing = [name for name in _COMPONENTS if not (path / name).is_dir()]
    if missing:
        raise EditorError(
            f"{checkpoint!r} lacks {' and '.join(missing)}; an instruction editor needs the folders "
            f"{', '.join(_COMPONENTS)}"
        )


def _split_hub_id(source: str, revision: str | None) -> tuple[str, str | None]:
    owner_name, _, suffix = source.partition("@")
    parts = owner_name.split("/")
    if source.startswith("nano:"):
        raise EditorError(
            f"{source!r} names an embedded model, which has to be turned into its folder first; "
            f"give checkpoint=<folder>"
        )
    if len(parts) != 2 or not all(parts) or source.startswith((".", "~")):
        raise EditorError(
            f"{source!r} is neither an existing folder nor a hub id of the form owner/name; check the path"
        )
    return owner_name, revision or suffix or None


def _check_unet(source: str, revision: str | None, checkpoint: str, allowed: tuple[int, ...]) -> None:
    """Look at the UNet's configuration before gigabytes are read or fetched."""
    try:
        config = UNet2DConditionModel.load_config(source, subfolder="unet", revision=revision)
    except _LOAD_ERRORS as error:
        raise _unusable(checkpoint, error) from error
    channels = config.get("in_channels", 4)
    if channels not in allowed:
        raise EditorError(
            f"{checkpoint!r} is not an instruction editor: its UNet takes {channels} channels, but "
            f"InstructPix2Pix needs 8 (4 of the noisy latent and 4 of the source picture)"
        )


def _read(source: str, revision: str | None, checkpoint: str) -> tuple[Any, str]:
    arguments: dict[str, Any] = {
        "revision": revision,
        "safety_checker": None,
        "requires_safety_checker": False,
        "feature_extractor": None,
        "image_encoder": None,
    }
    load: Any = StableDiffusionInstructPix2PixPipeline.from_pretrained
    try:
        return load(source, use_safetensors=True, **arguments), "safetensors"
    except _LOAD_ERRORS as error:
        first_error = error
    # safetensors may be damaged rather than absent; then the first error is the one worth reading.
    if not _lacks_safetensors(source, first_error):
        raise _unusable(checkpoint, first_error) from first_error
    logger.warning("%s has no safetensors; reading its .bin files as plain tensors", checkpoint)
    try:
        return load(source, use_safetensors=False, **arguments), "bin"
    except _LOAD_ERRORS as error:
        raise _unusable(checkpoint, error) from error


def _lacks_safetensors(source: str, error: Exception) -> bool:
    if Path(source).is_dir():
        return not all(any((Path(source) / part).glob("*.safetensors")) for part in _WEIGHTS)
    return "safetensors" in str(error)


def _unusable(checkpoint: str, error: Exception) -> EditorError:
    text = " ".join(str(error).split())
    if any(isinstance(link, pickle.UnpicklingError) for link in _chain(error)):
        return EditorError(
            f"{checkpoint!r} has a .bin file that is more than tensors and would run code when read; use a "
            f"copy with safetensors"
        )
    reason = text if len(text) <= 300 else text[:300] + " ..."
    hint = (
        "check its files"
        if Path(checkpoint).is_dir()
        else "check the id and the revision and, without a network, fetch it beforehand with `hf download`"
    )
    return EditorError(f"cannot load {checkpoint!r} ({type(error).__name__}: {reason}); {hint}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from: loaders wrap the one that tells."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _check_fit(pipeline: Any, checkpoint: str) -> None:
    width = pipeline.unet.config.cross_attention_dim
    hidden = pipeline.text_encoder.config.hidden_size
    if width != hidden:
        raise EditorError(
            f"{checkpoint!r} does not fit together: the UNet expects text vectors of {width} numbers, the "
            f"text encoder gives {hidden}; it may belong to another pipeline class"
        )
    latent_channels = pipeline.vae.config.latent_channels
    if latent_channels != 4:
        raise EditorError(
            f"{checkpoint!r} has a VAE with {latent_channels} latent channels; InstructPix2Pix needs 4"
        )


def _content_hash(pipeline: Any) -> str:
    sha = hashlib.sha256()
    for part in _WEIGHTS:
        module = getattr(pipeline, part)
        sha.update(json.dumps([part, public_config(module.config)], sort_keys=True, default=str).encode())
        for name, tensor in sorted(module.state_dict().items()):
            sha.update(f"{name}{tuple(tensor.shape)}".encode())
            sha.update(tensor.contiguous().numpy().data)
    backend = getattr(pipeline.tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else sorted(pipeline.tokenizer.get_vocab().items())
    sha.update(json.dumps([rules, pipeline.tokenizer.model_max_length]).encode())
    return sha.hexdigest()


def public_config(config: Any) -> dict[str, Any]:
    """A configuration without what says where and by which version it was saved."""
    items: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    volatile = ("transformers_version", "torch_dtype", "dtype")
    return {key: value for key, value in items.items() if not key.startswith("_") and key not in volatile}


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no advice from the loaders; their errors are turned into sentences above."""
    libraries: tuple[Any, ...] = (diffusers_logging, transformers_logging)
    before = [(library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity(logging.CRITICAL)
        library.disable_progress_bar()
    try:
        yield
    finally:
        for library, (verbosity, bars) in zip(libraries, before, strict=True):
            library.set_verbosity(verbosity)
            if bars:
                library.enable_progress_bar()
