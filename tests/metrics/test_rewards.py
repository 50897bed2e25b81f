import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoProcessor,
    AutoTokenizer,
    BlipForImageTextRetrieval,
    Qwen2_5_VLForConditionalGeneration,
)  # fmt: skip

from nein import metrics
from nein.loading.service import NoAnswer
from nein.metrics import rewards
from nein.metrics.base import MetricError
from nein.metrics.choices import Reply
from nein.metrics.rewards import editreward, editscore, pairwise
from nein.metrics.rewards.editscore import EditScore
from tests.loopback import say
from tests.metrics import tiny

SOURCE, FIRST, SECOND = (tiny.picture(k, 24, 24) for k in range(3))
TOLD = "The image doesn't have any cup."


def told(*numbers):
    return json.dumps({"reasoning": "so", "score": list(numbers)})


class Speaking:
    def __init__(self, rule):
        self.rule = rule

    def describe(self):
        return {"model": "speaking"}

    def say(self, pictures, text, seed, temperature):
        return self.rule(len(pictures), text, seed)

    def each(self, work, items):
        return ((item, work(item)) for item in items)


def scored(rule, **options):
    return EditScore(Speaking(rule), **options).score([SOURCE], [FIRST], [TOLD])[0]


def test_editscore_is_the_root_of_the_smaller_numbers_of_the_pair_and_of_the_edit_alone():
    asked = []

    def rule(n, text, seed):
        asked.append((n, TOLD in text, seed))
        return told(20, 10) if n == 2 else told(25, 22.5)

    one = scored(rule, passes=2)
    assert one.value == pytest.approx(math.sqrt(4 * 9))  # 10 / 2.5 and 22.5 / 2.5
    assert (one.detail["SC"], one.detail["PQ"]) == (4, 9)
    assert asked == [(2, True, 42), (1, False, 42), (2, True, 43), (1, False, 43)]
    asked.clear()
    scored(rule, protocol="paper")  # shows both pictures when it asks for quality
    assert [n for n, _, _ in asked] == [2, 2]


@pytest.mark.parametrize(("options", "value"), [({}, 0), ({"reduction": "average_first"}, 5)])
def test_passes_are_averaged_before_or_after_the_root(options, value):
    def rule(n, text, seed):  # one pass has SC 10 and PQ 0, the other SC 0 and PQ 10
        return told(25, 25) if (n == 2) == (seed == 42) else told(0, 25)

    assert scored(rule, passes=2, **options).value == pytest.approx(value)


@pytest.mark.parametrize(
    ("answer", "paper", "why"),
    [
        ("I cannot tell.", 5.0, "has no 'score' of two numbers"),
        (told(30, 40), 12.5, "not from 0 to 25"),
        ('{"reasoning": "so", "score": [20, 10}', 4.0, "has no 'score' of two numbers"),
        (told(20), 8.0, "has no 'score' of two numbers"),
        ("First 20, second 5", 2.0, "has no 'score' of two numbers"),
    ],
)
def test_what_cannot_be_read_is_a_number_under_paper_and_unscored_under_fixed(answer, paper, why):
    def rule(n, text, seed):
        return answer if "<instruction>" not in text and TOLD in text else told(25, 25)

    fixed = scored(rule)
    assert fixed.value is None
    assert why in fixed.reason
    released = scored(rule, protocol="paper")
    assert released.detail["SC"] == pytest.approx(paper)
    assert released.value == pytest.approx(math.sqrt(paper * 10))


def test_an_edit_whose_question_fails_is_unscored_and_only_that_one():
    def rule(n, text, seed):
        if "dog" in text:
            raise NoAnswer("nobody is there")
        return told(25, 25)

    judge = EditScore(Speaking(rule))
    good, bad = judge.score([SOURCE] * 2, [FIRST] * 2, [TOLD, "No dog in the image."])
    assert good.value == 10
    assert (bad.value, bad.again) == (None, True)
    assert "nobody is there" in bad.reason
    first, tie = judge.prefer([SOURCE] * 2, [FIRST] * 2, [SECOND] * 2, ["No dog in the image.", TOLD])
    assert (first.value, tie.value) == (None, 0.5)
    assert "the first edit" in first.reason


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    return tiny.make_qwen2_5_vl(tmp_path_factory.mktemp("qwen") / "tiny", seed=3)


def test_a_model_of_transformers_is_shown_both_pictures_and_draws_by_its_seed(qwen):
    judge = metrics.load_reward(f"editscore:{qwen}")
    asked = ((42, 0.7), (42, 0.7), (43, 0.7), (42, 0.0), (1, 0.0))
    a, again, b, greedy, same = (judge.model.say([SOURCE, FIRST], "Numbers?", *how) for how in asked)
    assert a == again != b
    assert greedy == same
    [one] = judge.score([SOURCE], [FIRST], [TOLD])
    assert one.value is None  # a random model says nothing that can be read
    assert "has no 'score'" in one.reason


