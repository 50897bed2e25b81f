import hashlib
import random

import numpy as np
import pytest

from nein.nano.scenes import CATEGORIES, render, rng_for
from nein.train.editor_finetuning import drawn
from research.nano import data
from tests.nano.words import negated

KINDS = ("add", "double", "keep", "remove", "replace", "recolour", "scenery", "mark", "restore")


def pairs_of(kind, count=300):
    return [data.sample_pair(rng_for("train", i, f"test/{kind}"), {kind: 1.0}) for i in range(count)]


@pytest.fixture(scope="module")
def pairs():
    return {kind: pairs_of(kind) for kind in KINDS}


def test_no_sentence_is_negated(pairs):
    lines = [pair.instruction for kind in KINDS for pair in pairs[kind]]
    for name, (weights, _) in data.ALL_MIXTURES.items():
        assert set(weights) <= set(KINDS)
        lines += [data.sample_pair(rng_for("train", i, name), weights).instruction for i in range(100)]
    forms = [line for c in CATEGORIES for line in data.all_instruction_forms(random.Random(0), c)]
    assert negated([*lines, *forms]) == []
    assert {*drawn.FILLERS, *data.RESTORE} <= {*forms}


def test_the_pairs_are_those_that_the_models_were_trained_on(pairs):
    assert hashlib.sha256(repr(pairs).encode()).hexdigest()[:16] == "6535f7213b805e00"


@pytest.mark.parametrize("kind", ["remove", "add", "double", "keep"])
def test_clean_pairs_show_their_two_scenes(kind, pairs):
    for pair in pairs[kind][:25]:
        source, target = drawn.draw_images(pair, rng_for("train", 0, "images"), "clean")
        assert np.array_equal(source, render(pair.source))
        assert np.array_equal(target, render(pair.target))
