"""Checkpoints in the original latent-diffusion format: one file with UNet, VAE and text encoder in it.

Names are mapped by diffusers' own functions; which of two sets of UNet weights is taken, and that every
tensor arrives, is checked here. Layout: `model.diffusion_model.*` the UNet, `model_ema.*` its moving average
(same names without dots), `first_stage_model.*` the VAE, `cond_stage_model.transformer.*` the text encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
from accelerate import init_empty_weights
from diffusers import AutoencoderKL, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
from diffusers.loaders.single_file_utils import (
    convert_ldm_clip_checkpoint,
    convert_ldm_unet_checkpoint,
    convert_ldm_vae_checkpoint,
)
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from nein.editors.base import EditorError, check_channels
from nein.editors.presets import DEFAULT_CONFIG
from nein.editors.sampling import euler_ancestral
from nein.loading.references import parse_reference
from nein.loading.weights import read_checkpoint

PICKLES = (".ckpt", ".pt", ".pth", ".bin")
SUFFIXES = (*PICKLES, ".safetensors")
CONFIG_FILES = ("unet/config.json", "vae/config.json", "text_encoder/config.json", "tokenizer", "scheduler")
_UNET, _EMA = "model.diffusion_model.", "model_ema."

Tensors = dict[str, torch.Tensor]


def read_pipeline(
    path: Path,
    *,
    ema: bool | Literal["auto"] | None = None,
    config: str | None = None,
    vouched: bool = False,
    channels: tuple[int, ...] = (8,),
) -> tuple[Any, dict[str, Any]]:
    """A StableDiffusionInstructPix2PixPipeline on the CPU from one file, and what it was made of.

    ema       Which set of UNet weights, where the file holds both; None is an error then, "auto" the average.
    config    Folder or hub id with the files named in `CONFIG_FILES`; None is `DEFAULT_CONFIG`.
    vouched   The user answers for the file: what is not a tensor or a plain container is left out and not
              refused. Either way nothing in the file is executed.
    channels  Numbers of input channels that the UNet may have.

    Raises EditorError.
    """
    advice = (
        f"if you vouch for where it comes from, write a copy of its tensors once with `nein convert "
        f"{path.name} FOLDER --ema` (or --no-ema), which runs none of it, and give the folder"
    )
    content, left_out = read_checkpoint(path, inert=vouched, advice=advice)
    while isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    items = content.items() if isinstance(content, Mapping) else ()
    tensors = {k: v for k, v in items if isinstance(k, str) and isinstance(v, torch.Tensor)}
    if f"{_UNET}input_blocks.0.0.weight" not in tensors:
        raise EditorError(
            f"{str(path)!r} is not in the original latent-diffusion format: it has no tensor "
            f"{_UNET}input_blocks.0.0.weight"
        )
    check_channels(tensors[f"{_UNET}input_blocks.0.0.weight"].shape[1], str(path), channels)
    unet, averaged = choose_unet(tensors, ema, path)
    others = {name: tensor for name, tensor in tensors.items() if not name.startswith((_UNET, _EMA))}
    reference = config or DEFAULT_CONFIG
    pipeline = _assemble({**others, **unet}, reference, path)
    origin = {"file": path.name, "ema": averaged, "both": averaged is not None, "config": reference}
    return pipeline, {**origin, "left_out": left_out}


def choose_unet(tensors: Tensors, ema: bool | str | None, path: Path) -> tuple[Tensors, bool | None]:
    """(the chosen UNet under its plain names; whether it is the average, None of a file with one set)."""
    plain = {name: tensor for name, tensor in tensors.items() if name.startswith(_UNET)}
    average = {name: _EMA + name.removeprefix("model.").replace(".", "") for name in plain}
    if not any(key in tensors for key in average.values()):
        if ema is True:
            raise EditorError(f"{str(path)!r} holds no averaged (EMA) weights beside its own; leave out ema")
        return plain, None
    if ema is None:
        raise EditorError(
            f"{str(path)!r} holds two sets of UNet weights, trained and averaged (EMA); say which: ema=true, "
            f"as the official scripts take, or ema=false (nein eval --editor-options.ema, nein convert --ema "
            f"or --no-ema)"
        )
    if not ema:
        return plain, False
    missing = [key for key in average.values() if key not in tensors]
    if missing:
        raise EditorError(f"{str(path)!r} lacks {len(missing)} averaged (EMA) tensors, first {missing[0]}")
    return {name: tensors[key] for name, key in average.items()}, True


def _assemble(tensors: Tensors, reference: str, path: Path) -> Any:
    """The pipeline, every part with exactly the tensors its configuration asks for."""
    given = parse_reference(reference)
    location: dict[str, Any] = {"pretrained_model_name_or_path": given.name, "revision": given.revision}
    try:
        unet_config = UNet2DConditionModel.load_config(**location, subfolder="unet")
        vae_config = AutoencoderKL.load_config(**location, subfolder="vae")
        text_config = CLIPTextConfig.from_pretrained(**location, subfolder="text_encoder")
        tokenizer = CLIPTokenizer.from_pretrained(**location, subfolder="tokenizer")
        schedule = StableDiffusionInstructPix2PixPipeline.load_config(**location)["scheduler"]
        scheduler_config = getattr(diffusers, schedule[1]).load_config(**location, subfolder="scheduler")
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise EditorError(
            f"a single file holds no configuration, and that of {reference!r} is not to be had "
            f"({type(error).__name__}: {reason}); give config=FOLDER with {', '.join(CONFIG_FILES)}"
        ) from error
    unet_config["in_channels"] = tensors[f"{_UNET}input_blocks.0.0.weight"].shape[1]
    unet_tensors = convert_ldm_unet_checkpoint(tensors, unet_config)
    vae_tensors = convert_ldm_vae_checkpoint(tensors, vae_config)
    # position_ids were stored once; they are counted off now. The level "text_model." comes and goes.
    names = convert_ldm_clip_checkpoint(tensors).items()
    words = {name.removeprefix("text_model."): t for name, t in names if not name.endswith("position_ids")}
    where = f"of {str(path)!r} does not fit the configuration of {reference!r}"
    return StableDiffusionInstructPix2PixPipeline(
        vae=_fill(lambda: AutoencoderKL.from_config(vae_config), vae_tensors, f"the VAE {where}"),
        text_encoder=_fill(lambda: CLIPTextModel(text_config), words, f"the text encoder {where}"),
        tokenizer=tokenizer,
        unet=_fill(lambda: UNet2DConditionModel.from_config(unet_config), unet_tensors, f"the UNet {where}"),
        scheduler=euler_ancestral(scheduler_config),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _fill(build: Callable[[], Any], tensors: Mapping[str, Any], unfit: str) -> Any:
    """The module `build` makes, holding `tensors`; EditorError unless they are all there and all fit."""
    with init_empty_weights(include_buffers=False):
        module = build()
    expected = set(module.state_dict())
    if expected and all(name.startswith("text_model.") for name in expected):
        tensors = {f"text_model.{name}": tensor for name, tensor in tensors.items()}
    try:
        module.load_state_dict(dict(tensors), strict=True, assign=True)
    except RuntimeError as error:
        raise EditorError(f"{unfit}: {' '.join(str(error).split())[:200]}") from error
    return module.eval()
