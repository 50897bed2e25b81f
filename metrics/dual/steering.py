"""The state at the end of a sentence after each layer of a text encoder: read, and moved along a direction.

Source: Sammani et al., "When Negation Is a Geometry Problem in Vision-Language Models" (arXiv:2603.20554),
and github.com/fawazsammani/negation-steering (steer.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nein.metrics.base import MetricError
from nein.metrics.dual.base import DualEncoder


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
    """That of a CLIP of transformers or of open_clip. Raises MetricError for any other model."""
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
    """Within it, the state x after layer l becomes (1 - alpha) x + alpha |x| v, v the l-th direction, of
    length 1 (steer.py, `steer` and `steer_every_layer`)."""
    vectors = [torch.from_numpy(np.asarray(v, np.float32)) for v in directions]

    def move(layer: int, ends: torch.Tensor) -> torch.Tensor:
        v = vectors[layer].to(ends.device, ends.dtype)
        return (1 - alpha) * ends + alpha * ends.norm(dim=-1, keepdim=True) * v

    with _at_the_end(stream(encoder), move):
        yield


@contextmanager
def _at_the_end(where: TextStream, change: Callable[[int, torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within it, `change` gets (layer, (N, D) states at the end) and says what they become, in this
    thread."""
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
            place = (rows, end) if where.batch_first else (end, rows)
            hidden[place] = change(layer, hidden[place])
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        return changed

    with ExitStack() as stack:
        stack.callback(where.embedding.register_forward_pre_hook(listen).remove)
        for k, layer in enumerate(where.layers):
            stack.callback(layer.register_forward_hook(hook(k)).remove)
        yield
