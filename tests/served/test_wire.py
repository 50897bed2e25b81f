"""What goes over the wire to an OpenAI-compatible endpoint."""

import base64
import concurrent.futures
import io
import json
import math
import re
import threading
import time

import numpy as np
import pytest
from PIL import Image

from nein import metrics
from nein.engine.folder import Folder
from nein.loading.service import KEYS
from nein.metrics import MetricError
from nein.metrics.base import fingerprint
from nein.metrics.chat import YES_NO, Message, Sampling
from nein.metrics.chat.asking import ChatJudge
from nein.metrics.chat.endpoint import Endpoint, SilentError, connect
from tests import loopback
from tests.helpers import commands
from tests.loopback import HANG_UP, say

IMAGES = [np.full((6, 8, 3), value, np.uint8) for value in (10, 200)]
YES = '{"answer": "Yes"}'
WITHHELD = "withheld an answer: HTTP 400"


def chat(server, **sending):
    return Endpoint(server.url, "eye-7b", **sending)


def complete(asked, *texts, image=None):
    parts = [(IMAGES[0] if image is None else image, text) for text in texts]
    return asked.complete([Message(part) for part in parts], Sampling(10, top=YES_NO))


def ask(server, count=1, **sending):
    """The answers, or why there are none."""
    found = complete(chat(server, **sending), *(f"{k}?" for k in range(count)))
    return [one.text if one.error is None else str(one.error) for one in found]


def seen(body):
    image, text = body["messages"][0]["content"]
    data = base64.b64decode(image["image_url"]["url"].removeprefix("data:image/png;base64,"))
    return np.array(Image.open(io.BytesIO(data))), text["text"]


@pytest.mark.parametrize("status", [429, 503, HANG_UP])
def test_a_passing_failure_is_tried_again_and_a_lasting_one_has_a_reason(server, status):
    server.rule = lambda body, count: (status, {}, {}) if count < 3 else (200, say(YES), {})
    assert ask(server, 1, retries=3) == [YES]
    assert len(server.requests) == 3
    server.rule = lambda body, count: (status, {}, {})
    assert "gave no answer after 2 attempts" in ask(server, 1, retries=1)[0]


def unfit(param, message, **more):
    return 400, {"error": {"message": message, "param": param, "type": "invalid_request_error", **more}}, {}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}, "content filter"),
        ({"choices": [{"message": {"content": None, "refusal": "no"}}]}, "refused to answer"),
        ({"hello": 1}, "not a chat-completions endpoint"),
        ({"error": {"code": 429, "message": "slow down"}}, "no choices.*slow down"),
        ({"choices": [{"finish_reason": "error", "message": {"content": ""}}]}, "is an error"),
        ({"choices": [{"message": {"content": "No"}}], "error": "slow down"}, "is an error: slow down"),
        ({"choices": [{"message": {"content": None, "tool_calls": [{"id": "a"}]}}]}, "called a tool"),
        ("<html>", "not JSON"),
        (unfit(None, "'temperature' is fine", code="content_filter"), WITHHELD),
        (unfit(None, "temperature", code="moderation_blocked", type="image_generation_user_error"), WITHHELD),
        (unfit(None, "temperature", code=None, type="invalid_prompt"), WITHHELD),
        (unfit(None, "litellm.ContentPolicyViolationError: content_policy_violation", code=None), WITHHELD),
    ],
)
def test_what_is_no_answer_is_never_a_verdict_and_does_not_end_the_work(server, reply, reason):
    server.rule = lambda body, count: reply if isinstance(reply, tuple) else (200, reply, {})
    assert all(re.search(reason, said) for said in ask(server, 3, concurrency=1))
    assert len(server.requests) == 3  # nothing is left out and tried again


def test_a_redirect_to_another_host_is_refused_with_both_hosts_and_nothing_goes_there(server):
    other = loopback.Server()
    server.rule = lambda body, count: (307, "", {"Location": f"{other.url}/chat/completions"})
    said = f"'{server.url}' sends requests on to '{other.url}/"
    assert said in ask(server, 1)[0]
    server.models = (307, "", {"Location": f"{other.url}/models"})
    with pytest.raises(MetricError, match=said):
        chat(server).service.check()
    assert (len(server.requests), other.requests, other.paths) == (1, [], [])
    other.close()


@pytest.mark.parametrize("bad", [math.nan, math.inf, None, "-0.1", 3.0])
def test_log_probabilities_that_are_no_numbers_are_none_and_said(server, caplog, bad):
    choice = {"message": {"content": "A"}, "finish_reason": "stop"}
    top = [{"token": token, "logprob": value} for token, value in (("Yes", -0.3), ("A", bad))]
    choice["logprobs"] = {"content": [{"token": "A", "top_logprobs": top}]}
    server.rule = lambda body, count: (200, {"choices": [choice]}, {})
    [found] = complete(chat(server), "a?")
    assert (found.text, found.probabilities, found.error) == ("A", None, None)
    assert "invalid log-probabilities" in caplog.text


