"""What the nano VLMs are taught, and that questions about one picture are run as if they stood alone."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch

from nein.nano import zoo
from nein.nano.draw import CATEGORIES
from nein.nano.questions import SIDES, WORDINGS, question_scene
from nein.nano.scenes import render
from nein.nano.worlds import HELD_OUT
from research.nano import negvqa
from research.nano.packed import Packed
from research.nano.pool import to_float
from tests.nano.words import negated


def taught(name: str, count: int = 300) -> list[tuple[str, str]]:
    """Prompts and replies of a recipe."""
    rng = random.Random(1)
    scenes = [question_scene("train", index) for index in range(40)]
    times = -(-count // len(negvqa.SLOTS))
    pairs = [negvqa._slots(rng, rng.choice(scenes), negvqa.RECIPES[name]) for _ in range(times)]
    return [pair for slots in pairs for pair in slots][:count]


def test_no_negated_word_is_in_what_the_affirmative_model_and_its_tokenizer_learn_from() -> None:
    texts = [f"{prompt} {reply}" for prompt, reply in taught("negvqa")]
    assert len(set(texts)) > 150
    assert negated(texts) == []
    assert negated(negvqa._words()) == []


def test_the_other_model_learns_all_negated_wordings_but_those_held_out_and_no_letter_is_favoured() -> None:
    pairs = [(prompt, reply) for prompt, reply in taught("negvqa-negated", 1500) if "Options" in prompt]
    assert 0.4 < sum(reply == "A" for _, reply in pairs) / len(pairs) < 0.6
    for pairs_of_kind in WORDINGS.values():
        for number, (question, denied) in enumerate(pairs_of_kind):
            held_out = number == len(pairs_of_kind) - 1
            assert any(_pattern(denied).search(prompt) for prompt, _ in pairs) != held_out, denied
            if held_out:
                assert any(_pattern(question).search(prompt) for prompt, _ in pairs), question
    share = len(negated([prompt for prompt, _ in taught("negvqa-negated", 600)])) / 600
    assert 0.5 < share < 0.65  # two of three questions with options, which are six of seven


@pytest.mark.parametrize("name", ["negvqa-negated", "negvqa-varied"])
def test_no_negated_question_names_a_held_out_object_or_has_a_held_out_denying_word(name: str) -> None:
    denied = [p for p in (prompt for prompt, _ in taught(name, 900)) if "Options" in p and negated([p])]
    assert len(denied) > 100
    assert not any(re.search(rf"\b{noun}\b", prompt) for prompt in denied for noun in HELD_OUT)
    assert not any(
        re.search(r"missing|\black|absent|wrong|anywhere", prompt) for prompt, _ in taught(name, 900)
    )


def test_twins_differ_in_the_negation_and_in_the_letter() -> None:
    pairs = taught("negvqa-varied", 7 * 40)
    for start in range(0, len(pairs), len(negvqa.SLOTS)):
        for k in (0, 2, 4):
            (affirmed, first), (denied, second) = pairs[start + k : start + k + 2]
            assert {first, second} == {"A", "B"}
            assert affirmed.partition("Options")[2] == denied.partition("Options")[2]
            assert not negated([affirmed])
            assert negated([denied])


def _pattern(wording: str) -> re.Pattern[str]:
    """A question of that wording, whatever it is about."""
    words = re.escape(wording).replace(r"\{thing\}", f"({'|'.join(CATEGORIES)})")
    return re.compile(words.replace(r"\{side\}", f"({'|'.join(SIDES)})"))


@pytest.fixture(scope="module")
def packed() -> Packed:
    from transformers import AutoProcessor, LlavaNextForConditionalGeneration

    folder = zoo.ZOO / "llava"
    model = LlavaNextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return Packed(model.eval(), AutoProcessor.from_pretrained(folder).tokenizer, torch.device("cpu"))


def test_packed_questions_are_run_as_the_library_runs_them_alone(packed: Packed) -> None:
    drawn = np.stack([render(question_scene("dev", index)) for index in range(2)])
    x = to_float(torch.from_numpy(drawn).permute(0, 3, 1, 2))
    texts = ["\nWhat is there? [/INST]", "\nWhat colour is the dog in the picture? [/INST]"]
    ids = [[packed.encode(text, "A")[0] for text in texts]] * 2
    with torch.inference_mode():
        features = packed.look(x)
        # The same sums; a processor may take another kernel for another shape, and so another order.
        torch.testing.assert_close(features, packed.project(packed.see(x)), rtol=1e-5, atol=1e-5)
        together, branched = packed.run(features, ids), packed.branch(features, ids)
        for b in range(2):
            for q, own in enumerate(ids[b]):
                opening = packed.embedding(torch.tensor(packed.head_ids))
                alone = torch.cat([opening, features[b], packed.embedding(torch.tensor(own))])[None]
                expected = packed.language(inputs_embeds=alone).last_hidden_state[0, -len(own) :]
                assert torch.allclose(together[b, q, : len(own)], expected, atol=1e-4)
                assert torch.allclose(branched[b, q, : len(own)], expected, atol=1e-4)
    assert (together[0, 0, 3] - together[1, 0, 3]).abs().max() > 1e-3  # it looks
