"""The editor to fine-tune: where it comes from, what learns, by which optimiser, average and loss."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler, StableDiffusionInstructPix2PixPipeline
from diffusers.training_utils import EMAModel, compute_snr

from nein.editors.checkpoint import LoadedPipeline, load_pipeline, quiet
from nein.engine.errors import UserError
from nein.models import references
from nein.train.instruct.batches import Batch
from nein.train.instruct.features import frozen_hash, module_hash
from nein.train.instruct.options import TuneConfig

log = logging.getLogger(__name__)
LDM_SUFFIXES = (".ckpt", ".safetensors")
ADAPTER = "nein"
#: --trainable NAME -> what the names of those parameters contain.
PARTS = {"transformer": ".attentions.", "cross_attention": ".attn2."}


def load_base(config: TuneConfig) -> LoadedPipeline:
    """The pipeline to start from, on the CPU in float32; its UNet takes 8 channels.

    An InstructPix2Pix checkpoint keeps its UNet; a text-to-image checkpoint (4 channels) is widened. Raises
    UserError or EditorError.
    """
    if Path(config.base).suffix in LDM_SUFFIXES:
        return _load_ldm(Path(config.base).expanduser(), config.base_config)
    where, revision = references.resolve(config.base)
    loaded = load_pipeline(where, revision, channels=(4, 8))
    if loaded.pipeline.unet.config.in_channels == 4:
        log.warning("'%s' is no instruction editor yet; its UNet gets four more input channels", config.base)
        with torch.random.fork_rng(devices=[]):
            widen(loaded.pipeline.unet)
    return loaded


def _load_ldm(file: Path, configuration: str) -> LoadedPipeline:
    """A checkpoint of the original code. Its averaged weights are taken where it has them, as its own
    command line does (`ema_scope`); diffusers alone would take the others."""
    if not file.is_file():
        raise UserError(f"There is no checkpoint '{file}'; --base takes a file, a folder or a hub id.")
    try:
        with torch.random.fork_rng(devices=[]), quiet():
            load: Any = StableDiffusionInstructPix2PixPipeline.from_single_file
            pipeline = load(str(file), config=configuration, safety_checker=None, extract_ema=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"'{file}' cannot be read as an LDM checkpoint ({type(error).__name__}: {reason}). A .ckpt that "
            "pickles more than tensors is refused: save its 'state_dict' as .safetensors once. --base-config "
            "names the folder or hub id with the configuration (model_index.json, unet/config.json, ...)."
        ) from None
    pipeline.to(torch.float32)
    if pipeline.unet.config.in_channels == 4:
        widen(pipeline.unet)
    suffix = file.suffix.removeprefix(".")
    return LoadedPipeline(pipeline, suffix, f"{frozen_hash(pipeline)}-{module_hash(pipeline.unet)}")


def widen(unet: Any) -> None:
    """Gives a UNet of 4 input channels 8, in place: the new weights are zero, old weights and bias are kept.

    With a zero picture it computes what it did before. Source: `ddpm_edit.py` of InstructPix2Pix @ 0dffd1e.
    """
    old = unet.conv_in
    new = torch.nn.Conv2d(8, old.out_channels, old.kernel_size, old.stride, old.padding)
    with torch.no_grad():
        new.weight.zero_()
        new.weight[:, :4] = old.weight
        new.bias = old.bias
    unet.conv_in = new
    unet.register_to_config(in_channels=8)


def noise_scheduler(pipeline: Any) -> Any:
    """The checkpoint's noise schedule and prediction type ("epsilon" or "v_prediction"), for training."""
    scheduler: Any = DDPMScheduler.from_config(pipeline.scheduler.config, clip_sample=False)
    if scheduler.config.prediction_type not in ("epsilon", "v_prediction"):
        raise UserError(
            f"The checkpoint predicts '{scheduler.config.prediction_type}'; only epsilon and "
            "v_prediction can be trained."
        )
    return scheduler


