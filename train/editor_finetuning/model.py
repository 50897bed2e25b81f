"""Load an editor for fine-tuning, choose its trained weights, compute the loss, export and validate it."""

from __future__ import annotations

import copy
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers import DDPMScheduler
from diffusers.training_utils import compute_snr

from nein.benchmarks.runner import FIGURES_CSV
from nein.editors.checkpoint import LoadedPipeline, load_pipeline, quiet
from nein.editors.sampling import euler_ancestral
from nein.engine.run import Executor
from nein.loading.errors import UserError
from nein.models import references
from nein.reporting import figures as frames
from nein.train.editor_finetuning.batches import Batch, copy_to
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.export import MODEL, Facts, format_card, write_model
from nein.train.loop import Session

log = logging.getLogger(__name__)
ADAPTER = "nein"  # name of the LoRA in the UNet
#: Values of --trainable besides "all" and "lora" -> part of the names of the trained parameters.
TRAINABLE = {"transformer": ".attentions.", "cross_attention": ".attn2."}


# --- base model and trained weights ----------------------------------------------------------------------
def load_base(config: TuneConfig) -> LoadedPipeline:
    """Base pipeline on the CPU in float32; a UNet with 4 input channels gets 8. Raises UserError."""
    loaded = load_pipeline(references.resolve(config.base), channels=(4, 8))
    if loaded.pipeline.unet.config.in_channels == 4:
        log.warning("'%s' is not an instruction editor; its UNet gets four more input channels", config.base)
        with torch.random.fork_rng(devices=[]):
            widen_input(loaded.pipeline.unet)
    return loaded


def widen_input(unet: Any) -> None:
    """Add 4 input channels with zero weights, as `ddpm_edit.py` of InstructPix2Pix @ 0dffd1e."""
    old = unet.conv_in
    new = torch.nn.Conv2d(8, old.out_channels, old.kernel_size, old.stride, old.padding)
    with torch.no_grad():
        new.weight.zero_()  # (out, 8, k, k)
        new.weight[:, :4] = old.weight  # (out, 4, k, k)
        new.bias = old.bias
    unet.conv_in = new
    unet.register_to_config(in_channels=8)


def make_noise_scheduler(pipeline: Any) -> Any:
    """Scheduler with the checkpoint's noise schedule and prediction type. Raises UserError."""
    scheduler: Any = DDPMScheduler.from_config(pipeline.scheduler.config, clip_sample=False)
    if scheduler.config.prediction_type not in ("epsilon", "v_prediction"):
        raise UserError(
            f"The checkpoint predicts '{scheduler.config.prediction_type}'; only epsilon and "
            "v_prediction can be trained."
        )
    return scheduler


def choose_weights(unet: Any, config: TuneConfig) -> None:
    """Freeze the weights that are not trained; with --trainable lora add its matrices. Raises UserError."""
    unet.requires_grad_(False)
    if config.trainable == "all":
        unet.requires_grad_(True)
    elif config.trainable in TRAINABLE:
        for name, parameter in unet.named_parameters():
            parameter.requires_grad_(TRAINABLE[config.trainable] in name)
    else:  # lora
        try:
            from peft import LoraConfig
        except ImportError:
            raise UserError("LoRA needs the package 'peft': pip install -e '.[train]'.") from None
        lora = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha or config.lora_rank,  # type: ignore[arg-type]  # may be a float
            lora_dropout=config.lora_dropout,
            init_lora_weights="gaussian",
            target_modules=list(config.lora_targets),
        )
        try:
            unet.add_adapter(lora, adapter_name=ADAPTER)
        except ValueError as error:
            detail = " ".join(str(error).split())[:200]
            targets = ",".join(config.lora_targets)
            raise UserError(f"--lora-targets {targets} cannot be used: {detail}") from None
    if not list_trained(unet):
        raise UserError(f"--trainable {config.trainable} matches no weight of the UNet; pass another value.")


def list_trained(unet: Any) -> list[tuple[str, torch.nn.Parameter]]:
    """Names and values of the trained parameters."""
    return [(name, parameter) for name, parameter in unet.named_parameters() if parameter.requires_grad]


