"""Attention as plain products of matrices, in tiles that stay in a processor's cache."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode

from arithmetic import processor, products

# Queries of a tile; with fewer keys torch's kernel is as fast.
_TILE, _FEW_KEYS = 256, 128
# Parameters of a model beside whose arithmetic what `tiled` adds to every call of torch, microseconds, is
# nothing.
_LARGE = 20_000_000
_PARAMETERS: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()


def pays(device: torch.device, dtype: torch.dtype, model: torch.nn.Module) -> bool:
    """Whether tiles are faster than torch's own kernel in the passes of `model`.

    In bfloat16 not where there is a matrix unit, which torch's kernel knows how to use; in float32 only where
    its products, which are MKL's, are slow, and the model is large.
    """
    if device.type != "cpu":
        return False
    if dtype != torch.float32:
        return dtype == torch.bfloat16 and not processor.has_matrix_unit()
    if not (products.AVAILABLE and processor.has_narrow_mkl()):
        return False
    if model not in _PARAMETERS:
        _PARAMETERS[model] = sum(weight.numel() for weight in model.parameters())
    return _PARAMETERS[model] >= _LARGE


def tiled() -> AbstractContextManager[Any]:
    """Inside, `scaled_dot_product_attention` of this thread is `tiled_attention` wherever that can do it."""
    return _Tiled()


class _Tiled(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        return _attend(*args, **(kwargs or {}))


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch's signature, since it stands in its place."""
    plain = attn_mask is None and not dropout_p and query.ndim == 4
    if query.dtype == torch.float32:
        plain = plain and products.applies(query, key)
    if plain and key.shape[2] >= _FEW_KEYS and query.shape[2] > 1:
        return tiled_attention(query, key, value, scale, causal=is_causal)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def tiled_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    *,
    causal: bool = False,
) -> torch.Tensor:
    """Softmax attention as plain matrix products, 256 queries of a head at a time.

    query (B, H, T, D), key (B, G, S, D), value (B, G, S, E) to (B, H, T, E), where G divides H: neighbouring
    heads of the query share one of the keys. causal: the t-th query sees the keys up to the t-th, and no tile
    works out what lies beyond.

    Where the processor has no matrix unit, torch's own kernel for CPUs is no faster in bfloat16 than in
    float32, in which it multiplies by MKL; products of matrices (`arithmetic.products`) are.
    """
    scaled = (query * (query.shape[-1] ** -0.5 if scale is None else scale)).flatten(0, 1)
    keys, values = key.flatten(0, 1).contiguous(), value.flatten(0, 1).contiguous()
    by_product = query.dtype == torch.float32 and products.applies(query, key)
    if not by_product:
        keys = keys.mT.contiguous().mT  # mm is faster so
    shared = query.shape[1] // key.shape[1]
    output = torch.empty((*query.shape[:3], value.shape[3]), dtype=query.dtype, device=query.device)
    for head, into in enumerate(output.flatten(0, 1)):
        for start in range(0, query.shape[2], _TILE):
            end = min(start + _TILE, query.shape[2])
            seen = min(end, key.shape[2]) if causal else key.shape[2]
            tile, beside = scaled[head, start:end], keys[head // shared, :seen]
            # oneDNN has no kernel for a slice of transposed keys: several hundred times as long.
            scores = products.product(tile, beside, None) if by_product else torch.mm(tile, beside.T)
            if causal:
                scores.masked_fill_(_later(start, end, seen, scores.device), float("-inf"))
            weights, beside = scores.softmax(-1), values[head // shared, :seen]
            into[start:end] = (
                products.product(weights, beside.T, None) if by_product else torch.mm(weights, beside)
            )
    return output


def _later(start: int, end: int, seen: int, device: torch.device) -> torch.Tensor:
    """(end - start, seen) bool: whether a key comes after the query."""
    return torch.arange(seen, device=device) > torch.arange(start, end, device=device)[:, None]
