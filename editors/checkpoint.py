"""Loads and checks diffusers pipelines from a folder or the hub, fuses LoRA weights, and hashes contents.

Weights are safetensors, or tensors in .bin files that are read without running code (weights_only=True).
Parts: InstructPix2Pix pipelines; checks of any pipeline; LoRA; devices, errors, logs and hashes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

logger = logging.getLogger(__name__)

# --- InstructPix2Pix pipelines -------------------------------------------------------------------------

_MODELS = {"unet": UNet2DConditionModel, "vae": AutoencoderKL, "text_encoder": CLIPTextModel}  # by folder
#: File in a converted pipeline that names its source.
ORIGIN = "origin.json"


@dataclass(frozen=True)
class LoadedPipeline:
    """A pipeline on the CPU in float32, and its origin."""

    pipeline: Any
    weights_sha256: str  # `content_hash` of UNet, VAE, text encoder and tokenizer
    published: Json = field(default_factory=dict)  # class that it declares, and source if it was converted


def load_pipeline(
    checkpoint: str, revision: str | None = None, *, channels: Sequence[int] = (8,), lora: str | None = None
) -> LoadedPipeline:
    """Load an InstructPix2Pix pipeline. Raises EditorError. It is a StableDiffusionInstructPix2PixPipeline
    whatever model_index.json declares (published MagicBrush copies declare StableDiffusionPipeline). The
    safety checker is left out, since it would black out images.

    checkpoint  A folder in diffusers' layout, or a hub id ("owner/name[@revision]").
    channels    Allowed numbers of the UNet's input channels.
    lora        LoRA weights to fuse, named as for `presets.split_lora`.
    """
    if (file := expand_user(checkpoint)).is_file():
        if file.suffix == ".py":
            raise EditorError(f"'{checkpoint}' is a Python file; pass its function: {checkpoint}:FUNCTION")
        raise EditorError(
            f"'{checkpoint}' is a single file, but an editor is a folder; make one with `nein convert "
            f"{file.name} FOLDER --ema` (or --no-ema), which runs no code of it"
        )
    with explain_errors(checkpoint):
        source, revision = locate(checkpoint, revision)
        # Before gigabytes are read or downloaded
        unet = UNet2DConditionModel.load_config(source, subfolder="unet", revision=revision)
        check_channels(unet.get("in_channels", 4), checkpoint, channels)
        models = {}
        for part, cls in _MODELS.items():
            models[part] = load_complete(cls, checkpoint, source, revision, subfolder=part)
        left_out = dict.fromkeys(("safety_checker", "feature_extractor", "image_encoder"))  # -> None
        pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
            source, revision=revision, requires_safety_checker=False, **left_out, **models
        )
        index = StableDiffusionInstructPix2PixPipeline.load_config(source, revision=revision)
        published: Json = {"class": index.get("_class_name")}
        if (origin := Path(source, ORIGIN)).is_file():
            published["converted_from"] = json.loads(origin.read_text(encoding="utf-8"))
        pipeline.to(torch.float32)
        if lora is not None:
            add_lora(pipeline, lora)
    pipeline.set_progress_bar_config(disable=True)
    return _make_loaded(pipeline, checkpoint, published)


def wrap_pipeline(pipeline: Any) -> LoadedPipeline:
    """Check and hash the caller's StableDiffusionInstructPix2PixPipeline. Raises EditorError."""
    label = "the pipeline in memory"
    check_channels(pipeline.unet.config.in_channels, label, (8,))
    return _make_loaded(pipeline, label, {})


def _make_loaded(pipeline: Any, label: str, published: Json) -> LoadedPipeline:
    check_tokenizers(pipeline, label)
    models = {part: getattr(pipeline, part) for part in _MODELS}
    return LoadedPipeline(pipeline, content_hash(models, [pipeline.tokenizer]), published)


def check_channels(channels: int, checkpoint: str, allowed: Sequence[int]) -> None:
    """Raise EditorError for a UNet with another number of input channels."""
    if channels not in allowed:
        raise EditorError(
            f"{checkpoint!r} is not an instruction editor: its UNet has {channels} input channels, but "
            f"InstructPix2Pix needs 8 (4 of the noisy latent and 4 of the source image)"
        )


