"""`nein convert`: writes a checkpoint in the original latent-diffusion format as a folder of diffusers.

Training checkpoints of PyTorch Lightning also hold pickled callbacks, counters and optimizer state. Inert
placeholders replace these objects: no class of the file is imported and no function called, so that a
malicious file does no harm.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.config.options import Options, argument, option
from nein.loading.digests import Json, file_sha256
from nein.loading.errors import UserError
from nein.loading.references import TEXTS, Need, parse_reference

SUFFIXES = (".ckpt", ".pt", ".pth", ".bin", ".safetensors")


@dataclass(kw_only=True)
class ConvertConfig(Options):
    epilog = "Then: nein eval --editor FOLDER, or --editor magicbrush=FOLDER for that editor's settings."

    source: Path = argument("IN", "checkpoint that you trust: .ckpt, .pt, .safetensors")
    folder: Path = argument("OUT", "folder to write; must not exist")
    ema: bool | None = option(None, "take averaged weights (or not); required if the file has both")
    base: str | None = option(None, "folder or hub id of configurations and tokenizer")

    def needs(self) -> list[Need]:
        from nein.editors.presets import DEFAULT_CONFIG

        need = Need.parse(self.base or DEFAULT_CONFIG, files=TEXTS)
        return [need] if need else []


def run(options: ConvertConfig) -> None:
    convert(options.source, options.folder, ema=options.ema, config=options.base)


def convert(source: Path, folder: Path, *, ema: bool | None = None, config: str | None = None) -> Path:
    """Write `source` as a folder in diffusers' layout, float32; returns it. Raises UserError, EditorError.

    source  File with one of `SUFFIXES`; its UNet has 8 input channels, or 4 (to be trained).
    folder  Must not exist; appears only once it is complete.
    ema     Whether to take averaged weights of the UNet; None: the file has only one set of weights.
    config  Folder or hub id with the configurations and the tokenizer; default timbrooks/instruct-pix2pix.
    """
    if not source.is_file():
        raise UserError(f"There is no file '{source}'; give the checkpoint to convert.")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"The parent of '{folder}' does not exist; create it first.")
    if source.suffix not in SUFFIXES:
        raise UserError(f"'{source}' is not a checkpoint; a single file ends in {', '.join(SUFFIXES)}")
    from nein.editors.checkpoint import ORIGIN, explain_errors
    from nein.metrics.loading import new_folder

    with new_folder(folder) as draft, explain_errors(str(source)):
        pipeline, origin = read_file(source, ema=ema, config=config)
        pipeline.save_pretrained(draft, safe_serialization=True)
        facts = {**origin, "sha256": file_sha256(source)}
        if config is not None and Path(config).exists():
            facts["config"] = Path(config).name  # other machines have other paths
        (draft / ORIGIN).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if origin["ema"] is None:
        taken = "the file's only ones"
    else:
        taken = "averaged (EMA)" if origin["ema"] else "trained, not averaged (non-EMA)"
    print(f"{folder}: a pipeline in diffusers' layout; weights of the UNet: {taken}.")
    if origin["left_out"]:
        print(f"Ignored classes: {', '.join(origin['left_out'])}.")
    return folder


#: `model.diffusion_model.*` is the UNet, `model_ema.*` its moving average (same names without dots),
#: `first_stage_model.*` the VAE, `cond_stage_model.transformer.*` the text encoder.
UNET, EMA = "model.diffusion_model.", "model_ema."


def read_file(path: Path, *, ema: bool | None = None, config: str | None = None) -> tuple[Any, Json]:
    """A StableDiffusionInstructPix2PixPipeline on the CPU in float32, and its origin: facts for ORIGIN.
    diffusers maps the names of tensors; strict loading checks that all arrive. Raises EditorError."""
    import diffusers
    import torch
    from accelerate import init_empty_weights
    from diffusers.loaders import single_file_utils
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    from nein.editors.checkpoint import check_channels, explain_errors
    from nein.editors.presets import DEFAULT_CONFIG
    from nein.editors.sampling import euler_ancestral
    from nein.loading.weights import read_checkpoint

    # Tensors of the file, which Lightning nests in "state_dict"
    content, left_out = read_checkpoint(path, inert=True)
    while isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    items = content.items() if isinstance(content, Mapping) else ()
    tensors = {k: v for k, v in items if isinstance(k, str) and isinstance(v, torch.Tensor)}
    first = f"{UNET}input_blocks.0.0.weight"
    if first not in tensors:
        raise UserError(f"'{path}' is not in the original latent-diffusion format: it has no tensor {first}")
    in_channels = tensors[first].shape[1]
    check_channels(in_channels, str(path), (4, 8))
    is_average = _choose_unet(tensors, ema, path)

    # Configurations and tokenizer
    reference = config or DEFAULT_CONFIG
    parsed = parse_reference(reference)
    source: dict[str, Any] = {"pretrained_model_name_or_path": parsed.name, "revision": parsed.revision}
    with explain_errors(reference):
        unet_config = diffusers.UNet2DConditionModel.load_config(**source, subfolder="unet")
        vae_config = diffusers.AutoencoderKL.load_config(**source, subfolder="vae")
        text_config = CLIPTextConfig.from_pretrained(**source, subfolder="text_encoder")
        tokenizer = CLIPTokenizer.from_pretrained(**source, subfolder="tokenizer")
        index = diffusers.StableDiffusionInstructPix2PixPipeline.load_config(**source)
        _, class_name = index["scheduler"]
        scheduler_config = getattr(diffusers, class_name).load_config(**source, subfolder="scheduler")
    unet_config["in_channels"] = in_channels

    # Models, first without memory, then with the tensors under diffusers' names
    with init_empty_weights(include_buffers=False):
        unet: Any = diffusers.UNet2DConditionModel.from_config(unet_config)
        vae: Any = diffusers.AutoencoderKL.from_config(vae_config)
        text_encoder = CLIPTextModel(text_config)
    # Versions of transformers differ in the prefix "text_model."; older files store position_ids, too.
    has_prefix = all(name.startswith("text_model.") for name in text_encoder.state_dict())
    text_state = {}
    for name, tensor in single_file_utils.convert_ldm_clip_checkpoint(tensors).items():
        if not name.endswith("position_ids"):
            plain = name.removeprefix("text_model.")
            text_state[f"text_model.{plain}" if has_prefix else plain] = tensor
    for module, state in (
        (unet, single_file_utils.convert_ldm_unet_checkpoint(tensors, unet_config)),
        (vae, single_file_utils.convert_ldm_vae_checkpoint(tensors, vae_config)),
        (text_encoder, text_state),
    ):
        with explain_errors(f"{path} with the configuration of {reference}"):
            module.load_state_dict(state, strict=True, assign=True)
        module.eval()
    pipeline: Any = diffusers.StableDiffusionInstructPix2PixPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=euler_ancestral(scheduler_config),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.to(torch.float32)  # one dtype for all parts, which `from_pretrained` would otherwise mix
    origin = {"file": path.name, "ema": is_average, "both": is_average is not None, "config": reference}
    return pipeline, {**origin, "left_out": left_out}


def _choose_unet(tensors: dict[str, Any], ema: bool | None, path: Path) -> bool | None:
    """Puts the chosen UNet under its plain names in `tensors`. Returns whether it is the average; None for a
    file with one set of weights."""
    plain_names = [name for name in tensors if name.startswith(UNET)]
    average_names = {name: EMA + name.removeprefix("model.").replace(".", "") for name in plain_names}
    missing = [name for name in average_names.values() if name not in tensors]
    if len(missing) == len(average_names):
        if ema:
            raise UserError(f"'{path}' holds no averaged (EMA) weights; leave out --ema.")
        return None
    if ema is None:
        raise UserError(
            f"'{path}' holds trained and averaged (EMA) weights of the UNet; pass --ema, as the official "
            "scripts do, or --no-ema."
        )
    if ema and missing:
        raise UserError(f"'{path}' lacks {len(missing)} averaged (EMA) tensors, first {missing[0]}.")
    if ema:
        tensors.update({name: tensors[average] for name, average in average_names.items()})
    return ema
