"""Scenes without a place in any split."""

from __future__ import annotations

import random

from nein.nano.scenes import Scene, sample_scene


def random_scene(rng: random.Random, max_objects: int = 4) -> Scene:
    """One to `max_objects` objects."""
    return sample_scene(rng, rng.randint(1, max_objects))
