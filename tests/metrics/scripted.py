"""Pictures in which scripted judges see given words, and shorthand to score them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.judges.scripted import ScriptedDetector, ScriptedJudge
from metrics.presence import Presence, PresenceItem

NAMES = ("removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd")
#: Words the scripted judges can see; a picture shows word k with certainty pixel (0, k, 0) / 250.
WORDS = ("car", "dog", "man", "bench", "dogs", "it", "traffic light", "light", "frisbee")


def scene(*, width: int = 12, **seen: float) -> np.ndarray:
    """A picture in which the scripted judges see the given words, with the given scores."""
    image = np.zeros((4, width, 3), np.uint8)
    for word, score in seen.items():
        image[0, WORDS.index(word.replace("_", " ")), 0] = round(score * 250)
    return image


def score_of(image: np.ndarray, word: str) -> float:
    return image[0, WORDS.index(word), 0] / 250


def asked_word(prompt: str) -> str:
    found = re.search(r"contain (?:an? )?(.+)\?", prompt)
    assert found is not None
    return found[1]


def yes_no(image: np.ndarray, prompt: str) -> str:
    return "Yes" if score_of(image, asked_word(prompt)) > 0 else "No"


def item(
    edited: Any, sample: Any, *, object: str = "car", caption: str = "A man and a dog.", id: str = "a"
) -> PresenceItem:
    key = hashlib.sha256(sample.tobytes()).hexdigest() if sample is not None else "none"
    return PresenceItem(id, edited, sample, object, caption, key)


def presence(names: Sequence[str] = NAMES, rule: Any = yes_no, **options: Any) -> Presence:
    return Presence(names, vqa=ScriptedJudge(rule), detector=ScriptedDetector(score_of), **options)


SAMPLE = scene(car=0.8, dog=0.7, man=0.6)


def one(metric: Presence, *items: PresenceItem) -> dict[str, Any]:
    return {name: rows[0] for name, rows in metric.score(list(items)).items()}