def copy_averaged(unet: Any, average: Any) -> Any:
    """Copy of the (unwrapped) UNet with averaged weights and merged LoRA; the UNet itself is unchanged."""
    with torch.no_grad():
        averaged = copy.deepcopy(unet)
        if average is not None:
            average.copy_to([parameter for _, parameter in list_trained(averaged)])
        if getattr(averaged, "peft_config", None):
            averaged.fuse_lora(adapter_names=[ADAPTER])
            averaged.unload_lora()
    if averaged.is_gradient_checkpointing:
        averaged.disable_gradient_checkpointing()
    return averaged.eval().requires_grad_(False)


# --- loss ------------------------------------------------------------------------------------------------
def compute_losses(
    unet: Any,
    batch: Batch,
    scheduler: Any,
    *,
    scaling_factor: float,
    snr_gamma: float | None = None,
    changed_weight: float = 1.0,
) -> torch.Tensor:
    """Mean squared error of each pair, (B,) float32 (InstructPix2Pix, arXiv:2211.09800, eq. 2).

    snr_gamma       Min-SNR weights (arXiv:2303.09556, eq. 6): min(SNR, g) / SNR for noise prediction and
                    min(SNR, g) / (SNR + 1) for velocity.
    changed_weight  Factor of the error in cells where input and target differ (`Batch.changed`).
    """
    std = torch.exp(0.5 * batch.logvar.clamp(-30.0, 20.0))  # (B, C, h, w); limits as in diffusers' VAE
    latents = (batch.mean + std * batch.posterior) * scaling_factor  # a draw from the posterior
    noisy = scheduler.add_noise(latents, batch.noise, batch.timestep)  # (B, C, h, w)
    # The UNet's input is (B, 2 C, h, w): noisy target, then image condition.
    predicted = unet(torch.cat([noisy, batch.condition], 1), batch.timestep, batch.states).sample.float()
    predicts_noise = scheduler.config.prediction_type == "epsilon"  # else velocity
    target = batch.noise
    if not predicts_noise:
        target = scheduler.get_velocity(latents, batch.noise, batch.timestep)
    errors = (predicted - target).square()  # (B, C, h, w)
    if changed_weight != 1.0:
        errors = errors * torch.where(batch.changed, changed_weight, 1.0)
    losses = errors.flatten(1).mean(1)  # (B,)
    if snr_gamma is not None:
        snr = compute_snr(scheduler, batch.timestep)  # (B,)
        losses = losses * snr.clamp(max=snr_gamma) / (snr if predicts_noise else snr + 1)
    return losses


# --- export ----------------------------------------------------------------------------------------------
def export(config: TuneConfig, pipeline: Any, unet: Any, average: Any, facts: Facts) -> Path:
    """Write OUT/model, a diffusers folder with a card; LoRA matrices are merged, and also in `lora/`."""
    with write_model(config.out_dir, facts, write_card(config, facts)) as draft:
        save_pipeline(pipeline, copy_averaged(unet, average), draft)
        if config.trainable == "lora":  # for `pipeline.load_lora_weights(folder)`
            from peft.utils import get_peft_model_state_dict

            learned = copy.deepcopy(unet)
            if average is not None:
                average.copy_to([parameter for _, parameter in list_trained(learned)])
            matrices = get_peft_model_state_dict(learned, adapter_name=ADAPTER)
            layers = {name: matrix.cpu() for name, matrix in matrices.items()}
            with quiet():
                pipeline.save_lora_weights(str(draft / "lora"), unet_lora_layers=layers)
    return config.out_dir / MODEL


