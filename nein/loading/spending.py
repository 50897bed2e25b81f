"""What requests to paid models cost: tokens by our names, and their price."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from nein.loading.errors import UnavailableError

#: Our names of tokens -> those of the package genai-prices.
TOKENS = {
    "input_tokens": "input_tokens", "cached_tokens": "cache_read_tokens",
    "image_tokens": "input_image_tokens", "output_tokens": "output_tokens",
    "output_image_tokens": "output_image_tokens",
}  # fmt: skip


class BudgetError(UnavailableError):
    """The next request might pass the budget."""


def tokens(usage: Any) -> dict[str, int]:
    """The `usage` of a reply of chat completions or images.edit by our names: input_tokens (cached_tokens and
    image_tokens of them), output_tokens (reasoning_tokens and output_image_tokens of them)."""
    counts: dict[str, Any] = {}
    if isinstance(usage, dict):
        for ours, theirs, part, image in (
            ("input_tokens", "prompt_tokens", "cached_tokens", "image_tokens"),
            ("output_tokens", "completion_tokens", "reasoning_tokens", "output_image_tokens"),
        ):
            details = usage.get(f"{ours}_details") or usage.get(f"{theirs}_details")
            details = details if isinstance(details, dict) else {}
            counts |= {ours: usage.get(ours, usage.get(theirs)), part: details.get(part)}
            counts[image] = details.get("image_tokens")
    return {name: count for name, count in counts.items() if isinstance(count, int) and count > 0}


def price(model: str, usage: Mapping[str, int], address: str = "") -> Decimal | None:
    """Dollars by genai-prices, of the provider at the address or the model's own; None without a row."""
    if (rate := _rate(model, address)) is None:
        return None
    known = {theirs: usage[ours] for ours, theirs in TOKENS.items() if usage.get(ours)}
    try:
        return rate(known)
    except ValueError:  # parts whose overlap the server does not tell: as if they cost what the others do
        return rate({name: known[name] for name in ("input_tokens", "output_tokens") if name in known})


@functools.lru_cache(maxsize=64)
def _rate(model: str, address: str) -> Callable[[Mapping[str, int]], Decimal] | None:
    try:
        from genai_prices import Usage, calc_price
    except ImportError:  # it needs Python 3.11
        return None
    places: tuple[dict[str, Any], ...] = ({"provider_api_url": address}, {})
    for where in places:
        with contextlib.suppress(LookupError):
            calc_price(Usage(input_tokens=1), model, **where)
            return lambda known: calc_price(Usage(**known), model, **where).total_price
    return None
