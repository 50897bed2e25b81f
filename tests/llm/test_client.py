import json
import time

import pytest
from pydantic import BaseModel, ConfigDict

from nein.engine.answers import AnswerCache
from nein.generate import negvqa as negvqa
from nein.generate.negvqa import Choice
from nein.metrics.chat.endpoint import Endpoint
from nein.models import llm
from nein.models.cached import CachedChat
from nein.models.llm import (
    CUT_OFF,
    NONSENSE,
    WRONG_SCHEMA,
    AnswerError,
    make_strict_schema,
    parse,
    write_form,
)
from tests.loopback import HANG_UP, Reply, say


class Length(BaseModel):
    length: int


def asked(body):
    """The word a prompt is about: what stands before the instructions on the form."""
    return body["messages"][0]["content"].partition("\n")[0]


def measure(body, _):
    return 200, say(json.dumps({"length": len(asked(body))})), {}


def measured(outcomes):
    return [outcome.value.length for outcome in outcomes if outcome.value]


def client(server, folder=None, **options):
    sending = {key: options.pop(key) for key in ("concurrency", "timeout", "retries") if key in options}
    chat = Endpoint(server.url, options.pop("model", "mind-7b"), **{"retries": 1, **sending})
    return llm.Client(CachedChat(chat, AnswerCache(folder / "answers.sqlite")) if folder else chat, **options)


WORDS = ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"]
REQUESTS = [llm.Request(word) for word in WORDS]


def test_a_server_without_structured_output_is_asked_in_words_from_then_on(server):
    server.rule = lambda body, count: (400, {}, {}) if "response_format" in body else measure(body, count)
    found = client(server, concurrency=1).complete(REQUESTS[:3], Length)
    assert measured(found) == [1, 2, 3]
    assert len(server.requests) == 4
    assert "seed" in server.requests[-1]


def test_every_failure_keeps_its_kind_and_none_becomes_a_value(server):
    replies: dict[str, Reply] = {
        "a": (200, say('{"length": 1}'), {}),
        "bb": (200, say("I cannot count."), {}),
        "ccc": (200, say('{"length": "three"}'), {}),
        "dddd": (403, {}, {}),
        "eeeee": (HANG_UP, None, {}),
        "ffffff": (503, {}, {}),
        "ggggggg": (200, {"hello": 1}, {}),
        "hhhhhhhh": (200, {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}, {}),
        "i": (200, {"choices": [{"message": {"content": '{"len'}, "finish_reason": "length"}]}, {}),
    }

    def rule(body, _):
        if asked(body) == "slow":
            time.sleep(0.8)
        return replies.get(asked(body), (200, say('{"length": 4}'), {}))

    server.rule = rule
    found = client(server, timeout=0.3).complete([llm.Request(word) for word in (*replies, "slow")], Length)
    kinds = ["", "nonsense", "wrong schema", "refused", "connection", "server error", "another protocol"]
    assert [outcome.failure for outcome in found] == [*kinds, "withheld", "cut off", "timeout"]
    assert [outcome.value is None for outcome in found] == [False] + [True] * 9
    assert all(outcome.reason for outcome in found[1:])


def test_further_attempts_are_drawn_with_other_seeds_and_remembered(server, tmp_path):
    server.rule = lambda body, count: (200, say("hm"), {}) if body["seed"] == 3 else measure(body, count)
    drawing = client(server, tmp_path, temperature=0.8, attempts=2)
    found = drawing.complete([llm.Request("word", seed=3)], Length)
    assert found[0].value == Length(length=4)
    assert len({body["seed"] for body in server.requests}) == len(server.requests) == 2
    assert drawing.complete([llm.Request("word", seed=3)], Length) == found
    assert len(server.requests) == 2


def by_generate(server, **options):
    item = Choice("1", "all", None, "What is on it?", ("cat", "dog"), 0)
    asked = llm.load(llm.LlmOptions(f"openai:{server.url}#eye-7b", **options), services=None)
    [made] = negvqa.Negate.make(None, asked, [item])
    return made.question or made.kind


def thinking(message, **choice):
    return lambda body, count: (200, {"choices": [{"message": message, **choice}]}, {})


