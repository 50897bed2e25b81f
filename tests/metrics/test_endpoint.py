from __future__ import annotations

import base64
import concurrent.futures
import io
import json
import threading
import time
from typing import Any

import numpy as np
import pytest
from PIL import Image

import metrics
from metrics import MetricError
from metrics.judges.endpoint import EndpointJudge
from metrics.served.endpoint import Endpoint, NoAnswer
from tests.loopback import Reply, Server, say


def seen(body: dict[str, Any]) -> tuple[np.ndarray, str]:
    """The picture and the question of a request."""
    image, text = body["messages"][0]["content"]
    data = base64.b64decode(image["image_url"]["url"].removeprefix("data:image/png;base64,"))
    return np.array(Image.open(io.BytesIO(data))), text["text"]


def judge(server: Server, **options: Any) -> EndpointJudge:
    return EndpointJudge(Endpoint(server.url, "eye-7b", **options))


IMAGES = [np.full((6, 8, 3), value, np.uint8) for value in (10, 200)]


def test_pictures_go_lossless_and_answers_come_back_in_place(server: Server) -> None:
    def rule(body: dict[str, Any], _: int) -> Reply:
        picture, question = seen(body)
        bright = picture.mean() > 100
        time.sleep(0.02 if bright else 0)  # the later question may be answered first
        word = "Yes" if bright else "No"
        return 200, say(f" {word} {question}", {"Yes": 0.6, " yes": 0.2, "No": 0.1, "None": 0.05}), {}

    server.rule = rule
    found = judge(server).ask(IMAGES, [["a?", "b?"], ["c?"]])
    assert [[answer.text for answer in row] for row in found] == [["No a?", "No b?"], ["Yes c?"]]
    assert found[0][0].p_yes == pytest.approx(0.8)
    assert found[0][0].p_no == pytest.approx(0.1)  # "None" is not "no"
    pictures = {seen(body)[1]: seen(body)[0] for body in server.requests}
    assert (pictures["c?"] == IMAGES[1]).all()
    assert all(body["temperature"] == 0 and body["max_tokens"] == 10 for body in server.requests)


def test_questions_are_asked_side_by_side_but_not_more_than_allowed(server: Server) -> None:
    def rule(body: dict[str, Any], _: int) -> Reply:
        time.sleep(0.05)
        return 200, say("No"), {}

    server.rule = rule
    judge(server, concurrency=3).ask(IMAGES[:1], [[f"{k}?" for k in range(9)]])
    assert 2 <= server.most <= 3


def test_server_errors_are_tried_again_and_refusals_are_not(server: Server) -> None:
    server.rule = lambda body, count: (503, {}, {}) if count < 3 else (200, say("Yes"), {})
    assert judge(server).ask(IMAGES[:1], [["a?"]])[0][0].text == "Yes"
    assert len(server.requests) == 3
    server.requests.clear()
    server.rule = lambda body, count: (404, {"error": "no such\nmodel"}, {})
    with pytest.raises(NoAnswer, match=r"HTTP 404 .*no such"):
        judge(server).ask(IMAGES[:1], [["a?"]])
    assert len(server.requests) == 1


def test_the_server_says_how_long_to_wait(server: Server) -> None:
    server.rule = lambda body, count: (
        (429, {}, {"Retry-After": "0.3"}) if count == 1 else (200, say("No"), {})
    )
    start = time.perf_counter()
    judge(server).ask(IMAGES[:1], [["a?"]])
    assert time.perf_counter() - start >= 0.3


def test_a_slow_server_ends_in_a_sentence_not_in_waiting_for_ever(server: Server) -> None:
    def rule(body: dict[str, Any], _: int) -> Reply:
        time.sleep(0.6)
        return 200, say("No"), {}

    server.rule = rule
    with pytest.raises(NoAnswer, match=r"no answer after 2 attempts: no answer within 0\.2 s"):
        judge(server, timeout=0.2, retries=1).ask(IMAGES[:1], [["a?"]])


def test_servers_without_log_probabilities_are_asked_without(server: Server) -> None:
    server.rule = lambda body, count: (400, {}, {}) if "logprobs" in body else (200, say("Yes"), {})
    asked = judge(server, concurrency=1)
    assert [a.p_yes for a in asked.ask(IMAGES, [["a?"], ["b?"]])[0]] == [None]
    assert len(server.requests) == 3  # refused once, then asked without for good


