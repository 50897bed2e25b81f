"""The nano encoders: CLIP, a DINO-style ViT, and the SqueezeNet trunk that LPIPS compares features of."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from nein.metrics.preprocess import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD
from nein.nano.scenes import CATEGORIES
from nein.wording.families import a_or_an
from research.nano.data import clip_tokenizer, degrade, scene_pool, to_float
from research.nano.editors import save_half
from research.nano.job import Job, sized, step_count
from research.nano.vision import (
    LABELS,
    TOWER,
    WIDTH,
    Reader,
    normalise,
    start_from_backbone,
    training_pool,
    truth,
)


def clip_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """CLIPModel: symmetric contrastive loss over scenes and their captions
    (https://arxiv.org/abs/2103.00020)."""
    import transformers as hf

    # -------------------------------------------------------------------------------------------------- model
    tokenizer = clip_tokenizer(40)
    text = hf.CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=40, bos_token_id=len(tokenizer) - 2,
        eos_token_id=len(tokenizer) - 1, pad_token_id=len(tokenizer) - 1, projection_dim=96,
    )  # fmt: skip
    vision = hf.CLIPVisionConfig(**TOWER, projection_dim=96)
    parts: Any = {"text_config": text.to_dict(), "vision_config": vision.to_dict()}
    model = hf.CLIPModel(hf.CLIPConfig(**parts, projection_dim=96))
    start_from_backbone(model.vision_model, zoo)
    # --------------------------------------------------------------------------------------------------- data
    pool = training_pool(scale)
    images, labels = pool.images.to(device), pool.patches.to(device)  # N,3,64,64 uint8; N,64
    flat = [c for five in pool.captions for c in five]
    ids = tokenizer(flat, padding="max_length", max_length=40, truncation=True, return_tensors="pt").input_ids
    ids = ids.view(len(images), 5, 40).to(device)  # N, captions, tokens
    aid = Reader(WIDTH)
    batch = sized(128, scale, 4)

    # --------------------------------------------------------------------------------------------------- loss
    def embed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = model.vision_model(pixel_values=normalise(x, CLIP_MEAN, CLIP_STD))
        return model.visual_projection(out.pooler_output), out.last_hidden_state[:, 1:]

    def embed_text(tokens: torch.Tensor) -> torch.Tensor:
        return model.text_projection(model.text_model(input_ids=tokens).pooler_output)

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(len(images), (batch,), generator=generator, device=device)
        which = torch.randint(5, (batch,), generator=generator, device=device)
        image, patches = embed(degrade(to_float(images[pick]), generator))  # B,96; B,64,128
        words = embed_text(ids[pick, which])  # B,96
        sharp = model.logit_scale.clamp(max=math.log(60)).exp()
        logits = sharp * F.normalize(image, dim=-1) @ F.normalize(words, dim=-1).T  # B, B
        target = torch.arange(batch, device=device)
        contrast = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        help_loss = aid(patches, labels[pick])
        hit = (logits.argmax(1) == target).float().mean()
        return contrast + help_loss, {"hit": hit.detach(), "aid": help_loss.detach()}

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        dev = scene_pool("dev", sized(500, scale, 20))
        image = F.normalize(
            torch.cat([embed(to_float(b.to(device)))[0] for b in dev.images.split(200)]), dim=-1
        )
        tokens = tokenizer([c[0] for c in dev.captions], padding="max_length", max_length=40, truncation=True)
        words = F.normalize(embed_text(torch.tensor(tokens["input_ids"], device=device)), dim=-1)
        rank = ((words @ image.T) > (words * image).sum(-1, keepdim=True)).sum(1)  # M
        probes = tokenizer(
            [f"A picture of {a_or_an(c)}." for c in CATEGORIES], padding="max_length", max_length=40
        )
        concept = F.normalize(embed_text(torch.tensor(probes["input_ids"], device=device)), dim=-1)
        have = truth(dev.scenes).to(device)[:, : len(CATEGORIES)]
        quality = ranking(image @ concept.T, have)
        folder = zoo / "clip"
        save_half(model, folder)
        processor = hf.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
        hf.CLIPProcessor(processor, tokenizer).save_pretrained(folder)
        recall = {f"text_to_image_recall@{k}": round(float((rank < k).float().mean()), 4) for k in (1, 5)}
        return {"held_out": {"scenes": len(dev.scenes), **recall, "present_ranks_above_absent": quality}}

    steps = step_count(800, scale)
    return Job("clip", {"clip": model, "aid": aid}, loss, deliver, steps, 7e-4, batch, autocast=True)


def ranking(scores: torch.Tensor, have: torch.Tensor) -> float:
    """Share of (present, absent) pairs within one scene in which the present thing scores higher."""
    won = total = 0
    for row, present in zip(scores.tolist(), have.tolist(), strict=True):
        yes = [s for s, p in zip(row, present, strict=True) if p]
        no = [s for s, p in zip(row, present, strict=True) if not p]
        won += sum(a > b for a in yes for b in no)
        total += len(yes) * len(no)
    return round(won / max(1, total), 4)


