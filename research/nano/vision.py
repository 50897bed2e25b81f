"""What the nano judges and CLIP share: one small vision transformer that has learned to tell patches apart.

A ViT that starts from nothing needs far more pictures than one that is told, patch by patch, what it sees.
The backbone is CLIP's vision tower with two linear readers; towers of CLIP, LLaVA-NeXT, OWLv2 and BLIP start
from its weights, as their big siblings start from a pre-trained tower. It is not shipped itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from nein.metrics.preprocess import CLIP_MEAN, CLIP_STD
from nein.nano.scenes import BACKGROUNDS, CATEGORIES, Scene
from research.nano.data import ScenePool, degrade, scene_pool, to_float
from research.nano.job import Job, sized, step_count

LABELS = len(CATEGORIES) + len(BACKGROUNDS)
WIDTH = 128
#: The tower's configuration, shared by the four models.
TOWER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 384,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 8,
    "hidden_act": "quick_gelu",
}
POOL = 24_000


def normalise(images: torch.Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    """[-1, 1] -> standardised as the published preprocessing does."""
    m = torch.tensor(mean, device=images.device).view(1, 3, 1, 1)
    s = torch.tensor(std, device=images.device).view(1, 3, 1, 1)
    return ((images + 1) / 2 - m) / s


def truth(scenes: list[Scene]) -> torch.Tensor:
    """(N, categories + backgrounds) float 0/1: what is in each scene."""
    index = {n: i for i, n in enumerate([*CATEGORIES, *BACKGROUNDS])}
    labels = torch.zeros(len(scenes), LABELS)
    for row, scene in enumerate(scenes):
        for name in (*scene.categories, scene.background):
            labels[row, index[name]] = 1
    return labels


def training_pool(scale: float) -> ScenePool:
    return scene_pool("train", max(64, int(POOL * min(1.0, scale))))


class Reader(nn.Module):
    """Training aid: reads from patch features what each patch shows; thrown away afterwards."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.read = nn.Linear(width, LABELS)

    def forward(self, patches: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.read(patches).float().flatten(0, 1), labels.flatten())


def backbone_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """CLIPVisionModel with dense labels: cross-entropy per patch at the last two layers, and the list of
    things from the class token."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    model = CLIPVisionModel(CLIPVisionConfig(**TOWER))
    last, before, whole = Reader(), Reader(), nn.Linear(WIDTH, LABELS)
    pool = training_pool(scale)
    images, patches, labels = pool.images.to(device), pool.patches.to(device), truth(pool.scenes).to(device)
    batch = sized(64, scale, 4)

    def see(x: torch.Tensor) -> Any:
        return model(pixel_values=normalise(x, CLIP_MEAN, CLIP_STD), output_hidden_states=True)

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(len(images), (batch,), generator=generator, device=device)
        out = see(degrade(to_float(images[pick]), generator))
        dense = last(out.hidden_states[-1][:, 1:], patches[pick])
        earlier = before(out.hidden_states[-2][:, 1:], patches[pick])
        listed = F.binary_cross_entropy_with_logits(whole(out.pooler_output).float(), labels[pick])
        return dense + 0.5 * earlier + 2 * listed, {"dense": dense.detach(), "list": listed.detach()}

    def deliver() -> dict[str, Any]:
        dev = scene_pool("dev", sized(500, scale, 20))
        right = []
        for part, wanted in zip(dev.images.split(100), dev.patches.split(100), strict=True):
            out = see(to_float(part.to(device)))
            right.append((last.read(out.hidden_states[-1][:, 1:]).argmax(-1).cpu() == wanted).float())
        share = torch.cat(right)
        things = dev.patches < len(CATEGORIES)
        folder = zoo / "backbone"
        folder.mkdir(parents=True, exist_ok=True)
        weights = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}
        save_file(weights, folder / "model.safetensors")
        accuracy = {"patches": float(share.mean()), "object_patches": float(share[things].mean())}
        return {"held_out": {"scenes": len(dev.scenes), **{k: round(v, 4) for k, v in accuracy.items()}}}

    steps = step_count(2_000, scale)
    return Job(
        "backbone",
        {"vit": model, "last": last, "before": before, "whole": whole},
        loss,
        deliver,
        steps,
        1.5e-3,
        batch,
        autocast=True,
    )


def read_backbone(zoo: Path) -> dict[str, torch.Tensor]:
    """Its tensors by name. Raises SystemExit when the backbone has not been trained."""
    file = zoo / "backbone" / "model.safetensors"
    if not file.exists():
        raise SystemExit(f"{file} is missing; train it first: python -m research.nano backbone")
    return {key.removeprefix("vision_model."): value for key, value in load_file(file).items()}


def start_from_backbone(tower: nn.Module, zoo: Path) -> None:
    """Copy the backbone into a vision tower of CLIP's kind (CLIP, LLaVA-NeXT's, OWLv2) or BLIP's.

    BLIP's tower has no norm before its first layer; there everything but that norm is copied. Raises
    SystemExit when the backbone has not been trained.
    """
    backbone = read_backbone(zoo)
    wanted = tower.state_dict()
    prefix = "vision_model." if any(k.startswith("vision_model.") for k in wanted) else ""
    loaded, blip = 0, any(".self_attn.qkv." in k for k in wanted)
    for key, value in backbone.items():
        name = key
        if blip:
            if "pre_layrnorm" in key or any(p in key for p in (".k_proj.", ".v_proj.")):
                continue
            if ".q_proj." in key:
                value = torch.cat(
                    [backbone[key.replace("q_proj", p)] for p in ("q_proj", "k_proj", "v_proj")]
                )
                name = key.replace("q_proj", "qkv")
            name = name.replace("self_attn.out_proj", "self_attn.projection")
            if name == "embeddings.position_embedding.weight":
                name, value = "embeddings.position_embedding", value[None]
            if name == "embeddings.class_embedding":
                value = value.view(1, 1, -1)
        if prefix + name not in wanted:
            name = name.replace("pre_layrnorm", "pre_layernorm")
        if prefix + name in wanted and wanted[prefix + name].shape == value.shape:
            wanted[prefix + name].copy_(value)
            loaded += 1
    if loaded < 0.6 * len(backbone):
        raise AssertionError(
            f"only {loaded} of {len(backbone)} tensors of the backbone fit {type(tower).__name__}"
        )
