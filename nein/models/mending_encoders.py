"""Cures for two-tower models, without training: arms beside the model as it is (`--mend`).

An arm is a `metrics.dual.base.DualEncoder` around another one, whose texts it encodes otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.dual.base import DualEncoder, normalise
from nein.engine.errors import UserError
from nein.wording import denials
from nein.wording.nouns import with_article

#: Best recall of the three values that were tried on the dev split of the nano world; docs/howto/mend.md.
LAMBDA = 0.25
_ARM = re.compile(r"decompose(?::(\d+(?:\.\d+)?))?")


def weight(arm: str) -> float:
    """Lambda of an arm. Raises UserError for an arm that there is not."""
    match = _ARM.fullmatch(arm)
    if match is None or not 0 <= (value := float(match.group(1) or LAMBDA)) <= 10:
        raise UserError(
            f"There is no cure '{arm}' for two-tower models; --mend takes decompose, or "
            f"decompose:LAMBDA with a number from 0 to 10 (default {LAMBDA})."
        )
    return value


class Decomposed:
    """A query is taken apart: the score of a picture and a caption is that of what the caption affirms minus
    `weight` times that of what it denies.

        score(i, c) = cos(i, affirmed(c)) - weight * mean of cos(i, "a photo of X") over the denied X

    affirmed(c) is the caption without what it denies, `nein.wording.denials`; where it affirms nothing the
    first term is 0, where it denies nothing the second. Needs to know nothing that a user would not say.

    The score is a product with one vector per caption. One more dimension, in which pictures are 0, gives all
    of these one length, so that whoever normalises features leaves the scores as they are but for the factor
    1 / (1 + weight), which is in `scale`.
    """

    def __init__(self, model: DualEncoder, weight: float) -> None:
        self._model, self.weight = model, weight
        self.width = model.width + 1
        self.scale, self.bias = model.scale * (1 + weight), model.bias
        self.quick_gelu = model.quick_gelu
        from metrics.loading import fingerprint  # with torch, which a list of models does without

        self.fingerprint = fingerprint({"model": model.fingerprint, "decompose": weight})

    def describe(self) -> dict[str, Any]:
        return {**self._model.describe(), "mended": {"arm": "decompose", "lambda": self.weight}}

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        features = self._model.encode(images)
        return np.concatenate([features, np.zeros((len(features), 1), features.dtype)], axis=1)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        parts = [(read.affirmed, [_photo(name) for name in read.absent]) for read in denials.read(texts)]
        wanted = list(dict.fromkeys(text for told, denied in parts for text in (told, *denied) if text))
        encoded = normalise(self._model.encode_text(wanted)) if wanted else np.zeros((0, self._model.width))
        rows = dict(zip(wanted, encoded, strict=True))
        nothing = np.zeros(self._model.width)
        vectors = np.stack(
            [
                rows.get(told, nothing)
                - self.weight * np.mean([rows[name] for name in denied] or [nothing], axis=0)
                for told, denied in parts
            ]
        )
        lengths = (1 + self.weight) ** 2 - (vectors**2).sum(1, keepdims=True)
        return np.concatenate([vectors, np.sqrt(lengths.clip(0))], axis=1).astype(np.float32)


def _photo(name: str) -> str:
    return f"A photo of {with_article(name)}."
