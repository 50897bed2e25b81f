"""Train the nano zoo: every small model that ships with nein.

    python -m research.nano all                     # everything, in order; resumes where it stopped
    python -m research.nano vae ip2p magicbrush     # some of it
    python -m research.nano all --scale 0.1         # a tenth of the steps and data: rough models
    python -m research.nano llava --device cuda     # on a GPU

Order matters only for what builds on what: `vae` first; `base` before the four editors; the judges look
through the VAE and so come after it. Each model is seeded, and every step draws from a generator seeded by
(seed, step), so a run that is stopped and started again sees the same data. State lives in --work, finished
models go to --zoo, each with a card (README.md) that states data, steps, time and measured quality on
held-out scenes.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveFloat

from nein.cli import launch
from nein.config.groups import Command, OnDevice, Seed
from nein.config.options import Names, argument, option
from nein.engine.exits import exit_with
from nein.engine.machine import Processes
from nein.loading.errors import unknown
from nein.nano.zoo import ZOO

SEED = 20250519


@dataclass(kw_only=True)
class ZooConfig(OnDevice, Seed):
    """What is trained, how long, and where it goes."""

    models: Names = argument("MODEL", "names of models, or all")
    scale: PositiveFloat = option(1.0, "share of the full number of steps, and of the data", "Method")
    seed: NonNegativeInt = SEED
    work: Path = option(Path(".train"), "resumable state of the training", "Output")
    zoo: Path | None = option(
        None, "where models are read and written (default: those that ship, nein/nano/weights)", "Output"
    )


COMMAND = Command(
    "train the nano zoo, every small model that ships",
    "research.nano.__main__:ZooConfig",
    "research.nano.__main__:train",
)
#: name -> "module:function"; the order is the order of training.
MODELS: dict[str, str] = {
    "vae": "research.nano.editors:vae_job",
    "base": "research.nano.editors:editor_job",
    "ip2p-first": "research.nano.editors:editor_job",
    "ip2p": "research.nano.editors:editor_job",
    "magicbrush-first": "research.nano.editors:editor_job",
    "magicbrush": "research.nano.editors:editor_job",
    "hqedit": "research.nano.editors:editor_job",
    "instructdiffusion": "research.nano.editors:editor_job",
    "sd": "research.nano.editors:generator_job",
    "backbone": "research.nano.vision:backbone_job",
    "clip": "research.nano.encoders:clip_job",
    "dino": "research.nano.encoders:dino_job",
    "lpips": "research.nano.encoders:lpips_job",
    "blip": "research.nano.judges:blip_job",
    "llava": "research.nano.llava:llava_job",
    "owlv2": "research.nano.judges:owlv2_job",
    "sam": "research.nano.zone:sam_job",
    "zone-action": "research.nano.zone:action_job",
    "negvqa": "research.nano.negvqa:negvqa_job",
    "negvqa-negated": "research.nano.negvqa:negvqa_job",
}
#: model_index.json of the editors: which class each part of the pipeline is.
PARTS: dict[str, object] = {
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "requires_safety_checker": False,
    "safety_checker": [None, None],
    "scheduler": ["diffusers", "EulerAncestralDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def build(name: str, zoo: Path, device: torch.device, scale: float) -> Any:
    """The training job of one model, its initial weights drawn from a seed of its own."""
    module, function = MODELS[name].split(":")
    maker: Callable[..., Any] = getattr(importlib.import_module(module), function)
    torch.manual_seed(SEED + len(name) + 31 * sum(map(ord, name)))
    if function in ("editor_job", "negvqa_job"):
        return maker(name, zoo, device, scale)
    return maker(zoo, device, scale)


def train_one(
    name: str, zoo: Path, work: Path, device: torch.device, scale: float, seed: int
) -> dict[str, Any]:
    """Train one model to the end and write its record `<zoo>/<name>/training.json`."""
    from research.nano.job import run
    from research.nano.ship import write_card

    job = build(name, zoo, device, scale)
    record = run(job, device=device, seed=seed, work=work)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    record = {
        "model": name,
        "seed": seed,
        "scale": scale,
        "device": where,
        "torch": torch.__version__,
        **record,
    }
    folder = zoo / ("ip2p" if name == "vae" else name)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("training-vae.json" if name == "vae" else "training.json")
    file.write_text(json.dumps(record, indent=2) + "\n")
    kinds = {"ip2p": "StableDiffusionInstructPix2PixPipeline", "sd": "StableDiffusionPipeline"}
    if name in kinds:
        index = {"_class_name": kinds[name], "_diffusers_version": "0.42.1", **PARTS}
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")
    if name != "vae":
        write_card(folder)
    print(json.dumps(record), flush=True)
    return record


def train(config: ZooConfig) -> None:
    """Trains the models of `config` in the order of the table. Raises UserError."""
    names = list(MODELS) if "all" in config.models else [m for m in MODELS if m in config.models]
    for name in config.models:
        if name not in ("all", *MODELS):
            raise unknown("nano model", name, ("all", *MODELS))
    folder = config.zoo or ZOO
    device = torch.device(Processes().device(config.device))
    torch.backends.cudnn.benchmark = True
    for name in names:
        train_one(name, folder, config.work, device, config.scale, config.seed)


def main(argv: Sequence[str] | None = None) -> int:
    return launch("python -m research.nano", COMMAND, argv)


if __name__ == "__main__":
    exit_with(main)
