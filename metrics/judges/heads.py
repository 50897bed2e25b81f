"""What a published method with a head behind CLIP has to say (`metrics.judges.methods`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from nein.metrics.base import Images, Texts
from nein.metrics.encoders.clip import ClipEncoder
from nein.metrics.judges.base import check_batch
from nein.metrics.loading import exact, fingerprint
from nein.metrics.preprocess import map_images


class Method(ABC):
    """A head over a frozen CLIP of transformers; a `metrics.judges.base.Matcher`.

    BASE    The CLIP of the authors.
    config  What config.json says, and `options` of `load`.
    digest  Of the head's weights.
    """

    BASE: ClassVar[str]

    def __init__(self, base: ClipEncoder, head: nn.Module, config: Mapping[str, Any], digest: str) -> None:
        self.base, self.head, self.config, self.digest = base, head, config, digest
        self.fingerprint = fingerprint(self.describe())

    @classmethod
    @abstractmethod
    def read(cls, file: Path, base: ClipEncoder) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The head's tensors in the authors' file, and further entries of config.json. Raises MetricError
        where one is missing, or the file was made over another CLIP."""

    @classmethod
    @abstractmethod
    def build(cls, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
        """A head of the size of these tensors. Raises KeyError where one is missing."""

    @abstractmethod
    def scores(self, pixels: torch.Tensor, texts: Texts) -> list[torch.Tensor]:
        """(N, S, S, 3) uint8 crops, and the sentences held against each -> a row each, higher fits better."""

    def describe(self) -> dict[str, Any]:
        facts = {key: value for key, value in self.config.items() if key not in ("model_type", "base")}
        named = {"kind": "itm", "method": self.config["model_type"], "head": self.digest}
        return {**self.base.describe(), **named, **facts}

    def match(self, images: Images, texts: Texts, head: Literal["itc", "itm"] = "itm") -> list[np.ndarray]:
        check_batch(images, texts, "texts")
        if not images:
            return []
        with exact():
            pixels = torch.from_numpy(np.stack(map_images(self.base.preprocess, images)))
            rows = self.scores(pixels.to(self.base.model.device), texts)
        return [row.double().cpu().numpy() for row in rows]
