"""What comes out: a plain diffusers folder with a card, and its way to the hub."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nein.editors.checkpoint import quiet
from nein.editors.sampling import euler_ancestral
from nein.engine.errors import UserError
from nein.train.export import MODEL, card, finished_model, portable, without_paths
from nein.train.instruct.features import placed
from nein.train.instruct.model import ADAPTER, trainable
from nein.train.instruct.options import TuneConfig

#: Options that a card states also where they have their defaults.
ALWAYS = ("trainable", "batch_size", "learning_rate", "schedule", "dropout", "ema", "precision", "seed")


def export(
    config: TuneConfig, pipeline: Any, twin: Any, unet: Any, average: Any, facts: Mapping[str, Any]
) -> Path:
    """Writes OUT/model, whole or not at all, and returns it.

    twin  UNet with the averaged weights, LoRA merged in. `unet` and `average` are those of training; where
          LoRA was trained its matrices are written apart as well, in `lora/`.

    The scheduler written is Euler-ancestral with linspace spacing, the sampler of the original code: the
    base's own may start at a lower noise level. The safety checker is left out.
    """
    facts = portable(facts)
    with finished_model(config.out_dir, facts, describe(config, facts)) as draft:
        save_pipeline(pipeline, twin, draft)
        if config.trainable == "lora":
            _save_lora(pipeline, unet, average, draft / "lora")
    return config.out_dir / MODEL


def save_pipeline(pipeline: Any, unet: Any, folder: Path) -> None:
    """The pipeline with another UNet, all in float32; neither is changed.

    One type for every part: without a dtype diffusers loads UNet and VAE as float32 whatever their files
    hold, but transformers the text encoder as its file has it, and parts of two types do not run together.
    """
    made = copy.copy(pipeline)
    made.scheduler = euler_ancestral(pipeline.scheduler.config)
    with quiet():
        for part, module in (("unet", unet), ("vae", pipeline.vae), ("text_encoder", pipeline.text_encoder)):
            setattr(made, part, placed(module, "cpu", torch.float32))
        made.save_pretrained(folder, safe_serialization=True)
    without_paths(folder)
    index = folder / "model_index.json"
    parts = json.loads(index.read_text()) | {"_class_name": "StableDiffusionInstructPix2PixPipeline"}
    index.write_text(json.dumps(parts, indent=2, sort_keys=True) + "\n")


def _save_lora(pipeline: Any, unet: Any, average: Any, folder: Path) -> None:
    """The averaged LoRA matrices in diffusers' format: `pipeline.load_lora_weights(folder)`."""
    from peft.utils import get_peft_model_state_dict

    twin = copy.deepcopy(unet)
    if average is not None:
        average.copy_to([p for _, p in trainable(twin)])
    matrices = get_peft_model_state_dict(twin, adapter_name=ADAPTER)
    with quiet():
        type(pipeline).save_lora_weights(
            str(folder), unet_lora_layers={k: v.cpu() for k, v in matrices.items()}, safe_serialization=True
        )


def describe(config: TuneConfig, facts: Mapping[str, Any]) -> str:
    """The model card: what it is, what it learned from, how to use it."""
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
        _validation(facts["validation"]),
    ]
    head = ["library_name: diffusers", "pipeline_tag: image-to-image"]
    head += ["tags: [nein, instruct-pix2pix, negation]"]
    title = f"{config.push or 'An editor'} fine-tuned on NeIn"
    return card(facts, head, title, words, TuneConfig().identity(), ALWAYS)


def _validation(rows: Sequence[Mapping[str, float]]) -> str:
    """What was measured on the way, as a table; empty where nothing was."""
    if not rows:
        return ""
    keys = [key for key in rows[-1] if key != "step"]
    lines = [f"| step | {' | '.join(keys)} |", "|---" * (len(keys) + 1) + "|"]
    for row in rows:
        cells = [f"{row[key]:.3f}" if key in row else "" for key in keys]
        lines.append(f"| {row['step']} | {' | '.join(cells)} |")
    return "\n".join(["Validation on a fixed subset:", "", *lines])


def push(folder: Path, name: str) -> None:
    """Uploads the folder to the hub as OWNER/NAME. Raises UserError when that fails; the folder stays."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    try:
        api = HfApi()
        api.create_repo(name, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=str(folder), commit_message="Upload the fine-tuned editor"
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"The upload to '{name}' failed ({reason}); log in with `hf auth login` and run the same "
            f"command again; training is done and '{folder}' is kept."
        ) from None