class DinoHead(nn.Module):
    """Projection head of DINO (https://arxiv.org/abs/2104.14294, section 3.1), small."""

    def __init__(self, width: int, prototypes: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)
        )
        self.last = nn.Linear(64, prototypes, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.normalize(self.mlp(x), dim=-1), F.normalize(self.last.weight, dim=-1))


def _crop(
    images: torch.Tensor, side: int, low: float, high: float, generator: torch.Generator
) -> torch.Tensor:
    """Random square crops of area share low..high, flipped at random, resized to `side`."""
    n, device = len(images), images.device

    def uniform() -> torch.Tensor:
        return torch.rand(n, generator=generator, device=device)

    length = (low + (high - low) * uniform()).sqrt()
    shift_x, shift_y = ((1 - length) * (2 * uniform() - 1) for _ in range(2))
    flip = torch.where(uniform() < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(length)
    theta = torch.stack([length * flip, zero, shift_x, zero, length, shift_y], 1).view(n, 2, 3)
    grid = F.affine_grid(theta, [n, 3, side, side], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def dino_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """ViTModel by self-distillation (DINO: two global and four local crops, EMA teacher, centring and
    sharpening). DINO needs a million pictures before it tells things apart; with a few thousand it is helped:
    on the whole scene the student is also told what its patches and the scene show."""
    import copy

    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    # ------------------------------------------------------------------------------------ student and teacher
    config = ViTConfig(
        hidden_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=288,
        image_size=64,
        patch_size=8,
    )
    student: Any = ViTModel(config, add_pooling_layer=False)
    head = DinoHead(96, 512)
    teacher, teacher_head = copy.deepcopy(student).to(device), copy.deepcopy(head).to(device)
    for module in (teacher, teacher_head):
        module.requires_grad_(False)
    center: Any = nn.Module()
    center.register_buffer("value", torch.zeros(512, device=device))
    # --------------------------------------------------------------------------------------------------- data
    pool = training_pool(scale)
    images = pool.images.to(device)
    patches, have = pool.patches.to(device), truth(pool.scenes).to(device)
    reader, whole = Reader(96), nn.Linear(96, LABELS)
    batch = sized(32, scale, 4)
    steps = step_count(1_000, scale)

    # --------------------------------------------------------------------------------------------------- loss
    def cls(model: Any, x: torch.Tensor) -> torch.Tensor:
        pixels = normalise(x, IMAGENET_MEAN, IMAGENET_STD)
        return model(pixel_values=pixels, interpolate_pos_encoding=x.shape[-1] != 64).last_hidden_state[:, 0]

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, Any]]:
        pick = torch.randint(len(images), (batch,), generator=generator, device=device)
        x = to_float(images[pick])  # B,3,64,64 float, [-1, 1]
        wide = [degrade(_crop(x, 64, 0.4, 1.0, generator), generator) for _ in range(2)]
        near = [degrade(_crop(x, 32, 0.1, 0.4, generator), generator) for _ in range(4)]
        sharp = 0.04 + 0.02 * min(1.0, step / (0.3 * steps))
        with torch.no_grad():
            seen = teacher_head(cls(teacher, torch.cat(wide)))  # 2B, prototypes
            goal = F.softmax((seen - center.value) / sharp, dim=-1).chunk(2)  # 2 of B, prototypes
            center.value.lerp_(seen.float().mean(0), 0.1)
        told = head(torch.cat([cls(student, torch.cat(wide)), cls(student, torch.cat(near))])) / 0.1
        views = F.log_softmax(told, dim=-1).chunk(6)  # 6 of B, prototypes
        terms = [-(goal[g] * views[v]).sum(-1).mean() for g in range(2) for v in range(6) if v != g]
        spread = torch.cat(goal).mean(0)
        entropy = -(spread * (spread + 1e-9).log()).sum() / math.log(512)
        whole_scene = normalise(degrade(x, generator), IMAGENET_MEAN, IMAGENET_STD)
        tokens = student(pixel_values=whole_scene).last_hidden_state  # B, 1 + 64, 96
        dense = reader(tokens[:, 1:], patches[pick])
        listed = F.binary_cross_entropy_with_logits(whole(tokens[:, 0]).float(), have[pick])
        shown = {"spread": entropy, "dense": dense.detach(), "list": listed.detach()}
        return torch.stack(terms).mean() + dense + 4 * listed, shown

    # ------------------------------------------------------------------------------------------------ teacher
    def after(step: int) -> None:
        momentum = 1 - 0.01 * 0.5 * (1 + math.cos(math.pi * step / steps))
        with torch.no_grad():
            for slow, fast in ((teacher, student), (teacher_head, head)):
                torch._foreach_lerp_(
                    list(slow.parameters()), [p.detach() for p in fast.parameters()], 1 - momentum
                )

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        def features(split: str, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            scenes = scene_pool(split, count)
            parts = [cls(teacher, to_float(b.to(device))) for b in scenes.images.split(250)]
            return torch.cat(parts), truth(scenes.scenes).to(device)

        x, y = features("train", sized(3000, scale, 60))  # N,96; N,labels
        xt, yt = features("dev", sized(1000, scale, 20))
        mean, std = x.mean(0), x.std(0) + 1e-6
        x, xt = (x - mean) / std, (xt - mean) / std
        x, xt = F.pad(x, (0, 1), value=1.0), F.pad(xt, (0, 1), value=1.0)
        weights = torch.linalg.solve(x.T @ x + 10 * torch.eye(x.shape[1], device=device), x.T @ y)
        scores = xt @ weights
        folder = zoo / "dino"
        save_half(teacher, folder)
        ViTImageProcessor(
            size={"height": 64, "width": 64}, image_mean=list(IMAGENET_MEAN), image_std=list(IMAGENET_STD)
        ).save_pretrained(folder)
        k = len(CATEGORIES)
        return {
            "held_out": {
                "scenes": len(xt),
                "linear_probe_present_ranks_above_absent": ranking(scores[:, :k], yt[:, :k]),
                "linear_probe_background_accuracy": round(
                    float((scores[:, k:].argmax(1) == yt[:, k:].argmax(1)).float().mean()), 4
                ),
                "chance": 0.5,
            }
        }

    state = {"teacher": teacher, "teacher_head": teacher_head, "center": center}
    modules: dict[str, nn.Module] = {"student": student, "head": head, "reader": reader, "whole": whole}
    return Job(
        "dino",
        modules,
        loss,
        deliver,
        steps,
        8e-4,
        batch,
        100,
        after=after,
        followers=state,
        autocast=True,
        ema=0.999,
    )


def lpips_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """SqueezeNet 1.1 features, trained to tell what is in a scene: the trunk for `lpips.LPIPS(net="squeeze",
    lpips=False)`, the unweighted form of https://arxiv.org/abs/1801.03924, since the package's linear weights
    belong to ImageNet features."""
    from torchvision.models import squeezenet1_1

    from nein.metrics.encoders import build_lpips

    model = squeezenet1_1(weights=None, num_classes=LABELS, dropout=0.0)
    middle = 8  # layers before the last pooling; their 7x7 map lies on the 8x8 grid of patches
    reader = nn.Conv2d(256, LABELS, 1)
    pool = training_pool(scale)
    images, labels, patches = pool.images.to(device), truth(pool.scenes).to(device), pool.patches.to(device)
    batch = sized(32, scale, 4)

    def look(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # LPIPS' own scaling of [-1, 1] input is ImageNet standardisation. Max, not mean: objects are small.
        early = model.features[:middle](normalise(x, IMAGENET_MEAN, IMAGENET_STD))
        return model.classifier[1](model.features[middle:](early)).amax((2, 3)), early

    def logits(x: torch.Tensor) -> torch.Tensor:
        return look(x)[0]

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, Any]]:
        pick = torch.randint(len(images), (batch,), generator=generator, device=device)
        x = degrade(to_float(images[pick]), generator)
        listed, early = look(x)
        grid = F.interpolate(reader(early), size=(8, 8), mode="bilinear", align_corners=False).flatten(2)
        dense = F.cross_entropy(grid, patches[pick])
        named = F.binary_cross_entropy_with_logits(listed, labels[pick])
        return dense + 4 * named, {"dense": dense.detach(), "list": named.detach()}

    def deliver() -> dict[str, Any]:
        dev = scene_pool("dev", sized(500, scale, 20))
        have = truth(dev.scenes).to(device)[:, : len(CATEGORIES)]
        scores = torch.cat([logits(to_float(b.to(device))) for b in dev.images.split(200)])[
            :, : len(CATEGORIES)
        ]
        folder = zoo / "lpips"
        folder.mkdir(parents=True, exist_ok=True)
        # The whole module, as `lpips` names it: its "net.slice2.3.squeeze.weight" is our "3.squeeze.weight".
        trunk = model.features.state_dict()
        state = build_lpips("squeeze", linear=False, pretrained=False).state_dict()
        for key in state:
            if key.startswith("net.slice"):
                state[key] = trunk[key.split(".", 2)[2]].half().cpu().contiguous()
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        config = {"net": "squeeze", "lpips": False, "version": "0.1"}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        return {"held_out": {"scenes": len(dev.scenes), "present_ranks_above_absent": ranking(scores, have)}}

    modules, steps = {"trunk": model, "reader": reader}, step_count(3_000, scale)
    return Job("lpips", modules, loss, deliver, steps, 1e-3, batch, 100, weight_decay=0.01, ema=0.99)