def test_a_withheld_or_empty_answer_is_never_a_verdict(server: Server) -> None:
    server.rule = lambda body, count: (200, {"choices": [{"message": {"content": None}}]}, {})
    assert judge(server).ask(IMAGES[:1], [["a?"]])[0][0].text == ""
    filtered = {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}
    server.rule = lambda body, count: (200, filtered, {})
    with pytest.raises(NoAnswer, match="content filter"):
        judge(server).ask(IMAGES[:1], [["a?"]])
    server.rule = lambda body, count: (200, {"hello": 1}, {})
    with pytest.raises(NoAnswer, match="not a chat-completions endpoint"):
        judge(server).ask(IMAGES[:1], [["a?"]])


def test_a_failed_question_leaves_one_sample_unscored_with_the_reason(server: Server) -> None:
    def rule(body: dict[str, Any], _: int) -> Reply:
        return (500, {}, {}) if seen(body)[0].mean() > 100 else (200, say("No"), {})

    server.rule = rule
    items = [metrics.Item(f"s{i}", image, sample=image, object="cat") for i, image in enumerate(IMAGES)]
    asked = {"vqa": judge(server, retries=1, concurrency=1)}
    batch = metrics.Batch(items, asked, metrics.Settings(protocol="fixed"))
    found = metrics.score([metrics.METRICS["removal_vqa"]], batch)["removal_vqa"]
    assert [score.value for score in found] == [1.0, None]
    assert "HTTP 500" in found[1].reason


def test_loading_checks_the_address_the_key_and_the_model(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    loaded = metrics.load_judge("vqa", f"openai:{server.url}#eye-7b")
    loaded.ask(IMAGES[:1], [["a?"]])
    assert server.headers[0]["Authorization"] == "Bearer sk-secret"
    assert "secret" not in json.dumps(loaded.describe())
    with pytest.raises(MetricError, match="did you mean 'eye-7b'"):
        metrics.load_judge("vqa", f"openai:{server.url}#eye-7c")
    server.models = (401, {}, {})
    with pytest.raises(MetricError, match="refuses the key"):
        metrics.load_judge("vqa", f"openai:{server.url}#eye-7b")
    with pytest.raises(MetricError, match="Nobody answers"):
        metrics.load_judge("vqa", "openai:http://127.0.0.1:9/v1#eye-7b")
    with pytest.raises(MetricError, match="expected openai:URL#MODEL"):
        metrics.load_judge("vqa", "openai:eye-7b")
    with pytest.raises(MetricError, match="only be the judge 'vqa'"):
        metrics.load_judge("ovd", f"openai:{server.url}#eye-7b")


def test_the_description_shows_no_password() -> None:
    found = EndpointJudge(Endpoint("https://me:hunter2@host/v1?token=x", "m")).describe()
    assert found["reference"] == "https://host/v1"


def test_a_server_that_has_moved_is_the_same_judge() -> None:
    one, moved, other = (
        EndpointJudge(Endpoint(f"http://{host}/v1", name)) for host, name in ("am", "bm", "an")
    )
    assert one.fingerprint == moved.fingerprint != other.fingerprint


def test_no_key_reaches_a_log_or_an_error(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    caplog.set_level("DEBUG")
    server.rule = lambda body, count: (500, {}, {}) if count == 1 else (403, {"error": "no"}, {})
    asked = metrics.load_judge("vqa", f"openai:{server.url}#eye-7b")
    with pytest.raises(NoAnswer, match="HTTP 403") as refused:
        asked.ask(IMAGES[:1], [["a?"]])
    assert caplog.records
    assert "sk-secret" not in caplog.text + repr(refused.value)


def test_stop_ends_the_wait_for_another_attempt_and_nothing_is_sent_again(server: Server) -> None:
    server.rule = lambda body, count: (503, {}, {"Retry-After": "45"})
    asked = judge(server)
    start = time.perf_counter()
    threading.Timer(0.5, asked.stop).start()
    with pytest.raises(concurrent.futures.CancelledError):
        asked.ask(IMAGES, [["a?"], ["b?"]])
    assert time.perf_counter() - start < 10
    sent = len(server.requests)
    with pytest.raises((concurrent.futures.CancelledError, RuntimeError)):
        asked.ask(IMAGES[:1], [["later?"]])
    assert len(server.requests) == sent


@pytest.mark.parametrize("url", ["http://host:port/v1", "http:///v1", "ftp://host/v1", "http://[x/v1"])
def test_an_address_that_is_none_is_said_at_once(url: str) -> None:
    with pytest.raises(MetricError, match="expected openai:URL#MODEL"):
        metrics.load_judge("vqa", f"openai:{url}#m")
