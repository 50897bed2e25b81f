"""The nano reward: a BLIP that reads two pictures and says how well an edit does what was told.

Its text encoder looks at the edit and at what changed, patch by patch (`metrics.judges.blip.joined`),
and starts from the nano BLIP's, which knows what is in one picture. It learns
to choose, of the edits of a scene, the one that obeys, by the softmax over their rewards (Plackett-Luce; of
two edits that is Bradley-Terry, by which reward models are usually trained). The vision tower stays as it is,
and what it makes of the drawn pictures is worked out once, so that a step costs the text encoder only.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from nein.metrics.judges.blip import joined
from nein.metrics.preprocess import CLIP_MEAN, CLIP_STD
from nein.nano.data import NEGATIVES, said
from nein.nano.scenes import (
    CATEGORIES,
    NEGATOR,
    TAUGHT,
    UNSEEN,
    VARIED,
    WORLDS,
    Scene,
    World,
    place,
    render,
    rng_for,
    sample_scene,
)
from nein.train.editor_finetuning.drawn import ADD, DESCRIBE, REMOVE, filled
from nein.train.export import teach
from research.nano.data import degrade, to_float
from research.nano.job import Job, sized, step_count
from research.nano.judges import rebuilder
from research.nano.ship import keep_changes
from research.nano.vision import normalise

NAME, BASE = "reward", "blip"
SCENES = 3_000
#: Denying words that become tokens of their own; the tokenizer cuts "isn't" at the apostrophe.
WORDS = ("no", "not", "cannot", "without", "lacks", "isn", "doesn", "don", "nowhere", "even", "never")
LENGTH = 48  # tokens of a sentence, at the most


class Edits(NamedTuple):
    """What may have become of a scene with `first` and `second`; `third` is not in it."""

    same: Scene
    without_first: Scene
    without_second: Scene
    without_both: Scene
    another_first: Scene
    with_third: Scene


@dataclass(frozen=True)
class Drawn:
    """A scene and what the sentences about it name."""

    scene: Scene
    first: str
    second: str
    third: str
    edits: Edits


@dataclass(frozen=True)
class Task:
    """One thing to tell an editor, which of `Edits` obeys, and which do not."""

    sentence: str
    right: int
    wrong: tuple[int, ...]


SAME, NO_FIRST, NO_SECOND, NEITHER, ANOTHER, THIRD = range(6)


def drawn(split: str, index: int, world: World) -> Drawn:
    """The `index`-th scene of a split: two or three objects, of which two can be taken out, and room for
    two more."""
    for attempt in range(1000):
        rng = rng_for(split, index, f"reward/{attempt}")
        scene = sample_scene(rng, rng.choice((2, 2, 3)), world.shown)
        if len(scene.categories) < 2:
            continue
        first, second = rng.sample(scene.categories, 2)
        third = rng.choice([c for c in CATEGORIES if c in world.shown and c not in scene.categories])
        another, new = place(rng, first, scene.items), place(rng, third, scene.items)
        if another is None or new is None:
            continue
        left = scene.without(first)
        fewer = scene.without(second), left.without(second)
        edits = Edits(scene, left, *fewer, scene.with_item(another), scene.with_item(new))
        return Drawn(scene, first, second, third, edits)
    raise AssertionError("no scene has room for its edits")


def denial(one: Drawn, sentence: str, name: str) -> Task:
    """`sentence` says that `name` is to be gone."""
    right = {one.first: NO_FIRST, one.second: NO_SECOND, one.third: SAME}[name]
    return Task(sentence, right, tuple(k for k in range(6) if k != right))


def affirmation(one: Drawn, sentence: str, name: str) -> Task:
    """`sentence` says that `name` is to be there. Of what is there already a second one is neither right nor
    wrong."""
    right = THIRD if name == one.third else SAME
    out = {right, ANOTHER} if name == one.first else {right}
    return Task(sentence, right, tuple(k for k in range(6) if k not in out))


def task(rng: random.Random, one: Drawn, world: World, wordings: tuple[str, ...]) -> Task:
    """What a scene is asked about: five of nine deny, one in five commands a removal, the others affirm."""
    names = (one.first, one.first, one.second, one.third)
    deniable = [name for name in names if name in world.named]
    kind = rng.random()
    if kind < 0.55 and deniable:
        name = rng.choice(deniable)
        return denial(one, said(rng.choice(wordings), name), name)
    name = rng.choice(names)
    if kind < 0.75:
        return denial(one, filled(rng, rng.choice(REMOVE), name), name)
    return affirmation(one, filled(rng, rng.choice(ADD if rng.random() < 0.5 else DESCRIBE), name), name)


@dataclass
class Pool:
    """`sources` (N, 65, W), `edits` (N, 6, 65, W) float16: what the vision tower makes of the pictures."""

    scenes: list[Drawn]
    sources: torch.Tensor
    edits: torch.Tensor


def pool(model: Any, split: str, count: int, world: World, rebuild: Any) -> Pool:
    """Of every fourth scene the edits are as the nano VAE gives them back, and degraded."""
    scenes = [drawn(split, index, world) for index in range(count)]
    sources, edits = [], []
    generator = torch.Generator().manual_seed(len(split))
    with torch.inference_mode():
        for start in range(0, count, 16):
            part = scenes[start : start + 16]
            plain = _pixels([one.scene for one in part])
            made = _pixels([scene for one in part for scene in one.edits]).unflatten(0, (len(part), 6))
            mended = degrade(rebuild(made[::4].flatten(0, 1)), generator)
            made[::4] = mended.unflatten(0, (-1, 6))
            sources.append(_see(model, plain))
            edits.append(_see(model, made.flatten(0, 1)).unflatten(0, (len(part), 6)))
    return Pool(scenes, torch.cat(sources).clone(), torch.cat(edits).clone())


def _pixels(scenes: list[Scene]) -> torch.Tensor:
    """(N, 3, 64, 64) float32 in [-1, 1]."""
    drawings = torch.from_numpy(np.stack([render(scene) for scene in scenes]))
    return to_float(drawings.permute(0, 3, 1, 2))


def _see(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    x = normalise(pixels, CLIP_MEAN, CLIP_STD).to(model.device)
    return model.vision_model(pixel_values=x).last_hidden_state.half().cpu()


def start(zoo: Path) -> tuple[Any, Any]:
    """The nano BLIP, told to be one for two pictures, and its tokenizer, taught denying words."""
    from transformers import AutoTokenizer, BlipForImageTextRetrieval

    model: Any = BlipForImageTextRetrieval.from_pretrained(zoo / BASE, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(zoo / BASE)
    teach(tokenizer, model.text_encoder, WORDS)
    model.config.text_config.vocab_size = len(tokenizer)
    model.config.pictures = 2
    return model, tokenizer


def reward_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """BlipForImageTextRetrieval over two pictures."""
    world, wordings = WORLDS["nano:taught"], NEGATIVES[VARIED]
    model, tokenizer = start(zoo)
    model.to(device)
    for part in (model.vision_model, model.vision_proj, model.text_proj):
        part.requires_grad_(False)
    rebuild = rebuilder(zoo, device)
    everything = World("nano:reward", named=world.named)  # scenes show all objects, denials name the taught
    data = pool(model, "train", max(16, int(SCENES * min(1.0, scale))), everything, rebuild)
    batch = sized(24, scale, 2)

    def rewards(sources: torch.Tensor, edits: torch.Tensor, sentences: list[str]) -> torch.Tensor:
        """(B, 65, W), (B, 6, 65, W) and B sentences -> (B, 6)."""
        ids = tokenizer(sentences, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        both = joined(sources[:, None].float(), edits.float()).flatten(0, 1).to(device)
        fused = model.text_encoder(
            input_ids=ids.input_ids.repeat_interleave(6, 0).to(device),
            attention_mask=ids.attention_mask.repeat_interleave(6, 0).to(device),
            encoder_hidden_states=both,
            encoder_attention_mask=torch.ones(both.shape[:2], dtype=torch.long, device=device),
        ).last_hidden_state[:, 0]
        logits = model.itm_head(fused)
        return (logits[:, 1] - logits[:, 0]).unflatten(0, (-1, 6))

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(len(data.scenes), (batch,), generator=generator, device=device).tolist()
        tasks = [
            task(rng_for("train", step * batch + b, NAME), data.scenes[index], everything, wordings)
            for b, index in enumerate(pick)
        ]
        values = rewards(data.sources[pick], data.edits[pick], [one.sentence for one in tasks])
        right = torch.tensor([one.right for one in tasks], device=device)
        counted = [[k == one.right or k in one.wrong for k in range(6)] for one in tasks]
        values = values.masked_fill(~torch.tensor(counted, device=device), -1e4)
        hit: Any = (values.argmax(1) == right).float().mean()
        return F.cross_entropy(values, right), {"hit": hit.detach()}

    def deliver() -> dict[str, Any]:
        held_out = graded(rewards, lambda world: pool(model, "dev", sized(200, scale, 16), world, rebuild))
        keep_changes(model, tokenizer, zoo / NAME, zoo / BASE, ("config.json", "tokenizer.json"))
        return {"held_out": held_out}

    steps = step_count(2_400, scale)
    return Job(NAME, {NAME: model}, loss, deliver, steps, 7e-4, batch, warmup=100, ema=0.99)


#: What is graded: (its name, whose objects, whose wording; None: commands and affirmations).
GRADED = (
    ("affirmed", "nano:taught", None),
    ("taught", "nano:taught", TAUGHT),
    ("wording", "nano:taught", UNSEEN),
    ("negator", "nano:taught", NEGATOR),
    ("objects", "nano:objects", TAUGHT),
    ("objects and wording", "nano:objects", UNSEEN),
)


def graded(rewards: Any, drawn_in: Any) -> dict[str, float]:
    """Share of (right, wrong) pairs of the dev split in which the right edit has the higher reward."""
    pools = {name: drawn_in(WORLDS[name]) for name in dict.fromkeys(name for _, name, _ in GRADED)}
    shares: dict[str, list[bool]] = defaultdict(list)
    for label, name, wording in GRADED:
        data = pools[name]
        for index, one in enumerate(data.scenes):
            rng = rng_for("dev", index, f"{NAME}/{label}")
            told = asked(rng, one, WORLDS[name], wording)
            if told is None:
                continue
            values = rewards(data.sources[[index]], data.edits[[index]], [told.sentence])[0].tolist()
            shares[label] += [values[told.right] > values[k] for k in told.wrong]
    return {label: round(sum(rows) / max(1, len(rows)), 4) for label, rows in shares.items()}


def asked(rng: random.Random, one: Drawn, world: World, wording: str | None) -> Task | None:
    """What is graded about a scene: a denial in that wording, or a command or an affirmation; None where no
    object of the scene may be denied."""
    names = [name for name in (one.first, one.second) if wording is None or name in world.named]
    if not names:
        return None
    name = rng.choice(names)
    if wording is not None:
        return denial(one, said(rng.choice(NEGATIVES[wording]), name), name)
    if rng.random() < 0.5:
        return denial(one, filled(rng, rng.choice(REMOVE), name), name)
    return affirmation(one, filled(rng, rng.choice(ADD), one.third), one.third)
