"""Training data in bulk: the same whatever the chunks, true to the scenes, each style as it says."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from nein.nano.captions import captions
from nein.nano.draw import BACKGROUNDS, CATEGORIES, SIZE
from nein.nano.scenes import Item, Scene, box, mask, render, rng_for
from research.nano import pool
from research.nano.pool import degrade, pair_pool, patch_labels, scene_pool, to_float
from train.instruct.drawn import Pair, pair_images, sample_pair

WEIGHTS = {"remove": 2.0, "add": 2.0, "keep": 1.0, "mark": 1.0, "restore": 1.0}


def joined(parts):
    """What several chunks give together, as the pool puts it together."""
    first, *rest = zip(*parts, strict=True)
    arrays, lists = [], []
    for column in (first, *rest):
        (arrays if isinstance(column[0], np.ndarray) else lists).append(column)
    return [np.concatenate(c) for c in arrays], [[x for part in c for x in part] for c in lists]


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a[0], b[0], strict=True)) and a[1] == b[1]


@pytest.mark.parametrize("cuts", [(0, 40), (0, 13, 40), (0, 1, 2, 39, 40)])
def test_scenes_do_not_depend_on_where_the_chunks_are_cut(cuts):
    whole = joined([pool._scene_chunk(("train", 0, 40))])
    chunks = [pool._scene_chunk(("train", a, b)) for a, b in pairwise(cuts)]
    assert same(joined(chunks), whole)


@pytest.mark.parametrize("style", ["generated", "clean", "rerendered", "any-light"])
def test_pairs_do_not_depend_on_where_the_chunks_are_cut(style):
    def chunk(a: int, b: int):
        return pool._pair_chunk(("train", "test", WEIGHTS, style, False, a, b))

    assert same(joined([chunk(0, 7), chunk(7, 8), chunk(8, 30)]), joined([chunk(0, 30)]))


def test_a_pool_is_put_together_from_its_chunks_in_order(monkeypatch):
    whole = scene_pool("train", 20)
    monkeypatch.setattr(pool, "_CHUNK", 6)
    monkeypatch.setattr(pool, "_parallel", lambda function, jobs: [function(job) for job in jobs])
    pieces = scene_pool("train", 20)
    assert pool._chunks(20) == [(0, 6), (6, 12), (12, 18), (18, 20)]
    assert torch.equal(whole.images, pieces.images)
    assert torch.equal(whole.patches, pieces.patches)
    assert (whole.scenes, whole.captions) == (pieces.scenes, pieces.captions)
    pairs = pair_pool("train", "x", WEIGHTS, "generated", 14)
    monkeypatch.setattr(pool, "_CHUNK", 500)
    again = pair_pool("train", "x", WEIGHTS, "generated", 14)
    assert torch.equal(pairs.source, again.source)
    assert torch.equal(pairs.target, again.target)
    assert (pairs.instructions, pairs.kinds) == (again.instructions, again.kinds)


@pytest.mark.slow
def test_several_processes_give_the_pool_of_one(monkeypatch):
    whole = scene_pool("train", 24)
    monkeypatch.setattr(pool, "_CHUNK", 6)
    monkeypatch.setattr(pool.os, "sched_getaffinity", lambda _: {0, 1})
    spread = scene_pool("train", 24)
    assert torch.equal(whole.images, spread.images)
    assert whole.captions == spread.captions


def test_a_scene_pool_holds_pictures_labels_and_captions_of_its_scenes():
    found = scene_pool("dev", 40)
    assert found.images.shape == (40, 3, SIZE, SIZE)
    assert found.images.dtype == torch.uint8
    assert found.patches.shape == (40, 64)
    assert found.patches.dtype == torch.int64
    for i, scene in enumerate(found.scenes):
        assert np.array_equal(found.images[i].numpy().transpose(1, 2, 0), render(scene))
        assert np.array_equal(found.patches[i].numpy(), patch_labels(scene))
        assert len(found.captions[i]) == 5
    assert {len(s.items) for s in found.scenes} == {0, 1, 2, 3, 4}


def test_pools_of_different_splits_and_names_differ():
    assert not set(scene_pool("dev", 30).scenes) & {s for s in scene_pool("train", 30).scenes if s.items}
    a = pair_pool("train", "ip2p", WEIGHTS, "clean", 8)
    b = pair_pool("train", "magicbrush", WEIGHTS, "clean", 8)
    assert not torch.equal(a.source, b.source)


def test_patch_labels_are_the_category_where_it_covers_a_patch_and_the_background_elsewhere():
    item = Item("stop sign", "red", 23, 20.0, 16.0, False)
    labels = patch_labels(Scene("street", 2, (item,)))
    assert labels.shape == (64,)
    assert labels.dtype == np.uint8
    ground = 30 + list(BACKGROUNDS).index("street")
    grid = labels.reshape(8, 8)
    sign = CATEGORIES.index("stop sign")
    assert set(labels.tolist()) == {sign, ground}
    covered = mask(item)
    for row in range(8):
        for column in range(8):
            share = covered[8 * row : 8 * row + 8, 8 * column : 8 * column + 8].mean()
            assert grid[row, column] == (sign if share >= 0.3 else ground)
    assert grid[3, 3] == sign  # x 24..32, y 24..32: the middle of the sign
    assert grid[0, 0] == ground


def test_a_patch_of_two_objects_belongs_to_the_one_that_covers_more_of_it():
    laptop = Item("laptop", "grey", 20, 0.75, 16.0, False)
    bottle = Item("bottle", "green", 20, 20.75, 16.0, False)
    shares = [mask(i)[24:32, 16:24].mean() for i in (laptop, bottle)]
    assert 0.3 <= shares[0] < shares[1]
    for items in ((laptop, bottle), (bottle, laptop)):
        grid = patch_labels(Scene("room", 2, items)).reshape(8, 8)
        assert grid[3, 2] == CATEGORIES.index("bottle")
        assert grid[3, 1] == CATEGORIES.index("laptop")


def test_an_empty_scene_is_all_background():
    labels = patch_labels(Scene("night", 2, ()))
    assert (labels == 30 + list(BACKGROUNDS).index("night")).all()


def images_of(pair: Pair, style: str, seed: int = 0):
    return pair_images(pair, rng_for("train", seed, "images"), style)


def pairs_of(kind: str, count: int = 25) -> list[Pair]:
    return [sample_pair(rng_for("train", i, f"pool test/{kind}"), {kind: 1.0}) for i in range(count)]


def test_clean_pairs_are_pixel_equal_outside_what_is_edited():
    for kind in ("remove", "add", "double"):
        for pair in pairs_of(kind):
            source, target = images_of(pair, "clean")
            assert np.array_equal(source, render(pair.source))
            assert np.array_equal(target, render(pair.target))
            outside = np.ones((SIZE, SIZE), bool)
            for item in set(pair.source.items) ^ set(pair.target.items):
                x0, y0, x1, y1 = box(item)
                outside[math.floor(y0) : math.ceil(y1), math.floor(x0) : math.ceil(x1)] = False
            assert np.array_equal(source[outside], target[outside])
            assert not np.array_equal(source, target)


def test_keep_pairs_in_clean_style_are_identical_pictures():
    for pair in pairs_of("keep"):
        source, target = images_of(pair, "clean")
        assert np.array_equal(source, target)


def test_marked_pictures_turn_red_on_the_things_mask_only():
    for pair in pairs_of("mark"):
        source, target = images_of(pair, "clean")
        category = pair.effect.removeprefix("mark:")
        covered = np.any([mask(i) for i in pair.source.items if i.category == category], axis=0)
        assert np.array_equal(source[~covered], target[~covered])
        assert (target[covered][:, 0] >= 153).all()
        assert (target[covered][:, 1:] <= 102).all()


def test_restored_pictures_start_noisy_and_end_clean():
    for seed, pair in enumerate(pairs_of("restore", 8)):
        source, target = images_of(pair, "clean", seed)
        assert np.array_equal(target, render(pair.target))
        assert 8 < np.abs(source.astype(int) - target).mean() < 20
        again, _ = images_of(pair, "clean", seed)
        assert np.array_equal(source, again)


def test_styles_disturb_what_the_instruction_leaves_alone_by_as_much_as_they_say():
    def drifted(style: str) -> list[float]:
        return [
            float(np.abs(np.subtract(*(i.astype(int) for i in images_of(pair, style, n)))).mean())
            for n, pair in enumerate(pairs_of("keep", 60))
        ]

    clean, generated, rerendered = drifted("clean"), drifted("generated"), drifted("rerendered")
    assert max(clean) == 0
    assert 0.5 < np.mean(np.array(generated) > 0) < 0.95
    assert min(rerendered) > 0
    assert np.mean(generated) < np.mean(rerendered)


def test_pair_pools_hold_what_their_pairs_say():
    found = pair_pool("train", "x", WEIGHTS, "clean", 30)
    assert found.source.shape == found.target.shape == (30, 3, SIZE, SIZE)
    assert found.source.dtype == torch.uint8
    assert len(found.instructions) == len(found.kinds) == 30
    assert set(found.kinds) <= set(WEIGHTS)
    for i, kind in enumerate(found.kinds):
        equal = torch.equal(found.source[i], found.target[i])
        assert equal == (kind == "keep"), kind


def test_bytes_become_numbers_between_minus_one_and_one():
    values = to_float(torch.tensor([0, 51, 255], dtype=torch.uint8))
    assert values.tolist() == pytest.approx([-1.0, -0.6, 1.0], abs=1e-6)
    assert values.dtype == torch.float32


def test_degrading_follows_its_generator_and_stays_in_range():
    images = to_float(scene_pool("dev", 12).images)
    state = torch.get_rng_state()
    once = degrade(images, torch.Generator().manual_seed(3))
    again = degrade(images, torch.Generator().manual_seed(3))
    other = degrade(images, torch.Generator().manual_seed(4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert once.shape == images.shape
    assert once.min() >= -1
    assert once.max() <= 1
    assert 0.005 < (once - images).abs().mean() < 0.2


def test_captions_in_a_pool_are_drawn_after_the_scene_from_the_same_stream():
    rng = rng_for("dev", 3, "pool")
    found = scene_pool("dev", 4)
    from nein.nano.scenes import sample_scene

    scene = sample_scene(rng, rng.choice((0, 1, 2, 2, 3, 3, 4, 4)))
    assert found.scenes[3] == scene
    assert found.captions[3] == captions(scene, rng)
