"""Judges behind vLLM's server, against a stand-in on the loopback address with the nano judge behind it. vLLM
itself is not run."""

import itertools
import logging
import math

import pytest

from nein import metrics
from nein.judges.check import picture
from nein.metrics import MetricError
from nein.metrics.choices import ChoiceQuestion, prompt
from nein.metrics.judges.base import TEMPLATES
from nein.models import references
from tests.loopback import say
from tests.served.brain import Brain
from tests.served.server import serve

PICTURES = [picture(index) for index in range(3)]
QUESTIONS = [TEMPLATES["question"].ask_presence(word) for word in ("cat", "dog", "clock", "person")]


@pytest.fixture(scope="module")
def brain():
    return Brain("nano:llava")


@pytest.fixture
def served(brain, monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    server = serve(brain)
    yield server
    server.close()


def reference(server, model="nano-judge"):
    return f"vllm:{server.url}#{model}"


def local():
    return metrics.load_judge("vqa", "nano:llava")


def soft(answers):
    return [answer.p_yes for row in answers for answer in row]


def test_a_served_judge_answers_as_the_same_model_in_this_process_does(served):
    found = metrics.load_judge("vqa", reference(served)).ask(PICTURES, [QUESTIONS] * 3)
    expected = local().ask(PICTURES, [[*map(TEMPLATES["llava-mistral"].wrap, QUESTIONS)]] * 3)
    said = [[[(a.text, a.token_count) for a in row] for row in rows] for rows in (found, expected)]
    assert said[0] == said[1]
    # One prompt alone and behind a cache: the same arithmetic in another order.
    assert soft(found) == pytest.approx(soft(expected), abs=1e-5)


def test_what_the_server_says_of_itself_is_in_the_fingerprint(brain, caplog):
    marks = set()
    for tells in (False, True):
        server = serve(brain, tells=tells)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            judge = metrics.load_judge("vqa", reference(server))
        server.close()
        facts = judge.describe()
        assert facts["engine"] == "vLLM 0.33.0"
        assert facts["server"] == "vllm-0.33.0-cpu-tp1-fp32"
        assert facts["batch_invariant"] == (True if tells else "not said")
        assert ("VLLM_BATCH_INVARIANT" in caplog.text) != tells
        marks.add(judge.fingerprint)
    assert len(marks) == 2


NO_MODEL = (404, {}, {})


@pytest.mark.parametrize(
    ("models", "reply", "said"),
    [
        (None, (400, {"error": {"message": "20 is greater than max allowed: 5"}}, {}), "--max-logprobs 20"),
        (None, (200, say("Yes"), {}), "no log-probabilities"),
        (NO_MODEL, NO_MODEL, "ends in /v1"),
    ],
)
def test_a_server_that_is_no_vllm_or_gives_too_little_is_refused(server, models, reply, said):
    server.rule = lambda asked, count: reply if models or "logprobs" in asked else (200, say("Yes"), {})
    server.models = models or server.models
    with pytest.raises(MetricError, match=said):
        metrics.load_judge("vqa", reference(server, "eye-7b"))


@pytest.mark.parametrize("address", ["http://host/v1", "http://:x/v1#m", "https://#m", "nano:llava"])
def test_what_is_no_address_with_a_model_is_one_sentence(address):
    with pytest.raises(MetricError, match="expected vllm:URL#MODEL"):
        metrics.load_judge("vqa", f"vllm:{address}")


def test_multiple_choice_is_answered_as_by_the_same_model_in_this_process():
    def shares(reply):
        return [math.exp(-99 if value is None else value) for value in reply.logprobs or ()]

    server = serve(Brain("nano:negvqa"), "negvqa")
    words = [prompt("vlmevalkit", f"What is {word}there?", ["cat", "dog"]) for word in ("", "not ")]
    asked = [[ChoiceQuestion(one) for one in words]] * 3
    models = [metrics.load_choices(name) for name in (f"vllm:{server.url}#negvqa", "nano:negvqa")]
    rows = (model.answer(PICTURES, asked, ["generated", "logprob"]) for model in models)
    for a, b in zip(*(itertools.chain.from_iterable(one) for one in rows), strict=True):
        assert a.text == b.text
        # Of the 20 likeliest tokens only: a way of writing a letter may be missing among them.
        assert shares(a) == pytest.approx(shares(b), abs=1e-3)
    server.close()


@pytest.mark.parametrize(
    ("model", "folder", "place", "identity"),
    [
        ("vllm:http://host/v1#owner/eye", "eye-", "remote", "vllm:#owner/eye"),
        ("openai:http://host/v1#eye", "openai-eye", "remote", "openai:#eye"),
        ("mine=vllm:http://host/v1#eye", None, "remote", "vllm:#eye"),
    ],
)
def test_a_model_behind_an_address_is_known_by_its_name(model, folder, place, identity):
    assert references.identity(model) == identity
    moved = references.moved(model)
    assert moved is None if folder is None else str(moved).startswith(folder)
    assert references.place(model) == place
