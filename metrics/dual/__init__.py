"""Dual encoders: models with one encoder for images and one for sentences, whose features are compared.

In this order: comparison of features, control encoders, duals made from a user's object. `metrics.encoders`
and `metrics.dual.openclip` load published models. Every dual has

    encode(images), encode_text(texts)  -> (N, width) float32, not normalised; sentences are cut at its limit
    scale, bias   of its own score of a pair, scale * cosine + bias. CLIP: the learned temperature and 0;
                  SigLIP: the score is the logit before the sigmoid
    quick_gelu    whether its networks compute with QuickGELU, as OpenAI's do, in place of GELU
    width, fingerprint, describe()
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

# --- comparison of features ----------------------------------------------------------------
# In float64, so that the number of rows compared at once does not decide between equal scores.


def normalise(features: np.ndarray) -> np.ndarray:
    """Scale rows (..., D) to length 1, in float64; a row of zeros stays one."""
    x = np.asarray(features, dtype=np.float64)
    # Division by the largest entry first: then scaling the input by a power of two changes no bit.
    largest = np.max(np.abs(x), axis=-1, keepdims=True)  # (..., 1)
    x = x / np.where(largest == 0, 1.0, largest)
    length = np.linalg.norm(x, axis=-1, keepdims=True)  # (..., 1)
    return x / np.where(length == 0, 1.0, length)


def pool(frames: np.ndarray) -> np.ndarray:
    """Average the features of a video's frames, (F, D) -> (D,) float64. They are normalised first, as in
    NegBench's video_utils/model.py; a single frame is returned as given."""
    x = np.asarray(frames, dtype=np.float64)
    if x.ndim != 2 or not len(x):
        raise MetricError(f"Frames must be an array of shape (frames, features), not {x.shape}.")
    return x[0] if len(x) == 1 else normalise(x).mean(0)


def prepare(features: np.ndarray, kind: str = "normalised") -> np.ndarray:
    """Make features (N, D) float64 for `products`. "unnormalised": NegBench's first release (2025-03)."""
    choose("kind of features", kind, ("normalised", "unnormalised"))
    return normalise(features) if kind == "normalised" else np.asarray(features, dtype=np.float64)


