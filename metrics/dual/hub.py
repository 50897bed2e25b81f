"""Two-tower models of transformers: every class with `get_image_features`, `get_text_features`,
`logit_scale`, and `logit_bias` where it scores with a sigmoid; sentence transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nein.loading.digests import folder_digest
from nein.loading.errors import first_line
from nein.loading.references import parse_reference
from nein.loading.weights import check_tokenizer
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, check_image, chunks
from nein.metrics.encoders import HubTowers, TwoTowers, joined, load_clip, pooled


class HubDual(HubTowers):
    """Any other model than CLIP, behind its own image processor (PIL) and tokenizer."""

    def __init__(
        self, model: Any, processor: Any, tokenizer: Any, source: loading.Source, batch_size: int = 32
    ) -> None:
        self.model, self.processor, self.source, self.batch_size = model, processor, source, batch_size
        self.read_by(tokenizer)

    def describe(self) -> dict[str, Any]:
        padding, case = ("max_length", ", lower case") if self.full else (True, "")
        return {
            **loading.model_fields("dual", self.model, self.source),
            "preprocess": f"{type(self.processor).__name__}, {loading.library()}",
            "text": f"padding {padding}, at most {self.limit} tokens{case}",
        }

    def encode(self, images: Images) -> np.ndarray:
        checked = [check_image(image) for image in images]
        return joined(map(self._features, chunks(checked, self.batch_size)), self.width)

    def _features(self, images: list[np.ndarray]) -> torch.Tensor:
        inputs = self.processor(images=images, return_tensors="pt", input_data_format="channels_last")
        return pooled(self.model.get_image_features(**loading.on_device(self.model, inputs)))


def load(path_or_id: str, *, batch_size: int = 32, **how: Any) -> TwoTowers:
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    if loading.type_of(path_or_id) == "clip":
        return load_clip(path_or_id, batch_size=batch_size, **how)
    model, source = loading.load_model(AutoModel, path_or_id, **how)
    needed = ("get_image_features", "get_text_features", "logit_scale")
    if missing := [part for part in needed if not hasattr(model, part)]:
        raise MetricError(
            f"'{path_or_id}' is a '{model.config.model_type}' checkpoint, which has no {missing[0]}; "
            "choose a two-tower model such as CLIP or SigLIP."
        )
    processor, tokenizer = source.part(AutoImageProcessor, backend="pil"), source.part(AutoTokenizer)
    return HubDual(model, processor, tokenizer, source, batch_size)


PREFIX = "sentence:"


class SentenceEncoder(Described):
    """A `sentence_transformers.SentenceTransformer`; `encode_text` gives (N, D) float32, not normalised."""

    def __init__(self, model: Any, source: loading.Source, batch_size: int = 32) -> None:
        self.model, self.source, self.batch_size = model, source, batch_size

    def describe(self) -> dict[str, Any]:
        from importlib.metadata import version

        library = f"sentence-transformers {version('sentence-transformers')}"
        return {**loading.model_fields("sentence", self.model, self.source), "library": library}

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        with loading.exact():
            features = self.model.encode(
                list(texts), batch_size=self.batch_size, show_progress_bar=False, convert_to_numpy=True
            )
        return np.asarray(features, dtype=np.float32)


def load_sentences(path_or_id: str, *, device: str, dtype: str, batch_size: int = 32) -> SentenceEncoder:
    """Load "sentence:FOLDER_OR_ID" (safetensors only). Raises MetricError, one sentence."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise MetricError(
            "Sentence transformers need one more package: pip install 'nein[analysis]'."
        ) from None
    given = parse_reference(path_or_id.removeprefix(PREFIX))
    name, local = given.name, Path(given.name).is_dir()
    how: dict[str, Any] = {"use_safetensors": True, "dtype": dtype}
    try:
        with loading.no_bar(local):
            model = SentenceTransformer(name, device=device, revision=given.revision, model_kwargs=how)
    except loading.UNREADABLE as error:
        why = f"({first_line(error)}); give a folder or a hub id"
        raise MetricError(f"Cannot load a sentence transformer from '{name}' {why}.") from error
    if hasattr(model.tokenizer, "get_vocab"):
        first: Any = model[0]
        check_tokenizer(model.tokenizer, first.auto_model.config, name)
    model.eval()
    source = (None, folder_digest(Path(name))) if local else (given.revision, name)
    return SentenceEncoder(model, loading.Source(path_or_id, *source), batch_size)