def test_loading_checks_the_address_the_key_and_the_model(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert "secret" not in json.dumps(connect(f"openai:{server.url}#eye-7b").describe())
    server.models = (401, {}, {})
    with pytest.raises(MetricError, match="refuses the key"):
        connect(f"openai:{server.url}#eye-7b")
    server.models = (200, {"data": [{"id": "eye-7b"}]}, {})
    bad = ("eye-7b", "http://host:port/v1#m", "http:///v1#m", "ftp://host/v1#m", "http://[x/v1#m")
    for name, sentence in {
        f"{server.url}#eye-7c": "did you mean 'eye-7b'",
        "http://127.0.0.1:9/v1#eye-7b": "Nobody answers",
        **dict.fromkeys(bad, "expected openai:URL#MODEL"),
    }.items():
        with pytest.raises(MetricError, match=sentence):
            connect(f"openai:{name}")


def test_stop_ends_the_wait_for_another_attempt_and_nothing_is_sent_again(server):
    server.rule = lambda body, count: (503, {}, {"Retry-After": "45"})
    asked = chat(server)
    start = time.perf_counter()
    threading.Timer(0.5, asked.stop).start()
    with pytest.raises(concurrent.futures.CancelledError):
        complete(asked, "a?", "b?")
    assert time.perf_counter() - start < 10
    sent = len(server.requests)
    with pytest.raises((concurrent.futures.CancelledError, RuntimeError)):
        complete(asked, "later?")
    assert len(server.requests) == sent


def as_o_series(body, _):
    """The refusals of OpenAI's reasoning models, one at a time, the second without `param`."""
    if "max_tokens" in body:
        return unfit("max_tokens", "'max_tokens' is not supported. Use 'max_completion_tokens' instead.")
    if "temperature" in body:
        return unfit(None, "Unsupported value: 'temperature' does not support 0 with this model.")
    if "logprobs" in body:
        return unfit("logprobs", "logprobs are not supported", code="unsupported_parameter")
    return 200, say(YES), {}


def test_a_parameter_that_is_refused_is_left_out_for_good_described_and_changes_no_fingerprint(server):
    server.rule = as_o_series
    assert ask(server, 5, concurrency=1) == [YES] * 5
    fit = [body for body in server.requests if not {"max_tokens", "temperature", "logprobs"} & body.keys()]
    assert len(fit) == 5
    assert all(body["max_completion_tokens"] >= 10 for body in fit)
    assert len(server.requests) == 5 + 3
    asked, fresh = chat(server, concurrency=8), chat(server)
    assert "adapted" not in asked.describe()
    complete(asked, *(f"{k}?" for k in range(16)))  # several meet each refusal at once
    left_out = dict.fromkeys(("temperature", "logprobs", "top_logprobs"), "")
    assert asked.describe()["adapted"] == {"max_tokens": "max_completion_tokens", **left_out}
    assert asked.usage()["adapted"] == asked.describe()["adapted"]
    assert fingerprint(asked.describe()) == fingerprint(fresh.describe())


def test_options_of_an_endpoint_are_sent_known_and_never_left_out(server):
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    options = {
        "reasoning_effort": "none", "extra_body": thinking, "detail": "high", "thinking_tokens": 90,
    }  # fmt: skip
    asked = chat(server, retries=0, **options)
    complete(asked, "a?")
    [body] = server.requests
    assert (body["reasoning_effort"], body["max_tokens"]) == ("none", 100)
    assert body["chat_template_kwargs"] == thinking["chat_template_kwargs"]
    assert body["messages"][0]["content"][0]["image_url"]["detail"] == "high"
    assert asked.describe() == {**chat(server).describe(), **options}
    alone = [{}, *({name: value} for name, value in options.items())]
    assert len({fingerprint(chat(server, **some).describe()) for some in alone}) == 5
    server.rule = lambda body, count: unfit("reasoning_effort", "Unsupported value: 'reasoning_effort'")
    [found] = complete(asked, "a?")
    assert "refused the request: HTTP 400" in str(found.error)
    assert "reasoning_effort" in str(found.error)


def test_many_refused_contents_in_a_row_are_no_silence_and_silence_ends_every_call(server):
    server.rule = lambda body, count: unfit(None, "no", code="content_policy_violation")
    asked = chat(server, concurrency=1)
    assert all(one.error for one in complete(asked, *(f"{k}?" for k in range(20))))
    server.rule = lambda body, count: (404, {"error": "gone"}, {})
    for k in range(5):
        complete(asked, f"{k}?")
    with pytest.raises(SilentError, match="6 questions in a row unanswered"):
        complete(asked, *(f"{k}?" for k in range(20)))
    with pytest.raises(SilentError):
        complete(asked, "later?")
    assert len(server.requests) == 20 + 6
    with pytest.raises(SilentError, match="10 questions in a row unanswered"):
        complete(chat(server, concurrency=3), *(f"{k}?" for k in range(20)))


def test_hosted_services_have_keys_of_their_own(monkeypatch):
    for variable in KEYS.values():
        monkeypatch.delenv(variable, raising=False)
    for address, variable in {
        "https://api.anthropic.com/v1": "ANTHROPIC_API_KEY",
        "https://generativelanguage.googleapis.com/v1beta/openai/": "GEMINI_API_KEY",
        "https://api.openai.com/v1": "OPENAI_API_KEY",
    }.items():
        with pytest.raises(MetricError, match=f"needs a key; set {variable}"):
            Endpoint(address, "m").service.check()
    Endpoint("https://api.anthropic.com/v1", "m", key="k").service.check()  # has no list for such clients


def test_pictures_go_lossless_and_answers_come_back_in_place(server):
    def rule(body, _):
        picture, question = seen(body)
        bright = picture.mean() > 100
        time.sleep(0.02 if bright else 0)  # the later question may be answered first
        word = "Yes" if bright else "No"
        return 200, say(f" {word} {question}", {"Yes": 0.6, " yes": 0.2, "No": 0.1, "None": 0.05}), {}

    server.rule = rule
    found = ChatJudge(chat(server)).ask(IMAGES, [["a?", "b?"], ["c?"]])
    assert [[answer.text for answer in row] for row in found] == [["No a?", "No b?"], ["Yes c?"]]
    assert found[0][0].p_yes == pytest.approx(0.8)
    assert found[0][0].p_no == pytest.approx(0.1)  # "None" is not "no"
    pictures = {seen(body)[1]: seen(body)[0] for body in server.requests}
    assert (pictures["c?"] == IMAGES[1]).all()
    assert all(body["temperature"] == 0 and body["max_tokens"] == 10 for body in server.requests)


@pytest.mark.parametrize(
    ("message", "p_yes"),
    [
        ({"content": "Yes."}, 0.9),
        ({"content": "Yes", "reasoning": "No, wait."}, None),
        ({"content": "Yes", "reasoning_content": "No, wait."}, None),
        ({"content": "<think>No, wait.</think> Yes"}, None),
        ({"content": "No, wait.</thinking>Yes"}, None),
        ({"content": None}, 0.9),
    ],
)
def test_p_yes_is_of_the_first_token_and_missing_behind_thoughts(server, message, p_yes):
    first = {"token": "Yes", "top_logprobs": [{"token": "Yes", "logprob": math.log(0.9)}]}
    choice = {"message": message, "logprobs": {"content": [first]}, "finish_reason": "stop"}
    server.rule = lambda body, count: (200, {"choices": [choice]}, {})
    [found] = complete(chat(server), "a?")
    likely = (found.probabilities or {}).get("yes")
    assert likely == (None if p_yes is None else pytest.approx(p_yes))
    assert found.text.rstrip(".") == ("Yes" if message["content"] else "")


def test_a_judge_is_known_by_its_model_not_by_where_it_is_or_who_asks(server):
    one, moved, other = (
        ChatJudge(Endpoint(f"http://{host}/v1", name)) for host, name in (("a", "m"), ("b", "m"), ("a", "n"))
    )
    assert one.fingerprint == moved.fingerprint != other.fingerprint
    assert moved.describe()["reference"] == "http://b/v1"
    with pytest.raises(MetricError, match="only be the judge 'vqa'"):
        metrics.load_judge("ovd", f"openai:{server.url}#eye-7b")


def test_requests_retries_and_tokens_are_in_the_notes_of_a_run(server, tmp_path):
    used = {
        "prompt_tokens": 300, "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 200, "image_tokens": 250, "audio_tokens": None},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }  # fmt: skip

    def rule(body, count):
        answer = {**say("A"), "usage": used, "model": f"eye-7b-{1 if count < 4 else 2}"}
        return (429, {}, {}) if count == 1 else (200, answer, {})

    server.rule = rule
    words = ("negvqa", "--model", f"openai:{server.url}#eye-7b", "--questions", 4, "--blind", 0)
    words = (*words, "--model-options.reasoning_effort", "none")
    assert commands.exit_code(*words, "--device", "cpu", "--out", tmp_path) == 0
    [run] = [path.parent for path in tmp_path.glob("*/manifest.json")]
    sent = len(server.requests)
    counts = {"input": 300, "output": 5, "cached": 200, "image": 250, "reasoning": 4}
    tokens = {f"{kind}_tokens": count * (sent - 1) for kind, count in counts.items()}
    assert {body["reasoning_effort"] for body in server.requests} == {"none"}
    assert Folder(run).manifest()["identity"]["options"] == {"reasoning_effort": "none"}
    versions = {"eye-7b-1": 2, "eye-7b-2": sent - 3}
    usage = {"requests": sent, "retries": 1, "versions": versions, **tokens}
    assert [*Folder(run).manifest()["usage"].values()] == [usage]
    [page] = tmp_path.glob("*.md")
    told = f"changed during the run: eye-7b-1 (2 answers) and eye-7b-2 ({sent - 3} answers)"
    assert told in page.read_text()