def choose_weights(unet: Any, config: TuneConfig) -> None:
    """Freezes what does not learn; adds LoRA matrices where asked. Raises UserError without peft."""
    unet.requires_grad_(False)
    if config.trainable == "all":
        unet.requires_grad_(True)
    elif config.trainable in PARTS:
        for name, parameter in unet.named_parameters():
            parameter.requires_grad_(PARTS[config.trainable] in name)
    else:
        try:
            from peft import LoraConfig
        except ImportError:
            raise UserError("LoRA needs the package 'peft': pip install 'nein[train]'.") from None
        lora = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha or config.lora_rank,  # type: ignore[arg-type]  # a float will do
            lora_dropout=config.lora_dropout,
            init_lora_weights="gaussian",
            target_modules=list(config.lora_targets),
        )
        try:
            unet.add_adapter(lora, adapter_name=ADAPTER)
        except ValueError as error:
            detail = " ".join(str(error).split())[:200]
            raise UserError(f"--lora-targets {','.join(config.lora_targets)} do not fit: {detail}") from None
    if not trainable(unet):
        raise UserError(
            f"No weight learns with --trainable {config.trainable}; the UNet has none of that kind."
        )


def trainable(unet: Any) -> list[tuple[str, torch.nn.Parameter]]:
    """Names and parameters that learn, in the module's order."""
    return [(name, p) for name, p in unet.named_parameters() if p.requires_grad]


def make_optimizer(config: TuneConfig, parameters: list[torch.nn.Parameter], device: torch.device) -> Any:
    options: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.beta1, config.beta2),
        "eps": config.epsilon,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError:
            raise UserError(
                "--optimizer adamw8bit needs the package 'bitsandbytes': pip install 'nein[quantized]'."
            ) from None
        return AdamW8bit(parameters, **options)
    return torch.optim.AdamW(parameters, fused=device.type in ("cuda", "cpu"), **options)


def make_average(config: TuneConfig, parameters: list[torch.nn.Parameter]) -> Any:
    """The exponential moving average, or None. Decay min(ema, (1 + n) / (10 + n)), as LitEma in the original
    code."""
    if not config.ema:
        return None
    return EMAModel(parameters, decay=config.ema, foreach=True)


def averaged_copy(unet: Any, average: Any) -> Any:
    """A copy of the (unwrapped) UNet with the averaged weights, LoRA merged in; training is not touched."""
    with torch.no_grad():
        twin = copy.deepcopy(unet)
        if average is not None:
            average.copy_to([p for _, p in trainable(twin)])
        if getattr(twin, "peft_config", None):
            twin.fuse_lora(adapter_names=[ADAPTER])
            twin.unload_lora()
    if twin.is_gradient_checkpointing:
        twin.disable_gradient_checkpointing()
    return twin.eval().requires_grad_(False)


def losses(
    unet: Any,
    batch: Batch,
    scheduler: Any,
    *,
    scaling_factor: float,
    snr_gamma: float | None = None,
    changed_weight: float = 1.0,
) -> torch.Tensor:
    """(B,) float32: mean squared error of every pair.

    z = (mean + std * posterior) * scaling_factor, noised to the timestep; the condition is concatenated,
    unscaled (InstructPix2Pix, arXiv:2211.09800, eq. 2). The UNet predicts the noise or the velocity, as the
    scheduler of the checkpoint says (`prediction_type`).

    snr_gamma       Min-SNR weights (arXiv:2303.09556, eq. 6): min(SNR, g) / SNR for noise prediction and
                    min(SNR, g) / (SNR + 1) for velocity.
    changed_weight  Factor for latents where input and target differ.
    """
    std = torch.exp(0.5 * batch.logvar.clamp(-30.0, 20.0))  # B, C, h, w
    latents = (batch.mean + std * batch.posterior) * scaling_factor
    noisy = scheduler.add_noise(latents, batch.noise, batch.timestep)
    predicted = unet(torch.cat([noisy, batch.condition], 1), batch.timestep, batch.states).sample.float()
    kind = scheduler.config.prediction_type
    target = (
        batch.noise if kind == "epsilon" else scheduler.get_velocity(latents, batch.noise, batch.timestep)
    )
    errors = (predicted - target).square()  # B, C, h, w
    if changed_weight != 1.0:
        errors = errors * torch.where(batch.changed, changed_weight, 1.0)
    each = errors.flatten(1).mean(1)  # B
    if snr_gamma is not None:
        snr = compute_snr(scheduler, batch.timestep)
        each = each * snr.clamp(max=snr_gamma) / (snr if kind == "epsilon" else snr + 1)
    return each
