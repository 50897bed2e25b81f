"""One look per picture: OWLv2 equals the pipeline, BLIP equals the library, one label or text at a time."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers import pipeline

from nein import metrics
from nein.metrics import MetricError
from tests.metrics.tiny import picture

SIZES = [(40, 32), (48, 48), (30, 70), (100, 90)]
IMAGES = [picture(i, *size) for i, size in enumerate(SIZES)]
LABELS = ["car", "dog", "traffic light", "bench", "man"]


@pytest.fixture(scope="module", params=["torchvision", "pil"])
def judged(request, models):
    folder, backend = models / "owlv2", request.param
    naive = pipeline(
        "zero-shot-object-detection",
        model=transformers.Owlv2ForObjectDetection.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder),
        image_processor=transformers.AutoImageProcessor.from_pretrained(folder, backend=backend),
        device="cpu",
    )
    return metrics.load_judge("ovd", str(folder), backend=backend), naive


def test_decisions_scores_and_boxes_equal_the_pipeline_for_every_label_alone(judged):
    detector, naive = judged
    labels = [["man"], LABELS[:3][::-1], [], LABELS]
    assert detector.detect([], []) == []
    verdicts = set()
    for image, names, row in zip(IMAGES, labels, detector.detect(IMAGES, labels), strict=True):
        assert list(row) == names
        [alone] = detector.detect([image], [names])
        assert [row[x].named for x in names] == pytest.approx([alone[x].named for x in names], abs=1e-6)
        for label in names:
            boxes = naive(Image.fromarray(image), candidate_labels=[label])
            assert row[label].count == len(boxes)
            assert (row[label].score > 0.1) == bool(boxes)
            verdicts.add(bool(boxes))
            every = naive(Image.fromarray(image), candidate_labels=[label], threshold=0.0)
            best = max(every, key=lambda box: box["score"])
            assert row[label].score == pytest.approx(best["score"], abs=1e-5)
            corners = [best["box"][name] for name in ("xmin", "ymin", "xmax", "ymax")]
            np.testing.assert_allclose(row[label].box, corners, atol=1.01)  # the pipeline drops the fraction
    assert verdicts == {True, False}, "the cases must tell apart"


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_a_picture_of_few_rows_is_not_taken_for_one_of_few_channels(rows, models, owlv2, blip, llava):
    image = picture(1, 40, rows)
    for processor, pixels in (
        (owlv2.processor, owlv2.pixels([image])),
        (llava.processor.image_processor, llava._split_prompts([image], [["<image>\nA car?"]])[0].pixels),
    ):
        shown = processor(Image.fromarray(image), return_tensors="pt")["pixel_values"]
        np.testing.assert_array_equal(pixels, shown)
    shown = blip.image_processor(Image.fromarray(image), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        states = blip.model.vision_model(pixel_values=shown).last_hidden_state
        np.testing.assert_array_equal(blip.encode_images([image]), states)


def test_a_label_gives_the_same_bits_whatever_was_asked_with_it_or_before(models):
    """Which of two workers asks first, or whether a command goes on, must not show."""
    whole, parts = (metrics.load_judge("ovd", str(models / "owlv2"), batch_size=4) for _ in range(2))
    more = ["man", "number", "horse", "red car", "old number", "tall man", "dark horse", *LABELS]
    together = whole.detect(IMAGES[:1], [more])[0]
    parts.detect(IMAGES[1:2], [more[1::2]])
    assert parts.detect(IMAGES[:1], [more])[0] == together


def test_gray_padding_is_half_and_matters_only_where_a_picture_is_not_square(models, owlv2):
    gray, black = (
        metrics.load_judge("ovd", str(models / "owlv2"), pad=pad, backend="pil")
        for pad in ("gray", "library")
    )
    for image in IMAGES:
        a, b = (d.detect([image], [["car"]])[0]["car"].score for d in (gray, black))
        assert (abs(a - b) < 1e-6) == (image.shape[0] == image.shape[1])
    # 48 pixels is the model's size: a 48x30 picture is padded and not resized, its last rows are the padding.
    wide = picture(3, 48, 30)
    grey, plain = (d.pixels([wide])[0] for d in (gray, black))
    processor = gray.processor
    mean, std = (torch.tensor(x).view(3, 1) for x in (processor.image_mean, processor.image_std))
    for pixels, value in ((grey, 0.5), (plain, 0.0)):
        np.testing.assert_allclose(pixels[:, 40], ((value - mean) / std).expand(3, 48), atol=1e-5)
    np.testing.assert_allclose(grey[:, :29], plain[:, :29], atol=1e-5)
    assert gray.fingerprint != black.fingerprint != owlv2.fingerprint


def test_what_cannot_be_looked_for_is_refused(owlv2, models):
    with pytest.raises(MetricError, match=r"'a xylophone quartet.*more than the 16 tokens"):
        owlv2.detect(IMAGES[:1], [["a xylophone quartet with an unreasonable number of players"]])
    with pytest.raises(MetricError, match="2 images but 1 lists of labels"):
        owlv2.detect(IMAGES[:2], [["car"]])
    with pytest.raises(MetricError, match="did you mean 'gray'"):
        metrics.load_judge("ovd", str(models / "owlv2"), pad="grey")


def test_of_labels_that_mean_the_same_the_first_of_the_picture_has_the_boxes(owlv2, monkeypatch):
    owlv2.detect(IMAGES[:1], [["car"]])
    monkeypatch.setitem(owlv2._queries, "auto", owlv2._queries["car"])
    one, other = owlv2.detect([IMAGES[0]] * 2, [["car", "auto"], ["auto", "car"]])
    assert one["car"].named == other["auto"].named > 0
    assert one["auto"].named == other["car"].named == 0


MATCHED = [picture(i, *size) for i, size in enumerate([(40, 32), (32, 32), (64, 40), (30, 70)])]
TEXTS = [["car"], ["car", "A man and his dog sit on a bench"], [], ["dog", "bench", "car", "dog", "it"]]


@pytest.fixture(scope="module")
def naive(models):
    folder = models / "blip"
    model = transformers.BlipForImageTextRetrieval.from_pretrained(folder)
    parts = (
        transformers.AutoImageProcessor.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    processor = transformers.BlipProcessor(*parts)

    @torch.no_grad()
    def value(image, text, head):
        inputs = processor(images=image, text=text, return_tensors="pt")
        keep = {name: inputs[name] for name in ("pixel_values", "input_ids", "attention_mask")}
        score = model(**keep, use_itm_head=head == "itm").itm_score
        return float(score.softmax(-1)[0, 1] if head == "itm" else score[0, 0])

    return value


@pytest.mark.parametrize("head", ["itc", "itm"])
def test_values_equal_one_pair_at_a_time_with_the_library_in_any_batch(models, blip, naive, head):
    found = blip.match(MATCHED, TEXTS, head)
    assert [row.shape for row in found] == [(1,), (2,), (0,), (5,)]
    expected = [[naive(x, t, head) for t in row] for x, row in zip(MATCHED, TEXTS, strict=True)]
    small = metrics.load_judge("itm", str(models / "blip"), batch_size=2).match(MATCHED, TEXTS, head)
    for a, b, c in zip(found, expected, small, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-6)  # float32 in another order: 4e-7 of 1
    assert len({round(v, 6) for row in expected for v in row}) == 7, "one text occurs twice"
    with pytest.raises(MetricError, match="itc, itm"):
        blip.match(MATCHED[:1], [["car"]], "itx")
