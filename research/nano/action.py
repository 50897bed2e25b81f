"""The nano action classifier of ZONE: does an instruction ask to change, to add or to remove?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from editors.zone.action import ACTIONS, ActionClassifier, decide, save_classifier
from nein.nano.scenes import rng_for
from research.nano.editors import tokenise
from research.nano.job import Job, sized, step_count
from train.instruct.drawn import sample_pair

#: Kind of edit pair -> what ZONE would have to do; all else (marking, restoring) is no edit of a zone.
ACTION_OF = {
    "replace": "CHANGE",
    "recolour": "CHANGE",
    "scenery": "CHANGE",
    "add": "ADD",
    "double": "ADD",
    "keep": "ADD",
    "remove": "REMOVE",
}
#: As many of each class; within a class as the nano editors see them.
MIXTURE = {
    "replace": 16.0,
    "recolour": 11.0,
    "scenery": 6.0,
    "add": 17.0,
    "double": 10.0,
    "keep": 6.0,
    "remove": 33.0,
}


def labelled(split: str, count: int) -> tuple[list[str], torch.Tensor]:
    """`count` affirmative instructions and the number of their action in `ACTIONS`."""
    texts, labels = [], []
    for index in range(count):
        pair = sample_pair(rng_for(split, index, "action"), MIXTURE)
        texts.append(pair.instruction)
        labels.append(ACTIONS.index(ACTION_OF[pair.kind]))
    return texts, torch.tensor(labels)


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
            told = [decide(row, int(n), protocol) for row, n in zip(logits, lengths, strict=True)]
            hits = [a == ACTIONS[int(b)] for a, b in zip(told, truth, strict=True)]
            share[f"accuracy_{protocol}"] = round(sum(hits) / len(hits), 4)
        save_classifier(classifier, zoo / "zone-action")
        return {"held_out": {"instructions": len(unseen), **share, "chance": 0.3333}}

    steps = step_count(600, scale)
    return Job("zone-action", {"classifier": classifier}, loss, deliver, steps, 2e-3, batch, 20, ema=0.99)
