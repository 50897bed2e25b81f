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
from nein.loading.references import expanded
from nein.metrics.base import fingerprint
from nein.metrics.dual import DualEncoder, normalise
from nein.wording import denials
from nein.wording.nouns import with_article

if TYPE_CHECKING:
    from nein.metrics.dual.steering import Reading

#: Lambda: best recall of the values that were tried on the dev split of the nano world (docs/howto/mend.md).
#: Alpha: the published one (steer.py), for there none is better than another.
LAMBDA, ALPHA = 0.25, 0.13
#: Threshold of SpaceVLM: default of its published commands for retrieval and multiple choice (@ d37fec2).
CAP = 0.92
_ARM = re.compile(r"(?P<kind>decompose|spacevlm|steer|neat)(?::(?P<number>\d+(?:\.\d+)?))?(?P<file>@.+)?")
#: Kind -> the largest number that it takes, its default, and the reader of its file.
_KINDS: dict[str, tuple[float, float, Callable[[Path], Any] | None]] = {
    "decompose": (10.0, LAMBDA, None),
    "spacevlm": (1.0, CAP, None),
    "steer": (1.0, ALPHA, remedy_texts.read_pairs),
    "neat": (0.0, 0.0, remedy_texts.read_inversions),
}
#: Those that act on every two-tower model, the cheapest first; the others change a CLIP's text encoder.
ANY = ("decompose", "spacevlm")


@dataclass(frozen=True)
class Remedy:
    """`number`: lambda, alpha or a threshold. `file`: of the sentences that steering learns from (None: drawn
    ones), or of captions taken apart, for NEAT (None: by `remedy_texts.invert`)."""

    kind: str
    number: float
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Remedy:
        """Raises UserError for one that does not exist."""
        match = _ARM.fullmatch(text)
        kind = match["kind"] if match else ""
        most, default, reader = _KINDS.get(kind, (0.0, 0.0, None))
        number = float(match["number"] or default) if match else -1.0
        wrong = match is None or (match["file"] and reader is None) or (match["number"] and not most)
        if match is None or wrong or not 0 <= number <= most:
            raise UserError(
                f"There is no remedy '{text}' for two-tower models; --mend takes decompose[:LAMBDA], LAMBDA "
                f"from 0 to 10 (default {LAMBDA}), spacevlm[:THRESHOLD], from 0 to 1 (default {CAP}), "
                f"steer[:ALPHA][@PAIRS.json], ALPHA from 0 to 1 (default {ALPHA}), or neat[@CAPTIONS.csv]."
            )
        return cls(kind, number, expanded(match["file"][1:]) if match["file"] else None)

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
        if self.kind == "spacevlm":
            return Capped(model, self.number)
        content = self._content() if self.file else None
        if self.adapts:
            return Adapted(model, protocol, seed, content)
        return Steered(model, self.number, remedy_texts.drawn_pairs() if content is None else content)

    def _content(self) -> Any:
        reader = _KINDS[self.kind][2]
        assert reader is not None
        assert self.file is not None
        return reader(self.file)


class _Around:
    """A `DualEncoder` around another one, whose features of pictures stay."""

    def __init__(self, model: DualEncoder, about: Mapping[str, Any]) -> None:
        self._model, self._about = model, dict(about)
        self.width, self.scale, self.bias = model.width, model.scale, model.bias
        self.quick_gelu = model.quick_gelu
        self.fingerprint = fingerprint({"model": model.fingerprint, **about})

    def describe(self) -> dict[str, Any]:
        return {**self._model.describe(), "mended": self._about}

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return self._model.encode(images)


def _digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:20]


class Decomposed(_Around):
    """The score of a picture i and a caption c is that of what the caption affirms minus that of what it
    denies (`nein.wording.denials`); a term without words is 0:

        score(i, c) = cos(i, affirmed(c)) - weight * mean of cos(i, "a photo of X") over the denied X

    That is a product with one vector per caption. One more dimension, in which pictures are 0, gives all of
    these one length, so that normalising leaves the scores as they are but for the factor 1 / (1 + weight),
    which is in `scale`.
    """

    def __init__(self, model: DualEncoder, weight: float) -> None:
        super().__init__(model, {"arm": "decompose", "lambda": weight})
        self.weight = weight
        self.width, self.scale = model.width + 1, model.scale * (1 + weight)

    def encode(self, images: Sequence[np.ndarray]) -> np.ndarray:
        return np.pad(self._model.encode(images), ((0, 0), (0, 1)))  # (N, width) -> (N, width + 1)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        parts = [
            (read.affirmed, [f"A photo of {with_article(name)}." for name in read.absent])
            for read in denials.read(texts)
        ]
        wanted = list(dict.fromkeys(text for stated, denied in parts for text in (stated, *denied) if text))
        encoded = normalise(self._model.encode_text(wanted)) if wanted else ()
        rows, nothing = dict(zip(wanted, encoded, strict=True)), np.zeros(self._model.width)
        vectors = np.stack([
            rows.get(stated, nothing)
            - self.weight * np.mean([rows[name] for name in denied] or [nothing], axis=0)
            for stated, denied in parts
        ])  # fmt: skip
        lengths = (1 + self.weight) ** 2 - (vectors**2).sum(1, keepdims=True)
        return np.concatenate([vectors, np.sqrt(lengths.clip(0))], axis=1).astype(np.float32)


