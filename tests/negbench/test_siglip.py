"""SigLIP 2 of transformers: fixed resolution and NaFlex, each equal to its class's own forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from nein import metrics
from tests.metrics import tiny
from tests.negbench.conftest import cosines

LENGTH = 64  # tokens, as published
TEXTS = ["A man and his dog.", "No car.", "a bench near a car, but not a dog"]
PICTURES = [tiny.picture(i, 32 + 20 * i, 32) for i in range(3)]  # from square to wide
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]


def make_tokenizer(kind: Any) -> Any:
    """A tokenizer of Gemma's kind with a small vocabulary in which capitals have tokens of their own."""
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=SPECIAL, show_progress=False)
    core.train_from_iterator([*tiny.SENTENCES, *TEXTS, *map(str.upper, TEXTS)], trainer)
    import json

    learned = json.loads(core.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    return kind(vocab=learned["vocab"], merges=merges, model_max_length=LENGTH, padding_side="right")


def text_shape(words: Any) -> dict[str, Any]:
    return {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "vocab_size": len(words), "max_position_embeddings": LENGTH, "projection_size": 32,
        "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1,
    }  # fmt: skip


VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def save(folder: Path, model: Any, words: Any, processor: Any) -> Path:
    model.logit_bias.data.fill_(-2.5)
    model.logit_scale.data.fill_(1.5)
    for part in (model, words, processor):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def fixed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As google/siglip2-base-patch16-224 is laid out: type "siglip", and Gemma's tokenizer."""
    from transformers import GemmaTokenizer, SiglipConfig, SiglipImageProcessor, SiglipModel

    words = make_tokenizer(GemmaTokenizer)
    with tiny.seeded(6):
        model = SiglipModel(
            SiglipConfig(
                text_config=text_shape(words), vision_config={**VISION, "image_size": 32, "patch_size": 8}
            )
        )
    processor = SiglipImageProcessor(size={"height": 32, "width": 32})
    return save(tmp_path_factory.mktemp("models") / "siglip2", model, words, processor)


@pytest.fixture(scope="session")
def naflex_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As google/siglip2-base-patch16-naflex is laid out: type "siglip2", pictures keep their shape."""
    from transformers import Siglip2Config, Siglip2ImageProcessor, Siglip2Model
    from transformers.models.siglip2.tokenization_siglip2 import Siglip2Tokenizer

    words = make_tokenizer(Siglip2Tokenizer)
    with tiny.seeded(7):
        model = Siglip2Model(
            Siglip2Config(
                text_config=text_shape(words), vision_config={**VISION, "num_patches": 16, "patch_size": 8}
            )
        )
    processor = Siglip2ImageProcessor(patch_size=8, max_num_patches=20)
    return save(tmp_path_factory.mktemp("models") / "naflex", model, words, processor)


def own_forward(folder: Path, texts: list[str], **more: Any) -> np.ndarray:
    """Logits of the class's own forward pass, (pictures, texts), and all inputs as the model card says."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    words = AutoTokenizer.from_pretrained(folder)(
        [text.lower() for text in texts],
        padding="max_length", max_length=LENGTH, truncation=True, return_tensors="pt",
    )  # fmt: skip
    assert words["input_ids"].shape[1] == LENGTH
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(images=[Image.fromarray(picture) for picture in PICTURES], return_tensors="pt")
    with torch.no_grad():
        return model(input_ids=words["input_ids"], **pixels).logits_per_image.numpy()


@pytest.mark.parametrize("name", ["fixed_folder", "naflex_folder"])
def test_siglip_2_scores_as_its_own_forward_does(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    model = metrics.load_dual(str(folder))
    assert type(model.model).__name__ == ("Siglip2Model" if "naflex" in name else "SiglipModel")
    own = own_forward(folder, TEXTS)
    cosine = cosines(model.encode(PICTURES), model.encode_text(TEXTS))
    found = cosine * model.scale + model.bias
    assert found == pytest.approx(own, abs=2e-4)
    assert np.ptp(own, axis=0).min() > 1e-3  # pictures differ, and so do sentences
    assert np.ptp(own, axis=1).min() > 1e-3
    # A pair's probability is the sigmoid of the score: no other pair has a part in it.
    assert model.bias == pytest.approx(-2.5)
    assert model.scale == pytest.approx(np.exp(1.5))
    cosine = cosines(model.encode(PICTURES[:1]), model.encode_text(TEXTS[:1]))
    alone = cosine * model.scale + model.bias
    assert 1 / (1 + np.exp(-alone[0, 0])) == pytest.approx(float(torch.tensor(own).sigmoid()[0, 0]), abs=1e-4)


@pytest.mark.parametrize("name", ["fixed_folder", "naflex_folder"])
def test_sentences_are_read_in_lower_case_and_at_full_length(
    name: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(name)
    model = metrics.load_dual(str(folder))
    low, high = (model.encode_text([change(text) for text in TEXTS]) for change in (str.lower, str.upper))
    assert (low == high).all()
    assert "lower case" in model.describe()["text"]
    # Padding is part of what the model reads: cut to the sentence, it gives other features.
    words = model.tokenizer(["no car."], padding=False, return_tensors="pt")["input_ids"]
    assert words.shape[1] < LENGTH
    with torch.no_grad():
        short = model.model.get_text_features(input_ids=words).pooler_output.numpy()
    assert np.abs(short - model.encode_text(["no car."])).max() > 1e-3


def test_naflex_keeps_the_shape_of_a_picture(naflex_folder: Path) -> None:
    model = metrics.load_dual(str(naflex_folder), batch_size=2)
    inputs = model.processor(images=PICTURES, return_tensors="pt", input_data_format="channels_last")
    shapes = [tuple(shape) for shape in inputs["spatial_shapes"].tolist()]
    assert shapes[0][0] == shapes[0][1]
    assert shapes[2][1] > shapes[2][0]
    together = model.encode(PICTURES)
    single = np.concatenate([model.encode([picture]) for picture in PICTURES])
    assert single == pytest.approx(together, abs=1e-5)
    wide = model.encode([np.ascontiguousarray(PICTURES[2].transpose(1, 0, 2))])
    assert np.abs(wide - together[2]).max() > 1e-3
