"""Remedies for two-tower models: other encodings of texts (`--mend`)."""

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

LAMBDA = 0.25  # the best recall on the dev split of the nano world (docs/howto/mend.md)
CAP = 0.92  # threshold of SpaceVLM: default of its published commands (@ d37fec2)
#: Remedy -> its largest number, and its default; the cheapest first.
ARMS = {"decompose": (10.0, LAMBDA), "spacevlm": (1.0, CAP)}
_ARM = re.compile(r"(decompose|spacevlm)(?::(\d+(?:\.\d+)?))?")


def parse(arm: str) -> tuple[str, float]:
    """(name, lambda or threshold) of a remedy. Raises UserError for one that does not exist."""
    match = _ARM.fullmatch(arm)
    most, default = ARMS[match[1]] if match else (0.0, 0.0)
    number = float(match[2] or default) if match else -1.0
    if match is None or number > most:
        raise UserError(
            f"There is no remedy '{arm}' for two-tower models; --mend takes decompose[:LAMBDA], LAMBDA "
            f"from 0 to 10 (default {LAMBDA}), and spacevlm[:THRESHOLD], from 0 to 1 (default {CAP})."
        )
    return match[1], number


def add_remedy(model: Any, arm: str) -> _Around:
    name, number = parse(arm)
    return Decomposed(model, number) if name == "decompose" else Capped(model, number)


class _Around:
    """A dual encoder around another one; features of images do not change."""

    def __init__(self, model: Any, about: Json) -> None:
        self._model, self._about = model, dict(about)
        self.width, self.scale, self.bias = model.width, model.scale, model.bias
        self.quick_gelu = model.quick_gelu
        self.fingerprint = fingerprint({"model": model.fingerprint, **about})

    def describe(self) -> Json:
        return {**self._model.describe(), "mended": self._about}

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self._model.encode(images)


class Decomposed(_Around):
    """The score of an image i and a caption c is that of what the caption affirms minus that of what it
    denies (`nein.wording.denials`); a term without words is 0:

        score(i, c) = cos(i, affirmed(c)) - weight * mean of cos(i, "a photo of X") over the denied X

    That is a product with one vector per caption. One more dimension, in which images are 0, gives all of
    these one length, so that normalising leaves the scores as they are but for the factor 1 / (1 + weight),
    which is in `scale`.
    """

    def __init__(self, model: Any, weight: float) -> None:
        super().__init__(model, {"arm": "decompose", "lambda": weight})
        self.weight = weight
        self.width, self.scale = model.width + 1, model.scale * (1 + weight)

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return np.pad(self._model.encode(images), ((0, 0), (0, 1)))  # (N, width) -> (N, width + 1)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        parts = [
            (read.affirmed, [f"A photo of {add_article(name)}." for name in read.absent])
            for read in denials.read(texts)
        ]
        captions = list(dict.fromkeys(text for stated, denied in parts for text in (stated, *denied) if text))
        encoded = normalise(self._model.encode_text(captions)) if captions else ()  # (C, width)
        rows, nothing = dict(zip(captions, encoded, strict=True)), np.zeros(self._model.width)
        differences = []
        for stated, denied in parts:
            against = np.mean([rows[name] for name in denied] or [nothing], axis=0)  # (width,)
            differences.append(rows.get(stated, nothing) - self.weight * against)
        vectors = np.stack(differences)  # (N, width)
        missing = (1 + self.weight) ** 2 - (vectors**2).sum(1, keepdims=True)  # (N, 1), of the squared length
        return np.concatenate([vectors, np.sqrt(missing.clip(0))], axis=1).astype(np.float32)


class Capped(_Around):
    """SpaceVLM (arXiv:2511.12331): a caption that denies something becomes the middle of what the cap around
    its affirmed part a has outside the cap around its denied part n, both of half-angle arccos(threshold).
    Where nothing is affirmed, a is "A photo of something", as in the published code.
    """

    def __init__(self, model: Any, threshold: float) -> None:
        super().__init__(model, {"arm": "spacevlm", "threshold": threshold})
        self.threshold = threshold

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        features = self._model.encode_text(texts)
        reads = denials.read(texts)
        denying = [k for k, read in enumerate(reads) if read.absent]
        if denying:
            stated = [reads[k].affirmed or "A photo of something" for k in denying]
            denied = [f"A photo of {' and '.join(map(add_article, reads[k].absent))}" for k in denying]
            a, n = np.split(normalise(self._model.encode_text([*stated, *denied])), 2)
            features[denying] = outside(a, n, self.threshold)
        return features


def outside(a: np.ndarray, n: np.ndarray, threshold: float) -> np.ndarray:
    """(N, D) of length 1: on the arc from n through a, at half their angle plus the caps' from n; a itself
    where the caps do not meet, or a is n, from which no arc leads away."""
    a, n = a.astype(np.float64), n.astype(np.float64)
    cosine = (a * n).sum(1, keepdims=True).clip(-1, 1)
    cap, between = np.arccos(threshold), np.arccos(cosine)
    angle = cap + between / 2
    meet = (between < 2 * cap) & (np.sin(between) > 1e-6)
    side = (a - cosine * n) / np.where(meet, np.sin(between), 1)  # of length 1, at right angles to n
    return np.where(meet, np.cos(angle) * n + np.sin(angle) * side, a).astype(np.float32)
