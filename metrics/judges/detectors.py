"""Judge "ovd": finds objects by name with detectors of transformers (OWLv2, OWL-ViT, Grounding DINO, ...).

Shapes: N images, S x S pixels of the network's input, P boxes of an image, L labels of an image, Q distinct
labels of a batch, D features. Boxes are corners (x0, y0, x1, y1).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from nein.loading.digests import Json
from nein.loading.errors import choose
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, Texts, split_chunks
from nein.metrics.encoders import take_features
from nein.metrics.judges.base import Detection, check_batch


class _Detector(Described):
    """Base of detectors."""

    def __init__(self, model: Any, processor: Any, source: loading.Source) -> None:
        self.model, self.processor, self.source = model, processor, source

    def _describe(self, **fields: str) -> Json:
        library = loading.library_version()
        return loading.describe_model("ovd", self.model, self.source, library=library, **fields)

    def check_length(self, label: str, ids: torch.Tensor) -> None:
        """Raise MetricError if a label's tokens, ids (1, tokens), are more than the text model can read."""
        limit = getattr(getattr(self.model.config, "text_config", None), "max_position_embeddings", None)
        if limit is not None and ids.shape[-1] > limit:
            raise MetricError(f"The label '{label}' has more than the {limit} tokens this detector can read.")


