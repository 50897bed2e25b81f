"""NEAT: a two-tower model whose text encoder adapts to the captions and pictures it is tested with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from metrics.dual.base import DualEncoder
from nein.datasets.negbench import remedy_texts
from nein.datasets.negbench.remedy_texts import Parts
from nein.engine.seeds import sample_seed

if TYPE_CHECKING:
    from metrics.dual.neat import Reading

#: Captions that adapt together, as published (README of github.com/hhc1997/NEAT).
BATCH = 256


class Adapted:
    """All captions are encoded by a text encoder that has adapted to those which deny something, among the
    pictures that are searched (`metrics.dual.neat`); pictures by the model as it is.

    The model goes through these captions once, `BATCH` at a time, in an order drawn with `seed`, always from
    its own weights and over whole data, so that no feature depends on the order of the work.

    protocol   "fixed": every caption is encoded with the weights at the end. "paper": each of those that are
               adapted to has its feature from when it was its turn (`neat.adapt`), and is read as the
               released code reads it (`neat.cleaned`); only others are encoded with the weights at the end.
    published  Caption -> its parts; others are taken apart by `remedy_texts.invert`.
    """

    def __init__(
        self, model: DualEncoder, protocol: str, seed: int, published: Mapping[str, Parts] | None = None
    ) -> None:
        from metrics.dual.steering import stream
        from metrics.loading import fingerprint

        stream(model)  # another model is refused before it is asked
        self._model, self.protocol, self._seed, self._published = model, protocol, seed, published or {}
        self.width, self.scale, self.bias = model.width, model.scale, model.bias
        self.quick_gelu = model.quick_gelu
        self._about: dict[str, Any] = {"arm": "neat", "protocol": protocol, "batch": BATCH, "seed": seed}
        if self._published:
            learned_from = repr(sorted(self._published.items()))
            self._about["published"] = hashlib.sha256(learned_from.encode()).hexdigest()[:20]
        self.fingerprint = fingerprint({"model": model.fingerprint, **self._about})

    def describe(self) -> dict[str, Any]:
        return {**self._model.describe(), "mended": self._about}

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self._model.encode(images)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """By the model as it is: without pictures there is nothing to adapt to."""
        return self._model.encode_text(texts)

    def encode_among(self, texts: Sequence[str], gallery: np.ndarray, captions: Sequence[str]) -> np.ndarray:
        """(N, width) float32 of sentences.

        gallery   (M, width) features, of length 1, of the pictures that are searched.
        captions  By which the model adapts, as far as they deny something.
        """
        from metrics.dual import neat

        captions = list(dict.fromkeys(captions))
        released = self.protocol == "paper"
        readings = self._readings(captions, neat.cleaned if released else str) if len(gallery) else {}
        order = np.random.default_rng(sample_seed(self._seed, "neat")).permutation(list(readings)).tolist()
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        made, norms = neat.adapt(self._model, [[readings[k] for k in batch] for batch in batches], gallery)
        features = neat.encoded(self._model, norms, texts)
        if released:
            then = dict(
                zip((captions[k] for k in order), (row for part in made for row in part), strict=True)
            )
            for k, text in enumerate(texts):
                features[k] = then.get(text, features[k])
        return features

    def _readings(self, texts: Sequence[str], change: Callable[[str], str] = str) -> dict[int, Reading]:
        """Index of a text that denies something -> what it is taken apart into."""
        from metrics.dual.neat import Reading

        ruled = remedy_texts.invert(texts)
        parts = [self._published.get(text, rule) for text, rule in zip(texts, ruled, strict=True)]
        return {k: Reading(*map(change, (texts[k], *these))) for k, these in enumerate(parts) if these}
