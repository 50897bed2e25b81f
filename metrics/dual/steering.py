"""Text encoders that are changed while they read: steered along a direction, or adapted to the test (NEAT).

Steering: Sammani et al., arXiv:2603.20554, github.com/fawazsammani/negation-steering (steer.py). NEAT: Han et
al., arXiv:2507.19064, github.com/hhc1997/NEAT (train_TTA.py, open_clip/factory.py, main_TTA.py).
A caption t comes with what it affirms, p, what it denies, n, and its inversion, v, which swaps the two. Among
the pictures i of the search the caption's own is guessed,

    i* = argmax over i of cos(p, i) (1 - max(0, cos(n, i))),

and scales and shifts of the normalisation layers in the text encoder's blocks make three steps of AdamW per
batch of captions against the sum of

    entropy    mean over the guessed pictures of the entropy of softmax over the captions of cos(t, i*) / 0.03
    reversion  mean over the inversions of max(0, cos(v, own i*) - least of cos(v, the others' i*)) / 0.07
    triplet    mean of 5 |t - p| + 2 - |t - v|, of unit vectors
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from nein.metrics.base import MetricError, chunks
from nein.metrics.dual import DualEncoder

#: The published run's (README; weight decay and temperatures are also the defaults of params.py).
RATE, DECAY, STEPS = 2e-4, 1e-3, 3
SHARPNESS, REVERSION, ATTRACTION = 0.03, 0.07, 5.0
_CLOSE = 1e-6  # torch.nn.PairwiseDistance adds it to every difference
_WORDS = 77  # of a caption, under `cleaned`


@dataclass(frozen=True)
class TextStream:
    """Where sentences pass through a text encoder.

    embedding    Of tokens: it is called with the ids, (N, L) int64.
    layers       Each gives (N, L, D) states, or (L, N, D) where `batch_first` is False.
    end          Ids -> (N,) int64, the place whose state becomes the feature.
    """

    embedding: torch.nn.Module
    layers: Sequence[torch.nn.Module]
    end: Callable[[torch.Tensor], torch.Tensor]
    batch_first: bool = True


def stream(encoder: DualEncoder) -> TextStream:
    """Of a CLIP of transformers or of open_clip. Raises MetricError for any other model."""
    model: Any = getattr(encoder, "model", None)
    if getattr(getattr(model, "config", None), "model_type", "") == "clip":
        text, eos = model.text_model, model.config.text_config.eos_token_id
        # As the model takes its feature: of checkpoints with the eos 2, at the highest id.
        end = _highest if eos == 2 else lambda ids: (ids == eos).int().argmax(-1)
        return TextStream(text.embeddings.token_embedding, text.encoder.layers, end)
    tower = getattr(model, "text", model)  # open_clip's CustomTextCLIP, or CLIP
    layers = getattr(getattr(tower, "transformer", None), "resblocks", None)
    if layers is None or getattr(tower, "pool_type", getattr(model, "text_pool_type", "")) != "argmax":
        raise MetricError(
            f"The text encoder of '{type(model or encoder).__name__}' can be neither steered nor adapted; "
            "that of a CLIP of transformers or open_clip can."
        )
    first = getattr(tower.transformer, "batch_first", True)
    return TextStream(tower.token_embedding, layers, _highest, first)


def _highest(ids: torch.Tensor) -> torch.Tensor:
    return ids.argmax(-1)


def states(encoder: DualEncoder, texts: Sequence[str]) -> list[np.ndarray]:
    """(N, D) float32 per layer: the state at the end of every sentence, as the layer gives it."""
    kept: list[list[torch.Tensor]] = []

    def keep(layer: int, ends: torch.Tensor) -> torch.Tensor:
        kept.extend([] for _ in range(layer + 1 - len(kept)))
        kept[layer].append(ends.detach().float().cpu())
        return ends

    with _at_the_end(stream(encoder), keep):
        encoder.encode_text(texts)
    return [torch.cat(parts).numpy() for parts in kept]


@contextmanager
def steered(encoder: DualEncoder, directions: Sequence[np.ndarray], alpha: float) -> Iterator[None]:
    """Within it, the state x after layer l becomes (1 - alpha) x + alpha |x| v, v the l-th unit direction."""
    vectors = [torch.from_numpy(np.asarray(v, np.float32)) for v in directions]

    def move(layer: int, ends: torch.Tensor) -> torch.Tensor:
        v = vectors[layer].to(ends.device, ends.dtype)
        return (1 - alpha) * ends + alpha * ends.norm(dim=-1, keepdim=True) * v

    with _at_the_end(stream(encoder), move):
        yield


@contextmanager
def _at_the_end(where: TextStream, change: Callable[[int, torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within it, `change` replaces the (N, D) states at the end after each layer, in this thread."""
    ids: list[torch.Tensor] = []
    owner = threading.get_ident()

    def listen(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if threading.get_ident() == owner:
            ids[:] = [inputs[0]]

    def hook(layer: int) -> Callable[..., Any]:
        def changed(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
            if threading.get_ident() != owner:
                return None
            hidden = (output[0] if isinstance(output, tuple) else output).clone()
            end = where.end(ids[0]).to(hidden.device)
            rows = torch.arange(len(end), device=hidden.device)
            position = (rows, end) if where.batch_first else (end, rows)
            hidden[position] = change(layer, hidden[position])
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        return changed

    with ExitStack() as stack:
        stack.callback(where.embedding.register_forward_pre_hook(listen).remove)
        for k, layer in enumerate(where.layers):
            stack.callback(layer.register_forward_hook(hook(k)).remove)
        yield


# --- NEAT ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A caption taken apart: texts of what it affirms, of what it denies, and of its inversion."""

    text: str
    affirmed: str
    denied: str
    inverted: str


class Norms:
    """The scales and shifts that adapt, apart from the model's own, and their optimiser."""

    def __init__(self, encoder: DualEncoder) -> None:
        blocks = stream(encoder).layers
        inside = (module for block in blocks for module in block.modules())
        self.layers = [module for module in inside if isinstance(module, torch.nn.LayerNorm)]
        #: (scale, shift) of every layer.
        self.parameters = [
            tuple(tensor.detach().clone().float().requires_grad_() for tensor in (layer.weight, layer.bias))
            for layer in self.layers
        ]
        self._moving = [tensor for pair in self.parameters for tensor in pair]
        self._optimiser = torch.optim.AdamW(self._moving, lr=RATE, weight_decay=DECAY)

    def pull(self, features: torch.Tensor, gradient: torch.Tensor) -> None:
        """Adds the gradient of the loss for (N, D) features."""
        parts = torch.autograd.grad(features, self._moving, gradient)
        for tensor, part in zip(self._moving, parts, strict=True):
            tensor.grad = part if tensor.grad is None else tensor.grad + part

    def step(self) -> None:
        self._optimiser.step()
        self._optimiser.zero_grad()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it, this thread's sentences pass through these."""
        owner = threading.get_ident()

        def hook(scale: torch.Tensor, shift: torch.Tensor) -> Callable[..., Any]:
            def normalised(module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> Any:
                if threading.get_ident() != owner:
                    return None
                x = inputs[0].to(scale.dtype)
                return F.layer_norm(x, module.normalized_shape, scale, shift, module.eps).to(output.dtype)

            return normalised

        with ExitStack() as stack:
            for layer, pair in zip(self.layers, self.parameters, strict=True):
                stack.callback(layer.register_forward_hook(hook(*pair)).remove)
            yield


def loss(
    texts: torch.Tensor, affirmed: torch.Tensor, inverted: torch.Tensor, guessed: torch.Tensor
) -> torch.Tensor:
    """The sum above, of (B, D) unit features; guessed: of pictures."""
    by_picture = (texts @ guessed.T).T / SHARPNESS
    entropy = -(by_picture.softmax(1) * by_picture.log_softmax(1)).sum(1).mean()
    scores = inverted @ guessed.T
    own = scores.diagonal()[:, None]
    others = torch.eye(len(scores), device=scores.device) == 0
    reversion = ((own - scores).clamp(min=0) * others).amax(1).mean() / REVERSION
    triplet = (ATTRACTION * _distance(texts, affirmed) + 2 - _distance(texts, inverted)).mean()
    return entropy + reversion + triplet


def guess(affirmed: torch.Tensor, denied: torch.Tensor, gallery: torch.Tensor) -> torch.Tensor:
    """(B, D) features of the pictures of (M, D) that captions are about."""
    with torch.no_grad():
        return gallery[((affirmed @ gallery.T) * (1 - (denied @ gallery.T).relu())).argmax(1)]


def adapt(
    encoder: DualEncoder, batches: Sequence[Sequence[Reading]], gallery: np.ndarray
) -> tuple[list[np.ndarray], Norms]:
    """Adapts from batch to batch, from the model's own weights on, without a reset.

    gallery  (M, D) unit features of the pictures that are searched.

    Returns the scales and shifts at the end, and (B, D) float32 features of every batch from before its last
    step, which the released code uses: a quirk, by which a caption's result depends on those before it.
    """
    norms, features = Norms(encoder), []
    for batch in batches:
        for step in range(STEPS):
            if step == STEPS - 1:
                features.append(encoded(encoder, norms, [reading.text for reading in batch]))
            _step(encoder, norms, batch, gallery)
    return features, norms


def encoded(encoder: DualEncoder, norms: Norms, texts: Sequence[str]) -> np.ndarray:
    """(N, D) float32 features of sentences under `norms`."""
    with norms.in_place():
        return encoder.encode_text(texts)


def cleaned(caption: str) -> str:
    """As released (data/utils.py, `pre_caption`): lower case, a space for each of . ! " ( ) * # : ; ~, at
    most 77 words. A quirk: only the captions that are adapted to are read so."""
    plain = re.sub(r'[.!"()*#:;~]', " ", caption.lower())
    return " ".join(re.sub(r"\s{2,}", " ", plain).strip(" \n").split(" ")[:_WORDS])


def _step(encoder: Any, norms: Norms, readings: Sequence[Reading], gallery: np.ndarray) -> None:
    """One step; gradients go through the encoder `batch_size` sentences at a time."""
    with torch.inference_mode(False), torch.enable_grad(), norms.in_place():
        texts = [list(part) for part in zip(*map(astuple, readings), strict=True)]
        with torch.no_grad():
            parts = [chunks(column, encoder.batch_size) for column in texts]
            plain = [torch.cat([_unit(encoder, part) for part in column]) for column in parts]
        text, affirmed, denied, inverted = plain
        pictures = torch.from_numpy(np.array(gallery, np.float32)).to(text.device)
        guessed = guess(affirmed, denied, pictures)
        moving = [tensor.requires_grad_() for tensor in (text, affirmed, inverted)]
        gradients = torch.autograd.grad(loss(text, affirmed, inverted, guessed), moving)
        for sentences, gradient in zip((parts[0], parts[1], parts[3]), gradients, strict=True):
            for part, row in zip(sentences, chunks(gradient, encoder.batch_size), strict=True):
                norms.pull(_unit(encoder, part), row)
        norms.step()


def _unit(encoder: Any, sentences: Sequence[str]) -> torch.Tensor:
    return F.normalize(encoder.text_features(sentences), dim=-1).float()


def _distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b + _CLOSE).norm(dim=-1)
