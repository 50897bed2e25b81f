"""The editor to fine-tune: where it comes from, what learns, by which optimiser and loss, what comes out."""

from __future__ import annotations

import copy
import functools
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
from nein.train.editor_finetuning.batches import Batch, placed
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.export import MODEL, Facts, card, finished_model
from nein.train.loop import Session

log = logging.getLogger(__name__)
ADAPTER = "nein"
#: --trainable NAME -> what the names of those parameters contain.
PARTS = {"transformer": ".attentions.", "cross_attention": ".attn2."}


def load_base(config: TuneConfig) -> LoadedPipeline:
    """The pipeline to start from, on the CPU in float32; a text-to-image UNet (4 channels) is widened to 8.
    Raises UserError."""
    loaded = load_pipeline(references.resolve(config.base), channels=(4, 8))
    if loaded.pipeline.unet.config.in_channels == 4:
        log.warning("'%s' is no instruction editor yet; its UNet gets four more input channels", config.base)
        with torch.random.fork_rng(devices=[]):
            widen(loaded.pipeline.unet)
    return loaded


def widen(unet: Any) -> None:
    """Gives a UNet of 4 input channels 4 more, in place, whose weights are zero. Source: `ddpm_edit.py` of
    InstructPix2Pix @ 0dffd1e."""
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
    """Freezes what does not learn, adds LoRA matrices. Raises UserError."""
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
            raise UserError("LoRA needs the package 'peft': pip install -e '.[train]'.") from None
        lora = LoraConfig(
            r=config.lora_rank,
            lora_alpha=config.lora_alpha or config.lora_rank,  # type: ignore[arg-type]  # a factor
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
    return [(name, p) for name, p in unet.named_parameters() if p.requires_grad]


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
    """(B,) float32: mean squared error of every pair (InstructPix2Pix, arXiv:2211.09800, eq. 2).

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


#: Options that a card states also where they have their defaults.
ALWAYS = ("trainable", "batch_size", "learning_rate", "schedule", "dropout", "ema", "precision", "seed")


def export(config: TuneConfig, pipeline: Any, unet: Any, average: Any, facts: Facts) -> Path:
    """Writes OUT/model, whole or not at all: a plain diffusers folder with a card. Matrices of LoRA are
    merged into the UNet, and written apart as well, in `lora/`."""
    with finished_model(config.out_dir, facts, functools.partial(describe, config)) as draft:
        save_pipeline(pipeline, averaged_copy(unet, average), draft)
        if config.trainable == "lora":  # for `pipeline.load_lora_weights(folder)`
            from peft.utils import get_peft_model_state_dict

            learned = copy.deepcopy(unet)
            if average is not None:
                average.copy_to([p for _, p in trainable(learned)])
            matrices = get_peft_model_state_dict(learned, adapter_name=ADAPTER)
            layers = {k: v.cpu() for k, v in matrices.items()}
            with quiet():
                type(pipeline).save_lora_weights(str(draft / "lora"), unet_lora_layers=layers)
    return config.out_dir / MODEL


def save_pipeline(pipeline: Any, unet: Any, folder: Path) -> None:
    """Saves the pipeline with another UNet, all in float32, with the sampler of the original code (the base's
    own may start at a lower noise level)."""
    saved = copy.copy(pipeline)
    saved.scheduler = euler_ancestral(pipeline.scheduler.config)
    with quiet():
        for part, module in (("unet", unet), ("vae", pipeline.vae), ("text_encoder", pipeline.text_encoder)):
            setattr(saved, part, placed(module, "cpu", torch.float32))
        saved.save_pretrained(folder, safe_serialization=True)
    index = folder / "model_index.json"
    parts = json.loads(index.read_text()) | {"_class_name": "StableDiffusionInstructPix2PixPipeline"}
    index.write_text(json.dumps(parts, indent=2, sort_keys=True) + "\n")


def describe(config: TuneConfig, facts: Facts) -> str:
    data = facts["data"]
    held = ", ".join(data["hold_out_objects"]) or "none"
    templates = ", ".join(str(t) for t in data["hold_out_templates"]) or "none"
    affirmative = "No affirmative instruction was mixed in: expect it to remove whatever is named."
    if data.get("affirmative"):
        share, pairs = 100 * config.mix_affirmative, data["affirmative"]["pairs"]
        affirmative = f"{share:.0f} % of the pairs seen were affirmative instructions ({pairs} pairs)."
    words = [
        f"`StableDiffusionInstructPix2PixPipeline`, started from `{facts['base']}` "
        f"(weights {facts['base_weights_sha256'][:12]}), which learned what a picture should not "
        "contain from pairs of NeIn (Bui et al., CVPR Workshops 2025): input F, negative sentence, target I.",
        f"{data['used']} of {data['samples']} samples were used; objects held out: {held}; templates "
        f"held out: {templates}. {affirmative}",
        f"{facts['steps']} steps of {config.batch_size} pairs in {facts['seconds']} s on "
        f"{facts['processes']} process(es); {'averaged' if config.ema else 'last'} weights.",
        "```python\nfrom diffusers import StableDiffusionInstructPix2PixPipeline\n"
        "pipe = StableDiffusionInstructPix2PixPipeline.from_pretrained(FOLDER, safety_checker=None)\n```",
        "Evaluate: `nein eval --editor FOLDER`.",
    ]
    if rows := facts["validation"]:
        keys = [key for key in rows[-1] if key != "step"]
        lines = [f"| step | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
        for row in rows:
            cells = [f"{row[key]:.3f}" if key in row else "" for key in keys]
            lines.append(f"| {row['step']} | {' | '.join(cells)} |")
        words.append("\n".join(["Validation on a fixed subset:", "", *lines]))
    head = ["library_name: diffusers", "pipeline_tag: image-to-image"]
    head += ["tags: [nein, instruct-pix2pix, negation]"]
    return card(facts, head, "An editor fine-tuned on NeIn", words, TuneConfig().identity(), ALWAYS)


def validate(
    config: TuneConfig, session: Session, pipeline: Any, step: int, learned: Any
) -> dict[str, float]:
    """Figures by metric of `nein eval` with the UNet `learned` (main process; others get none), below
    OUT/validation. Training goes on undisturbed: every step seeds what it draws."""
    from nein.benchmarks.nein.run import NEIN

    world, place = session.processes, session.accelerator.device
    device = str(place) if place.type == "cuda" else place.type  # a rank's is "cpu:0"
    name, out = f"step-{step:08d}", config.out_dir / "validation"
    if world.is_main:
        save_pipeline(pipeline, learned, out / MODEL)
    world.barrier()
    settings = config.validation(editor=[f"{name}={out / MODEL}"], device=device, overwrite=True)
    threads = torch.get_num_threads()  # training goes on with them; the executor takes one
    with quiet():
        NEIN(settings, Executor(device, world, threads=1 if device == "cpu" else None))
    torch.set_num_threads(threads)
    world.barrier()
    if not world.is_main:
        return {}
    shutil.rmtree(out / MODEL)
    results = frames.select(frames.read(out / name / "negative" / FIGURES_CSV), task="results")
    return {row["metric"]: row["value"] for row in frames.records(results) if row["value"] is not None}
