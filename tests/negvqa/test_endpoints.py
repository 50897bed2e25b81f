"""Against a real server on the loopback address: what is sent, retried, given up, and never asked twice."""

from __future__ import annotations

import base64
import contextlib
import io
import shlex
import sqlite3
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from nein.engine.answers import AnswerCache
from nein.metrics.backends.endpoint import Endpoint
from nein.metrics.choices import Asked, prompt
from nein.metrics.judges.endpoint import EndpointChoices
from nein.metrics.letters import SCORINGS
from tests.loopback import HANG_UP, Server, say
from tests.metrics.tiny import picture
from tests.negvqa.test_run import folder_of
from tests.negvqa.tiny import answers as answers_of
from tests.negvqa.tiny import figure, run, write_questions

ASKED = Asked(prompt("paper", "What is not there?", ["cat", "dog"]))


def model(server: Server, **options: Any) -> EndpointChoices:
    return EndpointChoices(Endpoint(server.url, "eye-7b", **options))


def question(body: dict[str, Any]) -> str:
    return " ".join(part["text"] for part in body["messages"][0]["content"] if part["type"] == "text")


def ask(server: Server, questions: Path, out: Path, *more: object) -> int:
    return run(
        "--model", f"openai:{server.url}#eye-7b", "--data", questions, "--out", out,
        "--concurrency", 3, "--retries", 0, "--formats", "csv", "--blind", 0, *more,
    )  # fmt: skip


def answers(out: Path) -> list[dict[str, Any]]:
    return answers_of(folder_of(out).path)


def kept(out: Path) -> int:
    """How many answers are on disk."""
    with contextlib.closing(sqlite3.connect(out / "cache" / "answers.sqlite")) as cache:
        return cache.execute("select count(*) from answers").fetchone()[0]


def test_the_picture_stands_between_the_words_and_letters_come_with_probabilities(server: Server) -> None:
    server.rule = lambda body, count: (200, say(" B.", {"B": 0.5, " B": 0.2, "A": 0.1, "Because": 0.1}), {})
    found = model(server).answer([picture(3)], [[ASKED]], SCORINGS)[0][0]
    assert found.text == "B."
    assert found.logprobs == pytest.approx((np.log(0.1), np.log(0.7)))
    assert found.likeliest == "B"
    content = server.requests[0]["messages"][0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text"]
    data = base64.b64decode(content[1]["image_url"]["url"].removeprefix("data:image/png;base64,"))
    assert (np.array(Image.open(io.BytesIO(data))) == picture(3)).all()
    assert server.requests[0]["temperature"] == 0


def test_a_server_at_another_address_goes_on_with_the_same_run(server: Server, tmp_path: Path) -> None:
    server.rule = lambda body, count: (200, say("A"), {})
    questions, out = write_questions(tmp_path), tmp_path / "out"
    assert ask(server, questions, out, "--limit", 4) == 0
    moved = Server()
    try:
        moved.rule = server.rule
        assert ask(moved, questions, out) == 0
    finally:
        moved.close()
    assert len(server.requests) + len(moved.requests) == 24
    assert len(answers(out)) == 24


def test_what_was_answered_before_a_kill_is_never_asked_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rule = lambda body, count: (200, say("B" if "not" in question(body) else "A"), {})
    questions, out = write_questions(tmp_path), tmp_path / "out"
    put, count, lock = AnswerCache.put, [], threading.Lock()

    def dies(self: AnswerCache, *answer: Any) -> None:
        with lock:
            if len(count) == 7:
                raise KeyboardInterrupt
            count.append(1)
            put(self, *answer)

    monkeypatch.setattr(AnswerCache, "put", dies)
    assert ask(server, questions, out) == 130
    time.sleep(0.5)  # what was in flight arrives, and dies as well
    monkeypatch.undo()
    assert kept(out) == 7
    server.requests.clear()
    assert ask(server, questions, out) == 0
    assert len(server.requests) == 24 - 7
    assert Counter(row["text"] for row in answers(out)) == {"A": 12, "B": 12}
    server.requests.clear()
    assert ask(server, questions, out) == 0
    assert server.requests == []


def test_a_question_that_failed_is_unscored_and_asked_again_by_the_same_command(
    server: Server, tmp_path: Path
) -> None:
    server.rule = lambda body, count: (404, {}, {}) if "number 5?" in question(body) else (200, say("A"), {})
    questions, out = write_questions(tmp_path), tmp_path / "out"
    assert ask(server, questions, out) == 0
    errors = [row for row in answers(out) if row["error"]]
    assert {row["id"] for row in errors} == {"15"}
    assert all("HTTP 404" in row["error"] for row in errors)
    for protocol in ("fixed", "paper"):
        what = {"task": "accuracy", "category": "Average", "scoring": "generated", "protocol": protocol}
        average = figure(folder_of(out).path, **what)
        assert (average["n"], average["unscored"]) == (11, 1)
    server.rule = lambda body, count: (200, say("A"), {})
    server.requests.clear()
    assert ask(server, questions, out) == 0
    assert len(server.requests) == 2
    assert not any(row["error"] for row in answers(out))


def test_failures_are_counted_aloud_with_the_command_that_asks_again(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.rule = lambda body, count: (400, {}, {}) if "number 5?" in question(body) else (200, say("A"), {})
    questions, out = write_questions(tmp_path), tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["nein", "negvqa", "--out", str(out)])
    for protocol in ("fixed", "paper"):
        assert ask(server, questions, out, "--protocol", protocol) == 0
        said = capsys.readouterr().err
        assert "openai-eye-7b: 2 have no score (2 x the endpoint refused the question: HTTP 400" in said
        assert f"2 failed; to ask again: nein negvqa --out {shlex.quote(str(out))}" in said
    assert ask(server, questions, out, "--fail-on-unscored") == 3
    assert "Negation gap" in capsys.readouterr().out  # nothing is lost by it
    assert folder_of(out).manifest()["status"] == "complete"
    server.rule = lambda body, count: (200, say("A"), {})
    assert ask(server, questions, out, "--fail-on-unscored") == 0
    assert "no score" not in capsys.readouterr().err


def test_a_server_that_goes_away_ends_the_run_in_a_sentence_and_keeps_what_there_is(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.rule = lambda body, count: (200, say("A"), {}) if count <= 5 else (HANG_UP, {}, {})
    questions, out = write_questions(tmp_path), tmp_path / "out"
    others = threading.enumerate()
    assert ask(server, questions, out) == 2
    error = capsys.readouterr().err
    assert "10 questions in a row without an answer" in error
    assert "Traceback" not in error
    assert kept(out) == 5
    for thread in threading.enumerate():  # questions that were on their way when the run ended
        if thread.name == "question" and thread not in others:
            thread.join(30)
    server.rule = lambda body, count: (200, say("A"), {})
    server.requests.clear()
    assert ask(server, questions, out) == 0
    assert len(server.requests) == 24 - 5


def test_nobody_at_the_address_and_an_unknown_model_are_said_at_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = write_questions(tmp_path)
    where = "openai:http://127.0.0.1:9/v1#eye-7b"
    assert run("--model", where, "--data", questions, "--out", tmp_path / "a") == 2
    assert "Nobody answers at" in capsys.readouterr().err
    assert run("--model", f"openai:{server.url}#eye-8b", "--data", questions, "--out", tmp_path / "b") == 2
    assert "did you mean 'eye-7b'" in capsys.readouterr().err