def save_pipeline(pipeline: Any, unet: Any, folder: Path) -> None:
    """Save the pipeline with another UNet, all in float32. The scheduler is that of InstructPix2Pix's code,
    since the base's own may start at a lower noise level."""
    saved = copy.copy(pipeline)
    saved.scheduler = euler_ancestral(pipeline.scheduler.config)
    with quiet():
        for part, module in (("unet", unet), ("vae", pipeline.vae), ("text_encoder", pipeline.text_encoder)):
            setattr(saved, part, copy_to(module, "cpu", torch.float32))
        saved.save_pretrained(folder, safe_serialization=True)
    index = folder / "model_index.json"
    parts = json.loads(index.read_text()) | {"_class_name": "StableDiffusionInstructPix2PixPipeline"}
    index.write_text(json.dumps(parts, indent=2, sort_keys=True) + "\n")


def write_card(config: TuneConfig, facts: Facts) -> str:
    """Model card in Markdown."""
    data = facts["data"]
    held_out = ", ".join(data["hold_out_objects"]) or "none"
    templates = ", ".join(str(t) for t in data["hold_out_templates"]) or "none"
    affirmative = "No affirmative instructions were used: expect it to remove whatever an instruction names."
    if data.get("affirmative"):
        percent, count = 100 * config.mix_affirmative, data["affirmative"]["pairs"]
        affirmative = f"{percent:.0f} % of the pairs seen were affirmative instructions ({count} pairs)."
    paragraphs = [
        f"`StableDiffusionInstructPix2PixPipeline`, started from `{facts['base']}` "
        f"(weights {facts['base_weights_sha256'][:12]}) and fine-tuned on NeIn (Bui et al., CVPR Workshops "
        "2025): sample image and negative sentence in, image without the object out.",
        f"{data['used']} of {data['samples']} samples were used; objects held out: {held_out}; templates "
        f"held out: {templates}. {affirmative}",
        f"{facts['steps']} steps of {config.batch_size} pairs in {facts['seconds']} s on "
        f"{facts['processes']} process(es); {'averaged' if config.ema else 'last'} weights.",
        "```python\nfrom diffusers import StableDiffusionInstructPix2PixPipeline\n"
        "pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(FOLDER, safety_checker=None)\n```",
        "Evaluate: `nein eval --editor FOLDER`.",
    ]
    rows = facts["validation"]
    if rows:
        keys = [key for key in rows[-1] if key != "step"]
        lines = [f"| step | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
        for row in rows:
            cells = [f"{row[key]:.3f}" if key in row else "" for key in keys]
            lines.append(f"| {row['step']} | {' | '.join(cells)} |")
        paragraphs.append("\n".join(["Validation on a fixed subset:", "", *lines]))
    head = ["library_name: diffusers", "pipeline_tag: image-to-image"]
    head.append("tags: [nein, instruct-pix2pix, negation]")
    title = "An editor fine-tuned on NeIn"
    return format_card(facts, TuneConfig(), head=head, title=title, paragraphs=paragraphs)


# --- validation ------------------------------------------------------------------------------------------
def validate(
    config: TuneConfig, session: Session, pipeline: Any, step: int, learned: Any
) -> dict[str, float]:
    """Run `nein eval` with the UNet `learned` in OUT/validation; returns metric -> estimate in the main
    process, {} in the others. It may use random numbers: every training step seeds its own."""
    from nein.benchmarks.nein.run import NEIN

    processes = session.processes
    rank_device = session.accelerator.device  # "cuda:1", or "cpu:0" of a rank
    device = str(rank_device) if rank_device.type == "cuda" else rank_device.type
    name, out = f"step-{step:08d}", config.out_dir / "validation"
    if processes.is_main:
        save_pipeline(pipeline, learned, out / MODEL)
    processes.barrier()
    settings = config.build_validation(editor=[f"{name}={out / MODEL}"], device=device, overwrite=True)
    threads = torch.get_num_threads()  # restored below: the executor sets one
    with quiet():
        NEIN(settings, Executor(device, processes, threads=1 if device == "cpu" else None))
    torch.set_num_threads(threads)
    processes.barrier()
    if not processes.is_main:
        return {}
    shutil.rmtree(out / MODEL)
    results = frames.select(frames.read(out / name / "negative" / FIGURES_CSV), task="results")
    return {row["metric"]: row["value"] for row in frames.records(results) if row["value"] is not None}
