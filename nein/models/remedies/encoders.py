"""Remedies for two-tower models, whose texts are encoded otherwise (`--mend`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nein.datasets.negbench import remedy_texts
from nein.datasets.negbench.remedy_texts import Parts
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.metrics.dual.base import DualEncoder, normalise
from nein.wording import denials
from nein.wording.nouns import with_article

if TYPE_CHECKING:
    from nein.metrics.dual.neat import Reading

#: Lambda: best recall of the values that were tried on the dev split of the nano world (docs/howto/mend.md).
#: Alpha: the published one (steer.py), for there none is better than another.
LAMBDA, ALPHA = 0.25, 0.13
_ARM = re.compile(r"(?P<kind>decompose|steer|neat)(?::(?P<number>\d+(?:\.\d+)?))?(?P<file>@.+)?")
#: Kind -> the largest number that it takes, its default, and the reader of the file that it takes.
_KINDS: dict[str, tuple[float, float, Callable[[Path], Any] | None]] = {
    "decompose": (10.0, LAMBDA, None),
    "steer": (1.0, ALPHA, remedy_texts.read_pairs),
    "neat": (0.0, 0.0, remedy_texts.read_inversions),
}


@dataclass(frozen=True)
class Arm:
    """A remedy with what decides it.

    kind    "decompose", "steer" or "neat".
    number  Lambda or alpha.
    file    Of the sentences that steering learns from; None: `remedy_texts.drawn_pairs`. Of captions taken
            apart, for NEAT; None: `remedy_texts.invert`.
    """

    kind: str
    number: float
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Raises UserError for one that does not exist."""
        match = _ARM.fullmatch(text)
        kind = match["kind"] if match else ""
        most, default, reader = _KINDS.get(kind, (0.0, 0.0, None))
        number = float(match["number"] or default) if match else -1.0
        wrong = match is None or (match["file"] and reader is None) or (match["number"] and not most)
        if match is None or wrong or not 0 <= number <= most:
            raise UserError(
                f"There is no remedy '{text}' for two-tower models; --mend takes decompose[:LAMBDA], LAMBDA "
                f"from 0 to 10 (default {LAMBDA}), steer[:ALPHA][@PAIRS.json], ALPHA from 0 to 1 (default "
                f"{ALPHA}), or neat[@CAPTIONS.csv]."
            )
        return cls(kind, number, Path(match["file"][1:]).expanduser() if match["file"] else None)

    @property
    def identity(self) -> dict[str, str]:
        """What decides the results beside the arm's name."""
        if self.file is None:
            return {}
        return {"pairs": hashlib.sha256(repr(self._content()).encode()).hexdigest()[:16]}

    @property
    def adapts(self) -> bool:
        """Whether captions are encoded among the pictures they search: see `Adapted`."""
        return self.kind == "neat"

    def around(self, model: DualEncoder, protocol: str = "fixed", seed: int = 0) -> DualEncoder:
        """The model with the remedy. NEAT alone has a protocol, and a seed under "paper"."""
        if self.kind == "decompose":
            return Decomposed(model, self.number)
        if self.adapts:
            return Adapted(model, protocol, seed, self._content() if self.file else None)
        return Steered(model, self.number, self._content() if self.file else remedy_texts.drawn_pairs())

    def _content(self) -> Any:
        reader = _KINDS[self.kind][2]
        assert reader is not None
        assert self.file is not None
        return reader(self.file)


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
        from nein.metrics.loading import fingerprint  # with torch, which a list of models does without

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


class Steered:
    """The text encoder is moved towards denial, layer by layer, in captions that deny something.

    The state x at the end of a sentence after layer l becomes (1 - alpha) x + alpha |x| v_l; v_l, of length
    1, is normal to the plane by which a logistic regression without intercept tells denied from affirmed
    sentences by these states (arXiv:2603.20554). The published code steers every query, all of which deny;
    here those are steered in which `nein.wording.denials` reads something absent.
    """

    def __init__(self, model: DualEncoder, alpha: float, pairs: remedy_texts.Pairs) -> None:
        from nein.metrics.dual import steering
        from nein.metrics.loading import fingerprint

        self._model, self.alpha = model, alpha
        self.width, self.scale, self.bias = model.width, model.scale, model.bias
        self.quick_gelu = model.quick_gelu
        learned_from = hashlib.sha256(repr(pairs).encode()).hexdigest()[:20]
        self.fingerprint = fingerprint({"model": model.fingerprint, "steer": alpha, "pairs": learned_from})
        self._about = {"arm": "steer", "alpha": alpha, "pairs": len(pairs), "sha256": learned_from}
        affirmed, denied = zip(*pairs, strict=True)
        self.directions = [
            direction(a, d)
            for a, d in zip(steering.states(model, affirmed), steering.states(model, denied), strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        return {**self._model.describe(), "mended": self._about}

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self._model.encode(images)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        from nein.metrics.dual import steering

        features = self._model.encode_text(texts)
        denying = [k for k, read in enumerate(denials.read(texts)) if read.absent]
        if denying:
            with steering.steered(self._model, self.directions, self.alpha):
                features[denying] = self._model.encode_text([texts[k] for k in denying])
        return features


def direction(affirmed: np.ndarray, denied: np.ndarray) -> np.ndarray:
    """(D,) float64 of length 1, towards denial, from (N, D) and (M, D) states: the weights of a logistic
    regression without intercept, penalised by half their squared length, as scikit-learn's with C = 1."""
    from scipy.optimize import minimize

    x = np.concatenate([affirmed, -denied]).astype(np.float64)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        margin = x @ w  # is to be negative: affirmed states are on the other side
        value = np.logaddexp(0, margin).sum() + w @ w / 2
        return float(value), x.T @ (1 / (1 + np.exp(-margin))) + w

    found = minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 1000}).x
    return found / np.linalg.norm(found)


#: Captions that adapt together, as published (README of github.com/hhc1997/NEAT).
BATCH = 256


class Adapted:
    """NEAT: all captions are encoded by a text encoder that has adapted to those which deny something, among
    the pictures that are searched (`metrics.dual.neat`); pictures by the model as it is.

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
        from nein.metrics.dual.steering import stream
        from nein.metrics.loading import fingerprint

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
        from nein.metrics.dual import neat

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
        from nein.metrics.dual.neat import Reading

        ruled = remedy_texts.invert(texts)
        parts = [self._published.get(text, rule) for text, rule in zip(texts, ruled, strict=True)]
        return {k: Reading(*map(change, (texts[k], *these))) for k, these in enumerate(parts) if these}
