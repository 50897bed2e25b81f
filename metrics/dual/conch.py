"""CONCH, a vision-language model for histopathology (Lu et al., Nature Medicine 30, 2024).

Its weights (huggingface.co/MahmoodLab/conch) are given out on request, for non-commercial research; its code
is the package `conch` of github.com/mahmoodlab/CONCH, which is on no package index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from nein.loading.digests import DTYPES, file_sha256, torch_dtype
from nein.loading.errors import choose
from nein.loading.references import expanded
from nein.metrics.base import MetricError
from nein.metrics.dual.openclip import OpenClipDual
from nein.metrics.loading import UNREADABLE, Source, first_line

PREFIX = "conch:"
ARCHITECTURE = "conch_ViT-B-16"
_LIMIT = 127  # tokens; the 128th place is the summary's, filled with padding here


class ConchDual(OpenClipDual):
    """CONCH through its own package: pictures into the contrastive projection."""

    PICTURE: ClassVar = {"proj_contrast": True, "normalize": False}
    TEXT: ClassVar = {"normalize": False}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "library": "conch", "architecture": ARCHITECTURE}


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 32
) -> ConchDual:
    """Load "conch:FILE", the downloaded `pytorch_model.bin`. Raises MetricError without package or file."""
    choose("dtype", dtype, DTYPES)
    try:
        from conch.open_clip_custom import create_model_from_pretrained, get_tokenizer
    except ImportError:
        raise MetricError(
            "CONCH needs its own package and weights, both under a licence for non-commercial research: "
            "install github.com/mahmoodlab/CONCH, ask for access at huggingface.co/MahmoodLab/conch, and "
            "give the file as conch:FILE."
        ) from None
    path = expanded(path_or_id.removeprefix(PREFIX))
    if not path.is_file():
        raise MetricError(
            f"There is no file '{path}'; download pytorch_model.bin from huggingface.co/MahmoodLab/conch, "
            "once access is granted, and give it as conch:FILE."
        )
    try:
        torch.load(path, map_location="cpu", weights_only=True)  # the package's own call sets nothing
        model, transform = create_model_from_pretrained(ARCHITECTURE, str(path), device=device)
    except UNREADABLE as error:
        raise MetricError(f"Cannot load CONCH from '{path}': {first_line(error)}") from error
    model.to(torch_dtype(dtype)).eval().requires_grad_(False)
    source = Source(path_or_id, None, file_sha256(path))
    tokenizer = get_tokenizer()

    def tokenise(texts: Sequence[str]) -> torch.Tensor:
        """What the package's `tokenize` does, by calls that current versions of transformers still have."""
        encoding = tokenizer(
            list(texts), max_length=_LIMIT, truncation=True, padding="max_length", return_tensors="pt"
        )
        return torch.nn.functional.pad(encoding["input_ids"], (0, 1), value=tokenizer.pad_token_id)

    return ConchDual(model, transform, tokenise, source, dtype=dtype, batch_size=batch_size)
