"""Wraps CLIP-like models in remedies (`--mend`) that encode captions with a denial in another way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.loading.digests import Json
from nein.loading.errors import UserError
from nein.metrics.base import fingerprint
from nein.metrics.dual import normalise
from nein.wording import denials
from nein.wording.families import add_article

LAMBDA = 0.25  # default of "decompose": the best recall on nano's dev split (docs/howto/mend.md)
THRESHOLD = 0.92  # default of "spacevlm": as in its published commands (@ d37fec2)
#: Remedy -> (maximum, default) of its number; the cheapest first.
REMEDIES = {"decompose": (10.0, LAMBDA), "spacevlm": (1.0, THRESHOLD)}


def parse(remedy: str) -> tuple[str, float]:
    """(name, lambda or threshold) of a remedy. Raises UserError for one that does not exist."""
    if match := re.fullmatch(r"(decompose|spacevlm)(?::(\d+(?:\.\d+)?))?", remedy):
        maximum, default = REMEDIES[match[1]]
        number = float(match[2] or default)
        if number <= maximum:
            return match[1], number
    raise UserError(
        f"There is no remedy '{remedy}' for two-tower models; --mend takes decompose[:LAMBDA], LAMBDA "
        f"from 0 to 10 (default {LAMBDA}), and spacevlm[:THRESHOLD], from 0 to 1 (default {THRESHOLD})."
    )


def add_remedy(model: Any, remedy: str) -> WithRemedy:
    name, number = parse(remedy)
    return Decomposed(model, number) if name == "decompose" else SpaceVlm(model, number)


class WithRemedy:
    """A dual encoder with a remedy for texts; images are encoded without change."""

    def __init__(self, model: Any, facts: Json) -> None:
        self._model, self._facts = model, facts
        # Attributes of every dual encoder (`nein.metrics.dual`)
        self.width, self.scale, self.bias = model.width, model.scale, model.bias
        self.quick_gelu = model.quick_gelu
        self.fingerprint = fingerprint({"model": model.fingerprint, **facts})

    def describe(self) -> Json:
        return {**self._model.describe(), "mended": self._facts}

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self._model.encode(images)


class Decomposed(WithRemedy):
    """Subtracts what a caption c denies from what it affirms (`nein.wording.denials`). Its score with an
    image i, in which a term without words is 0:

        score(i, c) = cos(i, affirmed(c)) - weight * mean of cos(i, "a photo of X") over the denied X

    This is the dot product of the image with one vector per caption. One more dimension, 0 for images, brings
    all captions to length 1 + weight. Normalizing divides the scores by it; `scale` multiplies them by it.
    """

    def __init__(self, model: Any, weight: float) -> None:
        super().__init__(model, {"arm": "decompose", "lambda": weight})
        self.weight = weight
        self.width, self.scale = model.width + 1, model.scale * (1 + weight)

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return np.pad(self._model.encode(images), ((0, 0), (0, 1)))  # (N, width) -> (N, width + 1)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        sentences = denials.read(texts)
        denied = [[f"A photo of {add_article(name)}." for name in sentence.absent] for sentence in sentences]
        captions: dict[str, None] = {}  # an ordered set
        for sentence, names in zip(sentences, denied, strict=True):
            captions |= dict.fromkeys(caption for caption in (sentence.affirmed, *names) if caption)
        encoded = normalise(self._model.encode_text([*captions])) if captions else ()  # (C, width)
        features = dict(zip(captions, encoded, strict=True))  # caption -> (width,)
        zeros = np.zeros(self._model.width)
        differences = []  # N times (width,)
        for sentence, names in zip(sentences, denied, strict=True):
            denial = np.mean([features[caption] for caption in names] or [zeros], axis=0)
            differences.append(features.get(sentence.affirmed, zeros) - self.weight * denial)
        vectors = np.stack(differences)  # (N, width), each of length 1 + weight or less
        squared = (1 + self.weight) ** 2 - (vectors**2).sum(1, keepdims=True)  # (N, 1) of the added dimension
        return np.concatenate([vectors, np.sqrt(squared.clip(0))], axis=1).astype(np.float32)


class SpaceVlm(WithRemedy):
    """SpaceVLM (arXiv:2511.12331) moves a caption away from what it denies. The affirmed part a and denied
    part n are each the center of a cap of half-angle arccos(threshold) on the sphere. The caption becomes the
    middle of the part of a's cap outside n's cap. If nothing is affirmed, a is "A photo of something", as in
    the published code."""

    def __init__(self, model: Any, threshold: float) -> None:
        super().__init__(model, {"arm": "spacevlm", "threshold": threshold})
        self.threshold = threshold

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        features = self._model.encode_text(texts)  # (N, D)
        sentences = denials.read(texts)
        denying = [index for index, sentence in enumerate(sentences) if sentence.absent]
        if denying:
            affirmed = [sentences[index].affirmed or "A photo of something" for index in denying]
            absent = [map(add_article, sentences[index].absent) for index in denying]
            denied = [f"A photo of {' and '.join(names)}" for names in absent]
            a, n = np.split(normalise(self._model.encode_text([*affirmed, *denied])), 2)  # (denying, D) each
            features[denying] = rotate_away(a, n, self.threshold)
        return features


def rotate_away(a: np.ndarray, n: np.ndarray, threshold: float) -> np.ndarray:
    """Rotate a away from n, (N, D) each; they and the result have length 1. The angle to n becomes
    arccos(threshold) plus half the old angle. a stays if the caps do not meet, and if a = n or a = -n."""
    a, n = a.astype(np.float64), n.astype(np.float64)
    cosine = (a * n).sum(1, keepdims=True).clip(-1, 1)  # (N, 1)
    cap, between = np.arccos(threshold), np.arccos(cosine)  # radians: of a cap, (N, 1) from n to a
    angle = cap + between / 2
    caps_meet = (between < 2 * cap) & (np.sin(between) > 1e-6)  # (N, 1) bool
    side = (a - cosine * n) / np.where(caps_meet, np.sin(between), 1)  # (N, D), of length 1, orthogonal to n
    return np.where(caps_meet, np.cos(angle) * n + np.sin(angle) * side, a).astype(np.float32)
