import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from nein import metrics
from nein.metrics import MetricError, choice_prompts
from nein.metrics.chat import Completion
from nein.metrics.chat.endpoint import Endpoint
from nein.metrics.chat.local import LocalChat, letter_tokens
from nein.metrics.choice_prompts import write_prompt
from nein.metrics.choices import ChatChoices, ChoiceQuestion, Reply
from nein.metrics.letters import SCORINGS
from tests.loopback import say
from tests.metrics.tiny import picture

WORDS = [("What is there?", ["cat", "dog"]), ("What is not to the left of the red car?", ["bench", "dog"])]
ASKED = [ChoiceQuestion(write_prompt("paper", *words)) for words in WORDS]


@pytest.fixture(scope="module", params=["llava", "llava_next", "qwen", "instructblip"])
def model(request, classes):
    found = metrics.load_choices(str(classes / request.param), batch_size=4, max_new_tokens=4)
    assert isinstance(found.chat, LocalChat)
    return found


def by_hand(model, image, asked):
    """The answer of `generate` to one question, and the log-probabilities of the first token."""
    before, after = asked.prompt
    if model.chat.processor.__class__.__name__ == "InstructBlipProcessor":
        text = asked.prompt.text
    else:
        turn = [{"type": "text", "text": before}, {"type": "image"}, {"type": "text", "text": after}]
        text = model.chat.processor.apply_chat_template(
            [{"role": "user", "content": turn}], add_generation_prompt=True
        )
        assert before in text
        assert after in text
    inputs = model.chat.processor(images=Image.fromarray(image), text=text, return_tensors="pt")
    with torch.no_grad():
        found = model.chat.model.generate(
            **inputs, do_sample=False, max_new_tokens=4, return_dict_in_generate=True, output_logits=True
        )
    own = found.sequences[0, found.sequences.shape[1] - len(found.logits) :]
    words = model.chat.processor.tokenizer.decode(own, skip_special_tokens=True).strip()
    return words, found.logits[0][0].float().log_softmax(-1)


def test_answers_and_probabilities_are_those_of_single_calls(model):
    pictures = [picture(0), picture(1), picture(2, 56, 40)]
    rows = [ASKED, ASKED[::-1], ASKED[:1]]
    found = model.answer(pictures, rows, SCORINGS)
    assert [len(row) for row in found] == [2, 2, 1]
    letters = letter_tokens(model.chat.processor.tokenizer)
    seen = set()
    for image, questions, row in zip(pictures, rows, found, strict=True):
        for asked, reply in zip(questions, row, strict=True):
            text, first = by_hand(model, image, asked)
            assert reply.text == text
            expected = [float(first[letters[letter]].logsumexp(0)) for letter in "AB"]
            assert reply.logprobs == pytest.approx(expected, abs=2e-4)
            assert reply.likeliest == "AB"[expected[1] > expected[0]]
            seen.add(reply.logprobs)
    assert len(seen) == 5  # it looks and reads


def test_the_picture_stands_where_the_prompt_has_it_unless_the_template_moves_it(vlms):
    found = metrics.load_choices(str(vlms / "llava"))
    assert found.describe()["picture"] == "where the prompt has it"
    first = "{% for m in messages %}<image>{% for p in m['content'] if p['type'] == 'text' %}{{ p['text'] }}"
    found.chat.processor.chat_template = f"{first}{{% endfor %}}{{% endfor %}}"
    moved = ChatChoices(LocalChat(found.chat.model, found.chat.processor, found.chat.source))
    sent = []
    moved.chat.complete = lambda messages, sampling: sent.append(messages) or [Completion("A")]
    image = picture(0)
    moved.answer([image], [ASKED[:1]], ["generated"])
    [[message]] = sent
    first, second = message.parts
    assert first is image
    assert second.startswith("Question: What is there?\nOptions: A. cat B. dog\nAnswer with")
    assert "before" in moved.describe()["picture"]


def test_prompts_are_worded_as_published():
    before, after = write_prompt("paper", "What is it?", ["cat", "dog", "owl"])
    assert before + "<image>" + after == (
        "Question: <image> What is it?\nOptions: A. cat B. dog C. owl\n"
        "Answer with the option's letter from the given choices directly."
    )
    with pytest.raises(MetricError, match="did you mean 'paper'"):
        write_prompt("papr", "?", ["a", "b"])


