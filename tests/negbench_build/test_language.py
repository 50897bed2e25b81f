import json

from nein.datasets.negbench import official
from nein.datasets.negbench.sentences import Concepts
from nein.generate.negbench import language
from nein.metrics.chat.endpoint import Endpoint
from nein.models.llm import Client
from tests.loopback import say

IMAGES = [
    Concepts("a", "a.png", ("A dog runs on the beach.",)),
    Concepts("b", "b.png", ("Two cats sit on a sofa.",)),
    Concepts("c", "c.png", problem="no caption"),
]


HOW = {"count": 3, "thing": "image", "protocol": "fixed"}


def client(server, **options):
    return Client(Endpoint(server.url, "eye-7b", retries=0), **options)


def prompt(body):
    return body["messages"][0]["content"]


def answer(content):
    return 200, say(content if isinstance(content, str) else json.dumps(content)), {}


BROKEN = (500, {"error": "out of order"}, {})


def test_objects_are_checked_against_the_captions(server):
    answers = {
        "dog": {"present": ["A Dog", "sand"], "absent": ["ball", "dogs", "a very long list of odd words"]},
        "cats": {"present": ["cat", "sofa"], "absent": ["lamp", "rug", "tv", "book"]},
    }
    server.rule = lambda body, _: answer(next(answers[name] for name in answers if name in prompt(body)))
    found = language.extract(client(server), IMAGES, 0, **HOW)
    assert [image.id for image in found] == ["a", "b", "c"]
    assert (found[0].positives, found[0].negatives) == (("dog",), ("ball",))
    assert found[0].notes == (
        "object not in the caption, dropped", "absent object is in the caption, dropped",
    )  # fmt: skip
    assert (found[1].positives, found[1].negatives) == (("cat", "sofa"), ("lamp", "rug", "tv"))
    assert found[2] == IMAGES[2]
    assert len(server.requests) == 2


def paraphrased(asked, keep_order=False, k=0):
    text = "A dog runs. There is no cat in the image."
    sentence = language.Sentence(id=str(k), text=text, affirmed=["dog"], denied=["cat"])
    (found,) = language.paraphrase(asked, [sentence], 0, keep_order=keep_order, protocol="fixed")
    return found


def test_a_paraphrase_that_turns_the_meaning_round_is_drawn_again_and_then_refused(server):
    texts = iter(
        ["A dog and a cat run.", "A dog runs with no cat near.", "A dog runs.", "No cat, but a dog runs."] * 9
    )
    server.rule = lambda body, _: answer({"sentence": next(texts)})
    asked = client(server, temperature=0.8, attempts=2)
    assert paraphrased(asked, True) == ("A dog runs with no cat near.", "")
    assert len(server.requests) == 2
    assert server.requests[0]["seed"] != server.requests[1]["seed"]
    assert paraphrased(asked, True, 1) == (None, "order changed")
    long = "A dog runs with no cat near. " + "It is a fine day and the sun shines. " * 4
    server.rule = lambda body, _: answer({"sentence": long})
    assert paraphrased(asked, k=2) == (None, "it says much more")


def polite(body, _):
    """Names objects, denies what it is told to, and rephrases by saying the same with one more word."""
    asked = prompt(body)
    if asked.startswith("These captions"):
        things = ("dog", "cat", "car", "boat")
        said = [word for word in things if word in asked.split("List the")[0]]
        return answer({"present": said, "absent": [word for word in things if word not in said]})
    if asked.startswith("Say in one"):
        _, _, last = asked.partition("\n\nAnswer")[0].rpartition("Description: ")
        text, absent = (line.partition("Absent: ")[2] or line.rstrip(".") for line in last.splitlines()[:2])
        before = "The negation comes first" in asked
        said_ = f"No {absent} is there, but {text}." if before else f"{text}, but no {absent} is there."
        return answer({"sentence": said_})
    text = asked.splitlines()[1].replace("image", "fine image").replace("picture", "nice picture")
    return answer({"sentence": text})


def test_a_captioned_folder_goes_through_extraction_and_paraphrase_and_unanswered_shards_are_asked_again(
    server, negbench, coco, tmp_path
):
    given = [
        "generate", "--source", "captions", "--captions", coco / "captions.json", "--images", coco / "images",
        "--concepts", "llm", "--paraphrase", "--affneg", "--llm.model", f"openai:{server.url}#eye-7b",
        "--endpoint.retries", "0", "--shard-size", "3", "--device", "cpu", "--out", tmp_path,
    ]  # fmt: skip
    server.rule = lambda body, k: BROKEN if "dog and cat and car" in prompt(body) else polite(body, k)
    first = negbench(*given)
    assert first.code == 0, first.stderr
    assert f"1 unusable: {language.NO_ANSWER}" in first.stdout
    assert "the language model named no usable object" in first.stdout  # "A picture of sky."
    server.rule = polite
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


def test_a_request_without_an_answer_is_not_answered_by_another_seed(server):
    """What came of it would otherwise depend on when the server was down."""
    server.rule = lambda body, _: BROKEN
    asked = client(server, temperature=0.8, attempts=3)
    text, why = paraphrased(asked)
    assert text is None
    assert why.startswith(language.NO_ANSWER)
    server.rule = lambda body, _: answer({"sentence": f"A dog runs with no cat near, {body['seed']}."})
    assert str(server.requests[0]["seed"]) in paraphrased(asked)[0]
    assert server.requests[0]["seed"] == server.requests[1]["seed"]


def test_by_paper_answers_count_as_they_are_and_by_fixed_they_are_checked(server):
    said = {"present": ["Dog", "unicorn"], "absent": ["cat", "dog", "car"]}
    server.rule = lambda body, _: answer(said)
    image = Concepts("a", "a.png", ("A dog and a cat",))
    paper, fixed = (
        language.extract(client(server), [image], 0, count=5, thing="image", protocol=protocol)[0]
        for protocol in ("paper", "fixed")
    )
    assert (paper.positives, fixed.positives) == (("Dog", "unicorn"), ("dog",))
    assert (paper.negatives, fixed.negatives) == (("cat", "dog", "car"), ("car",))
    server.rule = lambda body, _: answer({"sentence": "A dog sits."})
    one = language.Sentence("a/c0", "A dog. There is no cat in the image.", ["dog"], ["cat"])
    for protocol, outcome in (("paper", ("A dog sits.", "")), ("fixed", (None, "an object is lost"))):
        [found] = language.paraphrase(client(server), [one], 0, keep_order=False, protocol=protocol)
        assert found == outcome


def test_what_is_no_list_of_objects_is_dropped_and_silence_is_asked_again(server):
    server.rule = lambda body, _: (
        BROKEN if "silent" in prompt(body) else answer({"valid": "Note:" not in prompt(body)})
    )
    lists = [("dog",), ("Note: a dog",), ("silent",)]
    images = [Concepts(f"{k}", "p", ("A",), names, ("cat",)) for k, names in enumerate(lists)]
    found = language.validate(client(server), [*images, Concepts("x", problem="y")])
    fine, bad, silent, before = (image.problem for image in found)
    assert (fine, bad, before) == ("", language.NO_LIST, "y")
    assert silent.startswith(language.NO_ANSWER)
