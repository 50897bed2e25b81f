"""Pairs of scenes in scope: each sentence is true of its scene and false of the other, by what is drawn."""

import json
from collections import Counter

import pytest

from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.runs import RunDir
from nein.benchmarks.nein.stages import Score
from nein.datasets import nein as loading
from nein.engine.folder import Blocks
from nein.engine.images import decode
from nein.loading.errors import UserError
from nein.nano import scope
from nein.wording.families import CONSTRUCTIONS

PAIRS = list(scope.iter_pairs("val", len(scope.CELLS)))


def test_every_family_has_every_difficulty_but_a_denial_above_the_past():
    cells = Counter((pair.construction, pair.others, pair.depth) for pair in PAIRS)
    assert set(cells.values()) == {1}
    assert {pair.depth for pair in PAIRS if pair.construction == "past"} == {0}
    assert {(pair.others, pair.depth) for pair in PAIRS if pair.construction == "clause"} == {
        (others, depth) for others in (0, 1, 2, 3) for depth in (0, 1)
    }


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.construction}-{pair.others}-{pair.depth}")
def test_the_first_sentence_holds_in_the_first_scene_alone(pair):
    first, second = pair.scenes
    assert first.items[: pair.others] == second.items[: pair.others]
    assert {pair.words.thing, pair.words.other}.isdisjoint(i.category for i in first.items[: pair.others])
    for sentence, truth in ((HOLDS, [True, False]), (TWIN, [False, True])):
        assert [sentence[pair.construction](scene, pair.words) for scene in pair.scenes] == truth


def colours(scene, named):
    return [item.color for item in scene.items if item.category == named.thing]


def has(scene, category):
    return category in scene.categories


# The meaning of every sentence and of its twin, as a condition on what is drawn.
HOLDS = {
    "except_one": lambda scene, named: colours(scene, named) == [named.color],
    "neither_nor": lambda scene, named: not has(scene, named.thing) and not has(scene, named.other),
    "scoped": lambda scene, named: has(scene, named.thing) and not has(scene, named.other),
    "not_all": lambda scene, named: any(c != named.color for c in colours(scene, named)),
    "past": lambda scene, named: not has(scene, named.thing),
    "clause": lambda scene, named: any(c != named.second for c in colours(scene, named)),
}
TWIN = {
    "except_one": lambda scene, named: any(c != named.color for c in colours(scene, named)),
    "neither_nor": lambda scene, named: has(scene, named.other) and not has(scene, named.thing),
    "scoped": lambda scene, named: has(scene, named.other) and not has(scene, named.thing),
    "not_all": lambda scene, named: set(colours(scene, named)) == {named.color},
    "past": lambda scene, named: has(scene, named.thing),
    "clause": lambda scene, named: named.second in colours(scene, named),
}


EVERY = list(scope.iter_edits("val", scope.EDITS))
FIRST_DENIED = 24 * scope.EDITS_PER_CELL
EDITS = [*EVERY[:24], *EVERY[FIRST_DENIED : FIRST_DENIED + 20]]


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: f"{edit.construction}-{edit.others}-{edit.depth}")
def test_an_instruction_is_true_of_the_target_and_of_nothing_less(edit):
    twin = TWIN[edit.construction]
    holds = (lambda scene, named: not twin(scene, named)) if edit.depth else HOLDS[edit.construction]
    assert holds(edit.target, edit.words)
    assert holds(edit.scene, edit.words) == all(edit.stays)
    assert edit.stays[: edit.others] == (True,) * edit.others
    gone = [item for item, stays in zip(edit.scene.items, edit.stays, strict=True) if not stays]
    words = edit.object.split()
    assert words[-1] in {i.category.split()[-1] for i in gone or edit.scene.items[edit.others :]}


def test_edits_are_as_difficult_as_pairs_and_those_without_a_denial_above_come_first():
    cells = [(edit.construction, edit.others, edit.depth) for edit in EVERY]
    assert Counter(cells) == dict.fromkeys(scope.CELLS, scope.EDITS_PER_CELL)
    assert [depth for _, _, depth in cells] == [0] * FIRST_DENIED + [1] * (len(cells) - FIRST_DENIED)


def test_edits_are_a_data_set_in_neins_layout_whose_things_are_known(tmp_path):
    scope.write_edits(tmp_path, "val", 6)
    data = loading.load(str(tmp_path))
    assert [sample.family for sample in data.samples] == list(CONSTRUCTIONS)
    first = data.samples[0]
    assert first.negative.startswith("There are no ")
    assert (first.object, first.stays) == (EDITS[0].object, False)
    assert first.difficulty == (("other things", 0), ("denials above", 0))
    assert [thing.stays for thing in first.things] == [True, False]
    assert (decode(first.things[1].without) == decode(first.source_path)).all()
    for sample in data.samples:
        assert (sample.source_path == sample.sample_path) == sample.stays
    past = loading.load(str(tmp_path), families=["past", "clause"])
    assert [sample.family for sample in past.samples] == ["past", "clause"]
    assert loading.reload(past.origin) == past
    with pytest.raises(UserError, match="no sample of implicit; they have except_one, "):
        loading.load(str(tmp_path), families=["implicit"])


def test_data_of_another_name_or_without_things_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match="'nano:scope-xx'"):
        loading.load("nano:scope-xx")
    scope.write_edits(tmp_path, "val", 1)
    file = tmp_path / "val.json"
    (record,) = json.loads(file.read_text(encoding="utf-8"))
    record["things"][0]["stays"] = "yes"
    file.write_text(json.dumps([record]), encoding="utf-8")
    with pytest.raises(UserError, match="things"):
        loading.load(str(tmp_path))


def test_a_block_of_scores_is_made_again_where_an_image_without_a_thing_has_changed(tmp_path):
    dataset = loading.load("nano:scope")
    blocks = Blocks(len(dataset.samples), 4, range(4))
    given = {"dataset": dataset, "edited": blocks, "metrics": ["obeyed"], "config": EvalConfig()}
    stage = Score(run=RunDir(tmp_path), model=None, **given)
    known = {thing.without for sample in dataset.samples[:4] for thing in sample.things}
    assert known
    assert known <= set(stage.files(range(4)))