# --- OWLv2 ---------------------------------------------------------------------------------
class Owlv2Detector(_Detector):
    """`Owlv2ForObjectDetection` with object names as queries. An image is encoded once for all its labels, a
    label once for all images; detections equal those of transformers' pipeline.

    pad      Padding of an image to a square. "library": that of the installed transformers (zeros since late
             2025, huggingface/transformers#41938). "gray": 0.5, as for NeIn's numbers.
    backend  Of the processor: "torchvision" (default of transformers 5) or "pil" (older; resize by SciPy)."""

    def __init__(
        self, model: Any, processor: Any, tokenizer: Any, source: loading.Source, **settings: Any
    ) -> None:
        super().__init__(model, processor, source)
        self.tokenizer = loading.SharedTokenizer(tokenizer)
        self.pad, self.backend, self.batch_size = settings["pad"], settings["backend"], settings["batch_size"]
        # Label -> (embedding (D,), whether the model takes it as a query and not as padding).
        self._queries: dict[str, tuple[torch.Tensor, bool]] = {}

    def describe(self) -> Json:
        size = self.processor.size
        preprocess = f"{type(self.processor).__name__}-{size['height']}x{size['width']}"
        return self._describe(preprocess=preprocess, pad=self.pad, backend=self.backend)

    def detect(self, images: Images, labels: Texts, threshold: float = 0.1) -> list[dict[str, Detection]]:
        """Detect `labels[i]` in `images[i]`, (H, W, 3) uint8; boxes with a score strictly above `threshold`
        count. Raises MetricError for a label that is too long."""
        check_batch(images, labels, "labels")
        detections: dict[int, dict[str, Detection]] = {}  # index of an image -> label -> detection
        with_labels = [i for i, row in enumerate(labels) if row]
        with loading.exact():
            self._encode_labels(itertools.chain(*labels))
            for batch in split_chunks(with_labels, self.batch_size):
                features, boxes = self._encode_images([images[i] for i in batch])  # (N, P, D), (N, P, 4)
                sides = torch.tensor([max(images[i].shape[:2]) for i in batch], device=boxes.device)  # (N,)
                boxes = boxes * sides[:, None, None]  # in pixels: the image is at the square's top left
                batch_labels = [list(dict.fromkeys(labels[i])) for i in batch]
                results = self._score(features, boxes, batch_labels, threshold)
                detections.update(zip(batch, results, strict=True))
        return [detections.get(i, {}) for i in range(len(images))]

    def pixels(self, images: Images) -> torch.Tensor:
        """Preprocess N images, (H, W, 3) uint8: network input (N, 3, S, S) float32."""
        options = {"return_tensors": "pt", "input_data_format": "channels_last"}
        if self.pad == "library":
            return self.processor(list(images), **options)["pixel_values"]
        squares = []
        for image in images:  # at the top left of a gray square, like the processor's padding
            height, width = image.shape[:2]
            side = max(height, width)
            square = np.full((side, side, 3), 0.5, np.float32)
            square[:height, :width] = image.astype(np.float32) * np.float32(1 / 255)
            squares.append(square)
        return self.processor(squares, do_rescale=False, **options)["pixel_values"]

    def _encode_images(self, images: Images) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode N images: (features of boxes (N, P, D), boxes (N, P, 4) relative to the padded square)."""
        pixels = self.pixels(images).to(self.model.device, self.model.dtype)
        feature_map = self.model.image_embedder(pixel_values=pixels)[0]  # (N, rows, columns, D)
        features = feature_map.flatten(1, 2)  # (N, P, D): one box per row and column
        x, y, w, h = self.model.box_predictor(features, feature_map).float().unbind(-1)  # center and size
        return features, torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1)

    def _encode_labels(self, labels: Iterable[str]) -> None:
        """Add new labels to `_queries`. One label per forward pass: batches change last bits."""
        for label in dict.fromkeys(labels):
            if label in self._queries:
                continue
            ids = torch.tensor([self.tokenizer(label)["input_ids"]], device=self.model.device)  # (1, tokens)
            self.check_length(label, ids)
            embedding = take_features(self.model.owlv2.get_text_features(input_ids=ids))[0]
            embedding = embedding / torch.linalg.norm(embedding, ord=2)
            # The model treats a query whose first token is 0 as padding.
            self._queries[label] = (embedding, bool(ids[0, 0] > 0))

    def _score(
        self, features: torch.Tensor, boxes: torch.Tensor, labels: Texts, threshold: float
    ) -> list[dict[str, Detection]]:
        """Detect every image's distinct labels, at least one. features: (N, P, D); boxes: (N, P, 4)."""
        size = len(labels)  # N
        columns = {label: q for q, label in enumerate(dict.fromkeys(itertools.chain(*labels)))}
        embeddings = torch.stack([self._queries[label][0] for label in columns])  # (Q, D)
        valid = torch.tensor([self._queries[label][1] for label in columns], device=features.device)  # (Q,)
        queries = embeddings.expand(size, -1, -1)  # (N, Q, D)
        logits, _ = self.model.class_predictor(features, queries, valid.expand(size, -1))  # (N, P, Q)
        detections = []
        for row, image_logits, corners in zip(labels, logits, boxes, strict=True):
            own_logits = image_logits[:, [columns[label] for label in row]]  # (P, L), in the image's order
            scores = torch.sigmoid(own_logits).float()  # (P, L)
            best = scores.max(0)  # values and indices (L,), over boxes; of equal ones the first
            values, boxes_of_best = best.values.tolist(), corners[best.indices].tolist()  # (L,), (L, 4)
            counts = (scores > threshold).sum(0).tolist()  # (L,)
            named = find_named_scores(own_logits).tolist()  # (L,)
            by_label = {}
            for k, label in enumerate(row):
                by_label[label] = Detection(values[k], counts[k], box=tuple(boxes_of_best[k]), named=named[k])
            detections.append(by_label)
        return detections


def find_named_scores(logits: torch.Tensor) -> torch.Tensor:
    """Find each label's highest score over the boxes whose best label it is: logits (..., P, L) -> (..., L)
    float32. Of equal labels the first is best, as in the library's `post_process`."""
    best = logits.max(-1)  # (..., P)
    scores = logits.new_zeros((*logits.shape[:-2], logits.shape[-1]), dtype=torch.float32)
    return scores.scatter_reduce(-1, best.indices, torch.sigmoid(best.values).float(), "amax")


