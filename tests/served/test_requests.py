"""The bodies of requests of every kind equal those in `golden/requests.json`, which the code before
`metrics/chat` wrote. A picture stands there as its size and the mean of its pixels."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
from PIL import Image

from nein import editors, metrics
from nein.benchmarks.negvqa.data import Answer
from nein.benchmarks.negvqa.stages import match_answers
from nein.editors.base import Identity
from nein.generate.negvqa import Choice, Negate
from nein.metrics.choice_prompts import write_prompt
from nein.metrics.choices import ChoiceQuestion, JudgeChoices
from nein.models import llm
from nein.models.llm import LlmOptions
from nein.models.remedies.editors import add_remedy
from tests.loopback import say

GOLDEN = Path(__file__).parent / "golden" / "requests.json"
PICTURES = [np.full((6, 8, 3), value, np.uint8) for value in (10, 200)]
TOLD = "There is no cup."
CHOICES = [
    ChoiceQuestion(
        write_prompt("paper", "What is not there?", ["cat", "dog"]), 2, "What is not there?", ("a", "b")
    ),
    ChoiceQuestion(
        write_prompt("vlmevalkit", "What is there?", ["cat", "dog", "cup"]), 3, "What is?", ("a", "b")
    ),
]
THINKING = {
    "reasoning_effort": "low", "extra_body": {"chat_template_kwargs": {"enable_thinking": True}},
    "thinking_tokens": 900, "detail": "low",
}  # fmt: skip


def ask_a_judge(where, **options):
    judge = metrics.load_judge("vqa", where, concurrency=1, **options)
    judge.ask(PICTURES, [["Is there a cup?", "And now?"], ["Is there a dog?"]])


def choose(where, *scorings, judge="", **options):
    if judge:
        model = JudgeChoices(metrics.load_judge("vqa", where, concurrency=1), judge)
    else:
        model = metrics.load_choices(where, concurrency=1, **options)
    model.answer(PICTURES, [CHOICES, CHOICES[:1]], scorings)


def rate(kind, where, **options):
    judge = metrics.load_reward(f"{kind}:{where}", **options)
    if judge.compares:
        judge.prefer(PICTURES[:1], PICTURES[1:], PICTURES[:1], [TOLD])
    else:
        judge.score(PICTURES[:1], PICTURES[1:], [TOLD])


def convert(where, **options):
    client = llm.load(LlmOptions(where, **options), services=None)
    Negate.make(None, client, [Choice("1", "all", None, "What is on it?", ("cat", "dog"), 0)])


def rewrite(where):
    add_remedy(Identity(), f"rewrite:llm:{where}", services=None, device="cpu").prepare(
        [editors.EditRequest("a", PICTURES[0], TOLD, 7), editors.EditRequest("b", PICTURES[0], "No dog.", 8)]
    )


def match(where):
    client = llm.load(LlmOptions(model=where, max_tokens=2048), services=None)
    asked = ("VQAv2", "General", "p.png", "What is it?", ("cat", "dog"), "A")
    match_answers(client, [Answer("1", "plain", *asked, "Hard to say.")])


def edit(where, **options):
    requests = [editors.EditRequest("a", PICTURES[0], TOLD, 2**31 + 5, negative_prompt="cup")]
    editors.get_editor(where, **options).edit(
        [*requests, editors.EditRequest("b", PICTURES[1], "No dog.", 6)]
    )


#: Name -> what asks.
KINDS = {
    "vqa": ask_a_judge,
    "vqa, thinking": lambda where: ask_a_judge(where, **THINKING),
    "choices, generated": lambda where: choose(where, "generated"),
    "choices, both": lambda where: choose(where, "generated", "logprob"),
    "choices, logprob": lambda where: choose(where, "logprob", max_new_tokens=9, **THINKING),
    "choices of a judge, letters": lambda where: choose(where, "generated", judge="letters"),
    "choices of a judge, options": lambda where: choose(where, "logprob", judge="options"),
    "editscore": lambda where: rate("editscore", where, passes=2),
    "pairwise": lambda where: rate("pairwise", where),
    "json": convert,
    "json, drawn": lambda where: convert(where, temperature=0.5, max_tokens=64, attempts=2),
    "json, thinking": lambda where: convert(
        where, reasoning_effort="none", extra_body={"top_k": 3}, thinking_tokens=90
    ),
    "rewriting": rewrite,
    "matching": match,
    "edits": edit,
    "edits, options": lambda where: edit(
        where, size="auto", seed=3, quality="high", num_inference_steps=20, lora={"a": 1}
    ),
}


def refusing(body, count):
    """A reasoning model: refuses what it does not take by its name, and a seed without saying so."""
    for name, said in (("max_tokens", "Use 'max_completion_tokens'"), ("temperature", "does not support 0")):
        if name in body:
            return 400, {"error": {"message": f"'{name}': {said}", "param": name}}, {}
    unnamed = "logprobs" in body or "response_format" in body or "seed" in body
    return (400, {"detail": "no"}, {}) if unnamed else (200, say("Yes"), {})


def shown(body):
    """A body, its pictures as sizes and means."""

    def picture(data):
        pixels = np.asarray(Image.open(io.BytesIO(data)))
        return f"PNG {pixels.shape[1]}x{pixels.shape[0]}, mean {pixels.mean():.2f}"

    def data_url(found):
        return picture(base64.b64decode(found[1]))

    text = json.dumps({k: picture(v) if isinstance(v, bytes) else v for k, v in body.items()})
    return json.loads(re.sub(r"data:image/png;base64,([\w+/=]+)", data_url, text))


def bodies(server, kinds):
    found = {}
    for name, rule in (("", lambda body, count: (200, say("Yes"), {})), (", refused", refusing)):
        server.rule = rule
        for kind in kinds if name == "" else ("vqa", "choices, both", "json, drawn"):
            server.requests.clear()
            KINDS[kind](f"openai:{server.url}#eye-7b")
            # Some are sent side by side.
            sent = [json.dumps(shown(body), sort_keys=True) for body in server.requests]
            found[kind + name] = [json.loads(body) for body in sorted(sent)]
    return found


def test_the_bodies_of_requests_are_those_of_before(server):
    found = bodies(server, KINDS)
    known = json.loads(GOLDEN.read_text())
    for kind, sent in found.items():
        assert sent == known[kind], kind
    assert found.keys() == known.keys()
