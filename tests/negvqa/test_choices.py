"""Models of transformers that answer with a letter, against calls by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nein import metrics
from nein.metrics import MetricError, choices
from nein.metrics.choices import Asked, Reply, answer_each, prompt
from nein.metrics.judges.vlm import TransformersChoices, letter_tokens
from nein.metrics.letters import SCORINGS
from tests.metrics.tiny import picture

WORDS = [("What is there?", ["cat", "dog"]), ("What is not to the left of the red car?", ["bench", "dog"])]
ASKED = [Asked(prompt("paper", *words)) for words in WORDS]


@pytest.fixture(
    scope="module", params=["llava", "llava_next", "qwen", "qwen25", "qwen3", "deepseek", "instructblip"]
)
def model(request: Any, classes: Path) -> TransformersChoices:
    found = metrics.load_choices(str(classes / request.param), batch_size=4, max_new_tokens=4)
    assert isinstance(found, TransformersChoices)
    return found


def by_hand(model: TransformersChoices, image: np.ndarray, asked: Asked) -> tuple[str, torch.Tensor]:
    """The answer of `generate` to one question, and the log-probabilities of the first token."""
    before, after = asked.prompt
    if model.processor.__class__.__name__ == "InstructBlipProcessor":
        text = asked.prompt.text
    else:
        turn = [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": after}]
        text = model.processor.apply_chat_template(
            [{"role": "user", "content": turn}], add_generation_prompt=True
        )
        assert before in text
        assert after in text
    inputs = model.processor(images=Image.fromarray(image), text=text, return_tensors="pt")
    with torch.no_grad():
        found = model.model.generate(
            **inputs, do_sample=False, max_new_tokens=4, return_dict_in_generate=True, output_logits=True
        )
    own = found.sequences[0, found.sequences.shape[1] - len(found.logits) :]
    words = model.processor.tokenizer.decode(own, skip_special_tokens=True).strip()
    return words, found.logits[0][0].float().log_softmax(-1)


def test_answers_and_probabilities_are_those_of_single_calls(model: TransformersChoices) -> None:
    pictures = [picture(0), picture(1), picture(2, 56, 40)]
    found = model.answer(pictures, [ASKED, ASKED, ASKED[:1]], SCORINGS)
    assert [len(row) for row in found] == [2, 2, 1]
    letters = letter_tokens(model.processor.tokenizer)
    seen = set()
    for image, row in zip(pictures, found, strict=True):
        for asked, reply in zip(ASKED, row, strict=False):
            text, first = by_hand(model, image, asked)
            assert reply.text == text
            expected = [float(first[letters[letter]].logsumexp(0)) for letter in "AB"]
            assert reply.logprobs == pytest.approx(expected, abs=2e-4)
            assert reply.likeliest == "AB"[expected[1] > expected[0]]
            seen.add(reply.logprobs)
    assert len(seen) == 5  # it looks and reads


def test_batches_and_company_change_nothing_but_the_last_digits(model: TransformersChoices) -> None:
    pictures = [picture(i) for i in range(3)]
    together = model.answer(pictures, [ASKED] * 3, SCORINGS)
    for image, row in zip(pictures, together, strict=True):
        alone = [model.answer([image], [[one]], SCORINGS)[0][0] for one in ASKED]
        assert [reply.text for reply in alone] == [reply.text for reply in row]
        for one, other in zip(alone, row, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=2e-4)


def test_the_picture_stands_where_the_prompt_has_it_unless_the_template_moves_it(vlms: Path) -> None:
    found: Any = metrics.load_choices(str(vlms / "llava"))
    assert [part["type"] for part in found._content(ASKED[0].prompt, "x")] == ["text", "image", "text"]
    first = "{% for m in messages %}<image>{% for p in m['content'] if p['type'] == 'text' %}{{ p['text'] }}"
    found.processor.chat_template = f"{first}{{% endfor %}}{{% endfor %}}"
    moved: Any = TransformersChoices(found.model, found.processor, found.source)
    parts = moved._content(ASKED[0].prompt, "x")
    assert [part["type"] for part in parts] == ["image", "text"]
    assert parts[1]["text"].startswith("Question: What is there?\nOptions: A. cat B. dog\nAnswer with")
    assert "before" in moved.describe()["picture"]


def test_prompts_are_worded_as_published() -> None:
    before, after = prompt("paper", "What is it?", ["cat", "dog", "owl"])
    assert before + "<image>" + after == (
        "Question: <image> What is it?\nOptions: A. cat B. dog C. owl\n"
        "Answer with the option's letter from the given choices directly."
    )
    assert prompt("vlmevalkit", "What is it?", ["cat", "dog"]) == (
        "",
        "Question: What is it?\nOptions:\nA. cat\nB. dog\n"
        "Please select the correct answer from the options above. \n",
    )
    with pytest.raises(MetricError, match="did you mean 'paper'"):
        prompt("papr", "?", ["a", "b"])


#: (wording, question, options) -> what VLMEvalKit's own functions make of it at commit 0f27427e (May 2025).
SENT = {
    ("vlmevalkit-llava", "What is it?", ("cat", "dog")):
        "What is it?\nA. cat\nB. dog\nAnswer with the option's letter from the given choices directly.",
    ("vlmevalkit-llava", "Which sign?", ("出口", "exit")):
        "Which sign?\nA. 出口\nB. exit\n请直接回答选项字母。",
    ("vlmevalkit-molmo", "What is it?", ("cat", "dog", "owl")):
        "a_okvqa_mc: What is it?\nA: cat\nB: dog\nC: owl",
    ("vlmevalkit-qwen2-vl", "What is it?", ("cat", "dog")):
        "Question: What is it?\nOptions:\nA. cat\nB. dog\n"
        "Please select the correct answer from the options above.",
    ("vlmevalkit-qwen2-vl", "Which sign?", ("出口", "exit")):
        "Question: Which sign?\nOptions:\nA. 出口\nB. exit\n请直接回答选项字母。",
}  # fmt: skip


@pytest.mark.parametrize("wording, question, options", SENT)
def test_models_with_a_wording_of_their_own_in_the_toolkit_get_it(
    wording: str, question: str, options: tuple[str, ...]
) -> None:
    assert prompt(wording, question, options) == ("", SENT[wording, question, options])


@pytest.mark.parametrize(
    "reference, wording, tokens",
    [
        ("llava-hf/llava-1.5-7b-hf@main", "vlmevalkit-llava", 2048),
        ("liuhaotian/llava-v1.5-13b", "vlmevalkit-llava", 2048),
        ("llava-hf/llava-v1.6-mistral-7b-hf", "vlmevalkit-llava", 2048),
        ("lmms-lab/llava-next-qwen-32b", "vlmevalkit", 2048),
        ("OpenGVLab/InternVL2_5-8B", "vlmevalkit-llava", 4096),
        ("openai:http://localhost:8000/v1#allenai/Molmo-72B-0924", "vlmevalkit-molmo", 200),
        ("allenai/MolmoE-1B-0924", "vlmevalkit-molmo", 200),
        ("models/Qwen2-VL-7B-Instruct/", "vlmevalkit-qwen2-vl", 2048),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "vlmevalkit", 2048),
        ("nyu-visionx/cambrian-8b", "vlmevalkit", 2048),
        ("deepseek-ai/deepseek-vl-7b-chat", "vlmevalkit", 512),
        ("Efficient-Large-Model/Llama-3-VILA1.5-8b", "vlmevalkit", 2048),
        ("Salesforce/instructblip-vicuna-7b", "vlmevalkit", 256),
        ("somebody/new-model", "vlmevalkit", 2048),
    ],
)
def test_the_toolkit_knows_a_model_by_its_name(reference: str, wording: str, tokens: int) -> None:
    assert choices.manner(reference) == (wording, tokens)


def test_a_model_without_a_chat_template_is_refused_in_a_sentence(vlms: Path, tmp_path: Path) -> None:
    shutil.copytree(vlms / "llava", tmp_path / "plain")
    for file in (tmp_path / "plain").glob("chat_template*"):
        file.unlink()
    with pytest.raises(MetricError, match=r"has no chat template.*openai:URL#MODEL"):
        metrics.load_choices(str(tmp_path / "plain"))
    with pytest.raises(MetricError, match="There is no model folder"):
        metrics.load_choices(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['content'] }}{% endfor %}",  # for plain strings
        "{% for m in messages %}{{ raise_exception('no pictures, please') }}{% endfor %}",
        "{% for m in messages %}{% for p in m['content'] if p['type'] == 'text' %}{{ p['text'] }}{% endfor %}"
        "{% endfor %}",
        "{% for m in messages %}<image>{% endfor %}",
    ],
)
def test_a_chat_template_that_takes_no_picture_or_no_words_is_refused(
    template: str, vlms: Path, tmp_path: Path
) -> None:
    shutil.copytree(vlms / "llava", tmp_path / "odd")
    (tmp_path / "odd" / "chat_template.jinja").write_text(template)
    with pytest.raises(MetricError, match="does not take a picture and a question"):
        metrics.load_choices(str(tmp_path / "odd"))


class Failing:
    """A model that fails on dark pictures, and on every batch that holds one."""

    fingerprint, scorings, concurrent = "f", SCORINGS, 0

    def describe(self) -> dict[str, Any]:
        return {}

    def answer(self, images: Any, asked: Any, scorings: Any) -> list[list[Reply]]:
        if any(image.mean() < 50 for image in images):
            raise RuntimeError("too dark\nto see")
        return [[Reply(text="A") for _ in row] for row in asked]


def test_a_failure_stays_with_its_question() -> None:
    pictures = [np.full((4, 4, 3), value, np.uint8) for value in (200, 10, 120)]
    found = answer_each(Failing(), pictures, [ASKED] * 3, ["generated"])
    assert [[r.text for r in row] for row in found] == [["A", "A"], [None, None], ["A", "A"]]
    assert found[1][0].error == "RuntimeError: too dark"


def test_a_tie_or_a_lack_of_probabilities_has_no_likeliest_letter() -> None:
    assert Reply(logprobs=(-1.0, -2.0)).likeliest == "A"
    assert Reply(logprobs=(None, -9.0)).likeliest == "B"
    assert Reply(logprobs=(-1.0, -1.0)).likeliest is None
    assert Reply(logprobs=(None, None)).likeliest is None
    assert Reply(text="A").likeliest is None


def test_letters_are_told_apart_by_tokens_that_no_other_letter_begins_with(classes: Path) -> None:
    found: Any = metrics.load_choices(str(classes / "qwen"))
    tokenizer = found.processor.tokenizer
    letters = letter_tokens(tokenizer)
    assert tokenizer.convert_tokens_to_ids("A") in letters["A"]
    assert all(letters.values())
    ids = [token for own in letters.values() for token in own]
    assert len(ids) == len(set(ids))


def test_the_judge_is_asked_in_its_own_template() -> None:
    class Judge:
        template, fingerprint = "llava-mistral", "j"

        def describe(self) -> dict[str, Any]:
            return {"class": "Judge"}

        def ask(self, images: Any, questions: Any) -> Any:
            self.asked = questions
            return [[type("Answer", (), {"text": "B"})() for _ in row] for row in questions]

    judge = Judge()
    found = choices.JudgeChoices(judge)
    assert found.answer([picture(0)], [ASKED], ["generated"])[0][1].text == "B"
    assert judge.asked[0][0].startswith("[INST] <image>\nQuestion: What is there?\nOptions: A. cat B. dog")
    assert judge.asked[0][0].endswith("directly. [/INST]")
    assert found.describe()["judge"] == "j"
