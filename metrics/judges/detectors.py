"""Open-vocabulary detectors of transformers: OWLv2, OWL-ViT, Grounding DINO, and others like these."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nein.loading.digests import Json
from nein.loading.errors import choose
from nein.metrics import loading
from nein.metrics.base import Described, Images, MetricError, Texts, chunks
from nein.metrics.encoders import pooled
from nein.metrics.judges.base import Detection, check_batch

PADS = ("library", "gray")
BACKENDS = ("torchvision", "pil")


class _Detector(Described):
    """A detector; the processor of one that is shown a picture at a time also reads labels."""

    def __init__(self, model: Any, processor: Any, source: loading.Source) -> None:
        self.model, self.processor, self.source = model, processor, source
        self._inputs = loading.SharedTokenizer(processor)

    def facts(self, preprocess: str) -> Json:
        shared = {"library": loading.library(), "preprocess": preprocess}
        return {**loading.model_fields("ovd", self.model, self.source), **shared}

    def check_length(self, label: str, ids: torch.Tensor) -> None:
        """Raises MetricError for a label that the text model, if it has a limit, cannot hold."""
        limit = getattr(getattr(self.model.config, "text_config", None), "max_position_embeddings", None)
        if limit is not None and ids.shape[-1] > limit:
            raise MetricError(
                f"The label '{label}' is longer than the {limit} tokens this detector can read."
            )


class Owlv2Detector(_Detector):
    """An `Owlv2ForObjectDetection`; bare object names are the queries. A picture is looked at once for all
    its labels, a label is read once; decisions equal those of transformers' pipeline.

    pad      How a picture is padded to a square. "library": as the installed transformers does (zeros since
             late 2025, huggingface/transformers#41938). "gray": 0.5, as when NeIn's figures were made.
    backend  "torchvision" (the default of transformers 5) or "pil" (the SciPy resize of older versions).
    """

    def __init__(
        self, model: Any, image_processor: Any, tokenizer: Any, source: loading.Source, **how: Any
    ) -> None:
        super().__init__(model, image_processor, source)
        self.image_processor, self.tokenizer = image_processor, loading.SharedTokenizer(tokenizer)
        self.pad, self.backend, self.batch_size = how["pad"], how["backend"], how["batch_size"]
        self._queries: dict[str, tuple[torch.Tensor, bool]] = {}

    def describe(self) -> Json:
        size = self.image_processor.size
        facts = self.facts(f"{type(self.image_processor).__name__}-{size['height']}x{size['width']}")
        return {**facts, "pad": self.pad, "backend": self.backend}

    def detect(self, images: Images, labels: Texts, threshold: float = 0.1) -> list[dict[str, Detection]]:
        """`labels[i]` in `images[i]` (H, W, 3) uint8; boxes with a score strictly above `threshold` count.
        Raises MetricError for a label that the text model cannot hold."""
        check_batch(images, labels, "labels")
        result: list[dict[str, Detection]] = [{} for _ in images]
        wanted = [i for i, row in enumerate(labels) if row]
        with loading.exact():
            self._read([label for row in labels for label in row])
            for chunk in chunks(wanted, self.batch_size):
                features, boxes = self._look([images[i] for i in chunk])
                sides = torch.tensor([max(images[i].shape[:2]) for i in chunk], device=boxes.device)
                boxes = boxes * sides[:, None, None]
                names = [list(dict.fromkeys(labels[i])) for i in chunk]
                for i, found in zip(chunk, self._score(features, boxes, names, threshold), strict=True):
                    result[i] = found
        return result

    def pixels(self, images: Images) -> torch.Tensor:
        """(N, 3, S, S) float32 of pictures, as the network sees them."""
        how = {"return_tensors": "pt", "input_data_format": "channels_last"}
        if self.pad == "library":
            return self.image_processor(list(images), **how)["pixel_values"]
        squares = []
        for image in images:  # at the top left of a grey square, as the processor pads it
            height, width = image.shape[:2]
            square = np.full((max(height, width),) * 2 + (3,), 0.5, np.float32)
            square[:height, :width] = image.astype(np.float32) * np.float32(1 / 255)
            squares.append(square)
        return self.image_processor(squares, do_rescale=False, **how)["pixel_values"]

    def _look(self, images: Images) -> tuple[torch.Tensor, torch.Tensor]:
        """((N, P, D) features, (N, P, 4) corners relative to the padded square)."""
        pixels = self.pixels(images).to(self.model.device, self.model.dtype)
        feature_map = self.model.image_embedder(pixel_values=pixels)[0]
        features = feature_map.flatten(1, 2)
        x, y, w, h = self.model.box_predictor(features, feature_map).float().unbind(-1)
        return features, torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1)

    def _read(self, labels: Sequence[str]) -> None:
        """Keeps of every new label its (D,) embedding, and whether the model counts it as a query. Each is
        read alone: the last bits of several depend on their company."""
        for label in dict.fromkeys(labels):
            if label in self._queries:
                continue
            ids = torch.tensor([self.tokenizer(label)["input_ids"]], device=self.model.device)
            self.check_length(label, ids)
            embedding = pooled(self.model.owlv2.get_text_features(input_ids=ids))[0]
            embedding = embedding / torch.linalg.norm(embedding, ord=2)
            # The model takes a query whose first token is 0 for padding.
            self._queries[label] = (embedding, bool(ids[0, 0] > 0))

    def _score(
        self, features: torch.Tensor, boxes: torch.Tensor, names: Texts, threshold: float
    ) -> list[dict[str, Detection]]:
        """Of N pictures' (N, P, D) features and (N, P, 4) boxes, by the labels of each, at least one."""
        columns = {name: column for column, name in enumerate(dict.fromkeys(itertools.chain(*names)))}
        queries = [self._queries[name] for name in columns]
        embeddings = torch.stack([embedding for embedding, _ in queries]).expand(len(names), -1, -1)
        valid = torch.tensor([[counts for _, counts in queries]], device=features.device)
        logits, _ = self.model.class_predictor(features, embeddings, valid.expand(len(names), -1))
        result = []
        for row, all_logits, corners in zip(names, logits, boxes, strict=True):
            own = all_logits[:, [columns[name] for name in row]]  # P L, in the picture's own order
            scores = torch.sigmoid(own).float()
            best = scores.max(0)  # the first of equal ones has a box
            numbers = (best.values, (scores > threshold).sum(0), corners[best.indices], named_scores(own))
            found = zip(row, *(number.tolist() for number in numbers), strict=True)
            result.append(
                {name: Detection(score, n, tuple(box), named) for name, score, n, box, named in found}
            )
        return result


def named_scores(logits: torch.Tensor) -> torch.Tensor:
    """(..., P, L) logits of P boxes and L labels -> (..., L) float32: each label's highest score over the
    boxes whose best label it is; of equal labels the first, as in the library's `post_process`."""
    best = logits.max(-1)  # ..., P
    scores = logits.new_zeros((*logits.shape[:-2], logits.shape[-1]), dtype=torch.float32)
    return scores.scatter_reduce(-1, best.indices, torch.sigmoid(best.values).float(), "amax")


def load_owlv2(
    path_or_id: str, *, pad: str = "library", backend: str = "torchvision", batch_size: int = 8, **how: Any
) -> Owlv2Detector:
    from transformers import AutoImageProcessor, AutoTokenizer, Owlv2ForObjectDetection

    choose("pad", pad, PADS)
    choose("backend", backend, BACKENDS)
    model, source = loading.load_model(Owlv2ForObjectDetection, path_or_id, "owlv2", **how)
    parts = source.part(AutoImageProcessor, backend=backend), source.part(AutoTokenizer), source
    return Owlv2Detector(model, *parts, pad=pad, backend=backend, batch_size=batch_size)


# --- others -------------------------------------------------------------------------------

#: Classes whose text is a phrase ending in a full stop, and whose logits are per text token.
GROUNDED = ("grounding-dino", "mm-grounding-dino")


class ZeroShotDetector(_Detector):
    """An `AutoModelForZeroShotObjectDetection`; the score of a label is the highest sigmoid over boxes (and,
    for Grounding DINO, over its tokens), as the library has it. One forward pass per picture and label:
    models that mix text and picture score labels by their company."""

    def __init__(self, model: Any, processor: Any, source: loading.Source) -> None:
        super().__init__(model, processor, source)
        self.grounded = model.config.model_type in GROUNDED

    def describe(self) -> Json:
        query = "lower case with a full stop" if self.grounded else "bare name"
        return {**self.facts(type(self.processor).__name__), "query": query}

    def detect(self, images: Images, labels: Texts, threshold: float = 0.1) -> list[dict[str, Detection]]:
        """See `Owlv2Detector`."""
        check_batch(images, labels, "labels")
        pairs = zip(images, map(dict.fromkeys, labels), strict=True)
        with loading.exact():
            return [self._detect(image, list(row), threshold) if row else {} for image, row in pairs]

    def _detect(self, image: np.ndarray, labels: Sequence[str], threshold: float) -> dict[str, Detection]:
        looks = [self._look(image, label) for label in labels]
        named: list[float | None] = [None] * len(looks)
        if not self.grounded:  # there the boxes of one label are not those of another
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
        """((P,) logits, (P, 4) boxes as centre and size relative to the picture), float32."""
        from PIL import Image

        text: Any = f"{label.lower().rstrip('.')}." if self.grounded else [[label]]
        inputs = self._inputs(images=Image.fromarray(image), text=text, return_tensors="pt")
        if not self.grounded:
            self.check_length(label, inputs["input_ids"])
        outputs = self.model(**loading.on_device(self.model, inputs))
        return outputs.logits[0].float().amax(-1).cpu(), outputs.pred_boxes[0].float().cpu()


def load(path_or_id: str, **how: Any) -> ZeroShotDetector:
    from transformers import AutoModelForZeroShotObjectDetection, AutoProcessor

    model, source = loading.load_model(AutoModelForZeroShotObjectDetection, path_or_id, **how)
    if model.config.model_type == "owlv2":
        raise MetricError("OWLv2 pads its pictures; load it as the judge 'ovd', which knows that.")
    return ZeroShotDetector(model, source.part(AutoProcessor), source)