#: (wording, question, options) -> what VLMEvalKit's own functions make of it at commit 0f27427e (May 2025).
SENT = {
    ("vlmevalkit", "What is it?", ("cat", "dog")):
        "Question: What is it?\nOptions:\nA. cat\nB. dog\n"
        "Please select the correct answer from the options above. \n",
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
def test_models_with_a_wording_of_their_own_in_the_toolkit_get_it(wording, question, options):
    assert write_prompt(wording, question, options) == ("", SENT[wording, question, options])


@pytest.mark.parametrize(
    "reference, wording, tokens",
    [
        ("llava-hf/llava-1.5-7b-hf@main", "vlmevalkit-llava", 2048),
        ("llava-hf/llava-v1.6-mistral-7b-hf", "vlmevalkit-llava", 2048),
        ("lmms-lab/llava-next-qwen-32b", "vlmevalkit", 2048),
        ("OpenGVLab/InternVL2_5-8B", "vlmevalkit-llava", 4096),
        ("openai:http://localhost:8000/v1#allenai/Molmo-72B-0924", "vlmevalkit-molmo", 200),
        ("models/Qwen2-VL-7B-Instruct/", "vlmevalkit-qwen2-vl", 2048),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "vlmevalkit", 2048),
        ("deepseek-ai/deepseek-vl-7b-chat", "vlmevalkit", 512),
        ("Efficient-Large-Model/Llama-3-VILA1.5-8b", "vlmevalkit", 2048),
        ("Salesforce/instructblip-vicuna-7b", "vlmevalkit", 256),
        ("somebody/new-model", "vlmevalkit", 2048),
    ],
)
def test_the_toolkit_knows_a_model_by_its_name(reference, wording, tokens):
    assert choice_prompts.find_prompt_format(reference) == (wording, tokens)


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m['content'] }}{% endfor %}",  # for plain strings
        "{% for m in messages %}{{ raise_exception('no pictures, please') }}{% endfor %}",
        "{% for m in messages %}{% for p in m['content'] if p['type'] == 'text' %}{{ p['text'] }}{% endfor %}"
        "{% endfor %}",
        "{% for m in messages %}<image>{% endfor %}",
        None,
    ],
)
def test_a_chat_template_that_takes_no_picture_or_no_words_or_is_not_there_is_refused(
    template, vlms, tmp_path
):
    shutil.copytree(vlms / "llava", tmp_path / "odd")
    sentence = "does not take an image and a question|template fails: no pictures, please"
    if template is None:
        (tmp_path / "odd" / "chat_template.jinja").unlink()
        sentence = r"has no chat template.*openai:URL#MODEL"
    else:
        (tmp_path / "odd" / "chat_template.jinja").write_text(template)
    with pytest.raises(MetricError, match=sentence):
        metrics.load_choices(str(tmp_path / "odd"))


def test_a_tie_or_a_lack_of_probabilities_has_no_likeliest_letter():
    assert Reply(logprobs=(-1.0, -2.0)).likeliest == "A"
    assert Reply(logprobs=(None, -9.0)).likeliest == "B"
    assert Reply(logprobs=(-1.0, -1.0)).likeliest is None
    assert Reply(logprobs=(None, None)).likeliest is None
    assert Reply(text="A").likeliest is None


def test_letters_are_told_apart_by_tokens_that_no_other_letter_begins_with(classes):
    found = metrics.load_choices(str(classes / "qwen"))
    tokenizer = found.chat.processor.tokenizer
    letters = letter_tokens(tokenizer)
    assert tokenizer.convert_tokens_to_ids("A") in letters["A"]
    assert all(letters.values())
    ids = [token for own in letters.values() for token in own]
    assert len(ids) == len(set(ids))


def test_the_picture_stands_between_the_words_and_letters_come_with_probabilities(server):
    server.rule = lambda body, count: (200, say(" B.", {"B": 0.5, " B": 0.2, "A": 0.1, "Because": 0.1}), {})
    found = ChatChoices(Endpoint(server.url, "eye-7b")).answer([picture(3)], [ASKED[:1]], SCORINGS)[0][0]
    assert found.text == "B."
    assert found.logprobs == pytest.approx((np.log(0.1), np.log(0.7)))
    assert found.likeliest == "B"
    content = server.requests[0]["messages"][0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text"]
    assert server.requests[0]["temperature"] == 0
