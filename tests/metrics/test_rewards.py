import json
import math

import numpy as np
import pytest
import torch
import transformers

from nein import metrics
from nein.loading.service import NoAnswer
from nein.metrics import rewards
from nein.metrics.base import MetricError
from nein.metrics.chat import Message, Sampling
from nein.metrics.choices import Reply
from nein.metrics.rewards import EditScore, Pairwise
from tests.metrics import tiny
from tests.rehearsal import ScriptedChat

SOURCE, FIRST, SECOND = (tiny.picture(k, 24, 24) for k in range(3))
TOLD = "The image doesn't have any cup."


def told(*numbers):
    return json.dumps({"reasoning": "so", "score": list(numbers)})


def speaking(rule):
    return ScriptedChat(lambda one: rule(len(one.images), one.parts[-1], one.seed))


def scored(rule, **options):
    return EditScore(speaking(rule), **options).score([SOURCE], [FIRST], [TOLD])[0]


def test_editscore_is_the_root_of_the_smaller_numbers_of_the_pair_and_of_the_edit_alone():
    asked = []

    def rule(n, text, seed):
        asked.append((n, TOLD in text, seed))
        return told(20, 10) if n == 2 else told(25, 22.5)

    one = scored(rule, passes=2)
    assert one.value == pytest.approx(math.sqrt(4 * 9))  # 10 / 2.5 and 22.5 / 2.5
    assert (one.detail["SC"], one.detail["PQ"]) == (4, 9)
    assert asked == [(2, True, 42), (1, False, 42), (2, True, 43), (1, False, 43)]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (told(30, 40), "not from 0 to 25"),
        *(
            (answer, "has no 'score' of two numbers")
            for answer in (
                "I cannot tell.", '{"reasoning": "so", "score": [20, 10}', told(20), "First 20, second 5",
                told("a", True), told(None, math.nan), told(20, True), '{"score": "42"}', '{"score": 7}',
            )
        ),
    ],
)  # fmt: skip
def test_an_edit_is_unscored_where_an_answer_cannot_be_read(answer, why):
    score = scored(lambda n, text, seed: answer if TOLD in text else told(25, 25))
    assert score.value is None
    assert why in score.reason
    assert score.detail["answers"] == [answer, told(25, 25)]


def test_an_edit_whose_question_fails_is_unscored_and_only_that_one():
    def rule(n, text, seed):
        if "dog" in text:
            raise NoAnswer("nobody is there")
        return told(25, 25)

    judge = EditScore(speaking(rule))
    good, bad = judge.score([SOURCE] * 2, [FIRST] * 2, [TOLD, "No dog in the image."])
    assert good.value == 10
    assert (bad.value, bad.again) == (None, True)
    assert "nobody is there" in bad.reason


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return tiny.make_qwen2_5_vl(tmp_path_factory.mktemp("qwen") / "tiny", seed=3)


def test_a_model_of_transformers_is_shown_both_pictures_and_draws_by_its_seed(qwen):
    judge = metrics.load_reward(f"editscore:{qwen}")
    asked = ((42, 0.7), (42, 0.7), (43, 0.7), (42, 0.0), (1, 0.0))

    def say(seed, temperature):
        message = Message(("<img1>: ", SOURCE, "<img2>: ", FIRST, "Numbers?"), seed)
        return judge.chat.complete([message], Sampling(64, temperature, 0.9, 20))[0].text

    a, again, b, greedy, same = (say(*how) for how in asked)
    assert a == again != b
    assert greedy == same
    [one] = judge.score([SOURCE], [FIRST], [TOLD])
    assert one.value is None  # a random model says nothing that can be read
    assert "has no 'score'" in one.reason


