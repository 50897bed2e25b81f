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
from tests.nano.words import negated
from train.nano import negvqa
from train.nano.packed import Packed
from train.nano.pool import to_float


def taught(negation: float, count: int = 300) -> list[tuple[str, str]]:
    rng = random.Random(1)
    scenes = [question_scene("train", index) for index in range(40)]
    slots = [negvqa.SLOTS[number % len(negvqa.SLOTS)] for number in range(count)]
    return [negvqa._slot(rng, rng.choice(scenes), slot, negation) for slot in slots]


def test_no_negated_word_is_in_what_the_affirmative_model_and_its_tokenizer_learn_from() -> None:
    texts = [f"{prompt} {reply}" for prompt, reply in taught(0.0)]
    assert len(set(texts)) > 150
    assert negated(texts) == []
    assert negated(negvqa._words()) == []


def test_the_other_model_learns_all_negated_wordings_but_those_held_out_and_no_letter_is_favoured() -> None:
    pairs = [(prompt, reply) for prompt, reply in taught(1.0, 600) if "Options" in prompt]
    assert 0.4 < sum(reply == "A" for _, reply in pairs) / len(pairs) < 0.6
    for pairs_of_kind in WORDINGS.values():
        for number, (question, denied) in enumerate(pairs_of_kind):
            held_out = number == len(pairs_of_kind) - 1
            assert any(_pattern(denied).search(prompt) for prompt, _ in pairs) != held_out, denied
            if held_out:
                assert any(_pattern(question).search(prompt) for prompt, _ in pairs), question
    share = len(negated([prompt for prompt, _ in taught(2 / 3, 600)])) / 600
    assert 0.2 < share < 0.45


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
        assert torch.equal(features, packed.project(packed.see(x)))
        together, branched = packed.run(features, ids), packed.branch(features, ids)
        for b in range(2):
            for q, own in enumerate(ids[b]):
                opening = packed.embedding(torch.tensor(packed.head_ids))
                alone = torch.cat([opening, features[b], packed.embedding(torch.tensor(own))])[None]
                expected = packed.language(inputs_embeds=alone).last_hidden_state[0, -len(own) :]
                assert torch.allclose(together[b, q, : len(own)], expected, atol=1e-4)
                assert torch.allclose(branched[b, q, : len(own)], expected, atol=1e-4)
    assert (together[0, 0, 3] - together[1, 0, 3]).abs().max() > 1e-3  # it looks
