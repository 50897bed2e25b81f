"""The shared beginning changes nothing: answers against `generate`, one question at a time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nein import metrics
from nein.metrics import MetricError
from nein.metrics.judges import llava as llava_module
from nein.metrics.judges.base import TEMPLATES, template
from tests.metrics import tiny
from tests.metrics.tiny import picture

ASK = template("llava-mistral").ask_presence
# Sizes with different numbers of tiles, most of them not square.
SIZES = [(40, 32), (32, 32), (64, 48), (33, 70), (40, 32), (100, 20)]
IMAGES = [picture(i, *size) for i, size in enumerate(SIZES)]
WORDS = ["car", "traffic light", "dog", "a very long and unusual name", "it", "bench"]
QUESTIONS = [[ASK(word) for word in WORDS[: 1 + i]] for i in range(len(IMAGES))]


def naive(model: Any, processor: Any, image: np.ndarray, prompt: str, limit: int = 10) -> tuple[str, int]:
    inputs = processor(images=image, text=prompt, return_tensors="pt")
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=limit, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    count = sum(int(token) != processor.tokenizer.eos_token_id for token in new)
    return processor.tokenizer.decode(new, skip_special_tokens=True).strip(), count


def said(rows: Any) -> list[list[tuple[str, int]]]:
    return [[(answer.text, answer.token_count) for answer in row] for row in rows]


# The last sees no more than 12 tokens back, less than any picture has.
@pytest.fixture(
    scope="module",
    params=[("mistral", 2, {}), ("llama", 0, {}), ("mistral", 1, {"sliding_window": 12})],
    ids=str,
)
def judged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    text, seed, language = request.param
    folder = tiny.make_llava(
        tmp_path_factory.mktemp("llava") / "model", seed=seed, text=text, language=language
    )
    judge = metrics.load_judge("vqa", str(folder))
    cases = zip(IMAGES, QUESTIONS, strict=True)
    return judge, [[naive(judge.model, judge.processor, x, p) for p in q] for x, q in cases]


def test_answers_equal_generate_for_every_question_alone(judged) -> None:
    judge, expected = judged
    assert said(judge.ask(IMAGES, QUESTIONS)) == expected
    assert len({text for row in expected for text, _ in row}) >= 6, "the cases must tell apart"


@pytest.mark.parametrize("size", [1, 2])
def test_answers_do_not_depend_on_batches(judged, size, monkeypatch) -> None:
    judge, expected = judged
    monkeypatch.setattr(judge, "batch_size", size)
    assert said(judge.ask(IMAGES[::-1], QUESTIONS[::-1])) == expected[::-1]


def test_prompts_that_differ_before_the_picture_are_answered_too(llava) -> None:
    prompts = [
        "[INST] <image>\nDoes this image contain car? [/INST]",
        "Look: <image>\ndog?",
        "bench? <image>?",
    ]
    expected = [[naive(llava.model, llava.processor, IMAGES[0], p) for p in prompts]]
    assert said(llava.ask(IMAGES[:1], [prompts])) == expected


def test_one_question_that_begins_another_is_answered_too(llava) -> None:
    prompts = [
        "<image>\nDoes this image contain",
        "<image>\nDoes this image contain car and dog",
        "<image>\n",
    ]
    expected = [[naive(llava.model, llava.processor, IMAGES[2], p) for p in prompts]]
    assert said(llava.ask([IMAGES[2]], [prompts])) == expected


def test_p_yes_and_p_no_are_the_first_steps_probabilities(llava) -> None:
    for image, word in ((IMAGES[0], "car"), (IMAGES[3], "dog")):
        inputs = llava.processor(images=image, text=ASK(word), return_tensors="pt")
        with torch.no_grad():
            probabilities = llava.model(**inputs).logits[0, -1].softmax(-1)
        tokenizer = llava.processor.tokenizer
        firsts = {
            w: {tokenizer(form, add_special_tokens=False)["input_ids"][0] for form in forms}
            for w, forms in (
                ("yes", ("yes", "Yes", "YES", " yes", " Yes", " YES")),
                ("no", ("no", "No", "NO", " no", " No", " NO")),
            )
        }
        answer = llava.ask([image], [[ASK(word)]])[0][0]
        for w, value, other in (("yes", answer.p_yes, "no"), ("no", answer.p_no, "yes")):
            expected = sum(float(probabilities[i]) for i in firsts[w] - firsts[other])
            assert value == pytest.approx(expected, abs=1e-5)
            assert 0 < value < 1


def test_pictures_without_questions_get_empty_answers(llava) -> None:
    answers = llava.ask(IMAGES[:3], [[], [ASK("car")], []])
    assert [len(row) for row in answers] == [0, 1, 0]
    assert llava.ask([], []) == []


def test_the_input_picture_is_not_modified(llava) -> None:
    image = IMAGES[0].copy()
    llava.ask([image], [[ASK("car")]])
    assert np.array_equal(image, IMAGES[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_answers_equal_generate_in_the_same_precision(models: Path, dtype) -> None:
    # One token: in half precision near ties between garbage tokens may fall either way later on.
    judge = metrics.load_judge("vqa", str(models / "llava"), dtype=dtype)
    judge.max_new_tokens = 1
    answers = judge.ask(IMAGES, QUESTIONS)
    inputs = [
        (image, prompt, answer)
        for image, prompts, row in zip(IMAGES, QUESTIONS, answers, strict=True)
        for prompt, answer in zip(prompts, row, strict=True)
    ]
    wrong = 0
    for image, prompt, answer in inputs:
        batch = judge.processor(images=image, text=prompt, return_tensors="pt")
        batch["pixel_values"] = batch["pixel_values"].to(judge.model.dtype)
        with torch.no_grad():
            logits = judge.model(**batch).logits[0, -1].float()
        top = logits.topk(2).values
        best = judge.processor.tokenizer.decode([int(logits.argmax())], skip_special_tokens=True).strip()
        if answer.text != best:
            wrong += 1
            assert float(top[0] - top[1]) < 0.05 * float(logits.std()), "only a near tie may differ"
    assert wrong <= 2


# ------------------------------------------------------------------------------------------ wording, errors


def test_the_presence_prompt_is_neins_to_the_letter() -> None:
    expected = "[INST] <image>\nDoes this image contain traffic light? Answer only yes or no [/INST]"
    assert ASK("traffic light") == expected


@pytest.mark.parametrize("name,phrase", [("apple", "an apple"), ("car", "a car"), ("skis", "a skis")])
def test_the_papers_article_follows_the_first_letter(name, phrase) -> None:
    assert f"contain {phrase}? Answer" in ASK(name, "a_an")
    assert f"contain {name}? Answer" in ASK(name, "none")


def test_the_caption_prompt_is_neins_to_the_letter() -> None:
    prompt = template("llava-mistral").ask_caption("A man on a bench.")
    assert prompt == (
        '[INST] <image>\nDoes the caption "A man on a bench." describe this image? '
        "Answer only yes or no [/INST]"
    )


@pytest.mark.parametrize("name", list(TEMPLATES))
def test_every_template_holds_one_picture_and_the_object(name) -> None:
    prompt = template(name).ask_presence("car")
    # A chat model's own template places the picture; the bare question leaves that to it.
    assert prompt.count("<image>") == (0 if name == "question" else 1)
    assert "contain car?" in prompt
    assert "{" not in prompt


def test_an_unknown_template_gets_a_near_match(models: Path) -> None:
    with pytest.raises(MetricError, match="did you mean 'llava-mistral'"):
        metrics.load_judge("vqa", str(models / "llava"), template="llava-mistrl")


def test_a_prompt_without_one_picture_and_text_behind_it_is_refused(llava) -> None:
    for prompt in ("Is there a car?", "<image> or <image>?", "Is there a car? <image>"):
        with pytest.raises(MetricError, match="<image> exactly once, and text after it"):
            llava.ask(IMAGES[:1], [[prompt]])


def test_a_bare_string_instead_of_a_list_of_questions_is_refused(llava) -> None:
    with pytest.raises(MetricError, match="list of questions"):
        llava.ask(IMAGES[:1], [ASK("car")])  # type: ignore[list-item]


def test_a_missing_bitsandbytes_is_one_sentence(models: Path, monkeypatch) -> None:
    monkeypatch.setattr(llava_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MetricError, match="bitsandbytes: pip install"):
        metrics.load_judge("vqa", str(models / "llava"), quantization="bnb-fp4")


@pytest.mark.device
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_four_bit_weights_answer_like_generate(cuda: str, models: Path) -> None:
    judge = metrics.load_judge(
        "vqa", str(models / "llava"), device=cuda, dtype="float16", quantization="bnb-fp4"
    )
    assert "4bit" in str(type(judge.model.model.language_model.layers[0].mlp.up_proj)).lower()
    inputs = judge.processor(images=IMAGES[0], text=ASK("car"), return_tensors="pt").to(cuda, torch.float16)
    with torch.no_grad():
        expected = judge.model.generate(**inputs, max_new_tokens=1, do_sample=False)[0, -1]
    judge.max_new_tokens = 1
    answer = judge.ask(IMAGES[:1], [[ASK("car")]])[0][0]
    assert answer.text == judge.processor.tokenizer.decode([int(expected)], skip_special_tokens=True).strip()


def test_the_fingerprint_depends_on_wording_and_precision(models: Path, llava) -> None:
    other = metrics.load_judge("vqa", str(models / "llava"), template="plain")
    half = metrics.load_judge("vqa", str(models / "llava"), dtype="bfloat16")
    assert len({llava.fingerprint, other.fingerprint, half.fingerprint}) == 3
