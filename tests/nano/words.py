"""What counts as a negated word; scenes without a place in any split."""

from __future__ import annotations

import random
import re

from nein.nano.scenes import Scene, sample_scene

NEGATED = re.compile(
    r"\b(?:no|not|cannot|without|never|none|nothing|nobody|neither|nor|nowhere|missing|absent|absence|devoid"
    r"|empty|lack\w*|minus|except|exclud\w*)\b|n['’]t\b|\bfree of\b|\binstead of\b",
    re.IGNORECASE,
)


def negated(lines: list[str]) -> list[str]:
    """The lines that hold a negated word."""
    return [line for line in lines if NEGATED.search(line)]


def random_scene(rng: random.Random, max_objects: int = 4) -> Scene:
    """One to `max_objects` objects."""
    return sample_scene(rng, rng.randint(1, max_objects))
