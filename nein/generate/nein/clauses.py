"""Stage 1, algorithm 1 of the paper: which objects are not in an image, and a sentence that says so of each.

Of an image, `queried` random categories are matched with it by cosine; those below `absent_below` count as
absent, and the `kept` lowest become one candidate each, the i-th with the i-th caption. With fewer captions
than objects, "paper" makes as many candidates as captions, as the released code does; "fixed" goes round them
again. With fewer absent objects, where that code fails, both make what they can and count what is missing.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from nein.engine.blocks import sample_seed
from nein.generate.nein import wording
from nein.generate.nein.sources import Source
from nein.wording import families, nouns

TOO_SIMILAR = "cosine not below the threshold"
NOT_LOWEST = "not among the lowest"
KEPT = "kept"
NO_OBJECT = "no absent object left"
NO_CAPTION_LEFT = "no caption left"
NO_FAMILY = "no family of negation fits"


@dataclass(frozen=True)
class Rules:
    """What decides the clauses, given the cosines."""

    objects: tuple[str, ...]
    queried: int
    kept: int
    absent_below: float
    families: tuple[str, ...]
    protocol: str
    seed: int


def stream(seed: int, source_id: str, purpose: str) -> random.Random:
    """The random stream of one image and purpose: SHA-256 over (run seed, id, purpose)."""
    digest = hashlib.sha256(f"nein-build/{seed}/{source_id}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def queried(rules: Rules, source_id: str) -> list[str]:
    """The random categories asked for about an image, in the order drawn."""
    return stream(rules.seed, source_id, "objects").sample(list(rules.objects), rules.queried)


def clauses(source: Source, cosines: np.ndarray, rules: Rules) -> dict[str, Any]:
    """The record of one image: every object asked for with its fate, the candidates, and what is missing."""
    asked = queried(rules, source.id)
    below = [(float(c), place) for place, c in enumerate(cosines) if float(c) < rules.absent_below]
    missing_from_image = [asked[place] for _, place in sorted(below)]  # equal ones in the order asked
    chosen = missing_from_image[: rules.kept]
    rng = stream(rules.seed, source.id, "templates")
    present = nouns.named_in(source.captions, rules.objects)
    candidates: list[dict[str, Any]] = []
    lost = [NO_OBJECT] * (rules.kept - len(chosen))
    for place, noun in enumerate(chosen):
        if rules.protocol == "paper" and place >= len(source.captions):
            lost.append(NO_CAPTION_LEFT)
            continue
        second = next((other for other in missing_from_image[::-1] if other != noun), "")
        stays = rng.choice([a for a in present if a != noun] or [""])
        made = _negation(noun, second, stays, rules, rng)
        if made is None:
            lost.append(NO_FAMILY)
            continue
        sample_id = f"{source.sample_stem}_{place + 1}"
        seed = sample_seed(rules.seed, source.id if rules.protocol == "paper" else sample_id)
        candidates.append({
            "id": sample_id, "source": source.id, "object": noun,
            "caption": source.captions[place % len(source.captions)], **made,
            "generated": wording.addition(noun, rules.protocol), "seed": seed,
        })  # fmt: skip
    fate = {noun: KEPT if noun in chosen else NOT_LOWEST for noun in missing_from_image}
    rows = [
        {"object": noun, "cosine": round(float(cosine), 6), "fate": fate.get(noun, TOO_SIMILAR)}
        for noun, cosine in zip(asked, cosines, strict=True)
    ]
    return {"id": source.id, "problem": "", "queried": rows, "candidates": candidates, "lost": lost}


def unusable(source: Source, problem: str) -> dict[str, Any]:
    """The record of an image that gives no candidates."""
    return {"id": source.id, "problem": problem, "queried": [], "candidates": [], "lost": []}


def _negation(noun: str, second: str, stays: str, rules: Rules, rng: random.Random) -> dict[str, Any] | None:
    """A family that can be said of these objects, one of its templates, and the sentence."""
    has = {"": True, "T": bool(second), "A": bool(stays)}
    possible = [label for label in rules.families if has[families.FAMILIES[label].needs]]
    if not possible:
        return None
    label = rng.choice(possible)
    template = rng.choice(families.choices(label, noun, rules.protocol))
    text = families.sentence(label, template, noun, second=second, present=stays, protocol=rules.protocol)
    other = {"": None, "T": second, "A": stays}[families.FAMILIES[label].needs]
    return {"negative": text, "family": label, "template": template, "other": other}