# --- checks of any pipeline ----------------------------------------------------------------------------


def locate(reference: str, revision: str | None = None) -> tuple[str, str | None]:
    """Where a checkpoint is: (folder, None), or (hub id, revision or None). Raises EditorError."""
    if is_local(reference):
        return str(expand_user(reference)), None
    parsed = parse_reference(reference)
    if parsed.kind != "hub" or parsed.name.count("/") != 1:
        raise EditorError(
            f"{reference!r} is neither an existing folder nor a hub id of the form owner/name; check the path"
        )
    check_hub(parsed.name, revision or parsed.revision)
    return parsed.name, revision or parsed.revision


def load_complete(cls: Any, checkpoint: str, source: str, revision: str | None, **arguments: Any) -> Any:
    """Load a model from `source`, which `locate` found. Raises EditorError for missing weights; warns of
    weights and options that `cls` ignores. checkpoint: the user's reference, for messages. arguments: of
    `from_pretrained`, which without `use_safetensors` also reads .bin files."""
    model, info = cls.from_pretrained(source, revision=revision, output_loading_info=True, **arguments)
    check_loaded(cls, info, checkpoint)
    if unread := sorted(info["unexpected_keys"]):
        text = "%s has %d weights that its %s does not read, first '%s'"
        logger.warning(text, checkpoint, len(unread), cls.__name__, unread[0])
    if issubclass(cls, ModelMixin):
        config = cls.load_config(source, revision=revision, subfolder=arguments.get("subfolder"))
        if ignored := sorted(cls.extract_init_dict(dict(config))[1]):
            library = f"diffusers {version('diffusers')}"
            text = "%s: %s of %s ignores %s of its configuration"
            logger.warning(text, checkpoint, cls.__name__, library, ", ".join(ignored))
    return model


def check_parts(index: Mapping[str, Any], checkpoint: str, source: str, revision: str | None) -> None:
    """Run `load_complete` for every model of a pipeline, on the device "meta", which takes no memory. index:
    part -> [library, class]; for pipelines of blocks a third entry says where the part is."""
    libraries: dict[Any, Any] = {"diffusers": diffusers, "transformers": transformers}
    for part, entry in index.items():
        if not isinstance(entry, list):
            continue  # an option of the pipeline
        library, class_name, *specs = entry  # specs: none, or the third entry
        cls = getattr(libraries.get(library), class_name or "", None)
        if not (isinstance(cls, type) and issubclass(cls, ModelMixin | PreTrainedModel)):
            continue
        part_source, part_revision, folder = source, revision, part
        if specs and not (is_local(source) and Path(source, part).is_dir()):  # in another repository
            spec = specs[0]
            part_source, part_revision = locate(spec["pretrained_model_name_or_path"], spec["revision"])
            folder = spec["subfolder"]
        if is_local(part_source) and not Path(part_source, folder or "").is_dir():
            raise EditorError(f"{checkpoint!r} lacks the folder {part}, which its index names")
        options: dict[str, Any] = {"use_safetensors": True, "subfolder": folder, "device_map": "meta"}
        load_complete(cls, checkpoint, part_source, part_revision, **options)


def check_tokenizers(pipeline: Any, checkpoint: str) -> None:
    """Raises UserError for a tokenizer that does not fit its text encoder."""
    for name, part in pipeline.components.items():
        tokenizer = getattr(part, "tokenizer", part)  # a processor has one
        encoder = "text_encoder" if name == "processor" else name.replace("tokenizer", "text_encoder")
        model = pipeline.components.get(encoder)
        if hasattr(tokenizer, "get_vocab") and isinstance(model, PreTrainedModel):
            check_tokenizer(tokenizer, model.config, f"{checkpoint}/{name}")


# --- LoRA ----------------------------------------------------------------------------------------------

#: Name of one of the two matrices of a LoRA module (group 1) in files of peft, diffusers and kohya.
_LORA_MATRIX = re.compile(r"(.*)[._](?:lora_A|lora_B|lora_down|lora_up|down|up)(?:\.\w+)?\.weight")


