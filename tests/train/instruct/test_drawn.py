"""Edit pairs: affirmative words only, and every kind of edit does to the scene what it says."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import combinations

import pytest

from nein.nano.captions import names, plural
from nein.nano.draw import BACKGROUNDS, CATEGORIES, LOOKS, PALETTE, SIZE
from nein.nano.scenes import (
    MAX_SIZE,
    MIN_SIZE,
    USUAL_SIZE,
    Item,
    Scene,
    rng_for,
    sample_scene,
)
from tests.nano.words import negated
from train.instruct.drawn import (
    ADD,
    DESCRIBE,
    FILLERS,
    MARK,
    MIXTURES,
    RECOLOUR,
    REMOVE,
    REPLACE,
    RESTORE,
    SCENERY,
    Pair,
    all_instruction_forms,
    drift,
    rerender,
    sample_pair,
)

KINDS = ("add", "double", "keep", "remove", "replace", "recolour", "scenery", "mark", "restore")


def pairs_of(kind: str, count: int = 300) -> list[Pair]:
    return [sample_pair(rng_for("train", i, f"test/{kind}"), {kind: 1.0}) for i in range(count)]


@pytest.fixture(scope="module")
def pairs() -> dict[str, list[Pair]]:
    return {kind: pairs_of(kind) for kind in KINDS}


def plain(instruction: str) -> str:
    """The instruction in lower case without fillers and the final stop."""
    words = [w for w in instruction.lower().rstrip(".").split(" ") if w not in FILLERS]
    return " ".join(words)


def matching(forms: tuple[str, ...], instruction: str) -> list[dict[str, str]]:
    """What the instruction says under each of the forms it has: which noun, which other, which colour."""
    groups = {
        "{a}": r"(?:an? )(?P<a>.+)",
        "{b}": r"(?:an? )(?P<b>.+)",
        "{n}": "(?P<n>.+)",
        "{p}": "(?P<p>.+)",
        "{c}": "(?P<c>.+)",
    }
    found = []
    for form in forms:
        # Fillers are words like any other ("{n} ... just" reads "just"), so forms lose them as sentences do.
        pattern = re.escape(plain(form))
        for slot, group in groups.items():
            pattern = pattern.replace(re.escape(slot), group)
        match = re.fullmatch(pattern, plain(instruction))
        if match:
            found.append({k: v for k, v in match.groupdict().items() if v})
    return found


def names_the(category: str, forms: tuple[str, ...], instruction: str) -> bool:
    words = {*names(category), *map(plural, names(category))}
    return any({m.get("a", ""), m.get("n", ""), m.get("p", "")} & words for m in matching(forms, instruction))


def multiset(scene: Scene) -> Counter[str]:
    return Counter(i.category for i in scene.items)


def test_no_instruction_of_any_kind_holds_a_negated_word(pairs):
    lines = [p.instruction for kind in KINDS for p in pairs[kind]]
    for name, (weights, _) in MIXTURES.items():
        assert set(weights) <= set(KINDS)
        lines += [sample_pair(rng_for("train", i, name), weights).instruction for i in range(600)]
    assert len(lines) > 4500
    assert negated(lines) == []


def test_no_form_and_no_filler_holds_a_negated_word():
    forms = [*ADD, *DESCRIBE, *REMOVE, *REPLACE, *RECOLOUR, *MARK, *RESTORE, *FILLERS]
    forms += [s for two in SCENERY.values() for s in two]
    assert negated(forms) == []
    for category in CATEGORIES:
        lines = all_instruction_forms(random.Random(1), category)
        assert negated(lines) == []
        assert sum(any(n in line.lower() for n in names(category)) for line in lines) > 50


def test_the_instruction_corpus_holds_every_form_and_every_filler():
    text = "\n".join(plain(line) for c in CATEGORIES for line in all_instruction_forms(random.Random(0), c))
    for forms in (ADD, DESCRIBE, REMOVE, MARK):
        for form in forms:
            assert plain(form.format(a="a dog", n="dog", p="dogs")) in text, form
    lines = all_instruction_forms(random.Random(0), "dog")
    assert set(FILLERS) | set(RESTORE) <= set(lines)


@pytest.mark.parametrize("kind", KINDS)
def test_instructions_are_sentences_and_scenes_keep_to_four_objects(kind, pairs):
    for pair in pairs[kind]:
        assert pair.kind == kind
        assert "{" not in pair.instruction
        assert 1 <= len(pair.source.items) <= 4
        assert len(pair.target.items) <= 4
        assert bool(pair.effect) == (kind in ("mark", "restore"))


def test_remove_takes_the_named_category_and_leaves_the_rest_identical(pairs):
    for pair in pairs["remove"]:
        [gone] = set(pair.source.categories) - set(pair.target.categories)
        assert pair.target == pair.source.without(gone)
        assert names_the(gone, REMOVE, pair.instruction), pair


def test_add_puts_one_more_of_a_category_that_was_absent(pairs):
    for pair in pairs["add"]:
        new = pair.target.items[-1]
        assert pair.target == pair.source.with_item(new)
        assert new.category not in pair.source.categories
        assert names_the(new.category, (*ADD, *DESCRIBE), pair.instruction), pair


def test_double_puts_one_more_of_a_category_that_was_present(pairs):
    for pair in pairs["double"]:
        new = pair.target.items[-1]
        assert pair.target == pair.source.with_item(new)
        assert new.category in pair.source.categories
        assert names_the(new.category, (*ADD, *DESCRIBE), pair.instruction), pair


def test_keep_changes_nothing_and_names_what_is_there(pairs):
    for pair in pairs["keep"]:
        assert pair.target == pair.source
        assert any(names_the(c, (*ADD, *DESCRIBE), pair.instruction) for c in pair.source.categories), pair


def test_replace_puts_an_absent_category_in_the_place_of_the_only_one_of_its_kind(pairs):
    for pair in pairs["replace"]:
        [(old, new)] = [(a, b) for a, b in zip(pair.source.items, pair.target.items, strict=True) if a != b]
        assert multiset(pair.source)[old.category] == 1
        assert new.category not in pair.source.categories
        assert pair.target.background_seed == pair.source.background_seed
        assert pair.target.background == pair.source.background
        said = matching(REPLACE, pair.instruction)
        assert any(m["n"] in names(old.category) and m["b"] == new.category for m in said), pair
        (ax, ay), (bx, by) = old.centre, new.centre
        assert max(abs(ax - bx), abs(ay - by)) < 8
        x0, y0, x1, y1 = new.extent
        assert min(x0, y0) >= 0
        assert max(x1, y1) <= SIZE


def test_recolour_changes_one_colour_and_nothing_else(pairs):
    for pair in pairs["recolour"]:
        [(old, new)] = [(a, b) for a, b in zip(pair.source.items, pair.target.items, strict=True) if a != b]
        assert new == Item(old.category, new.colour, old.size, old.x, old.y, old.flip)
        assert new.colour != old.colour
        assert new.colour in LOOKS[old.category].colours
        assert new.colour in PALETTE
        said = matching(RECOLOUR, pair.instruction)
        assert any(m["n"] in names(old.category) and m["c"] == new.colour for m in said), pair


def test_scenery_changes_the_background_and_nothing_else(pairs):
    for pair in pairs["scenery"]:
        assert pair.target.items == pair.source.items
        assert pair.target.background != pair.source.background
        assert pair.instruction in SCENERY[pair.target.background]
    assert {p.target.background for p in pairs["scenery"]} == set(BACKGROUNDS) == set(SCENERY)


def test_mark_names_a_present_category_and_leaves_the_scene(pairs):
    for pair in pairs["mark"]:
        assert pair.target == pair.source
        category = pair.effect.removeprefix("mark:")
        assert category in pair.source.categories
        assert names_the(category, MARK, pair.instruction), pair


def test_restore_leaves_the_scene(pairs):
    for pair in pairs["restore"]:
        assert pair.target == pair.source
        assert pair.effect == "restore"
        assert pair.instruction in RESTORE
    assert {p.instruction for p in pairs["restore"]} == set(RESTORE)


def test_an_unknown_kind_of_edit_is_named():
    with pytest.raises(ValueError, match="unknown kind of edit 'polish'"):
        sample_pair(random.Random(0), {"polish": 1.0})


def test_kinds_are_drawn_by_their_weights():
    weights = {"remove": 3.0, "keep": 1.0, "add": 0.0}
    counts = Counter(sample_pair(random.Random(i), weights).kind for i in range(800))
    assert set(counts) == {"remove", "keep"}
    assert 2.3 < counts["remove"] / counts["keep"] < 3.9


def test_a_pair_follows_its_random_stream():
    weights, _ = MIXTURES["ip2p"]
    assert sample_pair(random.Random(5), weights) == sample_pair(random.Random(5), weights)
    assert len({sample_pair(random.Random(i), weights).instruction for i in range(100)}) > 90


def test_added_things_have_their_usual_look_only_where_that_is_asked_for():
    def added(usual: bool) -> set[tuple[str, str, int, bool]]:
        pairs = [sample_pair(random.Random(i), {"add": 1.0, "double": 1.0}, usual=usual) for i in range(300)]
        new = [p.target.items[-1] for p in pairs]
        assert all(p.target.items[:-1] == p.source.items for p in pairs)
        return {(i.category, i.colour, i.size, i.flip) for i in new}

    looks = added(usual=True)
    assert {(category, colour) for category, colour, _, _ in looks} == {
        (c, LOOKS[c].colours[0]) for c in CATEGORIES
    }
    assert {size for _, _, size, _ in looks} == {15, 16, 17, USUAL_SIZE}
    assert not any(flip for *_, flip in looks)
    assert len(added(usual=False)) > 2 * len(looks)


def scenes(count: int = 300) -> list[Scene]:
    return [sample_scene(rng_for("train", i, "redraw"), 1 + i % 4) for i in range(count)]


def test_rerender_keeps_the_multiset_of_categories_in_order_and_changes_the_picture():
    moved = light = 0
    for i, scene in enumerate(scenes()):
        new = rerender(random.Random(i), scene)
        assert [x.category for x in new.items] == [x.category for x in scene.items]
        assert new.background == scene.background
        light += new.background_seed != scene.background_seed
        for old, item in zip(scene.items, new.items, strict=True):
            moved += (old.x, old.y) != (item.x, item.y)
            assert item.colour in LOOKS[item.category].colours
            assert max(abs(old.x - item.x), abs(old.y - item.y)) <= 7
            x0, y0, x1, y1 = item.extent
            assert min(x0, y0) >= 0
            assert max(x1, y1) <= SIZE
    assert moved > 300
    assert light > 280


def test_rerendered_objects_hardly_ever_overlap():
    overlapping = total = 0
    for i, scene in enumerate(scenes()):
        for a, b in combinations(rerender(random.Random(i), scene).items, 2):
            (ax0, ay0, ax1, ay1), (bx0, by0, bx1, by1) = a.extent, b.extent
            total += 1
            overlapping += max(bx0 - ax1, ax0 - bx1, by0 - ay1, ay0 - by1) < 0
    assert overlapping / total < 0.02


def test_drift_moves_by_one_pixel_at_most_and_changes_nothing_else():
    moved = 0
    for i, scene in enumerate(scenes()):
        new = drift(random.Random(i), scene)
        assert (new.background, new.background_seed) == (scene.background, scene.background_seed)
        for old, item in zip(scene.items, new.items, strict=True):
            assert item == Item(old.category, old.colour, old.size, item.x, item.y, old.flip)
            shift = max(abs(old.x - item.x), abs(old.y - item.y))
            moved += shift > 0
            assert shift <= 1
    assert moved > 300


def test_sizes_of_new_objects_stay_within_the_worlds_bounds(pairs):
    sizes = {i.size for kind in KINDS for p in pairs[kind] for i in p.target.items}
    assert (min(sizes), max(sizes)) == (MIN_SIZE, MAX_SIZE)
