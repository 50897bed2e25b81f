import concurrent.futures
import dataclasses
import threading
import time
from collections import Counter

import numpy as np
import pytest

from nein.engine.answers import AnswerCache
from nein.loading.service import NoAnswer
from nein.metrics.chat import YES_NO, Chat, Completion, Message, Sampling
from nein.models.cached import CachedChat, Services

IMAGES = [np.full((4, 4, 3), value, np.uint8) for value in (10, 20)]
SAMPLING = Sampling(10, top=YES_NO)


class Talking(Chat):
    """Answers in capitals; what begins with "bad" has no answer the first `failing` times."""

    concurrent = 3

    def __init__(self, failing=0, **facts):
        self.failing, self.facts = failing, facts
        self.asked = []
        self.go_on = threading.Event()
        self.go_on.set()

    def describe(self):
        return {"model": "talking", "reference": "http://somewhere/v1", **self.facts}

    def stream(self, messages, sampling):
        for index, message in enumerate(messages):
            self.asked.append(message.parts[-1])
            assert self.go_on.wait(10)
            if message.parts[-1].startswith("bad") and Counter(self.asked)[message.parts[-1]] <= self.failing:
                yield index, Completion(error=NoAnswer("nobody answers"))
            else:
                text, likely = message.parts[-1].upper(), {"yes": 0.1 + 0.2, "no": None}
                yield index, Completion(text, likely, 3, False, "v1", {"input_tokens": 5})


@pytest.fixture
def cache(tmp_path):
    with AnswerCache(tmp_path / "answers.sqlite") as opened:
        yield opened


def messages(*texts, image=IMAGES[0]):
    return [Message((image, text)) for text in texts]


def test_answers_come_in_place_and_the_same_from_the_cache(cache):
    chat, again = Talking(), Talking(reference="http://moved/v1")
    first = CachedChat(chat, cache).complete(messages("a", "b", "a"), SAMPLING)
    assert [one.text for one in first] == ["A", "B", "A"]
    assert CachedChat(again, cache).complete(messages("a", "b", "a"), SAMPLING) == first
    assert (chat.asked, again.asked) == (["a", "b"], [])


CHANGES = {
    "text": {"text": "b"}, "image": {"image": IMAGES[1]}, "seed": {"seed": 1}, "model": {"model": "other"},
    "max_tokens": {"max_tokens": 9}, "temperature": {"temperature": 0.5}, "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 3}, "top": {"top": None}, "form": {"form": {"name": "Form"}},
}  # fmt: skip


def test_an_answer_serves_only_the_question_it_answers(cache):
    CachedChat(Talking(), cache).complete([Message((IMAGES[0], "a"))], SAMPLING)
    for change in CHANGES.values():
        given = {"text": "a", "image": IMAGES[0], "seed": None, "model": "talking"}
        more = {key: value for key, value in change.items() if key not in given}
        given |= {key: value for key, value in change.items() if key in given}
        chat, message = Talking(model=given["model"]), Message((given["image"], given["text"]), given["seed"])
        CachedChat(chat, cache).complete([message], dataclasses.replace(SAMPLING, **more))
        assert chat.asked == [given["text"]], change


def test_a_failure_is_never_kept_and_asked_again(cache):
    chat = Talking(failing=2)
    for _ in range(2):
        good, bad = CachedChat(chat, cache).complete(messages("good", "bad"), SAMPLING)
        assert (good.text, good.error, bad.text, str(bad.error)) == ("GOOD", None, "", "nobody answers")
    found = CachedChat(chat, cache).complete(messages("good", "bad"), SAMPLING)
    assert [one.text for one in found] == ["GOOD", "BAD"]
    CachedChat(chat, cache).complete(messages("bad"), SAMPLING)
    assert Counter(chat.asked) == {"good": 1, "bad": 3}  # and the answer is kept


@pytest.mark.parametrize("failing", [0, 1])
def test_of_equal_questions_in_flight_one_is_asked_and_the_next_where_that_has_no_answer(cache, failing):
    chat = Talking(failing)
    chat.go_on.clear()
    cached = CachedChat(chat, cache)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(cached.complete, messages("bad"), SAMPLING) for _ in range(3)]
        time.sleep(0.3)
        assert chat.asked == ["bad"]
        chat.go_on.set()
        texts = sorted(call.result(10)[0].text for call in calls)
    assert texts == (["", "BAD", "BAD"] if failing else ["BAD"] * 3)
    assert len(chat.asked) == 1 + failing


def test_only_the_answers_of_a_served_model_are_kept(cache):
    class Model:
        pass

    services = Services.create(object(), cache)
    here, served = Model(), Model()
    here.chat, served.chat = Talking(), Talking()
    here.chat.concurrent = 0
    assert services.keep(here).chat is here.chat
    assert isinstance(services.keep(served).chat, CachedChat)
    assert services.keep(IMAGES) is IMAGES
