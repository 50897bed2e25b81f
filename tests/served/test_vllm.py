"""Judges that vLLM runs, against stand-ins with the nano judge behind them: its server over loopback, and its
module in this process. vLLM itself is not run."""

import itertools
import logging
import math
import sys
from pathlib import Path

import pytest

from nein import metrics
from nein.judges.check import picture
from nein.metrics import MetricError
from nein.metrics.choices import Asked, prompt
from nein.metrics.judges.base import TEMPLATES
from nein.models import references
from tests.helpers import commands
from tests.loopback import say
from tests.served.brain import Brain
from tests.served.server import serve

PICTURES = [picture(index) for index in range(3)]
QUESTIONS = [TEMPLATES["question"].ask_presence(word) for word in ("cat", "dog", "clock", "person")]
MODULE = Path(__file__).parent / "module"


@pytest.fixture(scope="module")
def brain():
    return Brain("nano:llava")


@pytest.fixture
def served(brain, monkeypatch):
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    server = serve(brain)
    yield server
    server.close()


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.syspath_prepend(str(MODULE))
    yield
    sys.modules.pop("vllm", None)


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


def test_a_model_in_this_process_needs_vllm_and_says_so_before_anything_begins(tmp_path, capsys):
    done = commands.outcome(
        capsys,
        "eval", "--editor", "identity", "--models.vqa", "vllm:nano:llava", "--metrics", "removal_vqa",
        "--limit", "2", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert done.code == 2
    assert "pip install 'nein[vllm]'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_in_this_process_first_questions_go_in_one_batch_and_all_others_in_the_next(installed):
    asked = metrics.load_judge("vqa", "vllm:nano:llava")
    found = asked.ask(PICTURES, [QUESTIONS, QUESTIONS[:1], []])
    assert asked.endpoint._llm.batches == [1, 2, 3]
    wrap = TEMPLATES["llava-mistral"].wrap
    expected = local().ask(PICTURES, [[*map(wrap, QUESTIONS)], [wrap(QUESTIONS[0])], []])
    assert [[a.text for a in row] for row in found] == [[a.text for a in row] for row in expected]
    assert soft(found) == pytest.approx(soft(expected), abs=1e-5)
    asked.stop()


def test_the_weights_and_the_flag_are_in_the_fingerprint(installed, monkeypatch):
    judges = []
    for flag in ("0", "1"):
        monkeypatch.setenv("VLLM_BATCH_INVARIANT", flag)
        judges.append(metrics.load_judge("vqa", "vllm:nano:llava"))
    assert [judge.describe()["batch_invariant"] for judge in judges] == [False, True]
    assert judges[0].fingerprint != judges[1].fingerprint
    assert len(judges[0].describe()["weights"]) == 64


@pytest.mark.parametrize(
    ("model", "device", "said"),
    [
        ("nano:clip", "cpu", "vLLM cannot load 'nano:clip'"),
        ("./nowhere", "cpu", r"no model folder '\./nowhere'"),
        ("nano:llava", "cuda:3", "takes the first GPU"),
        *(
            (address, "cpu", "expected vllm:URL#MODEL")
            for address in ("http://host/v1", "http://:x/v1#m", "https://#m")
        ),
    ],
)
def test_what_vllm_cannot_load_is_one_sentence(installed, model, device, said):
    with pytest.raises(MetricError, match=said):
        metrics.load_judge("vqa", f"vllm:{model}", device=device)


def test_multiple_choice_is_answered_as_by_the_same_model_in_this_process():
    def shares(reply):
        return [math.exp(-99 if value is None else value) for value in reply.logprobs or ()]

    server = serve(Brain("nano:negvqa"), "negvqa")
    words = [prompt("vlmevalkit", f"What is {word}there?", ["cat", "dog"]) for word in ("", "not ")]
    asked = [[Asked(one) for one in words]] * 3
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
        ("vllm:owner/eye", None, "device", "vllm:owner/eye"),
        ("mine=vllm:http://host/v1#eye", None, "remote", "vllm:#eye"),
    ],
)
def test_a_model_behind_an_address_is_known_by_its_name(model, folder, place, identity):
    assert references.identity(model) == identity
    moved = references.moved(model)
    assert moved is None if folder is None else str(moved).startswith(folder)
    assert references.place(model) == place
