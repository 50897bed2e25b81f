import numpy as np
import pytest
import torch
from PIL import Image

from nein import metrics
from nein.metrics import loading
from nein.metrics.chat.asking import ChatJudge
from nein.metrics.chat.endpoint import check_options
from nein.metrics.choice_prompts import write_prompt
from nein.metrics.choices import ChatChoices, ChoiceQuestion
from nein.metrics.judges.detectors import ZeroShotDetector
from tests.metrics import tiny

QUESTIONS = [f"Does this image contain {n}? Answer only yes or no" for n in ("car", "traffic light", "dog")]
LABELS = ["car", "dog", "traffic light"]


@pytest.fixture(scope="module", params=["make_llava_15", "make_qwen2_5_vl"])
def chat(request, tmp_path_factory):
    folder = getattr(tiny, request.param)(tmp_path_factory.mktemp("chat") / request.param, seed=1)
    return metrics.load_judge("vqa", str(folder))


@pytest.fixture(scope="module", params=["make_owlvit", "make_grounding_dino"])
def detector(request, tmp_path_factory):
    folder = getattr(tiny, request.param)(tmp_path_factory.mktemp("detector") / request.param)
    return metrics.load_judge("ovd", str(folder), pad="gray", backend="pil")  # which concern OWLv2


def test_any_image_text_model_answers_as_generate_does(chat):
    assert isinstance(chat, ChatJudge)
    pictures = [tiny.picture(i, 40 + 8 * i, 32) for i in range(3)]
    found = chat.ask(pictures, [QUESTIONS, QUESTIONS[:1], []])
    assert [len(row) for row in found] == [3, 1, 0]
    texts = set()
    for picture, row in zip(pictures, found, strict=True):
        for question, answer in zip(QUESTIONS, row, strict=False):
            turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
            prompt = chat.chat.processor.apply_chat_template(turn, add_generation_prompt=True)
            inputs = chat.chat.processor(images=Image.fromarray(picture), text=prompt, return_tensors="pt")
            with torch.no_grad():
                ids = chat.chat.model.generate(**inputs, max_new_tokens=10, do_sample=False)
                logits = chat.chat.model(**inputs).logits[0, -1].softmax(-1)
            words, new = chat.chat.processor.tokenizer, ids[0, inputs["input_ids"].shape[1] :]
            assert answer.text == words.decode(new, skip_special_tokens=True).strip()
            yes = {words(w, add_special_tokens=False)["input_ids"][0] for w in ("yes", "Yes")}
            assert answer.p_yes is not None
            assert answer.p_yes >= float(logits[list(yes)].sum()) - 1e-5
            texts.add(answer.text)
    assert len(texts) > 1 or len({a.p_yes for row in found for a in row}) > 1  # it looks and reads


@pytest.mark.parametrize("chat", ["make_llava_15"], indirect=True)
def test_thoughts_are_no_answer_and_their_probabilities_none(chat, monkeypatch):
    model = ChatChoices(chat.chat)
    asked = [[ChoiceQuestion(write_prompt("paper", "What?", ["cat", "dog"]))]]
    picture = [tiny.picture(0)]
    for text, answer in (("<think>No.</think> Yes", "Yes"), ("No.</thinking>Yes", "Yes"), ("Yes", "Yes")):
        monkeypatch.setattr(chat.chat, "decode_ids", lambda ids, text=text: text)
        [[said]] = chat.ask(picture, [QUESTIONS[:1]])
        assert (said.text, said.p_yes is None) == (answer, text != answer)
        [[reply]] = model.answer(picture, asked, ["generated", "logprob"])
        assert (reply.text, reply.logprobs is None) == (text, text != answer)
    monkeypatch.setattr(chat.chat, "decode_ids", lambda ids: "<think>No")
    with pytest.raises(ValueError, match="within the model's thoughts"):
        chat.ask(picture, [QUESTIONS[:1]])


@pytest.mark.parametrize("chat", ["make_llava_15"], indirect=True)
def test_a_map_of_devices_is_the_librarys_own_and_nothing_is_moved_after_it(chat, monkeypatch):
    original, seen = loading.load_pretrained, []

    def from_pretrained(cls, *args, device_map=None, **options):
        seen.append(device_map)
        spread = {"device_map": {"": "cpu"}} if device_map else {}  # no GPU is needed here
        return original(cls, *args, **spread, **options)

    monkeypatch.setattr(loading, "load_pretrained", from_pretrained)
    folder = chat.describe()["reference"]
    spread = metrics.load_judge("vqa", folder, device="cuda", device_map="auto")
    assert seen[0] == "auto"
    asked = [[tiny.picture(0, 40, 32)], [QUESTIONS]]
    assert spread.ask(*asked) == chat.ask(*asked)
    with pytest.raises(ValueError, match="device_map is 'auto', which needs a GPU"):
        metrics.load_judge("vqa", folder, device_map="auto")
    with pytest.raises(ValueError, match="Unknown device_map 'all'"):
        metrics.load_choices(folder, device="cuda", device_map="all")
    check_options(folder, ["device_map"])
    with pytest.raises(metrics.MetricError, match="omit the option 'detail'"):
        check_options(folder, ["detail"])


def test_any_zero_shot_detector_scores_as_its_own_post_processing_does(detector):
    assert isinstance(detector, ZeroShotDetector)
    pictures = [tiny.picture(i, 40 + 24 * i, 40) for i in range(3)]
    *found, none, twice = detector.detect(
        [*pictures, pictures[0], pictures[0]], [*[LABELS] * 3, [], ["car", "car"]], threshold=0.3
    )
    assert (none, list(twice), twice["car"].count) == ({}, ["car"], found[0]["car"].count)
    for picture, row in zip(pictures, found, strict=True):
        assert list(row) == LABELS
        for label, one in row.items():
            text = f"{label}." if detector.is_grounded else [[label]]
            inputs = detector.processor(images=Image.fromarray(picture), text=text, return_tensors="pt")
            with torch.no_grad():
                outputs = detector.model(**inputs)
            more = {"input_ids": inputs["input_ids"], "text_threshold": 0.0} if detector.is_grounded else {}
            [boxes] = detector.processor.post_process_grounded_object_detection(
                outputs, threshold=0.0, target_sizes=[picture.shape[:2]], **more
            )
            best = int(boxes["scores"].argmax())
            assert one.score == pytest.approx(float(boxes["scores"][best]), abs=1e-6)
            assert one.count == int((boxes["scores"] > 0.3).sum())
            ends = picture.shape[1::-1] * 2
            clipped, expected = (np.clip(box, 0, ends) for box in (one.box, boxes["boxes"][best].numpy()))
            np.testing.assert_allclose(clipped, expected, atol=1e-3)
    assert len({round(one.score, 6) for row in found for one in row.values()}) >= 5
