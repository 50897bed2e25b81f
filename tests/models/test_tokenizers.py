"""A tokenizer that does not fit its model is refused, by its file; one without padding pads with the end."""

import json
import shutil

import numpy as np
import pytest

from nein import editors, metrics
from nein.editors import EditorError
from nein.nano import zoo

TEXTS = ["a dog", "a photo of a red cat and no dog"]
LOADERS = {
    "clip": metrics.load_dual,
    "owlv2": lambda folder: metrics.load_judge("ovd", folder),
    "blip": lambda folder: metrics.load_judge("itm", folder),
    "llava": lambda folder: metrics.load_judge("vqa", folder),
    "ip2p": lambda folder: editors.get_editor("ip2p", checkpoint=folder),
}


def without(*names):
    def change(folder):
        for name in names:
            (folder / name).unlink()

    return change


def renamed(**tokens):
    def change(folder):
        file = folder / "tokenizer_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **tokens}))

    return change


def of(model):
    return lambda folder: shutil.copy(zoo.ZOO / model / "tokenizer.json", folder / "tokenizer.json")


MISSING = "has 2 words and the model's embedding 1037; check tokenizer.json"
REFUSED = [
    ("clip", without("tokenizer.json"), MISSING),
    ("owlv2", without("tokenizer.json"), MISSING),
    ("blip", without("tokenizer.json"), "has 5 words and the model's embedding 700; check"),
    ("ip2p", without("tokenizer.json"), MISSING),
    ("clip", of("blip"), "has 702 words and the model's embedding 1037"),
    ("ip2p", of("llava"), "cannot read 'a photo of a dog and no cat'.*check tokenizer.json"),
    ("llava", of("blip"), "has 705 words and the model's embedding 1100"),
    ("clip", renamed(eos_token="</s>"), "gives '</s>' the id 1037, but the model has 1037 words"),
    ("ip2p", renamed(eos_token="<|startoftext|>"), "ends sentences with id 1035, the model with 1036"),
    ("clip", renamed(tokenizer_class="BertTokenizer"), r"gives '\[CLS\]' the id 1038"),
    ("clip", renamed(tokenizer_class="GPT2Tokenizer"), "GPT2Tokenizer, which splits .* check tokenizer.json"),
    ("blip", renamed(pad_token=None), "has no padding or end token among the model's 700 words"),
]


def copied(model, change, root):
    folder = root / model
    shutil.copytree(zoo.path(model), folder)
    change(folder / "tokenizer" if model == "ip2p" else folder)
    return str(folder)


@pytest.mark.parametrize("model, change, sentence", REFUSED)
def test_a_tokenizer_that_does_not_fit_is_refused(model, change, sentence, tmp_path):
    folder = copied(model, change, tmp_path)
    with pytest.raises(EditorError, match=f"'{folder}.*{sentence}"):
        LOADERS[model](folder)


@pytest.mark.parametrize("word", [None, "[PAD]"])
def test_without_a_padding_token_of_the_model_sentences_are_padded_with_the_end_token(word, tmp_path):
    folder = copied("clip", renamed(pad_token=word), tmp_path)
    expected = metrics.load_dual(str(zoo.path("clip"))).encode_text(TEXTS)
    np.testing.assert_array_equal(metrics.load_dual(folder).encode_text(TEXTS), expected)
