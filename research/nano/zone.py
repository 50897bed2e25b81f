"""The nano models of ZONE: SAM (every thing of a scene from any point on it) and the action classifier (does
an instruction ask to change, add or remove?)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from nein.editors.zone import ACTIONS, ActionClassifier, decide_action
from nein.metrics.preprocess import CLIP_MEAN, CLIP_STD
from nein.nano.scenes import CATEGORIES, SIZE, Scene, rng_for
from nein.train.editor_finetuning.drawn import draw_kind, sample_pair
from research.nano.data import degrade, mask, scene_pool, to_float
from research.nano.editors import save_half, tokenise
from research.nano.job import Job, sized, step_count
from research.nano.vision import TOWER, WIDTH, normalise, read_backbone

PATCH: int = TOWER["patch_size"]
GRID_SIDE = SIZE // PATCH
#: Points per picture in training; most of them on things.
POINTS = 8
ON_THINGS = 0.75
#: From how good an overlap on a segment counts as found.
FOUND = 0.7
#: Mask generation of the card and of ZONE's nano preset: points per side of the grid, and its thresholds.
GRID, QUALITY, STABILITY = 16, 0.6, 0.6


def sam_config() -> dict[str, Any]:
    """A SamModel for 64x64 pictures: 8x8 patches of 8 pixels, masks of 32x32. SamConfig's three parts; the
    vision tower has the shape of the nano backbone (`research.nano.vision.TOWER`)."""
    vision = {
        "hidden_size": WIDTH,
        "output_channels": 64,
        "num_hidden_layers": TOWER["num_hidden_layers"],
        "num_attention_heads": TOWER["num_attention_heads"],
        "mlp_dim": TOWER["intermediate_size"],
        "hidden_act": TOWER["hidden_act"],
        "image_size": SIZE,
        "patch_size": PATCH,
        "num_pos_feats": 32,
        "use_rel_pos": False,
        "window_size": 0,
        "initializer_range": 0.02,  # the library's default of 1e-10 is for weights that are loaded anyway
    }
    prompt = {"hidden_size": 64, "image_size": SIZE, "patch_size": PATCH}
    decoder = {"hidden_size": 64, "mlp_dim": 128, "num_attention_heads": 4, "iou_head_hidden_dim": 64}
    return {"vision_config": vision, "prompt_encoder_config": prompt, "mask_decoder_config": decoder}


def build_sam() -> Any:
    """SamModel of `sam_config`, its weights drawn from the global generator."""
    from transformers import SamConfig, SamModel

    model: Any = SamModel(SamConfig(**sam_config()))
    # The library scales its random frequencies by half the width, for weights that are loaded anyway; with
    # one, as in the original code, neighbouring points look alike. They stay fixed, as there.
    with torch.no_grad():
        frequencies = model.shared_image_embedding.positional_embedding
        frequencies.copy_(torch.randn(frequencies.shape))
    frequencies.requires_grad_(False)
    model.prompt_encoder.shared_embedding.positional_embedding = frequencies
    return model


def index_map(scene: Scene) -> np.ndarray:
    """(64, 64) uint8: 0 where the background shows, else 1 + the number of the item that covers the pixel."""
    numbers = np.zeros((SIZE, SIZE), np.uint8)
    for number, item in enumerate(scene.items, 1):
        numbers[mask(item)] = number
    return numbers


def start_from_backbone(encoder: Any, zoo: Path, images: torch.Tensor) -> None:
    """Copy the backbone into SAM's vision tower, as the big one starts from a pre-trained tower.

    images: (N, 3, 64, 64) standardised. SAM's tower has neither a class token nor a norm before its first
    layer; the norm is folded into the patch embedding, with the mean spread of its inputs over `images` in
    place of each one's own. Raises SystemExit when the backbone has not been trained.
    """
    backbone = read_backbone(zoo)
    patches = backbone["embeddings.patch_embedding.weight"]
    places = backbone["embeddings.position_embedding.weight"][1:]  # without the class token's
    raw = F.conv2d(images, patches, stride=PATCH).flatten(2).transpose(1, 2) + places
    gain = backbone["pre_layrnorm.weight"] / raw.std(-1, correction=0).mean()
    state = {
        "patch_embed.projection.weight": gain[:, None, None, None] * (patches - patches.mean(0)),
        "patch_embed.projection.bias": backbone["pre_layrnorm.bias"],
        "pos_embed": (gain * (places - places.mean(-1, keepdim=True))).view(1, GRID_SIDE, GRID_SIDE, -1),
    }
    for number in range(TOWER["num_hidden_layers"]):
        there, here = f"encoder.layers.{number}.", f"layers.{number}."
        for kind in ("weight", "bias"):
            parts = [backbone[f"{there}self_attn.{name}_proj.{kind}"] for name in "qkv"]
            state[f"{here}attn.qkv.{kind}"] = torch.cat(parts)
            state[f"{here}attn.proj.{kind}"] = backbone[f"{there}self_attn.out_proj.{kind}"]
            for ours, theirs in (("mlp.lin1", "mlp.fc1"), ("mlp.lin2", "mlp.fc2")):
                state[f"{here}{ours}.{kind}"] = backbone[f"{there}{theirs}.{kind}"]
            for norm in ("layer_norm1", "layer_norm2"):
                state[f"{here}{norm}.{kind}"] = backbone[f"{there}{norm}.{kind}"]
    missing, unexpected = encoder.load_state_dict(state, strict=False)
    if unexpected or any(not name.startswith("neck.") for name in missing):
        raise AssertionError(f"the backbone does not fit SAM's tower: {missing} {unexpected}")


class Sight(nn.Module):
    """Training aid, thrown away afterwards: every patch of the image embedding is asked what it shows, and
    whether it shows the same thing as the patch that a point is on.

    From the masks alone, features that tell one thing from the next come slowly.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.what = nn.Linear(width, len(CATEGORIES) + 1)
        self.same = nn.Linear(width, width)

    def forward(
        self, embedding: torch.Tensor, labels: torch.Tensor, points: torch.Tensor, masks: torch.Tensor
    ) -> torch.Tensor:
        """embedding (B, width, 8, 8), labels (B, 8, 8), points (B, P, 2), masks (B, P, 64, 64)."""
        cells = embedding.float().flatten(2).transpose(1, 2)
        weight = torch.where(labels.flatten() < len(CATEGORIES), 3.0, 1.0)
        each = F.cross_entropy(self.what(cells).flatten(0, 1), labels.flatten(), reduction="none")
        at = (points[..., 1] // PATCH * GRID_SIDE + points[..., 0] // PATCH).long()
        chosen = self.same(cells).gather(1, at[..., None].expand(-1, -1, cells.shape[2]))
        alike = chosen @ self.same(cells).transpose(1, 2) / cells.shape[2] ** 0.5
        share = F.avg_pool2d(masks, PATCH).flatten(2)
        return (each * weight).sum() / weight.sum() + F.binary_cross_entropy_with_logits(alike, share)


def patch_labels(scene: Scene) -> np.ndarray:
    """(8, 8) uint8: category of the thing that covers at least 30 % of a patch, else one past the last."""
    labels = np.full((GRID_SIDE, GRID_SIDE), len(CATEGORIES), np.uint8)
    for item in scene.items:
        share = mask(item).reshape(GRID_SIDE, PATCH, GRID_SIDE, PATCH).mean((1, 3))
        labels[share >= 0.3] = CATEGORIES.index(item.category)
    return labels


def draw_points(
    maps: torch.Tensor, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` pixels per picture, `ON_THINGS` of them on things where there are any.

    maps: (B, 64, 64) from `index_map`. Returns points (B, count, 2) as (x, y) and the masks (B, count, 64,
    64) float of what they are on; for a point on the background an empty one.
    """
    flat = maps.flatten(1)
    things = (flat > 0).float()
    on = torch.rand((len(maps), count), generator=generator, device=maps.device) < ON_THINGS
    picks = []
    for weight in (things, 1 - things):
        # A picture without things has nothing to draw from there; then any pixel will do.
        safe = torch.where(weight.sum(1, keepdim=True) > 0, weight, torch.ones_like(weight))
        picks.append(torch.multinomial(safe, count, replacement=True, generator=generator))
    pixel = torch.where(on, picks[0], picks[1])
    number = flat.gather(1, pixel)
    masks = (flat[:, None, :] == number[..., None]) & (number[..., None] > 0)
    points = torch.stack([pixel % SIZE, pixel // SIZE], -1).float()
    return points, masks.view(len(maps), count, SIZE, SIZE).float()


def overlap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """IoU over the last two dimensions of boolean masks; 0 where both are empty."""
    both, either = (a & b).sum((-1, -2)).float(), (a | b).sum((-1, -2)).float()
    return both / either.clamp(min=1)


def enlarged(logits: torch.Tensor) -> torch.Tensor:
    """(B, P, 3, h, w) at full size, as mask generation enlarges them."""
    whole = F.interpolate(logits.flatten(0, 1), (SIZE, SIZE), mode="bilinear")
    return whole.unflatten(0, logits.shape[:2])


def sam_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """SamModel trained on exact masks (losses of https://arxiv.org/abs/2304.02643, appendix A: focal and dice
    on the best of three masks, squared error on the predicted IoU of all three).

    A point on the background has no mask of its own: only its IoU, zero, is learned, so that mask generation
    drops what it yields there.
    """
    model = build_sam()
    pool = scene_pool("train", max(64, int(8_000 * min(1.0, scale))))
    images = pool.images.to(device)
    maps = torch.from_numpy(np.stack([index_map(s) for s in pool.scenes])).to(device)
    labels = torch.from_numpy(np.stack([patch_labels(s) for s in pool.scenes])).long().to(device)
    sight = Sight(model.config.vision_config.output_channels)
    batch = sized(16, scale, 4)
    start_from_backbone(
        model.vision_encoder, zoo, normalise(to_float(pool.images[:256]), CLIP_MEAN, CLIP_STD)
    )

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(len(images), (batch,), generator=generator, device=device)
        points, wanted = draw_points(maps[pick], POINTS, generator)
        x = normalise(degrade(to_float(images[pick]), generator), CLIP_MEAN, CLIP_STD)
        seen = model.vision_encoder(x).last_hidden_state
        out = model(image_embeddings=seen, input_points=points[:, :, None])
        logits, rated = enlarged(out.pred_masks.float()), out.iou_scores.float()
        goal = wanted[:, :, None].expand_as(logits)
        cross = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")
        probability = logits.sigmoid()
        right = probability * goal + (1 - probability) * (1 - goal)
        focal = ((1 - right) ** 2 * cross).mean((-1, -2))
        both = (probability * goal).sum((-1, -2))
        dice = 1 - (2 * both + 1) / (probability.sum((-1, -2)) + goal.sum((-1, -2)) + 1)
        something = wanted.amax((-1, -2))
        each = 20 * focal + dice
        # Mostly the best of the three, as in the paper; a little of all, so that none is left behind.
        segment = 0.8 * each.amin(-1) + 0.2 * each.mean(-1)
        segment = (segment * something).sum() / something.sum().clamp(min=1)
        reached = overlap(logits.detach() > 0, goal > 0.5)
        rating = (rated - reached).square().mean()
        best = (reached.amax(-1) * something).sum() / something.sum().clamp(min=1)
        aid = sight(seen, labels[pick], points, wanted)
        shown = {"iou": best, "rating": rating.detach(), "aid": aid.detach()}
        return segment + rating + aid, shown

    def deliver() -> dict[str, Any]:
        folder = zoo / "sam"
        save_half(model, folder)
        processor().save_pretrained(folder)
        return {"held_out": measure(model, device, scale)}

    # The last fifth of the schedule would take minutes and change little.
    steps, stop = step_count(3_000, scale), step_count(2_400, scale)
    modules = {"sam": model, "sight": sight}
    return Job("sam", modules, loss, deliver, steps, 1e-3, batch, 60, stop=stop, ema=0.99)


def processor() -> Any:
    """SamImageProcessor for 64x64 pictures, standardised as the backbone expects."""
    from transformers import SamImageProcessor

    square = {"height": SIZE, "width": SIZE}
    return SamImageProcessor(
        size={"longest_edge": SIZE},
        pad_size=square,
        mask_size={"longest_edge": 4 * GRID_SIDE},
        mask_pad_size={"height": 4 * GRID_SIDE, "width": 4 * GRID_SIDE},
        image_mean=list(CLIP_MEAN),
        image_std=list(CLIP_STD),
    )


def measure(model: Any, device: torch.device, scale: float) -> dict[str, float]:
    """Held-out quality: the best mask from a point inside each thing, and what mask generation finds."""
    from transformers.pipelines import MaskGenerationPipeline

    dev = scene_pool("dev", sized(120, scale, 4))
    maps = torch.from_numpy(np.stack([index_map(s) for s in dev.scenes])).to(device)
    points, wanted = draw_points(maps, 8, torch.Generator(device).manual_seed(0))
    x = normalise(to_float(dev.images.to(device)), CLIP_MEAN, CLIP_STD)
    best, chosen = [], []
    for pixels, where, goal in zip(x.split(20), points.split(20), wanted.split(20), strict=True):
        out = model(pixel_values=pixels, input_points=where[:, :, None])
        reached = overlap(enlarged(out.pred_masks) > 0, goal[:, :, None] > 0.5)
        on = goal.amax((-1, -2)) > 0
        best.append(reached.amax(-1)[on])
        top = out.iou_scores.argmax(-1, keepdim=True)
        chosen.append(reached.gather(-1, top)[..., 0][on])
    generate = MaskGenerationPipeline(model=model, image_processor=processor(), device=device)
    matched = total = segments = stray = 0
    for image, drawn in zip(dev.images, maps, strict=True):
        rows = segments_of(generate, image)
        segments += len(rows)
        truth = [drawn == number for number in range(1, int(drawn.max()) + 1)]
        hits = [[float(overlap(row.to(device), t)) for row in rows] for t in truth]
        total += len(truth)
        matched += sum(max(row, default=0.0) >= FOUND for row in hits)
        stray += sum(max((row[k] for row in hits), default=0.0) < 0.5 for k in range(len(rows)))
    return {
        "scenes": len(dev.scenes),
        "best_mask_iou": round(float(torch.cat(best).mean()), 4),
        "top_rated_mask_iou": round(float(torch.cat(chosen).mean()), 4),
        f"things_found_at_iou_{FOUND}": round(matched / max(1, total), 4),
        "segments_per_scene": round(segments / len(dev.scenes), 2),
        "segments_on_no_thing": round(stray / max(1, segments), 4),
    }


def segments_of(generate: Any, image: torch.Tensor) -> list[torch.Tensor]:
    """Boolean (64, 64) segments of a (3, 64, 64) uint8 picture by transformers' mask generation."""
    from PIL import Image

    picture = Image.fromarray(image.permute(1, 2, 0).cpu().numpy())
    options = {"pred_iou_thresh": QUALITY, "stability_score_thresh": STABILITY}
    segments = generate.run_single(picture, {"points_per_crop": GRID}, options, {})
    return [torch.as_tensor(np.asarray(m), dtype=torch.bool) for m in segments["masks"]]


#: What ZONE would have to do -> kinds of edit pairs and how many of a hundred; all else (marking, restoring)
#: is no edit of a zone. As many of each class; within a class as the nano editors see them.
MIXTURE = {
    "CHANGE": {"replace": 16.0, "recolour": 11.0, "scenery": 6.0},
    "ADD": {"add": 17.0, "double": 10.0, "keep": 6.0},
    "REMOVE": {"remove": 33.0},
}


def labelled(split: str, count: int) -> tuple[list[str], torch.Tensor]:
    """`count` affirmative instructions and the number of their action in `ACTIONS`."""
    weights = {kind: weight for kinds in MIXTURE.values() for kind, weight in kinds.items()}
    number = {kind: ACTIONS.index(action) for action, kinds in MIXTURE.items() for kind in kinds}
    rngs = [rng_for(split, index, "action") for index in range(count)]
    pairs = [sample_pair(rng, draw_kind(rng, weights)) for rng in rngs]
    return [pair.instruction for pair in pairs], torch.tensor([number[pair.kind] for pair in pairs])


def action_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """Two linear layers on the text encoder's states; cross-entropy over the largest logit of any real token,
    which is how `protocol="fixed"` reads them."""
    from transformers import CLIPTextModel, CLIPTokenizer

    base = zoo / "ip2p"
    if not (base / "text_encoder").is_dir():
        raise SystemExit(
            f"{base / 'text_encoder'} is missing; train it first: python -m research.nano vae ip2p"
        )
    tokenizer = CLIPTokenizer.from_pretrained(base / "tokenizer")
    encoder: Any = CLIPTextModel.from_pretrained(base / "text_encoder", dtype=torch.float32)
    encoder.to(device).eval()
    classifier = ActionClassifier(encoder.config.hidden_size)
    batch = sized(64, scale, 4)

    def states(texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        ids = tokenise(tokenizer, texts).to(device)
        # Every token up to the first end mark, which is also the padding.
        real = (ids != tokenizer.eos_token_id).cumprod(1).sum(1) + 1
        with torch.no_grad():
            parts = [encoder(part).last_hidden_state for part in ids.split(256)]
        return torch.cat(parts), real.clamp(max=ids.shape[1])

    texts, labels = labelled("train", max(64, int(6_000 * min(1.0, scale))))
    features, real = states(texts)
    labels = labels.to(device)
    position = torch.arange(features.shape[1], device=device)

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(len(features), (batch,), generator=generator, device=device)
        logits = classifier(features[pick])
        outside = position[None, :] >= real[pick][:, None]
        top = logits.masked_fill(outside[..., None], -torch.inf).amax(1)
        right = (top.argmax(1) == labels[pick]).float().mean()
        return F.cross_entropy(top, labels[pick]), {"right": right}

    def deliver() -> dict[str, Any]:
        unseen, truth = labelled("dev", sized(1_000, scale, 20))
        held_out, lengths = states(unseen)
        logits = classifier(held_out).cpu()
        share = {}
        for protocol in ("fixed", "paper"):
            told = [decide_action(row, int(n), protocol) for row, n in zip(logits, lengths, strict=True)]
            hits = [a == ACTIONS[int(b)] for a, b in zip(told, truth, strict=True)]
            share[f"accuracy_{protocol}"] = round(sum(hits) / len(hits), 4)
        (zoo / "zone-action").mkdir(parents=True, exist_ok=True)
        weights = {k: tensor.detach().half().cpu() for k, tensor in classifier.state_dict().items()}
        save_file(weights, zoo / "zone-action" / "model.safetensors", {"format": "pt"})
        return {"held_out": {"instructions": len(unseen), **share, "chance": 0.3333}}

    modules, steps = {"classifier": classifier}, step_count(600, scale)
    return Job("zone-action", modules, loss, deliver, steps, 2e-3, batch, 20, weight_decay=0.01, ema=0.99)
