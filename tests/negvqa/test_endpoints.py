import contextlib
import json
import shlex
import sqlite3
import sys
from collections import Counter

import numpy as np
import pytest

from nein.metrics.chat.endpoint import Endpoint
from nein.metrics.choices import ChatChoices, ChoiceQuestion, write_prompt
from nein.metrics.letters import SCORINGS
from tests.loopback import HANG_UP, say
from tests.metrics.tiny import picture
from tests.negvqa.test_run import folder_of
from tests.negvqa.tiny import answers as answers_of
from tests.negvqa.tiny import figure, run, write_questions

ASKED = ChoiceQuestion(write_prompt("paper", "What is not there?", ["cat", "dog"]))


def model(server, **options):
    return ChatChoices(Endpoint(server.url, "eye-7b", **options))


def question(body):
    return " ".join(part["text"] for part in body["messages"][0]["content"] if part["type"] == "text")


def answer(body):
    return say("B" if "not" in question(body) else "A")


def ask(server, questions, out, *more):
    return run(
        "--model", f"openai:{server.url}#eye-7b", "--data", questions, "--out", out,
        "--endpoint.concurrency", 3, "--endpoint.retries", 0, "--blind", 0, *more,
    )  # fmt: skip


def answers(out):
    return answers_of(folder_of(out).path)


def kept(out):
    """How many answers are on disk."""
    with contextlib.closing(sqlite3.connect(out / "cache" / "answers.sqlite")) as cache:
        return cache.execute("select count(*) from answers").fetchone()[0]


def test_the_picture_stands_between_the_words_and_letters_come_with_probabilities(server):
    server.rule = lambda body, count: (200, say(" B.", {"B": 0.5, " B": 0.2, "A": 0.1, "Because": 0.1}), {})
    found = model(server).answer([picture(3)], [[ASKED]], SCORINGS)[0][0]
    assert found.text == "B."
    assert found.logprobs == pytest.approx((np.log(0.1), np.log(0.7)))
    assert found.likeliest == "B"
    content = server.requests[0]["messages"][0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text"]
    assert server.requests[0]["temperature"] == 0


def test_what_was_answered_before_the_server_went_away_is_never_asked_again(server, tmp_path, capsys):
    server.rule = lambda body, count: (HANG_UP if count > 7 else 200, answer(body), {})
    questions, out = write_questions(tmp_path), tmp_path / "out"
    assert ask(server, questions, out) == 2
    error = capsys.readouterr().err
    assert "10 questions in a row unanswered" in error
    assert "Traceback" not in error
    assert kept(out) == 7
    answered = {json.dumps(body) for body in server.requests[:7]}
    server.requests.clear()
    server.rule = lambda body, count: (200, answer(body), {})
    assert ask(server, questions, out) == 0
    asked = {json.dumps(body) for body in server.requests}  # one on its way may come after the command's end
    assert (len(asked), asked & answered) == (24 - 7, set())
    assert Counter(row.text for row in answers(out)) == {"A": 12, "B": 12}
    server.requests.clear()
    assert ask(server, questions, out) == 0
    assert server.requests == []


def test_a_question_that_failed_is_unscored_counted_aloud_and_asked_again_by_the_same_command(
    server, tmp_path, capsys, monkeypatch
):
    server.rule = lambda body, count: (400, {}, {}) if "number 5?" in question(body) else (200, say("A"), {})
    questions, out = write_questions(tmp_path), tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["nein", "negvqa", "--out", str(out)])
    for protocol in ("fixed", "paper"):
        assert ask(server, questions, out, "--protocol", protocol) == 0
        said = capsys.readouterr().err
        assert "openai-eye-7b: 2 have no score (2 x the endpoint refused the request: HTTP 400" in said
        assert f"2 failed; retry with: nein negvqa --out {shlex.quote(str(out))}" in said
        what = {"task": "accuracy", "category": "Average", "scoring": "generated", "protocol": protocol}
        average = figure(folder_of(out).path, **what)
        assert (average["n"], average["unscored"]) == (11, 1)
    assert {row.id for row in answers(out) if row.error} == {"15"}
    assert ask(server, questions, out, "--fail-on-unscored") == 3
    assert "Negation gap" in capsys.readouterr().out  # nothing is lost by it
    assert folder_of(out).manifest()["status"] == "complete"
    server.rule = lambda body, count: (200, say("A"), {})
    server.requests.clear()
    assert ask(server, questions, out, "--fail-on-unscored") == 0
    assert "no score" not in capsys.readouterr().err
    assert len(server.requests) == 2
    assert not any(row.error for row in answers(out))
