"""Text encoders without pictures: sentence-transformers, as a reference for the analysis of templates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metrics.base import MetricError
from metrics.loading import Source, exact, fingerprint, source_fields, split_reference
from nein.loading.digests import folder_digest
from nein.loading.references import Origin

PREFIX = "sentence:"


class SentenceEncoder:
    """A `sentence_transformers.SentenceTransformer`; `encode_text` gives (N, D) float32, not normalised."""

    def __init__(self, model: Any, source: Source, batch_size: int = 32) -> None:
        self.model = model
        self.source = source
        self.batch_size = batch_size
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        """Everything that decides a feature, JSON-serialisable."""
        from importlib.metadata import version

        return {
            "kind": "sentence",
            "class": type(self.model).__name__,
            **source_fields(self.source),
            "library": f"sentence-transformers {version('sentence-transformers')}",
            "device": str(self.model.device),
        }

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """Sentences -> (N, D) float32."""
        with exact():
            features = self.model.encode(
                list(texts), batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(features, dtype=np.float32)


def origins(path_or_id: str, revision: str | None) -> list[Origin]:
    """Where "sentence:ID" comes from; nothing has to for a folder."""
    name = path_or_id.removeprefix(PREFIX)
    origin = Origin.of("sentence", name, revision)
    return [origin] if origin else []


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 32
) -> SentenceEncoder:
    """Load "sentence:FOLDER_OR_ID" (safetensors only). Raises MetricError, one sentence."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MetricError(
            "A sentence transformer needs one more package: pip install 'nein[analysis]'."
        ) from None
    name, revision = split_reference(path_or_id.removeprefix(PREFIX), revision)
    if not Path(name).is_dir() and name.count("/") != 1:
        raise MetricError(
            f"There is no model folder '{name}'; give an existing folder or a hub id 'owner/name'."
        )
    try:
        model = SentenceTransformer(
            name,
            revision=revision,
            device=device,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True, "dtype": dtype},
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MetricError(f"Cannot load a sentence transformer from '{name}': {first}") from error
    model.eval()
    local = Path(name).is_dir()
    source = Source(path_or_id, None if local else revision, folder_digest(Path(name)) if local else name)
    return SentenceEncoder(model, source, batch_size)