def load_owlv2(
    path_or_id: str, *, pad: str = "library", backend: str = "torchvision", batch_size: int = 8,
    **options: Any,
) -> Owlv2Detector:  # fmt: skip
    """Load OWLv2 (see `Owlv2Detector`). options: those of `loading.load_model`."""
    from transformers import AutoImageProcessor, AutoTokenizer, Owlv2ForObjectDetection

    choose("pad", pad, ("library", "gray"))
    choose("backend", backend, ("torchvision", "pil"))
    model, source = loading.load_model(Owlv2ForObjectDetection, path_or_id, "owlv2", **options)
    processor = source.load_part(AutoImageProcessor, backend=backend)
    settings = {"pad": pad, "backend": backend, "batch_size": batch_size}
    return Owlv2Detector(model, processor, source.load_part(AutoTokenizer), source, **settings)


# --- other detectors -----------------------------------------------------------------------
#: Model types that take a phrase with a full stop, and return a logit per box and text token.
GROUNDED = ("grounding-dino", "mm-grounding-dino")


class ZeroShotDetector(_Detector):
    """Any `AutoModelForZeroShotObjectDetection`. A label's score is the highest sigmoid over boxes (and, for
    Grounding DINO, over its tokens), as in the library. One forward pass per image and label: in models that
    mix text and image a label's score depends on the other labels."""

    def __init__(self, model: Any, processor: Any, source: loading.Source) -> None:
        super().__init__(model, processor, source)
        self._preprocess = loading.SharedTokenizer(processor)
        self.is_grounded = model.config.model_type in GROUNDED

    def describe(self) -> Json:
        query = "lower case with a full stop" if self.is_grounded else "bare name"
        return self._describe(preprocess=type(self.processor).__name__, query=query)

    def detect(self, images: Images, labels: Texts, threshold: float = 0.1) -> list[dict[str, Detection]]:
        """See `Owlv2Detector`."""
        check_batch(images, labels, "labels")
        rows = [list(dict.fromkeys(row)) for row in labels]  # distinct
        with loading.exact():
            return [self._detect(image, row, threshold) for image, row in zip(images, rows, strict=True)]

    def _detect(self, image: np.ndarray, labels: Sequence[str], threshold: float) -> dict[str, Detection]:
        """Detect distinct labels in one image."""
        outputs = [self._run(image, label) for label in labels]  # (logits (P,), boxes (P, 4)) per label
        named_scores: list[float | None] = [None] * len(outputs)
        if outputs and not self.is_grounded:  # Grounding DINO's boxes differ between labels
            stacked = torch.stack([logits for logits, _ in outputs], -1)  # (P, L)
            named_scores = find_named_scores(stacked).tolist()
        height, width = image.shape[:2]
        detections = {}
        for label, (logits, boxes), named in zip(labels, outputs, named_scores, strict=True):
            scores = torch.sigmoid(logits)  # (P,)
            best = int(scores.argmax())
            x, y, w, h = (float(value) for value in boxes[best])
            box = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
            count = int((scores > threshold).sum())
            detections[label] = Detection(float(scores[best]), count, box=box, named=named)
        return detections

    def _run(self, image: np.ndarray, label: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model: (logits (P,), boxes (P, 4) as center and size relative to the image), float32."""
        text: Any = f"{label.lower().rstrip('.')}." if self.is_grounded else [[label]]
        inputs = self._preprocess(images=Image.fromarray(image), text=text, return_tensors="pt")
        if not self.is_grounded:
            self.check_length(label, inputs["input_ids"])
        outputs = self.model(**loading.move_inputs(self.model, inputs))
        logits = outputs.logits[0]  # (P, tokens), or (P, 1): one label
        return logits.float().amax(-1).cpu(), outputs.pred_boxes[0].float().cpu()


def load(path_or_id: str, **options: Any) -> ZeroShotDetector:
    """Load any detector but OWLv2. options: those of `loading.load_model`."""
    from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

    model, source = loading.load_model(AutoModelForZeroShotObjectDetection, path_or_id, **options)
    if model.config.model_type == "owlv2":
        raise MetricError("OWLv2 pads its images; load it with load_judge('ovd', ...), which undoes that.")
    return ZeroShotDetector(model, source.load_part(AutoProcessor), source)