class Capped(_Around):
    """SpaceVLM (arXiv:2511.12331): a caption that denies something becomes the middle of what the cap around
    its affirmed part a has outside the cap around its denied part n, both of half-angle arccos(threshold).
    Where nothing is affirmed, a is "A photo of something", as in the published code.
    """

    def __init__(self, model: DualEncoder, threshold: float) -> None:
        super().__init__(model, {"arm": "spacevlm", "threshold": threshold})
        self.threshold = threshold

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        features = self._model.encode_text(texts)
        reads = denials.read(texts)
        denying = [k for k, read in enumerate(reads) if read.absent]
        if denying:
            stated = [reads[k].affirmed or "A photo of something" for k in denying]
            denied = [f"A photo of {' and '.join(map(with_article, reads[k].absent))}" for k in denying]
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


class Steered(_Around):
    """In captions that deny something the state x at the end after layer l becomes (1 - alpha) x +
    alpha |x| v_l; v_l, of length 1, is normal to the plane by which a logistic regression without intercept
    tells denied from affirmed sentences by these states (arXiv:2603.20554). The published code steers every
    query, all of which deny.
    """

    def __init__(self, model: DualEncoder, alpha: float, pairs: remedy_texts.Pairs) -> None:
        from nein.metrics.dual import steering

        facts = {"arm": "steer", "alpha": alpha, "pairs": len(pairs), "sha256": _digest(pairs)}
        super().__init__(model, facts)
        self.alpha = alpha
        states = (steering.states(model, sentences) for sentences in zip(*pairs, strict=True))
        self.directions = [direction(a, d) for a, d in zip(*states, strict=True)]

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


class Adapted(_Around):
    """NEAT: all captions are encoded by a text encoder that has adapted to those which deny something, among
    the pictures that are searched (`metrics.dual.steering`); pictures by the model as it is.

    The model goes through these captions once, `BATCH` at a time, in an order drawn with `seed`, always from
    its own weights and over whole data, so that no feature depends on the order of the work.

    protocol   "fixed": every caption is encoded with the weights at the end. "paper": a caption that is
               adapted to has its feature from when it was its turn, and is read as by the released code.
    published  Caption -> its parts; others are taken apart by `remedy_texts.invert`.
    """

    def __init__(
        self, model: DualEncoder, protocol: str, seed: int, published: Mapping[str, Parts] | None = None
    ) -> None:
        from nein.metrics.dual.steering import stream

        stream(model)  # another model is refused before it is asked
        self.protocol, self._seed, self._published = protocol, seed, published or {}
        facts: dict[str, Any] = {"arm": "neat", "protocol": protocol, "batch": BATCH, "seed": seed}
        if published:
            facts["published"] = _digest(sorted(published.items()))
        super().__init__(model, facts)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """By the model as it is: without pictures there is nothing to adapt to."""
        return self._model.encode_text(texts)

    def encode_among(self, texts: Sequence[str], gallery: np.ndarray, captions: Sequence[str]) -> np.ndarray:
        """(N, width) float32 of sentences.

        gallery   (M, width) features, of length 1, of the pictures that are searched.
        captions  By which the model adapts, as far as they deny something.
        """
        from nein.metrics.dual import steering

        captions = list(dict.fromkeys(captions))
        released = self.protocol == "paper"
        readings: dict[int, Reading] = {}  # index of a caption that denies something -> its parts
        if len(gallery):
            change = steering.cleaned if released else str
            for k, (text, rule) in enumerate(zip(captions, remedy_texts.invert(captions), strict=True)):
                if parts := self._published.get(text, rule):
                    readings[k] = steering.Reading(*map(change, (text, *parts)))
        order = np.random.default_rng(sample_seed(self._seed, "neat")).permutation(list(readings)).tolist()
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        adapted, norms = steering.adapt(
            self._model, [[readings[k] for k in batch] for batch in batches], gallery
        )
        features = steering.encoded(self._model, norms, texts)
        if released:
            then = dict(
                zip((captions[k] for k in order), (row for part in adapted for row in part), strict=True)
            )
            for k, text in enumerate(texts):
                features[k] = then.get(text, features[k])
        return features
