"""What the nano models learn: the same whatever the chunks, affirmative, nothing held out."""

import random
import re
from itertools import pairwise

import numpy as np
import pytest
import torch

from benchmarks import reward as benchmark
from nein.metrics import rewards
from nein.metrics.base import Score
from nein.nano import zoo
from nein.nano.data import NEGATIVES
from nein.nano.draw import BACKGROUNDS, CATEGORIES
from nein.nano.scenes import HELD_OUT, NEGATOR, UNSEEN, VARIED, WORLDS, Item, Scene, World, mask, render
from nein.nano.sentences import SIDES, WORDINGS, question_scene
from nein.wording.families import NEGATIVE_TEMPLATES, negative_sentence
from research.nano import data, negvqa, reward, zone
from research.nano.data import pair_pool, patch_labels, scene_pool, to_float
from research.nano.llava import Packed
from tests.nano.words import negated

WEIGHTS = {"remove": 2.0, "add": 2.0, "keep": 1.0, "mark": 1.0, "restore": 1.0}
EVERYTHING = World("all", named=WORLDS["nano:taught"].named)


@pytest.mark.parametrize("cuts", [(0, 13, 40), (0, 1, 2, 39, 40)])
def test_a_pool_does_not_depend_on_where_its_chunks_are_cut(cuts, monkeypatch):
    scenes, pairs = scene_pool("train", 40), pair_pool("train", "x", WEIGHTS, "generated", 40)
    monkeypatch.setattr(data, "_chunks", lambda count: [*pairwise(cuts)])
    monkeypatch.setattr(data, "_parallel", lambda function, jobs: [function(job) for job in jobs])
    again, others = scene_pool("train", 40), pair_pool("train", "x", WEIGHTS, "generated", 40)
    assert torch.equal(scenes.images, again.images)
    assert (scenes.scenes, scenes.captions) == (again.scenes, again.captions)
    assert torch.equal(pairs.target, others.target)
    assert pairs.instructions == others.instructions


def test_pools_show_their_scenes_and_pairs():
    found = scene_pool("dev", 40)
    assert np.array_equal(found.images[3].numpy().transpose(1, 2, 0), render(found.scenes[3]))
    assert found.patches[3].tolist() == patch_labels(found.scenes[3]).tolist()
    assert {len(s.items) for s in found.scenes} == {0, 1, 2, 3, 4}
    pairs = pair_pool("train", "x", WEIGHTS, "clean", 30)
    for source, target, kind in zip(pairs.source, pairs.target, pairs.kinds, strict=True):
        assert torch.equal(source, target) == (kind == "keep")


def test_a_patch_belongs_to_the_thing_that_covers_most_of_it():
    laptop = Item("laptop", "grey", 20, 0.75, 16.0, False)
    bottle = Item("bottle", "green", 20, 20.75, 16.0, False)
    shares = [mask(i)[24:32, 16:24].mean() for i in (laptop, bottle)]
    assert 0.3 <= shares[0] < shares[1]
    for items in ((laptop, bottle), (bottle, laptop)):
        grid = patch_labels(Scene("room", 2, items)).reshape(8, 8)
        assert [grid[3, 2], grid[3, 1]] == [CATEGORIES.index("bottle"), CATEGORIES.index("laptop")]
        assert grid[0, 0] == len(CATEGORIES) + list(BACKGROUNDS).index("room")


@pytest.fixture(scope="module")
def corpus():
    return data.corpus()


@pytest.fixture(scope="module")
def tokenizers(corpus):
    extra = ["[INST] Does this image contain a dog? [/INST]Yes"] * 50
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "corpus", lambda: corpus)
        clip, bert, chat = data.clip_tokenizer(32), data.bert_tokenizer(), data.chat_tokenizer(extra)
        return {"clip": clip, "bert": bert, "chat": chat}


def test_the_corpus_is_affirmative_and_the_same_every_time(corpus):
    assert len(corpus) > 20_000
    assert negated(corpus) == []
    assert corpus[:100] == data.corpus(50)[:100]


def test_negated_sentences_are_encoded_whole_though_never_seen(tokenizers):
    def squeeze(text):
        return re.sub(r"\s+", "", text.lower())

    sentences = [negative_sentence(k, "fire hydrant") for k in range(len(NEGATIVE_TEMPLATES))]
    for sentence in (*sentences, "0123456789, it's a 'test'?"):
        for tokenizer in tokenizers.values():
            ids = tokenizer(sentence)["input_ids"]
            assert squeeze(tokenizer.decode(ids, skip_special_tokens=True)) == squeeze(sentence)
    clip, chat = tokenizers["clip"], tokenizers["chat"]
    assert all(len(clip(word)["input_ids"]) > 3 for word in ("not", "no", "without", "cannot", "lacks"))
    assert len(clip("dog")["input_ids"]) == 3
    last = len(clip) - 1  # OWLv2 looks for the highest
    assert (clip.bos_token_id, clip.eos_token_id) == (last - 1, last)
    assert chat("[INST] <image>\nIs it?")["input_ids"].count(chat.convert_tokens_to_ids("<image>")) == 1


