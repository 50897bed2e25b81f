"""Two of the nano judges: BLIP image-text retrieval and OWLv2, in transformers' own classes.

All answer from pixels. They are trained on drawn scenes whose truth is known, with the blur and noise that an
editor's decoder leaves, and graded on held-out scenes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nein.metrics.preprocess import CLIP_MEAN, CLIP_STD
from nein.nano.scenes import CATEGORIES, SIZE, Scene, box, rng_for
from nein.nano.sentences import PLACES, names
from nein.wording.families import a_or_an, plural
from research.nano.data import OTHER_NOUNS, bert_tokenizer, clip_tokenizer, degrade, scene_pool, to_float
from research.nano.editors import save_half
from research.nano.encoders import ranking
from research.nano.job import Job, sized, step_count
from research.nano.vision import TOWER, WIDTH, Reader, normalise, start_from_backbone, training_pool, truth

THINGS = tuple(n for c in CATEGORIES for n in names(c))
GROUNDS = tuple(n for nouns, _, _ in PLACES.values() for n in nouns)


def rebuilder(zoo: Path, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Pictures as the nano editors' VAE gives them back: what judges will look at."""
    from diffusers import AutoencoderKL

    vae = AutoencoderKL.from_pretrained(zoo / "ip2p" / "vae", torch_dtype=torch.float32).to(device).eval()

    def rebuild(images: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return vae.decode(vae.encode(images).latent_dist.mean).sample.clamp(-1, 1)

    return rebuild


def some_rebuilt(
    images: torch.Tensor, rebuild: Callable[[torch.Tensor], torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    half = len(images) // 2
    return degrade(torch.cat([rebuild(images[:half]), images[half:]]), generator)


def _statement(rng: random.Random, scene: Scene, sentences: list[str], true: bool) -> str:
    """A text about the scene that is true, or false in exactly one thing."""
    absent = [c for c in CATEGORIES if c not in scene.categories]
    pool = scene.categories if true else absent
    if not pool:
        pool, true = absent, False
    category = rng.choice(pool)
    noun = rng.choice(names(category)) if rng.random() < 0.25 else category
    kind = rng.random()
    if kind < 0.4:
        return rng.choice((noun, noun, a_or_an(noun), plural(noun)))
    if kind < 0.6:
        return f"This image has {a_or_an(noun)}."
    sentence = rng.choice(sentences)
    return f"{sentence} This image has {a_or_an(noun)}."


def blip_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """BlipForImageTextRetrieval. The cosine (`use_itm_head=False`) is trained with a logistic loss whose
    boundary lies at 0.4, the threshold of NeIn's algorithms 1 and 2; the matching head with cross-entropy."""
    from transformers import BlipConfig, BlipForImageTextRetrieval, BlipImageProcessor, BlipProcessor

    # -------------------------------------------------------------------------------------------------- model
    tokenizer = bert_tokenizer()
    config = BlipConfig(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 128, "encoder_hidden_size": 128,
            "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 48, "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id,
            "sep_token_id": tokenizer.sep_token_id, "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        vision_config=TOWER,
        image_text_hidden_size=96,
    )  # fmt: skip
    model = BlipForImageTextRetrieval(config)
    start_from_backbone(model.vision_model, zoo)
    aid = Reader(WIDTH)
    # --------------------------------------------------------------------------------------------------- data
    rebuild = rebuilder(zoo, device)
    pool = training_pool(scale)
    images, labels = pool.images.to(device), pool.patches.to(device)
    have_all = truth(pool.scenes)[:, : len(CATEGORIES)].to(device)
    keep = [i for i, s in enumerate(pool.scenes) if s.items]
    chosen = torch.tensor(keep, device=device)
    statements: dict[bool, torch.Tensor] = {}
    for true in (True, False):
        texts = []
        for i in keep:
            rng = rng_for("train", i, f"blip/{true}")
            texts += [_statement(rng, pool.scenes[i], pool.captions[i], true) for _ in range(4)]
        ids = tokenizer(
            texts, padding="max_length", max_length=48, truncation=True, return_tensors="pt"
        ).input_ids
        statements[true] = ids.view(len(keep), 4, 48).to(device)  # scenes, statements, tokens
    batch = sized(48, scale, 4)
    bare = tokenizer(list(CATEGORIES), padding=True, return_tensors="pt").input_ids.to(device)

    # --------------------------------------------------------------------------------------------------- loss
    def cosine(vision: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        attention = (ids != tokenizer.pad_token_id).long()
        words = model.text_encoder(input_ids=ids, attention_mask=attention).last_hidden_state[:, 0]
        a = F.normalize(model.vision_proj(vision[:, 0]), dim=-1)
        b = F.normalize(model.text_proj(words), dim=-1)
        return (a * b).sum(-1)

    def match(vision: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        attention = (ids != tokenizer.pad_token_id).long()
        joint = model.text_encoder(
            input_ids=ids,
            attention_mask=attention,
            encoder_hidden_states=vision,
            encoder_attention_mask=torch.ones(vision.shape[:2], dtype=torch.long, device=device),
        ).last_hidden_state[:, 0]
        return model.itm_head(joint)

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(len(keep), (batch,), generator=generator, device=device)
        which = torch.randint(4, (2, batch), generator=generator, device=device)
        x = some_rebuilt(to_float(images[chosen[pick]]), rebuild, generator)  # B,3,64,64
        vision = model.vision_model(pixel_values=normalise(x, CLIP_MEAN, CLIP_STD)).last_hidden_state
        ids = torch.cat([statements[True][pick, which[0]], statements[False][pick, which[1]]])  # 2B, tokens
        target = torch.cat([torch.ones(batch, device=device), torch.zeros(batch, device=device)])
        both = torch.cat([vision, vision])  # 2B, 1 + 64, 128
        longest = int((ids != tokenizer.pad_token_id).sum(1).max())
        ids = ids[:, :longest]
        itc = F.binary_cross_entropy_with_logits(14 * (cosine(both, ids) - 0.4), target)
        # Every category's bare name against every picture: cheap, and what algorithm 1 asks.
        words = model.text_encoder(input_ids=bare, attention_mask=(bare != tokenizer.pad_token_id).long())
        named = F.normalize(model.text_proj(words.last_hidden_state[:, 0]), dim=-1)
        grid = F.normalize(model.vision_proj(vision[:, 0]), dim=-1) @ named.T  # B, categories
        present = have_all[chosen[pick]]
        itc = itc + 2 * F.binary_cross_entropy_with_logits(14 * (grid - 0.4), present)
        decided = match(both, ids)  # 2B, (no, yes)
        itm = F.cross_entropy(decided, target.long())
        help_loss = aid(vision[:, 1:], labels[chosen[pick]])
        right = (decided.argmax(1) == target).float().mean()
        return itc + itm + help_loss, {"itc": itc.detach(), "itm": right.detach(), "aid": help_loss.detach()}

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        dev = scene_pool("dev", sized(500, scale, 20))
        have = truth(dev.scenes).to(device)[:, : len(CATEGORIES)]
        cosines, heads = [], []
        for part in dev.images.split(50):
            x = normalise(to_float(part.to(device)), CLIP_MEAN, CLIP_STD)
            vision = model.vision_model(pixel_values=x).last_hidden_state
            repeated, texts = vision.repeat_interleave(len(bare), 0), bare.repeat(len(vision), 1)
            cosines.append(cosine(repeated, texts).view(len(vision), -1))
            heads.append(match(repeated, texts).softmax(-1)[:, 1].view(len(vision), -1))
        scores, itm = torch.cat(cosines), torch.cat(heads)
        folder = zoo / "blip"
        save_half(model, folder)
        processor = BlipImageProcessor(size={"height": 64, "width": 64})
        BlipProcessor(processor, tokenizer).save_pretrained(folder)
        return {
            "held_out": {
                "scenes": len(dev.scenes),
                "itc_present_ranks_above_absent": ranking(scores, have),
                "itm_present_ranks_above_absent": ranking(itm, have),
                "itc_present_above_0.4": _rate(scores[have > 0] > 0.4),
                "itc_absent_below_0.4": _rate(scores[have == 0] < 0.4),
            }
        }

    steps = step_count(900, scale)
    return Job("blip", {"blip": model, "aid": aid}, loss, deliver, steps, 7e-4, batch, autocast=True)


def _rate(hits: torch.Tensor) -> float:
    return round(float(hits.float().mean()), 4)


def owlv2_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """Owlv2ForObjectDetection: focal loss on the class logit of the patch that holds an object's center
    (other patches inside the object are left out), L1 and generalised IoU on its box, objectness beside."""
    from torchvision.ops import box_iou, generalized_box_iou_loss, sigmoid_focal_loss
    from transformers import Owlv2Config, Owlv2ForObjectDetection, Owlv2ImageProcessor, Owlv2Processor

    # -------------------------------------------------------------------------------------------------- model
    tokenizer = clip_tokenizer(16)
    config = Owlv2Config(
        text_config={
            "vocab_size": len(tokenizer), "hidden_size": 96, "intermediate_size": 288, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 16, "bos_token_id": len(tokenizer) - 2,
            "eos_token_id": len(tokenizer) - 1, "pad_token_id": len(tokenizer) - 1,
        },
        vision_config=TOWER,
        projection_dim=96,
    )  # fmt: skip
    model: Any = Owlv2ForObjectDetection(config)
    start_from_backbone(model.owlv2.vision_model, zoo)
    for head in (model.class_head, model.box_head, model.objectness_head):
        for layer in head.modules():  # the library draws these with standard deviation 1: no use for training
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.constant_(model.class_head.logit_scale.bias, 9.0)  # logits start at about 10 * (cosine - 0.5)
    nn.init.constant_(model.class_head.logit_shift.bias, -0.5)
    aid = Reader(WIDTH)
    # -------------------------------------------------------------------------------- data: boxes and queries
    rebuild = rebuilder(zoo, device)
    pool = training_pool(scale)
    images, labels = pool.images.to(device), pool.patches.to(device)
    side = 8  # patches per row
    boxes = torch.zeros(len(images), 4, 4)
    classes = torch.full((len(images), 4), -1)
    for i, scene in enumerate(pool.scenes):
        for k, item in enumerate(scene.items):
            boxes[i, k] = torch.tensor(box(item)) / SIZE
            classes[i, k] = CATEGORIES.index(item.category)
    boxes, classes = boxes.to(device), classes.to(device)  # N,4 things,4 corners in [0, 1]; N,4, -1 for none
    # Query strings: whatever names a category is a positive for it; everything else is a negative everywhere.
    queries: list[tuple[str, int]] = []
    for index, category in enumerate(CATEGORIES):
        for noun in names(category):
            queries += [(noun, index), (a_or_an(noun), index), (plural(noun), index)]
    queries += [(noun, -1) for noun in (*GROUNDS, *OTHER_NOUNS)]
    owner = torch.tensor([o for _, o in queries], device=device)
    coded = tokenizer([q for q, _ in queries], padding="max_length", max_length=16, truncation=True)
    query_ids = torch.tensor(coded["input_ids"], device=device)  # queries, 16
    centre_x = (torch.arange(side * side, device=device) % side + 0.5) / side
    centre_y = (torch.arange(side * side, device=device) // side + 0.5) / side
    batch = sized(48, scale, 4)

    # --------------------------------------------------------------------------------------------------- loss
    def see(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        grid, _ = model.image_embedder(normalise(x, CLIP_MEAN, CLIP_STD))
        return grid.flatten(1, 2), grid

    def query(ids: torch.Tensor) -> torch.Tensor:
        states = model.owlv2.text_model(input_ids=ids)  # causal: padding is never seen
        return F.normalize(model.owlv2.text_projection(states.pooler_output), dim=-1)

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(len(images), (batch,), generator=generator, device=device)
        x = some_rebuilt(to_float(images[pick]), rebuild, generator)
        features, grid = see(x)  # B,64,128; B,8,8,128
        words = query(query_ids)  # queries, 96
        logits, _ = model.class_predictor(features, words[None].expand(batch, -1, -1))  # B, patches, queries
        goal_box, goal_class = boxes[pick], classes[pick]
        real = goal_class >= 0  # B,4
        cx, cy = (goal_box[..., 0] + goal_box[..., 2]) / 2, (goal_box[..., 1] + goal_box[..., 3]) / 2
        home = (cy * side).long().clamp(0, side - 1) * side + (cx * side).long().clamp(0, side - 1)
        inside = (
            (centre_x >= goal_box[..., :1]) & (centre_x <= goal_box[..., 2:3])
            & (centre_y >= goal_box[..., 1:2]) & (centre_y <= goal_box[..., 3:4]) & real[..., None]
        )  # (batch, 4, patches)  # fmt: skip
        named = (owner[None, None] == goal_class[..., None]) & real[..., None]  # (batch, 4, queries)
        at_home = F.one_hot(home, side * side).bool() & real[..., None]
        target = torch.einsum("bkp,bkq->bpq", at_home.float(), named.float()).clamp(max=1)  # as logits
        skip = (torch.einsum("bkp,bkq->bpq", inside.float(), named.float()) > 0) & (target == 0)
        focal = sigmoid_focal_loss(logits.float(), target, alpha=0.5, gamma=2.0)
        focal = focal.masked_fill(skip, 0).sum() / real.sum().clamp(min=1) / 3
        predicted = model.box_predictor(features, grid)  # B, patches, 4
        rows = torch.arange(batch, device=device)[:, None].expand_as(home)[real]
        told, wanted = predicted[rows, home[real]], goal_box[real]  # things, 4: center and size; corners
        corners = torch.cat([told[:, :2] - told[:, 2:] / 2, told[:, :2] + told[:, 2:] / 2], -1)
        place = 2 * (corners - wanted).abs().mean() + generalized_box_iou_loss(
            corners, wanted, reduction="mean"
        )
        objectness = model.objectness_predictor(features)
        something = F.binary_cross_entropy_with_logits(objectness, at_home.any(1).float())
        help_loss = aid(features, labels[pick])
        total = focal + place + 0.2 * something + help_loss
        return total, {"focal": focal.detach(), "box": place.detach(), "aid": help_loss.detach()}

    # -------------------------------------------------------------------------------------------- calibration
    def calibrate(words: torch.Tensor) -> float:
        """Move all class logits so that the usual threshold of 0.1 errs equally rarely on both sides.

        Chosen on training scenes, half of them rebuilt by the VAE; folded into the head's shift bias.
        Returns the change of that bias.
        """
        part = images[: sized(600, scale, 20)]
        have = truth(pool.scenes[: len(part)]).to(device)[:, : len(CATEGORIES)] > 0
        bias = model.class_head.logit_shift.bias
        before = bias.detach().clone()
        best, chosen = -1.0, 0.0
        seen = []
        for start in range(0, len(part), 100):
            x = to_float(part[start : start + 100])
            seen.append(see(rebuild(x) if start // 100 % 2 else x)[0])
        for step in range(-6, 7):
            bias.copy_(before + 0.03 * step)
            logits = [model.class_predictor(f, words[None].expand(len(f), -1, -1))[0] for f in seen]
            scores = torch.cat([part.sigmoid().amax(1) for part in logits])
            balanced = ((scores[have] > 0.1).float().mean() + (scores[~have] <= 0.1).float().mean()) / 2
            if float(balanced) > best:
                best, chosen = float(balanced), 0.03 * step
        bias.copy_(before + chosen)
        return round(chosen, 3)

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        dev = scene_pool("dev", sized(500, scale, 20))
        have = truth(dev.scenes).to(device)[:, : len(CATEGORIES)] > 0
        coded_names = tokenizer(list(CATEGORIES), padding="max_length", max_length=16)["input_ids"]
        words = query(torch.tensor(coded_names, device=device))
        shift = calibrate(words)
        report: dict[str, Any] = {"scenes": len(dev.scenes), "threshold": 0.1, "calibration_shift": shift}
        overlaps = []
        for suffix in ("", "_rebuilt"):
            scores = []
            for start in range(0, len(dev.scenes), 100):
                x = to_float(dev.images[start : start + 100].to(device))
                features, grid = see(rebuild(x) if suffix else x)
                logits, _ = model.class_predictor(features, words[None].expand(len(x), -1, -1))
                best, where = logits.sigmoid().max(1)
                scores.append(best)
                if not suffix:
                    predicted = model.box_predictor(features, grid)
                    for r, scene in enumerate(dev.scenes[start : start + 100]):
                        for item in scene.items:
                            if sum(i.category == item.category for i in scene.items) == 1:
                                b = predicted[r, where[r, CATEGORIES.index(item.category)]].cpu()
                                corners = torch.cat([b[:2] - b[2:] / 2, b[:2] + b[2:] / 2])
                                truth_box = torch.tensor(box(item)) / SIZE
                                overlaps.append(float(box_iou(corners[None], truth_box[None])))
            score = torch.cat(scores)
            positive, negative = score[have] > 0.1, score[~have] <= 0.1
            report[f"present_found{suffix}"] = _rate(positive)
            report[f"absent_not_found{suffix}"] = _rate(negative)
            report[f"presence_accuracy{suffix}"] = round((_rate(positive) + _rate(negative)) / 2, 4)
        report["mean_iou"] = round(sum(overlaps) / len(overlaps), 4)
        folder = zoo / "owlv2"
        save_half(model, folder)
        processor = Owlv2ImageProcessor(size={"height": 64, "width": 64})
        Owlv2Processor(processor, tokenizer).save_pretrained(folder)
        return {"held_out": report}

    steps = step_count(1_000, scale)
    return Job("owlv2", {"owlv2": model, "aid": aid}, loss, deliver, steps, 8e-4, batch, autocast=True)
