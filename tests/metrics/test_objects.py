from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nein.metrics import MetricError, load_dual
from nein.metrics.dual import make_dual

PICTURES = [np.full((32, 32, 3), value, np.uint8) for value in (10, 120, 250)]


class Colours:
    def encode_image(self, images):
        return torch.tensor(np.array([np.asarray(image).mean((0, 1)) for image in images]))

    def encode_text(self, texts):
        return np.array([[len(text), text.count("a"), 1] for text in texts])


def test_an_object_with_two_encoders_is_a_model():
    model = make_dual(Colours(), name="colours", fingerprint="1", batch_size=2)
    assert model.width == 3
    assert model.encode(PICTURES).dtype == np.float32
    assert model.encode(PICTURES)[:, 0].tolist() == [10, 120, 250]
    assert model.encode_text(["a cat"]).tolist() == [[5, 2, 1]]
    assert make_dual(model, name="again", fingerprint="2") is model


def test_a_model_of_transformers_in_memory_gives_its_own_features():
    from transformers import AutoImageProcessor, AutoTokenizer, CLIPModel, CLIPProcessor

    from nein.nano import zoo

    folder = zoo.path("clip")
    processor = CLIPProcessor(
        AutoImageProcessor.from_pretrained(folder, backend="pil"), AutoTokenizer.from_pretrained(folder)
    )
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32)
    memory = make_dual((model, processor), name="mine", fingerprint="")
    named = load_dual("nano:clip")
    texts = ["a red circle", "no dog"]
    np.testing.assert_allclose(memory.encode_text(texts), named.encode_text(texts), rtol=1e-4, atol=1e-5)
    assert memory.encode(PICTURES).shape == named.encode(PICTURES).shape
    assert memory.scale == pytest.approx(named.scale)


def test_a_model_of_open_clip_in_memory_gives_its_own_features():
    open_clip = pytest.importorskip("open_clip")
    vision = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    model = open_clip.CLIP(embed_dim=16, vision_cfg=vision, text_cfg=text)
    transform = open_clip.image_transform(32, is_train=False)
    tokenizer = open_clip.SimpleTokenizer()
    memory = make_dual((model, transform, tokenizer), name="mine", fingerprint="")
    with torch.no_grad():
        expected = model.encode_text(tokenizer(["no dog"])).numpy()
    np.testing.assert_allclose(memory.encode_text(["no dog"]), expected, rtol=1e-4, atol=1e-5)
    assert memory.encode(PICTURES).shape == (3, 16)


NO_FEATURES = r"for 3 inputs; expected finite numbers of shape \(3, D\)"


@pytest.mark.parametrize(
    ("encode", "said"),
    [
        (lambda images: np.zeros((2, 3)), NO_FEATURES),
        (lambda images: [["a"], ["b"], ["c"]], NO_FEATURES),
        (lambda images: 1 / 0, "bad.encode_image raised ZeroDivisionError"),
        (lambda images: torch.empty(3, 3, device="meta"), "bad.encode_image raised NotImplementedError"),
    ],
)
def test_what_gives_no_features_is_one_sentence(encode, said):
    bad = SimpleNamespace(encode_image=encode, encode_text=Colours().encode_text)
    with pytest.raises(MetricError, match=said):
        make_dual(bad, name="bad", fingerprint="").encode(PICTURES)
