import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from nein.benchmarks.negvqa import stages
from nein.models.llm import Outcome, Request
from tests.loopback import say
from tests.negvqa.tiny import figure, run, write_questions
from tests.negvqa.tiny import scores as scores_of

#: What VLMEvalKit's own `extract_answer_from_item` (vlmeval/dataset/utils/multiple_choice.py, unchanged, at
#: commit 0f27427e of 25 May 2025) did with answers of ours, and with the `replies` of a language model: how
#: often it asked, the SHA-256 of its prompt, and the option it ended with; "drawn": one of the letters or Z.
MATCHED_BY_THE_TOOLKIT = Path(__file__).parent / "matches.jsonl"


class Scripted:
    def __init__(self, replies):
        self.replies, self.asked = list(replies), list[Request]()

    def complete(self, requests, schema):
        self.asked += requests
        return [Outcome(schema.read(self.replies.pop(0))) for _ in requests]


def answered(text, question="What is it?", options=("a", "b"), number=7):
    facts = ("VQAv2", "General", "p.png", question, tuple(options), "A", text)
    return stages.Answer(str(number), "negated", *facts)


def test_the_matcher_asks_and_reads_as_the_toolkit_does():
    rows = [json.loads(line) for line in MATCHED_BY_THE_TOOLKIT.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 150
    for row in rows:
        client = Scripted(row["replies"])
        options = [option or "NA" for option in row["options"]]
        answer = answered(row["answer"], row["question"], options)
        [found] = stages.match_answers(client, [answer])
        assert client.replies == []
        prompts = {hashlib.sha256(one.prompt.encode()).hexdigest()[:16] for one in client.asked}
        assert prompts == {row["prompt"]}
        if row["option"] == "drawn":
            assert found.reason == stages.DRAWN
            assert found.letter == stages.draw_letter(answer)
        else:
            assert (found.letter or "Z") == row["option"]


def test_what_is_drawn_belongs_to_the_question_and_is_none_as_often_as_a_letter():
    drawn = [stages.draw_letter(answered("", number=number)) for number in range(600)]
    assert [drawn.count(letter) for letter in ("A", "B", None)] == pytest.approx([200] * 3, abs=50)
    assert drawn == [stages.draw_letter(answered("", number=number)) for number in range(600)]


def test_a_readable_answer_a_refusal_and_a_failure_are_not_asked_about():
    client = Scripted([])
    for text, error in (("B", ""), ("Z", ""), (None, "HTTP 503")):
        assert stages.match_answers(client, [replace(answered(text), error=error)]) == []


def ask(server, questions, out, *more):
    return run(
        "--model", f"openai:{server.url}#eye-7b", "--data", questions, "--out", out, "--endpoint.retries", 0,
        "--scoring", "generated", *more,
    )  # fmt: skip


def rule(body, count):
    """The model says what it likes; the matcher finds B in it, and fails at one picture's question."""
    content = body["messages"][0]["content"]
    if isinstance(content, str):
        return (500, {}, {}) if "What is not number 3?" in content and rule.fails else (200, say("B"), {})
    return 200, say("The second one, I should say."), {}


def test_a_run_with_a_matcher_scores_what_it_finds_and_asks_again_where_it_failed(server, tmp_path):
    server.rule, rule.fails = rule, True
    questions, out = write_questions(tmp_path), tmp_path / "out"
    assert ask(server, questions, out) == 0
    folder = out / "openai-eye-7b"
    what = {"task": "accuracy", "category": "Average", "variant": "negated", "interval": "clustered"}
    assert figure(folder, protocol="paper", **what)["value"] == 0.0  # the assumption: nobody else reads it
    assert figure(folder, protocol="fixed", **what)["unscored"] == 12
    server.requests.clear()
    matcher = ("--matcher", f"llm:openai:{server.url}#eye-70b")
    assert ask(server, questions, out, *matcher) == 0
    assert {body["model"] for body in server.requests} == {"eye-70b"}
    assert len(server.requests) == 24
    assert all(body["temperature"] == 0 and body["max_tokens"] == 2048 for body in server.requests)
    assert "response_format" not in server.requests[0]
    found = figure(folder, protocol="paper", **what)
    assert (found["n"], found["unscored"]) == (11, 1)
    assert any(row["reason"].startswith("the matcher gave no answer") for row in scores_of(folder))
    assert found["value"] == pytest.approx(6 / 11)  # B is right for every second negated question
    assert figure(folder, protocol="fixed", **what)["unscored"] == 12
    rule.fails = False
    server.requests.clear()
    assert ask(server, questions, out, *matcher) == 0
    assert len(server.requests) == 1
    assert figure(folder, protocol="paper", **what)["value"] == pytest.approx(0.5)
    row = next(row for row in scores_of(folder) if row["protocol"] == "paper")
    assert (row["letter"], row["reason"]) == ("B", stages.READ)
    counted = figure(folder, task="unread", protocol="paper", variant="negated", reason=stages.READ)
    assert counted["value"] == 12
