import random
import re
from collections import Counter

import numpy as np
import pytest

from nein.nano.draw import BACKGROUNDS, CATEGORIES
from nein.nano.scenes import Item, render, rng_for
from nein.nano.sentences import names, plural
from nein.train.editor_finetuning import drawn
from research.nano.data import all_instruction_forms
from tests.nano.words import negated

#: Kind -> its sentences, and by how much it changes the number of things.
KINDS = {
    "add": ((*drawn.ADD, *drawn.DESCRIBE), 1), "double": ((*drawn.ADD, *drawn.DESCRIBE), 1),
    "keep": ((*drawn.ADD, *drawn.DESCRIBE), 0), "remove": (drawn.REMOVE, -1), "replace": (drawn.REPLACE, 0),
    "recolour": (drawn.RECOLOUR, 0), "scenery": ((), 0), "mark": (drawn.MARK, 0), "restore": ((), 0),
}  # fmt: skip


def pairs_of(kind, count=300):
    return [drawn.sample_pair(rng_for("train", i, f"test/{kind}"), {kind: 1.0}) for i in range(count)]


@pytest.fixture(scope="module")
def pairs():
    return {kind: pairs_of(kind) for kind in KINDS}


def plain(instruction):
    """The instruction in lower case without fillers and the final stop."""
    return " ".join(w for w in instruction.lower().rstrip(".").split(" ") if w not in drawn.FILLERS)


def named(category, forms, instruction):
    """Whether the instruction is one of the forms, about the category."""
    nouns = "|".join(re.escape(w) for n in names(category) for w in (n, plural(n)))
    for form in forms:
        pattern = re.escape(plain(form))
        for slot, group in {"a": f"(an? )({nouns})", "n": f"({nouns})", "p": f"({nouns})"}.items():
            pattern = pattern.replace(rf"\{{{slot}\}}", group)
        if re.fullmatch(re.sub(r"\\\{[bc]\\\}", ".+", pattern), plain(instruction)):
            return True
    return False


def test_no_sentence_is_negated(pairs):
    lines = [pair.instruction for kind in KINDS for pair in pairs[kind]]
    for name, (weights, _) in drawn.MIXTURES.items():
        assert set(weights) <= set(KINDS)
        lines += [drawn.sample_pair(rng_for("train", i, name), weights).instruction for i in range(600)]
    forms = [line for c in CATEGORIES for line in all_instruction_forms(random.Random(0), c)]
    assert negated([*lines, *forms]) == []
    assert {*drawn.FILLERS, *drawn.RESTORE} <= {*forms}


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_is_what_its_sentence_says(kind, pairs):
    forms, more = KINDS[kind]
    for pair in pairs[kind]:
        source, target = pair.source, pair.target
        assert 1 <= len(source.items) <= 4
        assert len(target.items) <= 4
        assert (pair.named in source.categories) == (kind not in ("add", "scenery", "restore")), pair
        if forms:
            assert named(pair.named, forms, pair.instruction), pair
        changed = [(a, b) for a, b in zip(source.items, target.items, strict=False) if a != b]
        if kind in ("add", "double"):
            assert target == source.with_item(target.items[-1])
            assert target.items[-1].category == pair.named
        elif kind == "remove":
            assert target == source.without(pair.named)
        elif kind in ("replace", "recolour"):
            [(old, new)] = changed
            assert old.category == pair.named
            assert Counter(i.category for i in source.items)[old.category] == 1
            shift = [abs(a - b) for a, b in zip(old.centre, new.centre, strict=True)]
            assert max(shift) < 8
            if kind == "replace":
                assert new.category not in source.categories
                assert new.category in plain(pair.instruction)
            else:
                assert new == Item(old.category, new.colour, old.size, old.x, old.y, old.flip)
                assert new.colour in plain(pair.instruction)
        elif kind == "scenery":
            assert target.items == source.items
            assert pair.instruction in drawn.SCENERY[target.background]
            assert target.background != source.background
        else:
            assert target == source
            assert pair.effect == {"mark": f"mark:{pair.named}", "restore": "restore"}.get(kind, "")
        assert more == 0 or (len(target.items) > len(source.items)) == (more > 0)
    assert kind != "scenery" or {p.target.background for p in pairs[kind]} == set(BACKGROUNDS)


@pytest.mark.parametrize("kind", ["remove", "add", "double", "keep"])
def test_clean_pairs_show_their_two_scenes(kind, pairs):
    for pair in pairs[kind][:25]:
        source, target = drawn.pair_images(pair, rng_for("train", 0, "images"), "clean")
        assert np.array_equal(source, render(pair.source))
        assert np.array_equal(target, render(pair.target))