def test_a_lora_is_merged_into_the_base_it_names_and_the_authors_questions_are_asked(qwen, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(qwen)
    with tiny.seeded(5):
        tuned = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False))
    tuned.save_pretrained(tmp_path)
    (tmp_path / "vie_prompts.py").write_text(
        "raise SystemExit('not run')\n"
        "_context_no_delimit_reasoning_first = 'Say it.'\n_prompts_0shot_two_image_edit_rule = 'Two.'\n"
        "_prompts_0shot_tie_rule_SC = 'From 0 to 10: <instruction>'\n_prompts_0shot_rule_PQ = '0 to 10'\n"
    )
    judge, plain = (metrics.load_reward(f"editscore:{folder}") for folder in (tmp_path, qwen))
    asked = {"SC": "Say it.\nTwo.\nFrom 0 to 25: <instruction>", "PQ": "Say it.\n0 to 25"}
    assert judge.questions == asked
    assert judge.fingerprint != plain.fingerprint
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    merged, before = (one.model.model.state_dict()[name] for one in (judge, plain))
    expected = tuned.merge_and_unload().state_dict()[name]
    assert torch.allclose(merged, expected, atol=1e-6)
    assert not torch.allclose(merged, before, atol=1e-4)


class Choosing:
    concurrent = 0

    def __init__(self, rule, scorings=("logprob",)):
        self.rule, self.scorings, self.fingerprint = rule, scorings, "choosing"

    def describe(self):
        return {}

    def answer(self, images, asked, scorings):
        return [[self.rule(image) for _ in row] for image, row in zip(images, asked, strict=True)]


def panels(sheet):
    return [float(sheet[:, k * 25 : k * 25 + 24].mean()) for k in range(3)]


GREYS = [np.full((24, 24, 3), value, np.uint8) for value in (100, 200, 50)]


def probable(a):
    return Reply(logprobs=(math.log(a), math.log(1 - a)))


def test_a_preference_for_a_place_cancels_where_there_are_probabilities():
    source, bright, dark = GREYS

    def rule(sheet):  # the brighter edit, and the middle by much more
        _, middle, right = panels(sheet)
        return probable(1 / (1 + math.exp(-(2.0 + 0.1 * (middle > right) - 0.1 * (middle < right)))))

    judge = Pairwise(Choosing(rule))
    first, second = judge.prefer([source] * 2, [bright, dark], [dark, bright], [TOLD] * 2)
    assert (first.value, second.value) == (1, 0)
    assert first.detail["letters"] == ["A", "A"]
    assert first.detail["difference"] == pytest.approx(0.1)


@pytest.mark.parametrize(("texts", "value"), [("AB", 1.0), ("BA", 0.0), ("AA", 0.5), (("A", "Hm."), None)])
def test_letters_of_both_orders_have_to_agree(texts, value):
    said = iter(texts)
    judge = Pairwise(Choosing(lambda sheet: Reply(next(said)), ("generated",)))
    [one] = judge.prefer(*([grey] for grey in GREYS), [TOLD])
    assert one.value == value
    assert value is not None or "no letter in" in one.reason


def test_several_edits_are_ranked_by_their_comparisons():
    judge = Pairwise(Choosing(lambda sheet: probable(0.9 if panels(sheet)[1] > panels(sheet)[2] else 0.1)))
    ranks = rewards.rank_edits(judge, GREYS[0], [GREYS[2], GREYS[1], GREYS[0]], TOLD)
    assert [one.value for one in ranks] == [0, 1, 0.5]


def refused():
    return EditScore(speaking(lambda n, text, seed: told(1, 1)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: metrics.check_reward("editscore"), "is not a reward; expected editscore:MODEL"),
        (lambda: metrics.check_reward("editscore:openai:nowhere"), "is not an endpoint"),
        (lambda: refused().score([SOURCE], [FIRST], [" "]), "expected a sentence"),
        (lambda: refused().score([SOURCE], [FIRST, SECOND], [TOLD]), "2 images but 1 instructions"),
    ],
)
def test_a_mistake_is_one_sentence(make, said):
    with pytest.raises(MetricError, match=said):
        make()


def test_numbers_written_as_strings_are_read():
    assert rewards.read_numbers('{"score": ["20", " 15.5 "]}') == [20, 15.5]
