"""Open-vocabulary detectors of transformers besides OWLv2: OWL-ViT, Grounding DINO, and what loads like them.

One forward pass per picture and label: in models that mix text and picture, labels asked together would
change each other's scores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nein.metrics.base import MetricError
from nein.metrics.judges.base import Detection, check_batch
from nein.metrics.judges.owlv2 import named_scores
from nein.metrics.loading import (
    Source,
    exact,
    fingerprint,
    from_pretrained,
    library,
    load_model,
    model_fields,
)

#: Classes whose text is a phrase ending in a full stop, and whose logits are per text token.
GROUNDED = ("grounding-dino", "mm-grounding-dino")


class ZeroShotDetector:
    """An `AutoModelForZeroShotObjectDetection`; bare object names are the queries.

    The score of a label is the highest sigmoid over boxes (and, for Grounding DINO, over the label's tokens),
    as the library's post-processing has it.
    """

    def __init__(self, model: Any, processor: Any, source: Source) -> None:
        self.model = model
        self.processor = processor
        self.source = source
        self.grounded = model.config.model_type in GROUNDED
        self._lock = threading.Lock()  # fast tokenizers keep state between calls
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "ovd",
            **model_fields(self.model, self.source),
            "library": library(),
            "preprocess": type(self.processor).__name__,
            "query": "lower case with a full stop" if self.grounded else "bare name",
        }

    def detect(
        self, images: Sequence[np.ndarray], labels: Sequence[Sequence[str]], threshold: float = 0.1
    ) -> list[dict[str, Detection]]:
        """Look for `labels[i]` in `images[i]` (H, W, 3) uint8; boxes with a score above `threshold` count."""
        check_batch(images, labels, "labels")
        with exact():
            return [
                self._detect(image, list(dict.fromkeys(row)), threshold)
                for image, row in zip(images, labels, strict=True)
            ]

    def _detect(self, image: np.ndarray, labels: Sequence[str], threshold: float) -> dict[str, Detection]:
        looks = [self._look(image, label) for label in labels]
        named: list[float | None] = [None] * len(looks)
        if looks and not self.grounded:  # there the boxes of one label are not those of another
            named = named_scores(torch.stack([logits for logits, _ in looks], -1)).tolist()
        height, width = image.shape[:2]
        detections = {}
        for label, (logits, boxes), score in zip(labels, looks, named, strict=True):
            scores = torch.sigmoid(logits)
            best = int(scores.argmax())
            x, y, w, h = (float(value) for value in boxes[best])
            box = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
            detections[label] = Detection(float(scores[best]), int((scores > threshold).sum()), box, score)
        return detections

    def _look(self, image: np.ndarray, label: str) -> tuple[torch.Tensor, torch.Tensor]:
        """((P,) logits of a label, (P, 4) boxes as centre and size relative to the picture), float32."""
        from PIL import Image

        picture = Image.fromarray(image)
        with self._lock:
            if self.grounded:
                inputs = self.processor(
                    images=picture, text=f"{label.lower().rstrip('.')}.", return_tensors="pt"
                )
            else:
                limit = getattr(
                    getattr(self.model.config, "text_config", None), "max_position_embeddings", None
                )
                inputs = self.processor(images=picture, text=[[label]], return_tensors="pt")
                if limit is not None and inputs["input_ids"].shape[-1] > limit:
                    raise MetricError(
                        f"The label '{label}' is longer than the {limit} tokens this detector can read."
                    )
        inputs = {key: self._place(value) for key, value in inputs.items()}
        outputs = self.model(**inputs)
        return outputs.logits[0].float().amax(-1).cpu(), outputs.pred_boxes[0].float().cpu()

    def _place(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dtype = self.model.dtype if value.is_floating_point() else value.dtype
        return value.to(self.model.device, dtype)


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str) -> ZeroShotDetector:
    """Load a zero-shot object detection checkpoint from a folder or the hub."""
    from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

    model, source = load_model(
        AutoModelForZeroShotObjectDetection,
        path_or_id,
        model_type=None,
        revision=revision,
        device=device,
        dtype=dtype,
    )
    if model.config.model_type == "owlv2":
        raise MetricError("OWLv2 pads its pictures; load it as the judge 'ovd', which knows that.")
    processor = from_pretrained(AutoProcessor, source.reference, revision=source.revision)
    return ZeroShotDetector(model, processor, source)