def add_lora(pipeline: Any, reference: str) -> None:
    """Fuse LoRA weights into a pipeline; reference: see `presets.split_lora`. Raises EditorError."""
    folder, file = split_lora(reference)
    source, revision = locate(folder)
    with explain_errors(reference):
        from peft.tuners.tuners_utils import BaseTunerLayer

        is_folder = is_local(source)
        path = Path(source, file) if is_folder else Path(hf_hub_download(source, file, revision=revision))
        matrices: Counter[str] = Counter()  # module -> number of its matrices in the file
        with safe_open(path, "pt") as tensors:
            for name in tensors.keys():
                if match := _LORA_MATRIX.fullmatch(name):
                    matrices[match[1]] += 1
        pipeline.load_lora_weights(str(path.parent), weight_name=path.name, use_safetensors=True)
        parts = [part for part in pipeline.components.values() if isinstance(part, torch.nn.Module)]
        used = sum(isinstance(layer, BaseTunerLayer) for part in parts for layer in part.modules())
        # Loading ignores modules that the pipeline lacks; a complete module has two matrices.
        if used < len(matrices) or {*matrices.values()} != {2}:
            complete = sum(count == 2 for count in matrices.values())
            raise EditorError(
                f"lora {reference!r} is damaged or of another model: {type(pipeline).__name__} has {used} of "
                f"its {len(matrices)} modules, {complete} with both matrices"
            )
        pipeline.fuse_lora(safe_fusing=True)
        pipeline.unload_lora_weights()


# --- devices, errors, logs and hashes ------------------------------------------------------------------


def find_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise EditorError(f"unknown device {name!r}; pass for instance 'cpu' or 'cuda:1'") from error


def place_module(module: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Move a module to a device and dtype, for inference."""
    with quiet():
        return align(module.to(device=device, dtype=dtype).eval()).requires_grad_(False)


@contextmanager
def explain_errors(checkpoint: str) -> Iterator[None]:
    """Silence the libraries, keep the global random state, and turn any failure into an EditorError."""
    with torch.random.fork_rng(devices=[]), quiet():  # models draw initial weights before they are loaded
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # libraries raise any type, tokenizers a bare Exception
            if out_of_memory(error):
                raise
            raise EditorError(
                f"cannot load {checkpoint!r} ({type(error).__name__}: {message(error)}); check its files, or "
                "the id and the revision, or fetch it again (nein fetch)"
            ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Hide progress bars and warnings of diffusers and transformers."""
    libraries: tuple[Any, ...] = (diffusers_logging, transformers_logging)
    settings = [(library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity(logging.CRITICAL)
        library.disable_progress_bar()
    # diffusers passes an argument that huggingface_hub has deprecated.
    warnings.filterwarnings("ignore", message=".*local_dir_use_symlinks.*", category=UserWarning)
    try:
        yield
    finally:
        for library, (verbosity, has_bars) in zip(libraries, settings, strict=True):
            library.set_verbosity(verbosity)
            if has_bars:
                library.enable_progress_bar()


def content_hash(modules: Mapping[str, Any], tokenizers: Iterable[Any] = ()) -> str:
    """SHA-256 over configuration and tensors of the modules, and over the rules of the tokenizers."""
    sha = hashlib.sha256()
    volatile = ("transformers_version", "torch_dtype", "dtype")  # differ between copies of the same weights
    for part, module in modules.items():
        options = module.config if isinstance(module.config, Mapping) else module.config.to_dict()
        config = {k: value for k, value in options.items() if not k.startswith("_") and k not in volatile}
        sha.update(json.dumps([part, config], sort_keys=True, default=str).encode())
        for name, tensor in sorted(module.state_dict().items()):
            sha.update(f"{name}{tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)  # (number of elements,)
            sha.update(flat.view(torch.uint8).numpy().data)
    for tokenizer in tokenizers:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        rules = backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items())
        sha.update(json.dumps([rules, tokenizer.model_max_length]).encode())
    return sha.hexdigest()
