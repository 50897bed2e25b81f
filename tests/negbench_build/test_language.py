"""Objects, paraphrases and scenes from a language model over the loopback address."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nein.datasets.negbench import official
from nein.datasets.negbench.concepts import Concepts
from nein.generate.negbench import language
from nein.models.llm import Client
from nein.models.llm.loading import EndpointModel
from tests.loopback import Reply, Server, say

IMAGES = [
    Concepts("a", "a.png", ("A dog runs on the beach.",)),
    Concepts("b", "b.png", ("Two cats sit on a sofa.",)),
    Concepts("c", "c.png", problem="no caption"),
]


def client(server: Server, **options: Any) -> Client:
    return Client(EndpointModel(server.url, "eye-7b", retries=0), **options)


def test_objects_are_checked_against_the_captions(server: Server) -> None:
    answers = {
        "dog": {"present": ["A Dog", "sand"], "absent": ["ball", "dogs", "a very long list of odd words"]},
        "cats": {"present": ["cat", "sofa"], "absent": ["lamp", "rug", "tv", "book"]},
    }

    def rule(body: dict[str, Any], _: int) -> Reply:
        prompt = body["messages"][0]["content"]
        return 200, say(json.dumps(next(value for key, value in answers.items() if key in prompt))), {}

    server.rule = rule
    found = language.extract(client(server), IMAGES, 0, 3)
    assert [image.id for image in found] == ["a", "b", "c"]
    assert (found[0].positives, found[0].negatives) == (("dog",), ("ball",))
    assert found[0].notes == (
        "object not in the caption, dropped",
        "absent object is in the caption, dropped",
    )
    assert (found[1].positives, found[1].negatives) == (("cat", "sofa"), ("lamp", "rug", "tv"))
    assert found[2] == IMAGES[2]
    assert len(server.requests) == 2


def test_nonsense_and_silence_are_problems_that_keep_their_place(server: Server) -> None:
    def rule(body: dict[str, Any], _: int) -> Reply:
        if "dog" in body["messages"][0]["content"]:
            return 200, say("What a lovely picture!"), {}
        return 500, {"error": "out of order"}, {}

    server.rule = rule
    found = language.extract(client(server), IMAGES, 0, 3)
    assert "unusable (nonsense)" in found[0].problem
    assert found[1].problem.startswith(language.NO_ANSWER)
    assert found[0].positives == found[1].negatives == ()


def sentences() -> list[language.Sentence]:
    text = "A dog runs. There is no cat in the image."
    return [language.Sentence(id=str(k), text=text, affirmed=["dog"], denied=["cat"]) for k in range(3)]


def test_a_paraphrase_that_turns_the_meaning_round_is_drawn_again_and_then_refused(server: Server) -> None:
    texts = iter(
        ["A dog and a cat run.", "A dog runs with no cat near.", "A dog runs.", "No cat, but a dog runs."] * 9
    )
    server.rule = lambda body, _: (200, say(json.dumps({"sentence": next(texts)})), {})
    asked = client(server, temperature=0.8, attempts=2)
    found = language.paraphrase(asked, sentences()[:1], 0, keep_order=True)
    assert found == [("A dog runs with no cat near.", "")]
    assert len(server.requests) == 2
    assert server.requests[0]["seed"] != server.requests[1]["seed"]
    refused = language.paraphrase(asked, sentences()[1:2], 0, keep_order=True)
    assert refused == [(None, "order changed")]


def test_scenes_that_contradict_themselves_are_refused(server: Server) -> None:
    good = {
        "caption": "A dog sits by a chair.", "objects": ["dog", "chair"], "extra": "ball",
        "caption_with_extra": "A dog sits by a chair with a ball.",
    }  # fmt: skip
    bad = {**good, "caption_with_extra": "A dog sits by a chair without a ball."}
    answers = iter([good, bad])
    server.rule = lambda body, _: (200, say(json.dumps(next(answers))), {})
    one = client(server)
    assert language.imagine(one, ["0"], 0)[0].extra == "ball"
    assert language.imagine(one, ["1"], 0) == ["the sentences of a scene contradict its objects"]


def polite(body: dict[str, Any], _: int) -> Reply:
    """Names objects, denies what it is told to, and rephrases by saying the same with one more word."""
    prompt = body["messages"][0]["content"]
    if prompt.startswith("These captions"):
        said = [word for word in ("dog", "cat", "car", "boat") if word in prompt.split("List the")[0]]
        absent = [word for word in ("dog", "cat", "car", "boat") if word not in said]
        return 200, say(json.dumps({"present": said, "absent": absent})), {}
    if prompt.startswith("Say in one"):
        _, _, last = prompt.partition("\n\nAnswer")[0].rpartition("Description: ")
        text, absent = (line.partition("Absent: ")[2] or line.rstrip(".") for line in last.splitlines()[:2])
        before = "The negation comes first" in prompt
        said = f"No {absent} is there, but {text}." if before else f"{text}, but no {absent} is there."
        return 200, say(json.dumps({"sentence": said})), {}
    text = prompt.splitlines()[1]
    text = text.replace("image", "fine image").replace("picture", "nice picture")
    return 200, say(json.dumps({"sentence": text})), {}


def test_a_captioned_folder_goes_through_extraction_and_paraphrase_and_unanswered_shards_are_asked_again(
    server: Server, negbench: Callable[..., Any], coco: Path, tmp_path: Path
) -> None:
    given = [
        "generate", "--source", "captions", "--captions", coco / "captions.json", "--images", coco / "images",
        "--concepts", "llm", "--paraphrase", "--affneg", "--llm.model", f"openai:{server.url}#eye-7b",
        "--llm.retries", "0", "--shard-size", "3", "--device", "cpu", "--out", tmp_path,
    ]  # fmt: skip
    broken = {"on": True}

    def rule(body: dict[str, Any], count: int) -> Reply:
        if broken["on"] and "dog and cat and car" in body["messages"][0]["content"]:
            return 500, {"error": "out of order"}, {}
        return polite(body, count)

    server.rule = rule
    first = negbench(*given)
    assert first.code == 0, first.stderr
    assert f"1 unusable: {language.NO_ANSWER}" in first.stdout
    assert "the language model named no usable object" in first.stdout  # "A picture of sky."
    broken["on"] = False
    asked = len(server.requests)
    second = negbench(*given)
    assert second.code == 0, second.stderr
    assert language.NO_ANSWER not in second.stdout
    assert 0 < len(server.requests) - asked < 12  # what had an answer is not asked again
    templated = official.read_retrieval(tmp_path / "dataset" / "negated_retrieval.csv", "negated")
    rephrased = official.read_retrieval(tmp_path / "dataset" / "negated_retrieval_rephrased.csv", "negated")
    assert [item.id for item in rephrased] == [item.id for item in templated]
    assert "fine image" in rephrased[0].captions[0]
    questions = official.read_questions(tmp_path / "dataset" / "mcq_rephrased.csv")
    assert all("fine image" in option.text for question in questions for option in question.options)
    assert negbench(*given).stdout == second.stdout


def test_a_request_without_an_answer_is_not_answered_by_another_seed(server: Server) -> None:
    """What came of it would otherwise depend on when the server was down."""
    down = {"on": True}

    def rule(body: dict[str, Any], count: int) -> Reply:
        if down["on"]:
            down["on"] = False
            return 500, {"error": "out of order"}, {}
        return 200, say(json.dumps({"sentence": f"A dog runs with no cat near, {body['seed']}."})), {}

    server.rule = rule
    asked = client(server, temperature=0.8, attempts=3)
    (first,) = language.paraphrase(asked, sentences()[:1], 0, keep_order=False)
    assert first[0] is None
    assert first[1].startswith(language.NO_ANSWER)
    (second,) = language.paraphrase(asked, sentences()[:1], 0, keep_order=False)
    assert server.requests[0]["seed"] == server.requests[1]["seed"]
    assert str(server.requests[0]["seed"]) in str(second[0])


def test_a_paraphrase_that_goes_on_and_on_is_refused(server: Server) -> None:
    long = "A dog runs with no cat near. " + "It is a fine day and the sun shines. " * 4
    server.rule = lambda body, _: (200, say(json.dumps({"sentence": long})), {})
    (found,) = language.paraphrase(client(server), sentences()[:1], 0, keep_order=False)
    assert found == (None, "it says much more")
