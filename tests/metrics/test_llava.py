"""The shared beginning changes nothing: answers against `generate`, one question at a time."""

import importlib.util

import pytest
import torch

from nein import metrics
from nein.metrics import MetricError
from nein.metrics.judges import llava as llava_module
from nein.metrics.judges.base import find_template
from tests.metrics import tiny
from tests.metrics.tiny import picture

ASK = find_template("llava-mistral").ask_presence
# Sizes with different numbers of tiles, most of them not square.
SIZES = [(40, 32), (32, 32), (64, 48), (33, 70), (40, 32), (100, 20)]
IMAGES = [picture(i, *size) for i, size in enumerate(SIZES)]
WORDS = ["car", "traffic light", "dog", "a very long and unusual name", "it", "bench"]
QUESTIONS = [[ASK(word) for word in WORDS[:i]] for i in (0, 2, 3, 4, 5, 6)]


def naive(model, processor, image, prompt, limit=10):
    inputs = processor(images=image, text=prompt, return_tensors="pt")
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=limit, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    count = sum(int(token) != processor.tokenizer.eos_token_id for token in new)
    return processor.tokenizer.decode(new, skip_special_tokens=True).strip(), count


def said(rows):
    return [[(answer.text, answer.token_count) for answer in row] for row in rows]


# The last sees no more than 12 tokens back, less than any picture has.
@pytest.fixture(
    scope="module",
    params=[("mistral", 2, {}), ("llama", 0, {}), ("mistral", 1, {"sliding_window": 12})],
    ids=str,
)
def judged(request, tmp_path_factory):
    text, seed, language = request.param
    folder = tmp_path_factory.mktemp("llava") / "model"
    tiny.make_llava(folder, seed=seed, text=text, language=language)
    judge = metrics.load_judge("vqa", str(folder))
    cases = zip(IMAGES, QUESTIONS, strict=True)
    return judge, [[naive(judge.model, judge.processor, x, p) for p in q] for x, q in cases]


def test_answers_equal_generate_for_every_question_alone(judged):
    judge, expected = judged
    assert said(judge.ask(IMAGES, QUESTIONS)) == expected
    assert len({text for row in expected for text, _ in row}) >= 6, "the cases must tell apart"


@pytest.mark.filterwarnings("error::FutureWarning")  # no argument that transformers has deprecated
def test_answers_do_not_depend_on_batches(judged, monkeypatch):
    judge, expected = judged
    monkeypatch.setattr(judge, "batch_size", 2)
    assert said(judge.ask(IMAGES[::-1], QUESTIONS[::-1])) == expected[::-1]


DIFFERENT = ["[INST] <image>\nDoes this image contain car? [/INST]", "Look: <image>\ndog?", "bench? <image>?"]
BEGINNING = [f"<image>\n{text}" for text in ("Does this image contain", "Does this image contain car", "")]


@pytest.mark.parametrize(("picture_", "prompts"), [(0, DIFFERENT), (2, BEGINNING)])
def test_prompts_of_any_form_are_answered(llava, picture_, prompts):
    expected = [[naive(llava.model, llava.processor, IMAGES[picture_], p) for p in prompts]]
    assert said(llava.ask([IMAGES[picture_]], [prompts])) == expected


def test_p_yes_and_p_no_are_the_first_steps_probabilities(llava):
    tokenizer = llava.processor.tokenizer
    forms = {w: [gap + f for gap in ("", " ") for f in (w, w.title(), w.upper())] for w in ("yes", "no")}
    yes, no = ({tokenizer(one, add_special_tokens=False)["input_ids"][0] for one in forms[w]} for w in forms)
    for image, word in ((IMAGES[0], "car"), (IMAGES[3], "dog")):
        inputs = llava.processor(images=image, text=ASK(word), return_tensors="pt")
        with torch.no_grad():
            probabilities = llava.model(**inputs).logits[0, -1].softmax(-1)
        answer = llava.ask([image], [[ASK(word)]])[0][0]
        for ids, value in ((yes - no, answer.p_yes), (no - yes, answer.p_no)):
            assert value == pytest.approx(float(probabilities[list(ids)].sum()), abs=1e-5)
            assert 0 < value < 1


def test_the_prompts_are_neins_to_the_letter():
    asked = "[INST] <image>\nDoes {} Answer only yes or no [/INST]"
    assert ASK("traffic light") == asked.format("this image contain traffic light?")
    about = asked.format('the caption "A man on a bench." describe this image?').replace("?", "?", 1)
    assert find_template("llava-mistral").ask_caption("A man on a bench.") == about
    for name, phrase in (("apple", "an apple"), ("car", "a car"), ("skis", "a skis")):
        assert f"contain {phrase}? Answer" in ASK(name, "a_an")
        assert f"contain {name}? Answer" in ASK(name, "none")


@pytest.mark.parametrize(
    ("questions", "said_"),
    [
        (["Is there a car?"], "<image> once, and text after it"),
        (["<image> or <image>?"], "<image> once, and text after it"),
        (["Is there a car? <image>"], "<image> once, and text after it"),
        (ASK("car"), "list of questions"),
    ],
)
def test_a_prompt_without_one_picture_and_text_behind_it_is_refused(llava, questions, said_):
    with pytest.raises(MetricError, match=said_):
        llava.ask(IMAGES[:1], [questions])


def test_a_missing_bitsandbytes_is_one_sentence(models, monkeypatch):
    monkeypatch.setattr(llava_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MetricError, match="bitsandbytes: pip install"):
        metrics.load_judge("vqa", str(models / "llava"), quantization="bnb-fp4")


@pytest.mark.device
@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_four_bit_weights_answer_like_generate(cuda, models):
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
