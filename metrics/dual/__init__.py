"""Models with one encoder for images and one for sentences, into one space, and how features are compared,
in float64, so that the number of rows compared at once cannot decide between equal scores. A dual encoder has

    encode(images), encode_text(texts)  -> (N, width) float32, not normalised; sentences are cut at its limit
    scale, bias   its own score of a pair is scale * cosine + bias: for CLIP the learned temperature and 0,
                  for SigLIP the logit before the sigmoid
    quick_gelu    whether its networks compute with QuickGELU, as OpenAI's do, in place of GELU
    width, fingerprint, describe()

One is an object with two encoders, a model of transformers or open_clip in memory (`make_dual`), or a
control that knows nothing: "random" and "random:SEED" give every input a direction of its own, "constant"
one direction for everything, so that every score ties. `encoders` and `openclip` load others.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.loading.digests import Json, json_digest, source_digest, tensor_digest
from nein.loading.errors import choose, out_of_memory, reason
from nein.metrics.base import Described, Images, MetricError, check_image, split_chunks

NORMALISATIONS = ("normalised", "unnormalised")


def normalise(features: np.ndarray) -> np.ndarray:
    """Rows of length 1 as float64; a row of zeros stays one. (..., D) -> (..., D)."""
    x = np.asarray(features, dtype=np.float64)
    # The largest entry is taken out first: with it, scaling by a power of two changes no bit.
    largest = np.max(np.abs(x), axis=-1, keepdims=True)  # (..., 1)
    x = x / np.where(largest == 0, 1.0, largest)
    length = np.linalg.norm(x, axis=-1, keepdims=True)  # (..., 1)
    return x / np.where(length == 0, 1.0, length)


def pool(frames: np.ndarray) -> np.ndarray:
    """One feature of a video from those of its frames, (F, D) -> (D,) float64, normalised before they are
    averaged, as released (NegBench, video_utils/model.py); one frame is that frame."""
    x = np.asarray(frames, dtype=np.float64)
    if x.ndim != 2 or not len(x):
        raise MetricError(f"Frames must be an array of shape (frames, features), not {x.shape}.")
    return x[0] if len(x) == 1 else normalise(x).mean(0)


def prepare(features: np.ndarray, kind: str = "normalised") -> np.ndarray:
    """(N, D) features as `products` compares them, float64; kind "unnormalised": as NegBench's first release
    compared options (README, 2025-03)."""
    choose("kind of features", kind, NORMALISATIONS)
    return normalise(features) if kind == "normalised" else np.asarray(features, dtype=np.float64)


def products(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """(..., D) and (..., D) -> (...) float32, rounded once: equal pairs get equal scores everywhere."""
    return (images * texts).sum(-1).astype(np.float32)


class ControlEncoder(Described):
    """A dual encoder whose features are drawn from SHA-256 of seed and content."""

    scale, bias = 1.0, 0.0
    quick_gelu = False
    width = 64

    def __init__(self, name: str, seed: str = "0") -> None:
        self.name, self.seed = name, seed

    def describe(self) -> Json:
        return {"kind": "control", "name": self.name, "seed": self.seed}

    def encode(self, images: Images) -> np.ndarray:
        return self._rows([b"image:" + check_image(image).tobytes() for image in images])

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        return self._rows([b"text:" + text.encode() for text in texts])

    def _rows(self, contents: Sequence[bytes]) -> np.ndarray:
        rows = np.ones((len(contents), self.width), dtype=np.float32)
        for row, content in zip(rows, contents if self.name == "random" else (), strict=False):
            digest = hashlib.sha256(self.seed.encode() + b"/" + content).digest()
            row[:] = np.random.default_rng(list(digest)).standard_normal(self.width)
        return rows


def load_control(reference: str, **how: Any) -> ControlEncoder:
    name, _, seed = reference.partition(":")
    if name == "constant" and seed:
        raise MetricError(f"'{reference}': the control 'constant' takes no seed.")
    return ControlEncoder(name, seed or "0")


#: What a dual encoder has (`metrics.dual`).
_PARTS = ("encode", "encode_text", "fingerprint", "width", "scale", "bias", "quick_gelu", "describe")


class ObjectDual:
    """A dual encoder around an object of yours with `encode_image(images: list[PIL.Image.Image]) -> (N, D)`
    and `encode_text(texts: list[str]) -> (N, D)`; one call at a time."""

    scale, bias, quick_gelu = 1.0, 0.0, False

    def __init__(self, model: Any, *, name: str, fingerprint: str, batch_size: int = 32) -> None:
        self.model, self.name, self.fingerprint, self.batch_size = model, name, fingerprint, batch_size
        self._lock = threading.Lock()
        self.width = 0  # until the first vector says it
        self.width = self.encode_text(["."]).shape[1]

    def describe(self) -> Json:
        facts = {"kind": "dual", "class": type(self.model).__name__, "name": self.name}
        return {**facts, "fingerprint": self.fingerprint}

    def encode(self, images: Images) -> np.ndarray:
        from PIL import Image

        return self._encode("encode_image", [Image.fromarray(check_image(image)) for image in images])

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode("encode_text", list(texts))

    def _encode(self, method: str, inputs: list[Any]) -> np.ndarray:
        """(N, width) float32 of N images or sentences. Raises MetricError for anything else."""
        parts = [np.empty((0, self.width), np.float32)] if self.width else []
        for part in split_chunks(inputs, self.batch_size):
            try:
                with self._lock:
                    output = getattr(self.model, method)(part)
                rows = np.asarray(output.detach().float().cpu() if hasattr(output, "detach") else output)
            except Exception as error:
                if out_of_memory(error):
                    raise  # is about the machine, not about the inputs
                raise MetricError(f"{self.name}.{method} raised {reason(error)}") from error
            numbers = rows.ndim == 2 and len(rows) == len(part) and rows.dtype.kind in "fiu"
            if not numbers or not np.isfinite(rows).all():
                raise MetricError(
                    f"{self.name}.{method} gave {type(output).__name__} of shape {rows.shape} for "
                    f"{len(part)} inputs; expected finite numbers of shape ({len(part)}, D)."
                )
            if self.width not in (0, rows.shape[1]):
                raise MetricError(f"{self.name}.{method} gave vectors of another length than sentences have.")
            parts.append(rows.astype(np.float32))  # (part, D)
        return np.concatenate(parts)


def fingerprint_of(model: Any) -> str:
    """A digest of an object's source text and of the weights of the torch modules that it is or holds."""
    import torch

    members = {"": model, **getattr(model, "__dict__", {})}
    states = {name: part.state_dict() for name, part in members.items() if isinstance(part, torch.nn.Module)}
    tensors = {f"{name}.{key}": tensor for name, state in states.items() for key, tensor in state.items()}
    return json_digest({"source": source_digest(model), "weights": tensor_digest(tensors)})


