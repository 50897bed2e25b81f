"""Pairs of scenes in scope: each sentence is true of its scene and false of the other, by what is drawn."""

from __future__ import annotations

from collections import Counter

import pytest

from nein.nano import scope
from nein.nano.scenes import Scene
from nein.wording.languages.base import Named

PAIRS = list(scope.pairs("val", len(scope.CELLS)))


def test_every_family_has_every_difficulty_but_a_denial_above_the_past() -> None:
    cells = Counter((pair.construction, pair.others, pair.depth) for pair in PAIRS)
    assert set(cells.values()) == {1}
    assert {pair.depth for pair in PAIRS if pair.construction == "past"} == {0}
    assert {(pair.others, pair.depth) for pair in PAIRS if pair.construction == "clause"} == {
        (others, depth) for others in (0, 1, 2, 3) for depth in (0, 1)
    }


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.construction}-{pair.others}-{pair.depth}")
def test_the_first_sentence_holds_in_the_first_scene_alone(pair: scope.Pair) -> None:
    first, second = pair.scenes
    assert first.items[: pair.others] == second.items[: pair.others]
    assert {pair.named.thing, pair.named.other}.isdisjoint(i.category for i in first.items[: pair.others])
    assert (HOLDS[pair.construction](first, pair.named), HOLDS[pair.construction](second, pair.named)) == (
        True,
        False,
    )
    twin = TWIN[pair.construction]
    assert (twin(first, pair.named), twin(second, pair.named)) == (False, True)


def colours(scene: Scene, named: Named) -> list[str]:
    return [item.colour for item in scene.items if item.category == named.thing]


def has(scene: Scene, category: str) -> bool:
    return category in scene.categories


# The meaning of every sentence and of its twin, as a condition on what is drawn.
HOLDS = {
    "except_one": lambda scene, named: colours(scene, named) == [named.colour],
    "neither_nor": lambda scene, named: not has(scene, named.thing) and not has(scene, named.other),
    "scoped": lambda scene, named: has(scene, named.thing) and not has(scene, named.other),
    "not_all": lambda scene, named: any(c != named.colour for c in colours(scene, named)),
    "past": lambda scene, named: not has(scene, named.thing),
    "clause": lambda scene, named: any(c != named.second for c in colours(scene, named)),
}
TWIN = {
    "except_one": lambda scene, named: any(c != named.colour for c in colours(scene, named)),
    "neither_nor": lambda scene, named: has(scene, named.other) and not has(scene, named.thing),
    "scoped": lambda scene, named: has(scene, named.other) and not has(scene, named.thing),
    "not_all": lambda scene, named: set(colours(scene, named)) == {named.colour},
    "past": lambda scene, named: has(scene, named.thing),
    "clause": lambda scene, named: named.second in colours(scene, named),
}