def test_a_lora_is_merged_into_the_base_it_names_and_the_authors_questions_are_asked(qwen, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(qwen)
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
    assert judge.texts == asked
    assert judge.fingerprint != plain.fingerprint
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    merged, before = (one.model.model.state_dict()[name] for one in (judge, plain))
    expected = tuned.merge_and_unload().state_dict()[name]
    assert torch.allclose(merged, expected, atol=1e-6)
    assert not torch.allclose(merged, before, atol=1e-4)


def test_an_endpoint_is_asked_with_pictures_seed_and_temperature(server):
    server.rule = lambda body, count: (200, say(told(20, 10)), {})
    judge = metrics.load_reward(f"editscore:openai:{server.url}#eye-7b")
    assert judge.score([SOURCE], [FIRST], [TOLD])[0].value == pytest.approx(4)
    assert {(body["seed"], body["temperature"]) for body in server.requests} == {(42, 0.7)}
    contents = [body["messages"][0]["content"] for body in server.requests]
    assert sorted(sum(part["type"] == "image_url" for part in one) for one in contents) == [1, 2]


TEXTS = """
INSTRUCTION_EDIT_FOLLOWING = \"\"\"Is it done? {text_prompt}\"\"\"
INSTRUCTION_EDIT_QUALITY = "Is it well done? {text_prompt}"
INSTRUCTION_EDIT_OVERALL_DETAILED = "All in all? {text_prompt}"
"""
KWARGS = {"hidden_size": 8, "num_layers": 3, "bias": True}
END = 'prompt_with_special_token = """\nSay: <|Reward|>\n"""\n'


def published(folder, base, *, suffix=".safetensors", **changes):
    """A folder as the authors' code writes and reads it, with names of tensors as theirs; the tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "rm_head_type": "ranknet_multi_head", "pooling_strategy": "mean", "output_dim": 2,
        "reward_token": "special", "use_special_tokens": True, "model_name_or_path": str(base),
        "reward_dim": "overall_detail", "rm_head_kwargs": KWARGS, **changes,
    }  # fmt: skip
    (folder / "EditReward.yaml").write_text(yaml.safe_dump(config))
    (folder / "prompts.py").write_text(TEXTS)
    (folder / "collator.py").write_text(f"import nothing_of_that_name\n{END}")
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(base)
    single = config["rm_head_type"] != "ranknet_multi_head"
    with tiny.seeded(7):
        model.resize_token_embeddings(model.config.text_config.vocab_size + 1)
        model.model.language_model.embed_tokens.weight.data[-1].normal_()
        heads = [editreward.head(48, 2, config["rm_head_kwargs"]) for _ in range(2)]
    state = {
        name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): value.clone()
        for name, value in model.state_dict().items()
    }
    for k, one in enumerate(heads[: 1 if single else 2]):
        start = "rm_head" if single else f"rm_heads.head_{k}"
        state |= {f"{start}.{name}": value for name, value in one.state_dict().items()}
    if suffix == ".pth":
        torch.save({"model": state}, folder / "model.pth")
    else:
        save_file(state, folder / "model.safetensors")
    return state


@pytest.fixture(scope="module")
def reward_folder(qwen, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reward") / "EditReward"
    published(folder, qwen)
    return folder


def by_hand(folder, base, question, state):
    """The hidden state at the token by the library alone: embeddings, scattered pictures, plain positions."""
    processor = AutoProcessor.from_pretrained(base)
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ["<|Reward|>"]})
    config = AutoConfig.from_pretrained(base)
    config.text_config.vocab_size = len(state["model.embed_tokens.weight"])
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    model.load_state_dict({editreward.renamed(n): v for n, v in state.items() if not n.startswith("rm_")})
    pictures = [Image.fromarray(one).resize((128, 128), Image.Resampling.BICUBIC) for one in (SOURCE, FIRST)]
    words = {"type": "text", "text": question + "\nSay: <|Reward|>\n"}
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "image"}, words]}
    text = processor.apply_chat_template([turn], add_generation_prompt=True)
    size = {"shortest_edge": 128 * 128, "longest_edge": 128 * 128}
    inputs = processor(text=[text], images=pictures, images_kwargs={"size": size}, return_tensors="pt")
    ids = inputs["input_ids"]
    of_picture = ids == config.image_token_id
    assert int(of_picture.sum()) == 2 * 256
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(ids)
        seen = model.model.visual(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        seen = seen if isinstance(seen, torch.Tensor) else seen.pooler_output
        embeddings = embeddings.masked_scatter(of_picture[..., None], seen)
        hidden = model.model.language_model(inputs_embeds=embeddings).last_hidden_state
    return hidden[0, ids[0] == len(state["model.embed_tokens.weight"]) - 1][0]


def test_editreward_reads_the_published_layout_and_is_what_the_library_gives(reward_folder, qwen):
    judge = metrics.load_reward(f"editreward:{reward_folder}")
    one, other = (judge.score([SOURCE], [edit], [TOLD])[0] for edit in (FIRST, SECOND))
    state = load_file(reward_folder / "model.safetensors")
    for k, question in enumerate((f"Is it done? {TOLD}", f"Is it well done? {TOLD}")):
        head = editreward.head(48, 2, KWARGS).eval()
        start = f"rm_heads.head_{k}."
        head.load_state_dict({n.removeprefix(start): v for n, v in state.items() if n.startswith(start)})
        expected = head(by_hand(reward_folder, qwen, question, state)).tolist()
        # Two orders of the same float32 additions through four layers.
        assert one.detail["heads"][k] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert one.value == pytest.approx(np.mean([row[0] for row in one.detail["heads"]]), abs=1e-5)
    assert other.value != one.value
    assert [one, other] == judge.score([SOURCE] * 2, [FIRST, SECOND], [TOLD] * 2)


def test_a_pth_with_tensors_gives_the_same_reward_and_one_with_code_is_not_run(reward_folder, qwen, tmp_path):
    published(tmp_path / "pth", qwen, suffix=".pth")
    values = [
        metrics.load_reward(f"editreward:{folder}").score([SOURCE], [FIRST], [TOLD])[0].value
        for folder in (reward_folder, tmp_path / "pth")
    ]
    assert values[0] == values[1]
    torch.save({"model": Path("/")}, tmp_path / "pth" / "model.pth")
    with pytest.raises(MetricError, match="is a pickle that holds more than tensors"):
        metrics.load_reward(f"editreward:{tmp_path / 'pth'}")


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("min", [1, math.log(3)]), ("mean", [1.5, math.log(12) / 2]), ("sum", [3, math.log(5)])],
)
def test_heads_are_pooled_as_the_configuration_says(pooling, expected):
    outputs = torch.tensor([[1.0, math.log(3)], [2.0, math.log(4)]])
    assert editreward.pool(outputs, pooling).tolist() == pytest.approx(expected)


def test_a_single_head_is_asked_the_question_of_the_configuration(qwen, tmp_path):
    published(tmp_path, qwen, rm_head_type="ranknet", rm_head_kwargs=None)
    judge = metrics.load_reward(f"editreward:{tmp_path}")
    [one] = judge.score([SOURCE], [FIRST], [TOLD])
    assert len(one.detail["heads"]) == 1
    assert judge.settings.questions == ("All in all? {text_prompt}\nSay: <|Reward|>\n",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: (f / "EditReward.yaml").unlink(), "has 0 files"),
        (lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors nor model.pth"),
        (lambda f: (f / "prompts.py").unlink(), "has the text INSTRUCTION_EDIT_FOLLOWING"),
        (lambda f: (f / "prompts.py").write_text("a ="), "is not a Python file"),
        (lambda f: (f / "EditReward.yaml").write_text("rm_head_type: best"), "Unknown rm_head_type 'best'"),
    ],
)
def test_a_folder_that_lacks_something_is_a_sentence_before_anything_is_loaded(
    change, said, reward_folder, tmp_path
):
    folder = shutil.copytree(reward_folder, tmp_path / "copy")
    change(folder)
    with pytest.raises(MetricError, match=said):
        metrics.check_reward(f"editreward:{folder}")


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

    judge = pairwise.Pairwise(Choosing(rule))
    first, second = judge.prefer([source] * 2, [bright, dark], [dark, bright], [TOLD] * 2)
    assert (first.value, second.value) == (1, 0)
    assert first.detail["letters"] == ["A", "A"]
    assert first.detail["difference"] == pytest.approx(0.1)
    assert judge.score([dark], [bright], [TOLD])[0].value == pytest.approx(1 / (1 + math.exp(-0.1)))


@pytest.mark.parametrize(("texts", "value"), [("AB", 1.0), ("BA", 0.0), ("AA", 0.5), (("A", "Hm."), None)])
def test_letters_of_both_orders_have_to_agree(texts, value):
    said = iter(texts)
    judge = pairwise.Pairwise(Choosing(lambda sheet: Reply(next(said)), ("generated",)))
    [one] = judge.prefer(*([grey] for grey in GREYS), [TOLD])
    assert one.value == value
    assert value is not None or "no letter in" in one.reason


def test_several_edits_are_ranked_by_their_comparisons():
    judge = pairwise.Pairwise(
        Choosing(lambda sheet: probable(0.9 if panels(sheet)[1] > panels(sheet)[2] else 0.1))
    )
    ranks = rewards.rank(judge, GREYS[0], [GREYS[2], GREYS[1], GREYS[0]], TOLD)
    assert [one.value for one in ranks] == [0, 1, 0.5]


def test_any_model_of_multiple_choice_is_a_pairwise_judge(qwen):
    judge = metrics.load_reward(f"pairwise:{qwen}")
    [one] = judge.prefer([SOURCE], [FIRST], [SECOND], [TOLD])
    [turned] = judge.prefer([SOURCE], [SECOND], [FIRST], [TOLD])
    assert one.value is not None
    assert turned.value == 1 - one.value
    # Differences of float32 logarithms near ten, whose last digit is 1e-6; kernels may differ in a few.
    assert one.detail["difference"] == pytest.approx(-turned.detail["difference"], abs=1e-5)


@pytest.fixture(scope="module")
def two_pictures(tmp_path_factory):
    folder = tiny.make_blip(tmp_path_factory.mktemp("matching") / "blip", 4)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pictures": 2}))
    return folder


def test_matching_reads_the_edit_and_what_changed(two_pictures):
    judge = metrics.load_reward(f"matching:{two_pictures}")
    model = BlipForImageTextRetrieval.from_pretrained(two_pictures).eval()
    images = AutoImageProcessor.from_pretrained(two_pictures)
    ids = AutoTokenizer.from_pretrained(two_pictures)([TOLD], return_tensors="pt")
    for edit in (FIRST, SECOND):
        with torch.no_grad():
            pixels = images([SOURCE, edit], return_tensors="pt").pixel_values
            before, after = model.vision_model(pixel_values=pixels).last_hidden_state
            states = torch.cat([after, after - before])[None]
            fused = model.text_encoder(**ids, encoder_hidden_states=states).last_hidden_state
            no, yes = model.itm_head(fused[:, 0])[0].tolist()
        [one] = judge.score([SOURCE], [edit], [TOLD])
        assert one.value == pytest.approx(yes - no, rel=1e-4, abs=1e-6)  # float32 in another order
    turned = judge.score([FIRST], [SOURCE], [TOLD])[0].value
    judge.model.decide = lambda states, texts: torch.full((1, 2), torch.nan)
    [one] = judge.score([SOURCE], [FIRST], [TOLD])
    assert one.value is None
    assert "not finite" in one.reason
    del judge.model.decide
    assert turned != judge.score([SOURCE], [FIRST], [TOLD])[0].value


def test_a_blip_for_one_picture_is_no_reward_and_a_reward_is_no_judge_of_one(two_pictures, tmp_path):
    with pytest.raises(MetricError, match="not a BLIP whose text encoder reads 2 pictures"):
        metrics.load_reward(f"matching:{tiny.make_blip(tmp_path / 'blip')}")
    with pytest.raises(MetricError, match=r"not a BLIP whose text encoder reads 1 picture\."):
        metrics.load_judge("itm", str(two_pictures))


def refused():
    return EditScore(Speaking(lambda n, text, seed: told(1, 1)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: metrics.check_reward("editscore"), "is not a reward; expected editscore:MODEL"),
        (lambda: metrics.check_reward("editscored:a/b"), "did you mean 'editscore'"),
        (lambda: metrics.check_reward("pairwise:nowhere"), "There is no model folder"),
        (lambda: metrics.check_reward("editreward:a/b"), "There is no folder"),
        (lambda: metrics.check_reward("editscore:openai:nowhere"), "is not an endpoint"),
        (lambda: refused().score([SOURCE], [FIRST], [" "]), "expected a sentence"),
        (lambda: refused().score([SOURCE], [FIRST, SECOND], [TOLD]), "2 pictures but 1 instructions"),
    ],
)
def test_a_mistake_is_one_sentence(make, said):
    with pytest.raises(MetricError, match=said):
        make()


@pytest.mark.parametrize("protocol", ["paper", "fixed"])
def test_numbers_written_as_strings_are_read(protocol):
    assert editscore.read_numbers("{'score': [3, 4]}", "paper") == [3, 4]
    assert editscore.read_numbers('{"score": ["20", " 15.5 "]}', protocol) == [20, 15.5]
    read = [editscore.read_numbers(f'{{"score": {bad}}}', protocol) for bad in ('["a", true]', "[null, NaN]")]
    assert read == [[], []] if protocol == "paper" else all("two numbers" in str(one) for one in read)