def make_dual(thing: Any, *, name: str, fingerprint: str, batch_size: int = 32) -> Any:
    """A dual encoder from one, an object with `encode_image` and `encode_text`, (model, processor) of
    transformers, or (model, transform, tokenizer) of open_clip. Raises MetricError for anything else."""
    if all(hasattr(thing, part) for part in _PARTS):
        return thing
    model, *parts = thing if isinstance(thing, tuple) and thing else (thing,)
    encodes = all(callable(getattr(model, part, None)) for part in ("encode_image", "encode_text"))
    if len(parts) == 1 and hasattr(model, "get_image_features") and hasattr(parts[0], "tokenizer"):
        from nein.metrics.encoders import HubDual

        towers = parts[0].image_processor, parts[0].tokenizer
        return HubDual(model.eval(), *towers, _source(name, model), batch_size)
    if len(parts) == 2 and encodes:
        from nein.metrics.dual.openclip import OpenClipDual

        return OpenClipDual(model.eval(), parts[0], parts[1], _source(name, model), batch_size)
    if encodes and not parts:
        return ObjectDual(thing, name=name, fingerprint=fingerprint, batch_size=batch_size)
    raise MetricError(
        f"'{name}' is of type {type(thing).__name__}, which is not a two-tower model; expected an object "
        "with encode_image(images) and encode_text(sentences), (model, processor) of transformers, or "
        "(model, transform, tokenizer) of open_clip."
    )


def _source(name: str, model: Any) -> Any:
    from nein.metrics.loading import Source

    return Source(f"{name}, in memory", None, tensor_digest(model.state_dict()))