def taught(name, count):
    rng = random.Random(1)
    scenes = [question_scene("train", index) for index in range(40)]
    times = -(-count // len(negvqa.SLOTS))
    pairs = [negvqa._slots(rng, rng.choice(scenes), negvqa.RECIPES[name]) for _ in range(times)]
    return [pair for slots in pairs for pair in slots][:count]


def pattern(wording):
    things, sides = "|".join(CATEGORIES), "|".join(SIDES)
    slots = {"side": f"({sides})", "thing": f"({things})"}
    text = re.sub(r"\\{(\w+)[^}]*\\}", lambda m: slots.get(m[1], "[a-z ]+"), re.escape(wording))
    return re.compile(text, re.IGNORECASE)


def test_the_affirmative_models_learn_from_affirmative_text():
    assert negated([f"{prompt} {reply}" for prompt, reply in taught("negvqa", 300)]) == []
    assert negated(negvqa._words()) == []
    texts, labels = zone.labelled("dev", 600)
    assert negated(texts) == []
    assert torch.bincount(labels, minlength=3).min() > 150


@pytest.mark.parametrize("name", ["negvqa-negated", "negvqa-varied"])
def test_no_negated_question_names_a_held_out_object_denying_word_or_wording(name):
    pairs = taught(name, 1500)
    asked = [(prompt, reply) for prompt, reply in pairs if "Options" in prompt]
    assert 0.4 < sum(reply == "A" for _, reply in asked) / len(asked) < 0.6  # no letter is favoured
    denied = negated([prompt for prompt, _ in asked])
    assert len(denied) > 100
    assert not any(re.search(rf"\b{noun}\b", prompt) for prompt in denied for noun in HELD_OUT)
    assert not any(re.search(r"missing|\black|absent|wrong|anywhere", prompt) for prompt, _ in pairs)
    for of_kind in WORDINGS.values():
        seen = [any(pattern(wording).search(prompt) for prompt in denied) for _, wording in of_kind]
        assert seen == [True] * (len(of_kind) - 1) + [False]


def test_questions_about_one_picture_are_run_as_the_library_runs_them_alone():
    from transformers import AutoProcessor, LlavaNextForConditionalGeneration

    folder = zoo.ZOO / "llava"
    model = LlavaNextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    packed = Packed(model, AutoProcessor.from_pretrained(folder).tokenizer, torch.device("cpu"))
    drawn = np.stack([render(question_scene("dev", index)) for index in range(2)])
    x = to_float(torch.from_numpy(drawn).permute(0, 3, 1, 2))
    texts = ["\nWhat is there? [/INST]", "\nWhat colour is the dog in the picture? [/INST]"]
    ids = [[packed.encode(text, "A")[0] for text in texts]] * 2
    with torch.inference_mode():
        features = packed.look(x)
        torch.testing.assert_close(features, packed.project(packed.see(x)), rtol=1e-5, atol=1e-5)
        states = packed.run(features, ids)
        for b in range(2):
            for q, own in enumerate(ids[b]):
                opening = packed.embedding(torch.tensor(packed.head_ids))
                alone = torch.cat([opening, features[b], packed.embedding(torch.tensor(own))])[None]
                expected = packed.language(inputs_embeds=alone).last_hidden_state[0, -len(own) :]
                torch.testing.assert_close(states[b, q, : len(own)], expected, atol=1e-4, rtol=1e-4)
    assert (states[0, 0, 3] - states[1, 0, 3]).abs().max() > 1e-3  # it looks


@pytest.fixture(scope="module")
def tasks():
    rng = random.Random(0)
    scenes = [reward.drawn("train", index, EVERYTHING) for index in range(60)]
    return [(one, reward.task(rng, one, EVERYTHING, NEGATIVES[VARIED])) for one in scenes for _ in range(8)]


def test_the_right_edit_does_what_is_said_and_no_more(tasks):
    removes = re.compile("remove|delete|away|erase|rid|cut|disappear|wipe|drop|clear")
    for one, task in tasks:
        inside = [set(scene.categories) for scene in one.edits]
        whole = set(one.scene.categories)
        gone = [set(), {one.first}, {one.second}, {one.first, one.second}, set()]
        assert inside[:5] == [whole - names for names in gone]
        assert inside[5] == whole | {one.third} != whole
        assert len({render(scene).tobytes() for scene in one.edits}) == 6
        assert task.right not in task.wrong
        denies = bool(negated([task.sentence]) or removes.search(task.sentence.lower()))
        assert task.right in ((0, 1, 2) if denies else (0, 5)), task


def test_no_negative_sentence_of_the_reward_has_a_held_out_object_or_wording(tasks):
    denied = [task.sentence for _, task in tasks if negated([task.sentence])]
    assert 0.4 < len(denied) / len(tasks) < 0.6
    assert not any(re.search(rf"\b{noun}", text) for text in denied for noun in HELD_OUT)
    for wording in {*NEGATIVES[UNSEEN], *NEGATIVES[NEGATOR]}:
        assert not any(pattern(wording).fullmatch(text) for text in denied), wording


def test_the_benchmark_of_a_judge_of_edits_counts_what_it_prefers():
    class Emptier(rewards.RewardJudge):
        """Prefers the picture from which more is gone: where there is less difference to the last one."""

        def describe(self):
            return {}

        def score(self, sources, edits, instructions):
            empty = edits[reward.NEITHER].astype(float)
            return [Score(-float(np.abs(edit - empty).mean())) for edit in edits]

    told = benchmark.shares(Emptier(None), "taught", "nano:taught", "taught", 4)
    assert told["took another along"].startswith("0.0 [")
    assert told["did nothing"].startswith("100.0 [")
    assert set(told) == set(benchmark.WRONG)
