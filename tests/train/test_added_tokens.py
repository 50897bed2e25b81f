import pytest
import torch

from nein import metrics
from nein.loading.errors import UserError
from nein.models import references
from nein.train.clip_finetuning import towers


def test_a_word_becomes_a_token_that_begins_as_the_mean_of_its_pieces(tmp_path):
    tower = towers.load("nano:clip")
    tokenizer = tower.dual.tokenizer._tokenizer
    pieces = tokenizer("not", add_special_tokens=False)["input_ids"]
    before = tower.model.text_model.get_input_embeddings().weight.detach().clone()
    tower.add_words(["not", "there"])  # "there" is one token already
    weight = tower.model.text_model.get_input_embeddings().weight
    assert len(pieces) > 1
    assert len(weight) == len(before) + 1
    assert torch.equal(weight[: len(before)], before)
    torch.testing.assert_close(weight[-1], before[pieces].mean(0))
    assert tokenizer("Not a knot, cannot")["input_ids"].count(len(before)) == 1  # as a word of its own only
    tower.save(tmp_path)
    again = metrics.load_dual(str(tmp_path), device="cpu", dtype="float32")
    sentence = ["There is not a cat."]
    with torch.no_grad():
        expected = tower.encode_texts(tower.tokenize(sentence)).numpy()
    assert again.encode_text(sentence) == pytest.approx(expected, abs=1e-5)  # the same sums in another order
    plain = metrics.load_dual(references.resolve("nano:clip"), device="cpu", dtype="float32")
    assert plain.encode_text(sentence) != pytest.approx(expected, abs=1e-3)


def test_words_are_for_models_whose_tokenizer_can_learn():
    tower = towers.load("nano:clip")
    tower.dual = object()
    with pytest.raises(UserError, match="--words needs a CLIP of transformers"):
        tower.add_words(["not"])
