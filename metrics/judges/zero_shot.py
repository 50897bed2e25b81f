"""Open-vocabulary detectors of transformers besides OWLv2: OWL-ViT, Grounding DINO, and what loads like them.

One forward pass per picture and label: models that mix text and picture score labels by their company.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nein.metrics import loading
from nein.metrics.base import Images, MetricError, Texts
from nein.metrics.judges.base import Detection, check_batch
from nein.metrics.judges.owlv2 import named_scores

#: Classes whose text is a phrase ending in a full stop, and whose logits are per text token.
GROUNDED = ("grounding-dino", "mm-grounding-dino")


class ZeroShotDetector:
    """An `AutoModelForZeroShotObjectDetection`; bare object names are the queries.

    The score of a label is the highest sigmoid over boxes (and, for Grounding DINO, over the label's tokens),
    as the library's post-processing has it.
    """

    def __init__(self, model: Any, processor: Any, source: loading.Source) -> None:
        self.model, self.processor, self.source = model, processor, source
        self.grounded = model.config.model_type in GROUNDED
        self._inputs = loading.SharedTokenizer(processor)
        self.fingerprint = loading.fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "ovd",
            **loading.model_fields(self.model, self.source),
            "library": loading.library(),
            "preprocess": type(self.processor).__name__,
            "query": "lower case with a full stop" if self.grounded else "bare name",
        }

    def detect(self, images: Images, labels: Texts, threshold: float = 0.1) -> list[dict[str, Detection]]:
        """Look for `labels[i]` in `images[i]` (H, W, 3) uint8; boxes with a score above `threshold` count."""
        check_batch(images, labels, "labels")
        pairs = zip(images, map(dict.fromkeys, labels), strict=True)
        with loading.exact():
            return [self._detect(image, list(row), threshold) for image, row in pairs]

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

        text: Any = f"{label.lower().rstrip('.')}." if self.grounded else [[label]]
        inputs = self._inputs(images=Image.fromarray(image), text=text, return_tensors="pt")
        limit = getattr(getattr(self.model.config, "text_config", None), "max_position_embeddings", None)
        if not self.grounded and limit is not None and inputs["input_ids"].shape[-1] > limit:
            raise MetricError(
                f"The label '{label}' is longer than the {limit} tokens this detector can read."
            )
        outputs = self.model(**loading.on_device(self.model, inputs))
        return outputs.logits[0].float().amax(-1).cpu(), outputs.pred_boxes[0].float().cpu()


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str) -> ZeroShotDetector:
    """Load a zero-shot object detection checkpoint from a folder or the hub."""
    from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

    model, source = loading.load_model(
        AutoModelForZeroShotObjectDetection, path_or_id, model_type=None, revision=revision, device=device,
        dtype=dtype,
    )  # fmt: skip
    if model.config.model_type == "owlv2":
        raise MetricError("OWLv2 pads its pictures; load it as the judge 'ovd', which knows that.")
    processor = loading.from_pretrained(AutoProcessor, source.reference, revision=source.revision)
    return ZeroShotDetector(model, processor, source)
