"""Pictures in which scripted judges see given words, and shorthand to score them."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nein import metrics
from nein.metrics import METRICS, Batch, EditPair, Settings
from nein.metrics.base import MemoryStore
from tests.rehearsal import ScriptedDetector, ScriptedJudge

NAMES = ("removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd")
#: Words the scripted judges can see; a picture shows word k with certainty pixel (0, k, 0) / 250.
WORDS = ("car", "dog", "man", "bench", "dogs", "it", "traffic light", "light", "frisbee")


def scene(*, width=12, **seen):
    image = np.zeros((4, width, 3), np.uint8)
    for word, score in seen.items():
        image[0, WORDS.index(word.replace("_", " ")), 0] = round(score * 250)
    return image


def score_of(image, word):
    return image[0, WORDS.index(word), 0] / 250


def asked_word(prompt):
    found = re.search(r"contain (?:an? )?(.+)\?", prompt)
    assert found is not None
    return found[1]


def yes_no(image, prompt):
    return "Yes" if score_of(image, asked_word(prompt)) > 0 else "No"


def item(edited, sample, *, object="car", caption="A man and a dog.", id="a"):
    key = hashlib.sha256(sample.tobytes()).hexdigest() if isinstance(sample, np.ndarray) else "none"
    return EditPair(id, edited, sample=sample, object=object, caption=caption, sample_key=key)


@dataclass(frozen=True)
class Presence:
    names: Sequence[str]
    models: dict[str, Any]
    settings: Settings
    store: Any

    def score(self, items):
        batch = Batch(items, self.models, self.settings, records=self.store)
        return metrics.score([METRICS[name] for name in self.names], batch)


def presence(names=NAMES, rule=yes_no, *, vqa=None, detector=None, store=None, **settings):
    models = {"vqa": vqa or ScriptedJudge(rule), "ovd": detector or ScriptedDetector(score_of)}
    return Presence(names, models, Settings(**settings), store or MemoryStore())


SAMPLE = scene(car=0.8, dog=0.7, man=0.6)


def one(metric, *items):
    return {name: rows[0] for name, rows in metric.score(list(items)).items()}
