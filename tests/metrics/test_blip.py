"""BLIP: one look per picture against the library's forward pass, one pair at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor, AutoTokenizer, BlipForImageTextRetrieval, BlipProcessor

from nein import metrics
from nein.metrics import MetricError
from tests.metrics.tiny import picture

IMAGES = [picture(i, *size) for i, size in enumerate([(40, 32), (32, 32), (64, 40), (30, 70)])]
TEXTS = [["car"], ["car", "A man and his dog sit on a bench"], [], ["dog", "bench", "car", "dog", "it"]]


@pytest.fixture(scope="module")
def naive(models: Path) -> Callable[[np.ndarray, str, str], float]:
    """A pair through the library."""
    folder = models / "blip"
    model = BlipForImageTextRetrieval.from_pretrained(folder)
    parts = AutoImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    processor = BlipProcessor(*parts)

    @torch.no_grad()
    def value(image: np.ndarray, text: str, head: str) -> float:
        inputs = processor(images=image, text=text, return_tensors="pt")
        keep = {name: inputs[name] for name in ("pixel_values", "input_ids", "attention_mask")}
        score = model(**keep, use_itm_head=head == "itm").itm_score
        return float(score.softmax(-1)[0, 1] if head == "itm" else score[0, 0])

    return value


@pytest.mark.parametrize("head", ["itc", "itm"])
def test_values_equal_one_pair_at_a_time_with_the_library_in_any_batch(
    models: Path, blip, naive, head
) -> None:
    found = blip.match(IMAGES, TEXTS, head)
    assert [row.shape for row in found] == [(1,), (2,), (0,), (5,)]
    expected = [[naive(x, t, head) for t in row] for x, row in zip(IMAGES, TEXTS, strict=True)]
    small = metrics.load_judge("itm", str(models / "blip"), batch_size=2).match(IMAGES, TEXTS, head)
    for a, b, c in zip(found, expected, small, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-6)  # float32 in another order: 4e-7 of 1
    assert len({round(v, 6) for row in expected for v in row}) == 7, "one text occurs twice"


def test_an_unknown_head_is_refused(blip) -> None:
    with pytest.raises(MetricError, match="itc, itm"):
        blip.match(IMAGES[:1], [["car"]], "itx")
