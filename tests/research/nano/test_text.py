"""Tokenizers: learned from affirmative text, whole round trips, special tokens where the libraries look."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from nein.nano.captions import names, plural
from nein.nano.draw import CATEGORIES
from nein.wording.templates import NEGATIVE_TEMPLATES, negative_sentence
from research.nano import text
from tests.nano.words import negated

SENTENCES = (
    "A teddy bear and two stop signs on a beach.",
    "add a traffic light to the image",
    "A brown dog is to the left of an umbrella in a meadow.",
    "0123456789, it's a 'test'?",
)


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return text.corpus()


def learned(learn: Callable[[], Any], corpus: list[str]) -> Any:
    """A tokenizer of sentences that are drawn once for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "corpus", lambda: corpus)
        return learn()


@pytest.fixture(scope="module")
def clip(corpus: list[str]) -> Any:
    return learned(lambda: text.clip_tokenizer(32), corpus)


@pytest.fixture(scope="module")
def bert(corpus: list[str]) -> Any:
    return learned(text.bert_tokenizer, corpus)


@pytest.fixture(scope="module")
def chat(corpus: list[str]) -> Any:
    return learned(
        lambda: text.chat_tokenizer(["[INST] Does this image contain a dog? [/INST]Yes"] * 50), corpus
    )


def squeeze(sentence: str) -> str:
    return re.sub(r"\s+", "", sentence.lower())


def test_the_corpus_holds_no_negated_word(corpus):
    assert len(corpus) > 20_000
    assert negated(corpus) == []


def test_the_corpus_names_everything(corpus):
    lines = set(corpus)
    for category in CATEGORIES:
        for noun in names(category):
            assert {noun, plural(noun)} <= lines
    assert set(text.OTHER_NOUNS) <= lines


def test_the_corpus_is_the_same_every_time(corpus):
    assert text.corpus(50) == text.corpus(50)
    assert corpus[:100] == text.corpus(50)[:100]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_encoding_and_decoding_give_the_sentence_back(sentence, clip, bert, chat):
    for tokenizer in (clip, bert):  # both lower-case, and put blanks around punctuation
        ids = tokenizer(sentence)["input_ids"]
        assert squeeze(tokenizer.decode(ids, skip_special_tokens=True)) == squeeze(sentence)
    ids = chat(sentence)["input_ids"]
    assert chat.decode(ids, skip_special_tokens=True) == sentence


@pytest.mark.parametrize("template", range(len(NEGATIVE_TEMPLATES)))
def test_negated_sentences_are_encoded_whole_though_never_seen(template, clip, bert, chat):
    sentence = negative_sentence(template, "fire hydrant")
    for tokenizer in (clip, bert, chat):
        ids = tokenizer(sentence)["input_ids"]
        assert tokenizer.unk_token_id not in ids[1:-1]
        assert squeeze(tokenizer.decode(ids, skip_special_tokens=True)) == squeeze(sentence)


def test_the_editors_tokenizer_has_no_token_for_a_negated_word(clip):
    for word in ("not", "no", "without", "cannot", "lacks", "missing", "nowhere"):
        assert len(clip(word, add_special_tokens=False)["input_ids"]) > 1, word
    assert len(clip("dog", add_special_tokens=False)["input_ids"]) == 1


def test_any_byte_can_be_encoded_by_the_byte_level_tokenizers(clip, chat):
    odd = "zébra ✓ 犬"
    for tokenizer in (clip, chat):
        ids = tokenizer(odd)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == odd


def test_clips_special_tokens_have_the_highest_ids_and_frame_the_text(clip):
    highest = len(clip) - 1
    assert max(clip.get_vocab().values()) == highest
    assert (clip.bos_token_id, clip.eos_token_id) == (highest - 1, highest)
    ids = clip("a dog")["input_ids"]
    assert ids[0] == clip.bos_token_id
    assert ids[-1] == clip.eos_token_id == max(ids)
    assert sorted(clip.get_vocab().values()) == list(range(len(clip)))
    assert len(clip(" ".join(["dog"] * 99), truncation=True)["input_ids"]) == 32


def test_berts_special_tokens_are_where_blip_looks(bert):
    ids = bert("a dog")["input_ids"]
    assert (ids[0], ids[-1]) == (bert.cls_token_id, bert.sep_token_id)
    assert bert.pad_token_id == 0
    padded = bert(["a dog", "a red dog on a beach"], padding=True)["input_ids"]
    assert padded[0][-1] == bert.pad_token_id


def test_the_chat_tokenizer_begins_a_text_and_knows_the_picture(chat):
    ids = chat("[INST] <image>\nDoes this image contain a dog?")["input_ids"]
    image = chat.convert_tokens_to_ids("<image>")
    assert ids[0] == chat.bos_token_id
    assert ids.count(image) == 1
    assert chat.eos_token_id not in ids
    assert len({chat.bos_token_id, chat.eos_token_id, chat.pad_token_id, image}) == 4
    assert chat.padding_side == "left"


def test_a_tokenizer_is_learned_the_same_way_twice(clip, bert, chat):
    # A run that is resumed learns its tokenizer again: other ids would change the text under the model.
    extra = ["[INST] Does this image contain a dog? [/INST]Yes"] * 50
    pairs = (
        (text.clip_tokenizer(32), clip),
        (text.bert_tokenizer(), bert),
        (text.chat_tokenizer(extra), chat),
    )
    for again, first in pairs:
        assert (
            json.loads(again.backend_tokenizer.to_str())["model"]
            == json.loads(first.backend_tokenizer.to_str())["model"]
        )


def test_a_saved_tokenizer_reads_the_same(clip, tmp_path):
    from transformers import CLIPTokenizer

    text.save_tokenizer(clip, tmp_path / "new" / "tokenizer")
    again = CLIPTokenizer.from_pretrained(tmp_path / "new" / "tokenizer")
    for sentence in (*SENTENCES, "The image doesn't have any dog."):
        assert again(sentence)["input_ids"] == clip(sentence)["input_ids"]
    assert (again.bos_token_id, again.eos_token_id, len(again)) == (
        clip.bos_token_id, clip.eos_token_id, len(clip),
    )  # fmt: skip