def products(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Compute dot products, (..., D) -> (...) float32. Rounded once, equal pairs get equal scores."""
    return (images * texts).sum(-1).astype(np.float32)


# --- controls ------------------------------------------------------------------------------
class ControlEncoder(Described):
    """A baseline that knows nothing. "random": every input has a direction of its own, drawn from the SHA-256
    of seed and content; "constant": one direction for everything, so that all scores tie."""

    scale, bias = 1.0, 0.0  # see the table above
    quick_gelu = False
    width = 64  # any would do

    def __init__(self, name: str, seed: str = "0") -> None:
        self.name, self.seed = name, seed

    def describe(self) -> Json:
        return {"kind": "control", "name": self.name, "seed": self.seed}

    def encode(self, images: Images) -> np.ndarray:
        return self._draw([b"image:" + check_image(image).tobytes() for image in images])

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        return self._draw([b"text:" + text.encode() for text in texts])

    def _draw(self, contents: Sequence[bytes]) -> np.ndarray:
        """Make the features of N inputs, (N, width) float32."""
        features = np.ones((len(contents), self.width), dtype=np.float32)
        if self.name == "random":
            for row, content in zip(features, contents, strict=True):
                digest = hashlib.sha256(self.seed.encode() + b"/" + content).digest()
                row[:] = np.random.default_rng(list(digest)).standard_normal(self.width)
        return features


def load_control(reference: str, **placement: Any) -> ControlEncoder:
    """Load "random", "random:SEED" or "constant"; device, dtype and batch size do not matter."""
    name, _, seed = reference.partition(":")
    if name == "constant" and seed:
        raise MetricError(f"'{reference}': the control 'constant' takes no seed.")
    return ControlEncoder(name, seed or "0")


# --- duals from a user's object ------------------------------------------------------------
class ObjectDual:
    """A dual encoder around a user's object with `encode_image(images: list[PIL.Image.Image]) -> (N, D)` and
    `encode_text(texts: list[str]) -> (N, D)`; one call at a time."""

    scale, bias, quick_gelu = 1.0, 0.0, False  # see the table above

    def __init__(self, model: Any, *, name: str, fingerprint: str, batch_size: int = 32) -> None:
        self.model, self.name, self.fingerprint, self.batch_size = model, name, fingerprint, batch_size
        self._lock = threading.Lock()  # users' objects are rarely thread-safe
        self.width = 0  # unknown before the first vector
        self.width = self.encode_text(["."]).shape[1]

    def describe(self) -> Json:
        model_class = type(self.model).__name__
        return {"kind": "dual", "class": model_class, "name": self.name, "fingerprint": self.fingerprint}

    def encode(self, images: Images) -> np.ndarray:
        from PIL import Image

        return self._encode("encode_image", [Image.fromarray(check_image(image)) for image in images])

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        return self._encode("encode_text", list(texts))

    def _encode(self, method: str, inputs: list[Any]) -> np.ndarray:
        """Encode N images or sentences: (N, width) float32. Raises MetricError if the object gives another
        shape, or numbers that are not finite."""
        parts = [np.empty((0, self.width), np.float32)] if self.width else []
        for part in split_chunks(inputs, self.batch_size):
            try:
                with self._lock:
                    output = getattr(self.model, method)(part)
                rows = np.asarray(output.detach().float().cpu() if hasattr(output, "detach") else output)
            except Exception as error:
                if out_of_memory(error):
                    raise  # the machine's fault, not the input's
                raise MetricError(f"{self.name}.{method} raised {reason(error)}") from error
            is_valid = rows.ndim == 2 and len(rows) == len(part) and rows.dtype.kind in "fiu"  # numbers
            if not is_valid or not np.isfinite(rows).all():
                raise MetricError(
                    f"{self.name}.{method} gave {type(output).__name__} of shape {rows.shape} for "
                    f"{len(part)} inputs; expected finite numbers of shape ({len(part)}, D)."
                )
            if self.width not in (0, rows.shape[1]):
                raise MetricError(f"{self.name}.{method} gave vectors of another length than sentences have.")
            parts.append(rows.astype(np.float32))  # (len(part), D)
        return np.concatenate(parts)


def fingerprint_object(model: Any) -> str:
    """Digest an object's source code and the weights of the torch modules that it is or holds."""
    import torch

    tensors: dict[str, Any] = {}
    for name, part in {"": model, **getattr(model, "__dict__", {})}.items():  # "": the object itself
        if isinstance(part, torch.nn.Module):
            tensors |= {f"{name}.{key}": tensor for key, tensor in part.state_dict().items()}
    return json_digest({"source": source_digest(model), "weights": tensor_digest(tensors)})


#: Attributes of every dual encoder.
_ATTRIBUTES = ("encode", "encode_text", "fingerprint", "width", "scale", "bias", "quick_gelu", "describe")


def make_dual(candidate: Any, *, name: str, fingerprint: str, batch_size: int = 32) -> Any:
    """Make a dual encoder from an object with `encode_image` and `encode_text`, (model, processor) of
    transformers, or (model, transform, tokenizer) of open_clip. A dual is returned as given. Raises
    MetricError for anything else."""
    if all(hasattr(candidate, attribute) for attribute in _ATTRIBUTES):
        return candidate
    values = candidate if isinstance(candidate, tuple) and candidate else (candidate,)
    model, parts = values[0], values[1:]
    has_encoders = all(callable(getattr(model, method, None)) for method in ("encode_image", "encode_text"))
    if len(parts) == 1 and hasattr(model, "get_image_features") and hasattr(parts[0], "tokenizer"):
        from nein.metrics.encoders import HubDual

        image_processor, tokenizer = parts[0].image_processor, parts[0].tokenizer
        return HubDual(model.eval(), image_processor, tokenizer, _make_source(name, model), batch_size)
    if len(parts) == 2 and has_encoders:
        from nein.metrics.dual.openclip import OpenClipDual

        transform, tokenizer = parts
        return OpenClipDual(model.eval(), transform, tokenizer, _make_source(name, model), batch_size)
    if has_encoders and not parts:
        return ObjectDual(candidate, name=name, fingerprint=fingerprint, batch_size=batch_size)
    raise MetricError(
        f"'{name}' is of type {type(candidate).__name__}, which is not a two-tower model; expected an object "
        "with encode_image(images) and encode_text(sentences), (model, processor) of transformers, or "
        "(model, transform, tokenizer) of open_clip."
    )


def _make_source(name: str, model: Any) -> Any:
    from nein.metrics.loading import Source

    return Source(f"{name}, in memory", None, tensor_digest(model.state_dict()))
