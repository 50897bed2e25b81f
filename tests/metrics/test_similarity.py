"""The image metrics together: against one pair at a time by hand, and what must not change a value."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from metrics import MetricError
from metrics.base import MemoryFeatures
from metrics.preprocess import r64_fit, stretch
from metrics.similarity import ImageItem, ImageMetrics
from tests.metrics.tiny import picture

ALL = ("l1", "l2", "clip_i", "dino", "fid", "lpips", "clip_t")
PER_SAMPLE = tuple(name for name in ALL if name != "fid")


def key(image: np.ndarray) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def items() -> list[ImageItem]:
    """Seven edits of three targets of unequal, mostly not square sizes."""
    targets = [picture(100, 64, 48), picture(101, 48, 48), picture(102, 50, 75)]
    captions = ["A man and his dog.", "a car near a bench", "yes"]
    owners = [0, 0, 1, 2, 2, 2, 1]
    sizes = [(64, 48), (60, 52), (48, 48), (50, 75), (64, 64), (40, 60), (96, 96)]
    return [
        ImageItem(f"s{i}", picture(i, *size), targets[o], captions[o], key(targets[o]))
        for i, (o, size) in enumerate(zip(owners, sizes, strict=True))
    ]


def values(result: Any, name: str) -> list[float]:
    return [score.value for score in result.scores[name]]


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def by_hand(name: str, item: ImageItem, encoders: Any) -> float:
    """One metric of one pair, straight from its definition."""
    fitted = np.asarray(stretch(item.edited, item.target.shape[1::-1]))
    difference = fitted.astype(np.float64) / 255 - item.target.astype(np.float64) / 255
    if name == "l1":
        return float(np.abs(difference).mean())
    if name == "l2":
        return float((difference**2).mean())
    if name == "lpips":
        return float(encoders["lpips"].distances([fitted], [item.target], [0])[0])
    if name == "clip_t":
        return cosine(
            encoders["clip"].encode([item.edited])[0], encoders["clip"].encode_text([item.caption])[0]
        )
    encoder = encoders["clip" if name == "clip_i" else "dino"]
    return cosine(encoder.encode([item.edited])[0], encoder.encode([item.target])[0])


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_every_metric_equals_one_pair_at_a_time_by_hand(name, items, encoders) -> None:
    result = ImageMetrics([name], encoders=encoders).score(items)
    expected = [by_hand(name, item, encoders) for item in items]
    assert len({round(v, 7) for v in expected}) == len(items), "the cases must tell apart"
    np.testing.assert_allclose(values(result, name), expected, atol=1e-5)


def test_all_metrics_together_equal_each_alone_in_the_order_asked(items, encoders) -> None:
    together = ImageMetrics(ALL, encoders=encoders).score(items)
    assert tuple(together.scores) == PER_SAMPLE
    for name in PER_SAMPLE:
        alone = ImageMetrics([name], encoders=encoders).score(items)
        np.testing.assert_allclose(values(together, name), values(alone, name), atol=1e-6)


def test_fid_features_are_those_of_every_item_in_order(items, encoders) -> None:
    result = ImageMetrics(["fid"], encoders=encoders).score(items)
    np.testing.assert_allclose(
        result.fid_edited, encoders["fid"].encode([i.edited for i in items]), atol=1e-5
    )
    np.testing.assert_allclose(
        result.fid_target, encoders["fid"].encode([i.target for i in items]), atol=1e-5
    )
    assert result.fid_edited.dtype == result.fid_target.dtype == np.float32
    assert result.scores == {}
    assert result.fid_reasons == {}


def test_without_fid_there_are_no_fid_features(items, encoders) -> None:
    result = ImageMetrics(["l1"], encoders={}).score(items)
    assert result.fid_edited is None
    assert result.fid_target is None


def test_an_edit_equal_to_its_target_sits_at_every_optimum(encoders) -> None:
    target = picture(7, 64, 48)
    result = ImageMetrics(ALL, encoders=encoders).score(
        [ImageItem("a", target.copy(), target, "a", key(target))]
    )
    assert values(result, "l1") == [0]
    assert values(result, "l2") == [0]
    assert values(result, "lpips") == pytest.approx([0], abs=1e-9)
    assert values(result, "clip_i") == pytest.approx([1], abs=1e-6)
    assert values(result, "dino") == pytest.approx([1], abs=1e-6)
    np.testing.assert_allclose(result.fid_edited, result.fid_target, atol=1e-6)


def test_every_metric_gets_worse_with_corruption(encoders) -> None:
    target = picture(8, 64, 64)
    noise = np.random.default_rng(0).normal(0, 1, target.shape)
    edits = [np.clip(target + s * noise, 0, 255).astype(np.uint8) for s in (0, 8, 30, 110)]
    items = [ImageItem(str(i), e, target, "", key(target)) for i, e in enumerate(edits)]
    result = ImageMetrics(["l1", "l2", "clip_i", "dino", "lpips"], encoders=encoders).score(items)
    for name in ("l1", "l2", "lpips"):
        assert (np.diff(values(result, name)) > 0).all(), name
    for name in ("clip_i", "dino"):
        assert (np.diff(values(result, name)) < 0).all(), name


@pytest.mark.parametrize("batch_size", [1, 3])
def test_neither_batch_size_nor_order_changes_a_value(batch_size, items, encoders) -> None:
    base = ImageMetrics(ALL, encoders=encoders).score(items)
    other = ImageMetrics(ALL, encoders=encoders, batch_size=batch_size).score(items[::-1])
    for name in PER_SAMPLE:
        np.testing.assert_allclose(values(other, name)[::-1], values(base, name), atol=1e-6)
    np.testing.assert_allclose(other.fid_edited[::-1], base.fid_edited, atol=1e-5)


def test_the_cosine_is_taken_in_float64_and_clipped_to_one(encoders) -> None:
    rng = np.random.default_rng(0)
    base = rng.normal(size=(300, 24)).astype(np.float32)
    near = (base * (1 + 1e-4 * rng.normal(size=base.shape))).astype(np.float32)

    class Fixed:
        fingerprint = "fixed"

        def encode(self, images: Any) -> np.ndarray:
            return np.stack(
                [(base if x[0, 0, 2] else near)[int(x[0, 0, 0]) + 256 * int(x[0, 0, 1])] for x in images]
            )

    def image(i: int, target: bool) -> np.ndarray:
        return np.array([[[i % 256, i // 256, int(target)]]], np.uint8).astype(np.uint8)

    cases = [ImageItem(str(i), image(i, False), image(i, True), "", f"t{i}") for i in range(300)]
    found = np.array(values(ImageMetrics(["dino"], encoders={"dino": Fixed()}).score(cases), "dino"))
    expected = np.array([cosine(a, b) for a, b in zip(near, base, strict=True)])
    np.testing.assert_allclose(found, expected, atol=1e-14)  # in float32 the error would be 1e-7
    same = [ImageItem(str(i), image(i, True), image(i, True), "", f"t{i}") for i in range(300)]
    ones = values(ImageMetrics(["dino"], encoders={"dino": Fixed()}).score(same), "dino")
    assert max(ones) <= 1.0
    assert min(ones) > 1 - 1e-12


# --------------------------------------------------------------------------------------------- alignment


def test_crop_alignment_compares_with_the_fitted_target(encoders) -> None:
    target = picture(9, 160, 107)
    edited = r64_fit(target, 128)
    item = ImageItem("a", edited, target, "", key(target))
    crop = ImageMetrics(["l1", "lpips", "dino"], encoders=encoders, align="crop", resolution=128).score(
        [item]
    )
    plain = ImageMetrics(["l1", "lpips", "dino"], encoders=encoders).score([item])
    assert values(crop, "l1") == [0]
    assert values(crop, "dino") == pytest.approx([1], abs=1e-6)
    assert values(plain, "l1")[0] > 0.01
    assert values(plain, "lpips")[0] > 0.001
    assert values(plain, "dino")[0] < 0.999


def test_the_two_alignments_do_not_share_cached_features(encoders) -> None:
    target = picture(9, 160, 107)
    item = ImageItem("a", picture(1, 64, 64), target, "", key(target))
    store = MemoryFeatures()
    first = ImageMetrics(["dino"], encoders=encoders, store=store).score([item])
    crop = ImageMetrics(["dino"], encoders=encoders, store=store, align="crop", resolution=128).score([item])
    fresh = ImageMetrics(["dino"], encoders=encoders, align="crop", resolution=128).score([item])
    assert values(crop, "dino") == values(fresh, "dino") != values(first, "dino")


# ------------------------------------------------------------------------------------------------- cache


class Counting:
    """An encoder that counts the pictures it is shown and can be told to choke on some."""

    def __init__(self, encoder: Any, bad: Any = lambda image: False) -> None:
        self.encoder, self.bad, self.seen = encoder, bad, 0
        self.fingerprint = encoder.fingerprint

    def encode(self, images: Any) -> np.ndarray:
        if any(self.bad(image) for image in images):
            raise RuntimeError("out of luck")
        self.seen += len(images)
        return self.encoder.encode(images)


def test_every_edit_is_encoded_once_and_every_target_once_for_all_editors(items, encoders) -> None:
    counting = Counting(encoders["dino"])
    store = MemoryFeatures()
    metric = ImageMetrics(["dino"], encoders={"dino": counting}, store=store)
    first = metric.score(items)
    assert counting.seen == len(items) + 3
    second = metric.score(items)
    assert counting.seen == 2 * len(items) + 3
    assert values(first, "dino") == values(second, "dino")


def test_clip_i_and_clip_t_share_one_look_at_an_edit(items, encoders, monkeypatch) -> None:
    counting = Counting(encoders["clip"])
    counting.encode_text = encoders["clip"].encode_text
    ImageMetrics(["clip_i", "clip_t"], encoders={"clip": counting}).score(items)
    assert counting.seen == len(items) + 3


class Damaging(MemoryFeatures):
    """A store that gives back the features of one target as NaN."""

    def __init__(self, target_key: str) -> None:
        super().__init__()
        self.target_key, self.damaged = target_key, 0

    def get(self, space: str, key: str) -> np.ndarray | None:
        row = super().get(space, key)
        if row is None or self.target_key not in key:
            return row
        self.damaged += 1
        return np.full_like(row, np.nan)


def test_a_damaged_cache_entry_is_computed_again(items, encoders) -> None:
    store = Damaging(items[0].target_key)
    metric = ImageMetrics(["dino"], encoders=encoders, store=store)
    good = metric.score(items)
    assert store.damaged == 0
    assert values(metric.score(items), "dino") == values(good, "dino")
    assert store.damaged == 1


def test_the_targets_of_a_call_go_through_a_network_together(items, encoders) -> None:
    calls = []
    counting = Counting(encoders["dino"])
    encode = counting.encode

    def listen(images: Any) -> np.ndarray:
        calls.append(len(images))
        return encode(images)

    counting.encode = listen  # type: ignore[method-assign]
    ImageMetrics(["dino"], encoders={"dino": counting}).score(items)
    assert calls == [len(items), 3]


def test_what_is_cached_never_changes_a_value_whoever_was_encoded_beside_it(items, encoders) -> None:
    """A failed edit takes its target out of the batch, and batches decide the last bits."""
    store = MemoryFeatures()
    ImageMetrics(["dino"], encoders=encoders, store=store).score(items)
    fewer, reverse = [item for item in items if item.target_key != items[2].target_key], items[::-1]
    for part in (fewer, reverse):
        counting = Counting(encoders["dino"])
        cached = ImageMetrics(["dino"], encoders={"dino": counting}, store=store).score(part)
        fresh = ImageMetrics(["dino"], encoders=encoders).score(part)
        assert values(cached, "dino") == values(fresh, "dino")
        assert counting.seen == len(part) + len({item.target_key for item in part})


# ---------------------------------------------------------------------------------------------- unscored


def test_a_failed_edit_is_unscored_everywhere_and_the_others_are_not(items, encoders) -> None:
    broken = [*items[:2], ImageItem("x", None, items[0].target, "a", items[0].target_key), *items[2:]]
    result = ImageMetrics(ALL, encoders=encoders).score(broken)
    base = ImageMetrics(ALL, encoders=encoders).score(items)
    for name in PER_SAMPLE:
        score = result.scores[name][2]
        assert score.value is None
        assert score.reason == "no edited picture"
        rest = [v for i, v in enumerate(values(result, name)) if i != 2]
        np.testing.assert_allclose(rest, values(base, name), atol=1e-6)
    assert np.isnan(result.fid_edited[2]).all()
    assert result.fid_reasons == {2: "no edited picture"}
    assert np.isfinite(np.delete(result.fid_edited, 2, axis=0)).all()


def test_a_missing_target_is_unscored(items, encoders) -> None:
    item = ImageItem("x", items[0].edited, None, "a", "none")
    result = ImageMetrics(["l1", "dino"], encoders=encoders).score([item])
    assert [s[0].reason for s in result.scores.values()] == ["no target picture"] * 2


def test_one_picture_that_the_encoder_chokes_on_does_not_take_the_batch_with_it(items, encoders) -> None:
    def is_third(image: np.ndarray) -> bool:
        return image is items[2].edited

    chokes = {kind: Counting(encoders[kind], is_third) for kind in ("dino", "fid")}
    result = ImageMetrics(["dino", "fid", "l1"], encoders=chokes).score(items)
    base = ImageMetrics(["dino"], encoders=encoders).score(items)
    assert result.scores["dino"][2].value is None
    assert result.scores["dino"][2].reason == "RuntimeError: out of luck"
    assert result.fid_reasons == {2: "RuntimeError: out of luck"}
    assert result.scores["l1"][2].value is not None
    others = [0, 1, 3, 4, 5, 6]
    np.testing.assert_allclose(
        np.array(values(result, "dino"))[others].astype(float),
        np.array(values(base, "dino"))[others],
        atol=1e-6,
    )


def test_a_target_that_the_encoder_chokes_on_unscores_its_samples_and_is_not_cached(items, encoders) -> None:
    store = MemoryFeatures()
    choking = Counting(encoders["dino"], lambda image: image is items[0].target)
    result = ImageMetrics(["dino"], encoders={"dino": choking}, store=store).score(items)
    assert [s.value is None for s in result.scores["dino"]] == [True, True, False, False, False, False, False]
    assert result.scores["dino"][1].reason == "the target: RuntimeError: out of luck"
    healed = ImageMetrics(["dino"], encoders=encoders, store=store).score(items)
    assert all(v is not None for v in values(healed, "dino"))


def test_an_edit_of_the_wrong_type_is_unscored_with_what_was_expected(items, encoders) -> None:
    item = ImageItem("x", items[0].edited / 255.0, items[0].target, "a", items[0].target_key)
    score = ImageMetrics(["l1"], encoders={}).score([item]).scores["l1"][0]
    assert score.value is None
    assert "uint8" in score.reason


def test_a_missing_caption_unscores_clip_t_only(items, encoders) -> None:
    item = ImageItem("x", items[0].edited, items[0].target, " ", items[0].target_key)
    result = ImageMetrics(["clip_i", "clip_t"], encoders=encoders).score([item])
    assert result.scores["clip_t"][0].reason == "no caption"
    assert result.scores["clip_i"][0].value is not None


def test_an_empty_list_gives_empty_scores(encoders) -> None:
    result = ImageMetrics(ALL, encoders=encoders).score([])
    assert all(row == [] for row in result.scores.values())
    assert len(result.scores) == 6
    assert len(result.fid_edited) == 0


# ------------------------------------------------------------------------------------------------- usage


def test_an_unknown_metric_gets_a_near_match() -> None:
    with pytest.raises(MetricError, match="Did you mean 'clip_i'"):
        ImageMetrics(["clipi"], encoders={})


def test_a_missing_encoder_is_named() -> None:
    with pytest.raises(MetricError, match="'dino' needs the encoder 'dino'"):
        ImageMetrics(["dino"], encoders={})


def test_an_unknown_alignment_is_refused() -> None:
    with pytest.raises(MetricError, match="stretch, crop"):
        ImageMetrics(["l1"], encoders={}, align="squash")  # type: ignore[arg-type]


def test_the_description_names_alignment_and_weights_and_is_json(encoders) -> None:
    metric = ImageMetrics(["dino", "l1"], encoders=encoders, align="crop", resolution=64)
    described = json.loads(json.dumps(metric.describe()))
    assert described["align"] == "r64-64"
    assert list(described["encoders"]) == ["dino"]
