import concurrent.futures
import threading
import time

import numpy as np
import pytest

from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError
from nein.loading.service import NoAnswer
from nein.metrics.choices import ChoiceQuestion, Prompt, Reply, answer_each
from nein.models.cached import CachedModel, Questions

PICTURES = [np.full((4, 4, 3), value, np.uint8) for value in (10, 20)]


class Model:
    fingerprint = "model"
    scorings = ("generated", "logprob")

    def __init__(self, concurrent=3):
        self.concurrent = concurrent
        self.calls = []
        self.inside = self.most = 0
        self.stopped = threading.Event()
        self._mutex = threading.Lock()

    def describe(self):
        return {"kind": "choice"}

    def stop(self):
        self.stopped.set()

    def answer(self, images, asked, scorings):
        with self._mutex:
            self.calls.append([one.prompt.text for row in asked for one in row])
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            return [[self.reply(one.prompt.text) for one in row] for row in asked]
        finally:
            with self._mutex:
                self.inside -= 1

    def reply(self, text):
        time.sleep(0.01)
        if text.startswith("broken"):
            raise ValueError("a bad question")
        if text.startswith("silent"):
            return Reply(error=f"nobody answers {text}", silent=True)
        return Reply(text.upper(), (None, -0.1), ("Yes", "No"))


def asked(*texts):
    return [ChoiceQuestion(Prompt("", text)) for text in texts]


@pytest.fixture
def cache(tmp_path):
    with AnswerCache(tmp_path / "answers.sqlite") as opened:
        yield opened


def test_replies_come_in_place_side_by_side_and_the_same_from_the_cache(cache):
    model = Model()
    questions = [asked("a", "b", "c", "d"), asked("a", "a")]  # equal ones of a call are asked once
    first = CachedModel(model, cache).answer(PICTURES, questions, ["generated"])
    assert [[reply.text for reply in row] for row in first] == [["A", "B", "C", "D"], ["A", "A"]]
    assert 2 <= model.most <= 3
    again = Model()
    assert CachedModel(again, cache).answer(PICTURES, questions, ["generated"]) == first
    assert (len(model.calls), again.calls) == (5, [])


@pytest.mark.parametrize("change", ["prompt", "picture", "scoring", "options", "model"])
def test_an_answer_serves_only_the_question_it_answers(cache, change):
    CachedModel(Model(), cache).answer(PICTURES[:1], [asked("a")], ["generated"])
    model = Model()
    if change == "model":
        model.fingerprint = "other"
    one = ChoiceQuestion(Prompt("", "b" if change == "prompt" else "a"), 3 if change == "options" else 2)
    scorings = ["logprob"] if change == "scoring" else ["generated"]
    CachedModel(model, cache).answer([PICTURES[change == "picture"]], [[one]], scorings)
    assert len(model.calls) == 1


def test_a_failure_is_one_reply_and_asked_again(cache):
    for _ in range(2):
        model = Model()
        found = CachedModel(model, cache).answer(PICTURES[:1], [asked("a", "broken")], ["generated"])[0]
        assert (found[0].text, found[1].text) == ("A", None)
        assert found[1].error == "ValueError: a bad question"
    assert model.calls == [["broken"]] * len(model.calls)
    many = asked(*(f"broken {number}" for number in range(12)))  # nobody is silent
    assert all(
        reply.error for reply in CachedModel(Model(), cache).answer(PICTURES[:1], [many], ["generated"])[0]
    )


def test_silence_is_counted_over_calls_and_ends_every_one(cache):
    model = Model()
    cached, many = CachedModel(model, cache), asked(*(f"silent {number}" for number in range(99)))
    for one in many[:9]:
        assert cached.answer(PICTURES[:1], [[one]], ["generated"])[0][0].silent
    cached.answer(PICTURES[:1], [asked("an answer begins the count again")], ["generated"])
    with pytest.raises(UserError, match=r"10 questions in a row without an answer \(nobody answers silent"):
        answer_each(cached, PICTURES[:1], [many], ["generated"])  # what isolates failures lets that through
    assert len(model.calls) <= 10 + 10 + 3
    with pytest.raises(UserError, match="10 questions in a row"):
        cached.answer(PICTURES[:1], [asked("later")], ["generated"])


def test_stop_ends_calls_that_wait_in_other_threads_and_later_ones(cache):
    class Slow(Model):
        def reply(self, text):
            self.stopped.wait(30)
            return Reply(error="not tried again", silent=True)

    remembered = CachedModel(Slow(), cache)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(remembered.answer, PICTURES[:1], [asked(*"abcdefgh")], ["generated"])
        time.sleep(0.3)
        start = time.perf_counter()
        remembered.stop()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result()
        assert time.perf_counter() - start < 5
    with pytest.raises(concurrent.futures.CancelledError):
        remembered.answer(PICTURES[:1], [asked("later")], ["generated"])


def test_calls_side_by_side_share_the_questions_that_may_be_in_flight(cache):
    model = Model()
    cached = CachedModel(model, cache)
    parts = [asked(*(f"{name} {number}" for number in range(6))) for name in "abcd"]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda part: cached.answer(PICTURES[:1], [part], ["generated"]), parts))
    assert len(model.calls) == sum(len(row) for [row] in found) == 24
    assert 2 <= model.most <= 3


def test_a_local_models_questions_stay_together_and_are_not_kept(cache):
    model = Model(concurrent=0)
    for _ in range(2):
        found = CachedModel(model, cache).answer(PICTURES, [asked("a", "b"), asked("c")], ["generated"])
        assert [[reply.text for reply in row] for row in found] == [["A", "B"], ["C"]]
    assert model.calls == [["a", "b", "c"]] * 2
    found = CachedModel(model, cache).answer(PICTURES[:1], [asked("a", "broken")], ["generated"])
    assert [reply.text for reply in found[0]] == ["A", None]


@pytest.mark.parametrize("at_once", [1, 4])  # it waits for the only place, or for its equal
def test_a_question_that_is_in_flight_or_answered_meanwhile_is_asked_once(cache, at_once):
    questions = Questions(cache, "model", at_once=at_once, limit=10)
    begun, go_on = threading.Event(), threading.Event()
    asked = []

    def ask():
        asked.append("again")
        begun.set()
        assert go_on.wait(10)
        return {"text": f"answer {len(asked)}"}

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        first = pool.submit(questions.answer, "key", ask)
        assert begun.wait(10)
        others = [pool.submit(questions.answer, "key", ask) for _ in range(2)]
        time.sleep(0.3)  # they have looked, found nothing, and wait
        assert len(asked) == 1
        go_on.set()
        assert [one.result() for one in (first, *others)] == [{"text": "answer 1"}] * 3
    assert len(asked) == 1


def test_of_equal_questions_in_flight_the_second_is_asked_where_the_first_has_no_answer(cache):
    questions = Questions(cache, "model", at_once=4, limit=10)
    begun, go_on = threading.Event(), threading.Event()

    def fail():
        begun.set()
        assert go_on.wait(10)
        raise NoAnswer("not now")

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(questions.answer, "key", fail)
        assert begun.wait(10)
        second = pool.submit(questions.answer, "key", lambda: {"text": "an answer"})
        go_on.set()
        assert second.result() == {"text": "an answer"}
        with pytest.raises(NoAnswer, match="not now"):
            first.result()
