"""Step 7: every segment of a picture, by SAM (arXiv:2304.02643) through transformers' mask generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import SamImageProcessor, SamModel
from transformers.pipelines import MaskGenerationPipeline

from nein.editors.base import EditorError
from nein.editors.checkpoint import explained, locate, module_hash, whole


class Segmenter:
    """SAM asked by a grid of points.

    checkpoint          Local folder or hub id ("owner/name[@revision]") of a SamModel with safetensors.
    points              Points per side of the grid.
    quality             Lowest IoU a segment may predict for itself.
    stability           Lowest IoU of a segment with itself at shifted cut-offs.

    Further settings are those of SamAutomaticMaskGenerator in
    github.com/facebookresearch/segment-anything, which ZONE leaves as they are: cut-off shift 1, boxes
    suppressed at an IoU of 0.7, no crops. Always float32.
    """

    def __init__(
        self, checkpoint: str, device: torch.device, *, points: int, quality: float, stability: float
    ) -> None:
        source, revision = locate(checkpoint)
        with explained(checkpoint):
            model: Any = whole(SamModel, checkpoint, source, revision, True, dtype=torch.float32)
            processor = SamImageProcessor.from_pretrained(source, revision=revision)  # type: ignore[arg-type]  # None is allowed
            if type(model.config).__name__ != "SamConfig" or not hasattr(model, "mask_decoder"):
                raise EditorError(f"{checkpoint!r} is not a SamModel, which ZONE takes its segments from")
            self.sha256 = module_hash(sam=model)
            model.eval().requires_grad_(False)
            self._generate = MaskGenerationPipeline(model=model, image_processor=processor, device=device)
        self._points, self._quality, self._stability = points, quality, stability

    def __call__(self, image: np.ndarray) -> list[np.ndarray]:
        """Segments (H, W) bool of an (H, W, 3) uint8 picture, the surest first; often none of a plain one."""
        # Not `self._generate(image)`: that goes through a data loader, which draws from the global generator.
        result = self._generate.run_single(
            Image.fromarray(image),
            {"points_per_crop": self._points, "points_per_batch": 64},
            {"pred_iou_thresh": self._quality, "stability_score_thresh": self._stability},
            {"crops_nms_thresh": 0.7},
        )
        return [np.asarray(mask, dtype=bool) for mask in result["masks"]]
