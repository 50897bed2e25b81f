"""One seed per sample, so that a result depends on the sample and never on batch, order, rank or restarts."""

from __future__ import annotations

import hashlib


def sample_seed(run_seed: int, sample_id: str, repeat: int = 0) -> int:
    """A seed in [0, 2**63): the first 63 bits of SHA-256 over "run seed / sample id / repeat".

    The instruction track is left out on purpose: a sample and its affirmative twin start from the same noise,
    so their difference is paired.
    """
    digest = hashlib.sha256(f"{run_seed}/{sample_id}/{repeat}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
