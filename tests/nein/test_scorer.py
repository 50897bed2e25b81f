"""The models of a command that scores."""

from __future__ import annotations

from nein import metrics
from nein.benchmarks.nein import score
from nein.benchmarks.nein.score import Scorer


def test_a_model_that_another_command_seemed_to_make_needless_is_loaded_when_it_is_needed(tmp_path):
    asked: list[list[str]] = []

    def load(names):
        asked.append(list(names))
        return {kind: object() for kind in score.model_kinds(asked[-1])}

    scorer = Scorer(load, ["l1"], metrics.Settings(), tmp_path)
    assert scorer.loaded == {}
    scorer.score([], ["l1", "removal_vqa"], among=["l1", "removal_vqa"])
    first = dict(scorer.loaded)
    scorer.score([], ["removal_vqa"], among=["l1", "removal_vqa"])
    assert set(first) == {"vqa"}
    assert scorer.loaded == first
    assert asked == [["l1"], ["l1", "removal_vqa"]]