TAGGED = ("{0}</think>{1}", "<think>{0}</think>\n\n{1}", "<thinking>{0}</thinking>{1}")


@pytest.mark.parametrize("form", [*TAGGED, "reasoning", "reasoning_content"])
def test_an_answer_is_read_behind_the_thoughts_and_never_from_them(server, form):
    wrong, right = "What is under it?", "What is not on it?"
    thoughts, answer = (json.dumps({"is_negatable": True, "negated_question": one}) for one in (wrong, right))
    thoughts = f"Well: {thoughts} No."
    apart = {form: thoughts} if form.isidentifier() else {}  # a field of its own, or in the text
    server.rule = thinking({"content": answer if apart else form.format(thoughts, answer), **apart})
    assert by_generate(server) == right


@pytest.mark.parametrize("message", [{"content": "<think>{}"}, {"content": None, "reasoning": "{}"}])
def test_thoughts_without_an_end_are_a_failure_of_their_kind_and_not_kept(server, tmp_path, message):
    server.rule = thinking(message, finish_reason="length")
    assert by_generate(server) == "still thinking"
    asked = client(server, tmp_path)
    assert asked.complete(REQUESTS[:1], Length)[0].failure == "still thinking"
    server.rule = measure
    assert measured(asked.complete(REQUESTS[:1], Length)) == [1]


class Found(BaseModel):
    model_config = ConfigDict(extra="forbid")
    objects: list[str]
    sure: bool


GOOD = '{"objects": ["cat", "a {b}"], "sure": true}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"  {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"Here is the object you asked for:\n{GOOD}\nLet me know!",
        f'<think>Is it {{"objects": []}}? No.</think>\n{GOOD}',
        f'Is it {{"objects": []}}? No.</think>\n{GOOD}',
    ],
)
def test_the_one_object_is_found_whatever_stands_around_it(text):
    assert parse(text, Found) == Found(objects=["cat", "a {b}"], sure=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", NONSENSE),
        ("No.", NONSENSE),
        ("objects: cat, sure: yes", NONSENSE),
        ('["cat"]', NONSENSE),
        (GOOD[:-3], NONSENSE),
        (f"{GOOD} {GOOD}", NONSENSE),
        (f"{GOOD} or rather {{objects: none}}", NONSENSE),
        ('{"objects": [], "sure": NaN}', WRONG_SCHEMA),
        ("{'objects': [], 'sure': True}", NONSENSE),
        ('{"a": ' + "[" * 100_000, NONSENSE),
        ('{"a":' * 100_000, NONSENSE),
        ('{"objects": [], "sure": "true"}', WRONG_SCHEMA),
        ('{"objects": [], "sure": 1}', WRONG_SCHEMA),
        ('{"objects": [7], "sure": true}', WRONG_SCHEMA),
        ('{"objects": "cat", "sure": true}', WRONG_SCHEMA),
        ('{"objects": []}', WRONG_SCHEMA),
        ('{"objects": [], "sure": true, "why": "x"}', WRONG_SCHEMA),
        ("{}", WRONG_SCHEMA),
    ],
    ids=range(18),
)
def test_an_answer_that_is_not_plainly_the_object_is_a_failure_of_its_kind(text, kind):
    with pytest.raises(AnswerError) as found:
        parse(text, Found)
    assert found.value.kind == kind
    assert str(found.value)


def test_an_answer_cut_short_is_told_from_nonsense_but_used_when_complete():
    with pytest.raises(AnswerError) as found:
        parse(GOOD[:20], Found, finished=False)
    assert found.value.kind == CUT_OFF
    assert parse(GOOD + "\nAnd", Found, finished=False).sure is True


def test_the_schema_for_servers_requires_every_key_and_allows_no_other():
    class Inner(BaseModel):
        name: str = "x"

    class Outer(BaseModel):
        inner: list[Inner]
        flag: bool = False

    shape = make_strict_schema(Outer)
    assert shape["required"] == ["flag", "inner"]
    assert shape["additionalProperties"] is False
    assert shape["$defs"]["Inner"]["required"] == ["name"]
    assert '"sure"' in write_form(Found)
