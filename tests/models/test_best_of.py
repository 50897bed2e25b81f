import json
from concurrent.futures import CancelledError
from functools import partial

import numpy as np
import pytest

from nein.editors import EditRequest, EditResult
from nein.editors.base import Identity
from nein.engine.answers import AnswerCache
from nein.metrics.base import MemoryStore, Score
from nein.models import editor_choice, judges
from nein.models.cached import Services
from nein.models.remedies import editors as remedies
from tests.loopback import say
from tests.rehearsal import ScriptedJudge

CUP = "The image doesn't have any cup."


class Seeded(Identity):
    def __init__(self):
        super().__init__(name="seeded")

    def _paint(self, request):
        return np.full_like(request.image, request.seed % 251)


class Brightest(judges.RewardJudge):
    fingerprint = "brightest"

    def __init__(self, unreadable=0):
        super().__init__(None)
        self.unreadable = unreadable

    def describe(self):
        return {}

    def score(self, sources, edits, instructions):
        means = [float(edit.mean()) for edit in edits]
        return [Score(None, "too dark") if m < self.unreadable else Score(m) for m in means]

    def prefer(self, *pairs):
        raise AssertionError("a judge that scores is not asked to compare")


def requests(n):
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    return [EditRequest(f"NeIn_{k}", picture, CUP, 1000 + k) for k in range(n)]


def best(judge, count=4):
    return remedies.BestOf(Seeded(), judge, count, f"best-of:{count}:test")


def shades(results):
    return [int(one.image[0, 0, 0]) for one in results if one.image is not None]


def test_the_candidate_that_the_judge_likes_best_is_taken_and_the_first_is_the_plain_edit():
    asked = requests(5)
    results = best(Brightest()).edit(asked)
    every = [[remedies.make_seed(one, k) % 251 for k in range(4)] for one in asked]
    assert shades(results) == [max(row) for row in every]
    assert [row[0] for row in every] == shades(Seeded().edit(asked))
    assert results[0].note.startswith(f"best-of:4:test: candidate {every[0].index(max(every[0])) + 1} of 4 (")
    assert len({seed for one in asked for seed in (remedies.make_seed(one, k) for k in range(4))}) == 20


def test_a_choice_depends_neither_on_the_batch_nor_on_the_order_and_of_equals_the_first_is_taken():
    class Indifferent(Brightest):
        def score(self, sources, edits, instructions):
            return [Score(0.5)] * len(edits)

    asked = requests(6)
    together = best(Brightest()).edit(asked)
    alone = [best(Brightest()).edit([one])[0] for one in reversed(asked)][::-1]
    assert [(*shades([one]), one.note) for one in together] == [(*shades([one]), one.note) for one in alone]
    assert shades(best(Indifferent()).edit(asked)) == shades(Seeded().edit(asked))


def test_what_cannot_be_judged_is_counted_and_never_taken():
    asked = requests(1)
    every = sorted(remedies.make_seed(asked[0], k) % 251 for k in range(4))
    editor = best(Brightest(unreadable=every[2]))
    [result] = editor.edit(asked)
    assert shades([result]) == [every[3]]
    assert result.note.count("unscored") == 2
    [nothing] = best(Brightest(unreadable=255)).edit(asked)
    assert nothing.image is None
    assert nothing.error == "none of 4 edits could be judged: too dark"


def test_a_candidate_without_a_picture_is_not_judged():
    class Half(Seeded):
        def edit(self, requests):
            made = super().edit(requests)
            return [
                EditResult(one.id, None, "not this one") if request.seed == 1000 else one
                for one, request in zip(made, requests, strict=True)
            ]

    [result] = remedies.BestOf(Half(), Brightest(), 2, "arm").edit(requests(1))
    assert shades([result]) == [remedies.make_seed(requests(1)[0], 1) % 251]
    [plain, arm] = editor_choice.resolve_editors(["ip2p"], "nano", {}, mend=["best-of:4:removal"])
    assert [choice.uses_run_judge for choice in (plain, arm)] == [False, True]


def test_removal_reads_from_either_sentence_what_is_to_be_gone_and_asks_for_it():
    said = []

    def rule(image, prompt):
        said.append(prompt)
        return "No" if image[0, 0, 0] > 100 else "Yes" if image[0, 0, 0] else "Perhaps"

    judge = judges.RemovalReward(ScriptedJudge(rule))
    dark, bright, black = (np.full((4, 4, 3), value, np.uint8) for value in (50, 200, 0))
    sentences = [CUP, "Remove the cup.", CUP, "Add a cup."]
    scores = judge.score([dark] * 4, [bright, dark, black, dark], sentences)
    assert [one.value for one in scores] == [1, 0, None, None]
    assert "'Perhaps' is neither yes nor no" in scores[2].reason
    assert scores[3].reason == judges.NAMES_NOTHING
    assert all("contain cup?" in prompt for prompt in said)
    assert judges.find_removals(["Remove the bus and the red dog.", "Neither a bus nor a dog is there."]) == [
        ("bus", "red dog"),
        ("bus", "dog"),
    ]


def test_an_endpoint_that_chooses_is_never_asked_twice_and_not_after_stop(tmp_path, server):
    server.rule = lambda body, count: (200, say(json.dumps({"reasoning": "", "score": [20, 20]})), {})
    name = f"best-of:2:editscore:openai:{server.url}#eye-7b"
    made = partial(remedies.add_remedy, Seeded(), name, device="cpu", dtype="float32", removal=Brightest)
    for _ in range(2):
        with AnswerCache(tmp_path / "answers.sqlite") as cache:
            [result] = made(services=Services(cache, {})).edit(requests(1))
        assert "(8, 8)" in result.note
    assert len(server.requests) == 4  # two questions about each of two edits
    editor = made(services=Services(MemoryStore(), {}))
    editor.stop()
    with pytest.raises(CancelledError):
        editor.edit(requests(1))
    assert len(server.requests) == 4
