"""The image metrics together: against one pair at a time by hand, and what must not change a value."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from nein import metrics
from nein.loading.resize import r64
from nein.metrics import METRICS, Batch, EditPair, Score, Settings
from nein.metrics.base import MemoryStore
from nein.metrics.images import compute_cosines
from nein.metrics.preprocess import stretch
from tests.metrics.tiny import picture

ALL = ("l1", "l2", "clip_i", "dino", "fid", "lpips", "clip_t")
PER_SAMPLE = tuple(name for name in ALL if name != "fid")


def key(image):
    return hashlib.sha256(image.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def items():
    targets = [picture(100, 64, 48), picture(101, 48, 48), picture(102, 50, 75)]
    captions = ["A man and his dog.", "a car near a bench", "yes"]
    owners = [0, 0, 1, 2, 2, 2, 1]
    sizes = [(64, 48), (60, 52), (48, 48), (50, 75), (64, 64), (40, 60), (96, 96)]
    return [
        EditPair(f"s{i}", picture(i, *size), targets[o], caption=captions[o], target_key=key(targets[o]))
        for i, (o, size) in enumerate(zip(owners, sizes, strict=True))
    ]


def score(names, items, models, store=None, **settings):
    batch = Batch(items, models, Settings(**settings), features=store or MemoryStore())
    return metrics.score([METRICS[name] for name in names], batch)


def values(result, name):
    return [score.value for score in result[name]]


def fid_rows(result, side):
    """(N, D) rows of the edited pictures (side 0) or of the targets (side 1)."""
    return np.stack([row.features[side] for row in result["fid"] if row.features is not None])


def cosine(a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def by_hand(name, item, encoders):
    fitted = np.asarray(stretch(item.edited, item.target.shape[1::-1]))
    difference = fitted.astype(np.float64) / 255 - item.target.astype(np.float64) / 255
    if name in ("l1", "l2"):
        return float((np.abs(difference) if name == "l1" else difference**2).mean())
    if name == "lpips":
        return float(encoders["lpips"].distances([fitted], [item.target])[0])
    encoder = encoders["dino" if name == "dino" else "clip"]
    other = encoder.encode_text([item.caption]) if name == "clip_t" else encoder.encode([item.target])
    return cosine(encoder.encode([item.edited])[0], other[0])


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_every_metric_equals_one_pair_at_a_time_by_hand_alone_and_with_others(name, items, encoders):
    expected = [by_hand(name, item, encoders) for item in items]
    assert len({round(v, 7) for v in expected}) == len(items), "the cases must tell apart"
    alone, together = score([name], items, encoders), score(ALL, items, encoders)
    assert tuple(together) == ALL
    np.testing.assert_allclose(values(alone, name), expected, atol=1e-5)
    np.testing.assert_allclose(values(together, name), values(alone, name), atol=1e-6)


def test_fid_features_are_those_of_every_item_in_order(items, encoders):
    result = score(["fid"], items, encoders)
    for side, pictures in enumerate(([i.edited for i in items], [i.target for i in items])):
        np.testing.assert_allclose(fid_rows(result, side), encoders["fid"].encode(pictures), atol=1e-5)
        assert fid_rows(result, side).dtype == np.float32
    assert {(row.value, row.reason) for row in result["fid"]} == {(None, "")}


def test_pictures_without_keys_are_told_apart_by_their_pixels_and_their_size():
    black, white = np.zeros((4, 4, 3), np.uint8), np.full((4, 4, 3), 255, np.uint8)
    wide = black.reshape(2, 8, 3)
    items = [EditPair(str(k), one, one, one) for k, one in enumerate((black, white, wide))]
    assert [one.value for one in metrics.score([METRICS["l1"]], Batch(items))["l1"]] == [0, 0, 0]
    assert len({item.target_key for item in items}) == len({item.sample_key for item in items}) == 3
    assert EditPair("1", black, black.copy()).target_key == items[0].target_key
    assert EditPair("1", black, black, target_key="known").target_key == "known"


def test_neither_batch_size_nor_order_changes_a_value(items, encoders):
    base, other = score(ALL, items, encoders), score(ALL, items[::-1], encoders, batch_size=3)
    for name in ("l1", "l2", "clip_i", "dino", "lpips", "clip_t"):
        np.testing.assert_allclose(values(other, name)[::-1], values(base, name), atol=1e-6)
    np.testing.assert_allclose(fid_rows(other, 0)[::-1], fid_rows(base, 0), atol=1e-5)


def test_the_cosine_is_taken_in_float64_and_clipped_to_one():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(300, 24)).astype(np.float32)
    near = (base * (1 + 1e-4 * rng.normal(size=base.shape))).astype(np.float32)
    found = [score.value for score in compute_cosines(near, base)]
    expected = [cosine(a, b) for a, b in zip(near, base, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-14)  # in float32 the error would be 1e-7
    ones = [score.value for score in compute_cosines(base, base)]
    assert 1 - 1e-12 < min(ones) <= max(ones) <= 1.0


def test_crop_alignment_compares_with_the_fitted_target_and_shares_no_features(encoders):
    target = picture(9, 160, 107)
    item = EditPair("a", r64(target, 128), target, target_key=key(target))
    store = MemoryStore()
    plain = score(["l1", "lpips", "dino"], [item], encoders, store=store)
    crop = score(["l1", "lpips", "dino"], [item], encoders, store=store, align="crop", resolution=128)
    assert values(crop, "l1") == [0]
    assert values(crop, "dino") == pytest.approx([1], abs=1e-6)
    assert values(plain, "l1")[0] > 0.01
    assert values(plain, "lpips")[0] > 0.001
    assert values(plain, "dino")[0] < 0.999


class Counting:
    """An encoder that counts the pictures it is shown and can be told to choke on some."""

    def __init__(self, encoder, bad=lambda image: False):
        self.encoder, self.bad, self.seen = encoder, bad, 0
        self.fingerprint = encoder.fingerprint

    def encode(self, images):
        if any(self.bad(image) for image in images):
            raise RuntimeError("out of luck")
        self.seen += len(images)
        return self.encoder.encode(images)


def test_what_is_cached_never_changes_a_value_whoever_was_encoded_beside_it(items, encoders):
    """A failed edit takes its target out of the batch, and batches decide the last bits."""
    store = MemoryStore()
    score(["dino"], items, encoders, store=store)
    fewer = [item for item in items if item.target_key != items[2].target_key]
    for part, targets in ((fewer, 2), (items[::-1], 3), (items, 0)):
        counting = Counting(encoders["dino"])
        cached = score(["dino"], part, {"dino": counting}, store=store)
        assert values(cached, "dino") == values(score(["dino"], part, encoders), "dino")
        assert counting.seen == len(part) + targets


def test_a_failed_edit_is_unscored_everywhere_and_the_others_are_not(items, encoders):
    broken = [*items[:2], replace(items[0], id="x", edited="no edited picture"), *items[2:]]
    result = score(ALL, broken, encoders)
    base = score(ALL, items, encoders)
    assert {name: rows[2] for name, rows in result.items()} == dict.fromkeys(
        ALL, Score(None, "no edited picture")
    )
    for name in PER_SAMPLE:
        rest = [v for i, v in enumerate(values(result, name)) if i != 2]
        np.testing.assert_allclose(rest, values(base, name), atol=1e-6)
    assert fid_rows(result, 0).shape[0] == len(items)
    missing = score(["l1", "dino"], [EditPair("x", items[0].edited)], encoders)
    assert [s[0].reason for s in missing.values()] == ["no target image"] * 2


def test_one_picture_that_the_encoder_chokes_on_does_not_take_the_batch_with_it(items, encoders):
    def is_third(image):
        return image is items[2].edited

    chokes = {kind: Counting(encoders[kind], is_third) for kind in ("dino", "fid")}
    result = score(["dino", "fid", "l1"], items, chokes)
    base = score(["dino"], items, encoders)
    for one in (result["dino"][2], result["fid"][2]):
        assert (one.value, one.reason[:25]) == (None, "RuntimeError: out of luck")
    assert result["l1"][2].value is not None
    others = [[v for i, v in enumerate(values(one, "dino")) if i != 2] for one in (result, base)]
    np.testing.assert_allclose(*others, atol=1e-6)


def test_a_target_that_the_encoder_chokes_on_unscores_its_samples_and_is_not_cached(items, encoders):
    store = MemoryStore()
    choking = Counting(encoders["dino"], lambda image: image is items[0].target)
    result = score(["dino"], items, {"dino": choking}, store=store)
    assert [s.value is None for s in result["dino"]] == [True, True, False, False, False, False, False]
    assert result["dino"][1].reason.startswith("the target: RuntimeError: out of luck")
    healed = score(["dino"], items, encoders, store=store)
    assert all(v is not None for v in values(healed, "dino"))
