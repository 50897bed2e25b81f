import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from nein import metrics
from nein.benchmarks.negbench import config
from nein.benchmarks.negbench import runs as run
from nein.metrics.dual import normalise, openclip, pool
from tests.helpers import plain
from tests.metrics import tiny
from tests.negbench.conftest import OPEN_CLIP, cosines

TEXTS = ["A man and his dog.", "No car.", "a bench near a car, but not a dog"]
PICTURES = [tiny.picture(i, 32 + 20 * i, 32) for i in range(4)]  # from square to wide


LENGTH = 64  # tokens of SigLIP 2, as published


def make_tokenizer(kind):
    """A tokenizer of Gemma's kind with a small vocabulary in which capitals have tokens of their own."""
    core = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    core.train_from_iterator([*tiny.SENTENCES, *TEXTS, *map(str.upper, TEXTS)], trainer)
    learned = json.loads(core.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    return kind(vocab=learned["vocab"], merges=merges, model_max_length=LENGTH, padding_side="right")


VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def text_shape(words):
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
    return {**VISION, **special, "vocab_size": len(words), "max_position_embeddings": LENGTH,
            "projection_size": 32}  # fmt: skip


SQUARE = {"size": {"height": 32, "width": 32}}
VIT = {**VISION, "image_size": 32, "patch_size": 8}
PATCHES = {**VISION, "num_patches": 16, "patch_size": 8}
EFFICIENT = {"image_size": 32, "hidden_dim": 32, "initializer_range": 0.3}
EFFICIENT |= {"width_coefficient": 0.1, "depth_coefficient": 0.1}
#: Class of transformers -> seed, class of the tokenizer, vision tower, image processor.
KINDS = {
    # google/siglip2-base-patch16-224: type "siglip", and Gemma's tokenizer
    "Siglip": (6, "Gemma", VIT, SQUARE),
    # google/siglip2-base-patch16-naflex: type "siglip2", pictures keep their shape
    "Siglip2": (7, "Siglip2", PATCHES, {"patch_size": 8, "max_num_patches": 20}),
    # kakaobrain/align-base: an EfficientNet, `temperature` in place of `logit_scale`
    "Align": (8, "Gemma", EFFICIENT, {**SQUARE, "do_center_crop": False}),
    # google/tipsv2-b14: `temperature`, and an image processor of torchvision alone
    "Tipsv2": (9, "Gemma", VIT, SQUARE),
}


def make_towers(folder, kind):
    seed, tokenizer, vision, pixels = KINDS[kind]
    words = make_tokenizer(getattr(transformers, f"{tokenizer}Tokenizer"))
    align = {"projection_dim": 32} if kind == "Align" else {}
    with tiny.seeded(seed):
        config = getattr(transformers, f"{kind}Config")
        config = config(text_config=text_shape(words), vision_config=vision, **align)
        model = getattr(transformers, f"{kind}Model")(config)
        if align:
            model.vision_model.train()(pixel_values=torch.randn(8, 3, 32, 32))  # sets the running statistics
    if "Siglip" in kind:
        model.logit_bias.data.fill_(-2.5)
        model.logit_scale.data.fill_(1.5)
    else:
        model.temperature.data.fill_(0.25)
    processor = getattr(transformers, f"{'EfficientNet' if align else kind}ImageProcessor")(**pixels)
    for part in (model, words, processor):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def medical_folder(tmp_path_factory):
    """A text tower of transformers in open_clip, as BiomedCLIP."""
    return tiny.make_medical(tmp_path_factory.mktemp("models") / "medical")


def transformers_forward(folder, texts):
    """Logits of the class's own forward pass, (pictures, texts), and all inputs as the model card says."""
    from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    siglip = "Siglip" in type(model).__name__
    given = {"padding": True}
    if siglip:
        texts, given = [text.lower() for text in texts], {"padding": "max_length", "max_length": LENGTH}
    words = AutoTokenizer.from_pretrained(folder)(texts, truncation=True, return_tensors="pt", **given)
    assert not siglip or words["input_ids"].shape[1] == LENGTH
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(images=[Image.fromarray(picture) for picture in PICTURES], return_tensors="pt")
    if siglip:
        words.pop("attention_mask", None)
    with torch.no_grad():
        return model(**words, **pixels).logits_per_image.numpy()


def open_clip_forward(folder, texts):
    import open_clip

    model, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    pixels = torch.stack([transform(Image.fromarray(picture)) for picture in PICTURES])
    with torch.no_grad():
        images, words, scale = model.eval()(pixels, open_clip.get_tokenizer(f"local-dir:{folder}")(texts))[:3]
        return (scale * images @ words.T).numpy()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("clip_folder", "CLIPModel"),
        ("open_clip_folder", "CLIP"),
        ("medical_folder", "CustomTextCLIP"),
        *(("", f"{kind}Model") for kind in KINDS),
    ],
)
def test_a_model_scores_as_its_own_forward_does(name, kind, request, tmp_path):
    folder = request.getfixturevalue(name) if name else make_towers(tmp_path, kind.removesuffix("Model"))
    model = metrics.load_dual(str(folder))
    assert model.describe()["class"] == kind
    # Words that a sentence has behind the first one that is cut change nothing, those before do.
    growing = [" ".join(["a"] * count) for count in range(1, 90)]
    change = np.abs(np.diff(model.encode_text(growing), axis=0)).max(axis=1)
    first = model.overlong(growing).index(True)
    assert model.overlong(growing) == [number >= first for number in range(89)]
    assert (change[first:] < 1e-6).all()
    assert change[first - 2] > 1e-6
    own = (transformers_forward if kind.endswith("Model") else open_clip_forward)(folder, TEXTS)
    images, texts = model.encode(PICTURES), model.encode_text(TEXTS)
    assert images.dtype == texts.dtype == np.float32
    assert np.abs(np.linalg.norm(images, axis=1) - 1).max() > 1e-3  # not normalised
    assert model.encode(PICTURES[::-1])[::-1] == pytest.approx(images, abs=1e-5)
    cosine = cosines(images, texts)
    close = {"abs": 2e-4} if "Siglip" in kind else {"rel": 1e-4}
    assert cosine * model.scale + model.bias == pytest.approx(own, **close)
    assert np.ptp(own, axis=0).min() > 1e-3  # pictures differ, and so do sentences
    assert np.ptp(own, axis=1).min() > 1e-3
    if "Siglip" in kind:  # a pair's probability is the sigmoid of the score: no other pair has a part in it
        assert (model.bias, model.scale) == pytest.approx((-2.5, np.exp(1.5)))
        assert "lower case" in model.describe()["text"]
        alone = cosines(model.encode(PICTURES[:1]), model.encode_text(TEXTS[:1]))
        assert alone[0, 0] * model.scale + model.bias == pytest.approx(own[0, 0], abs=4e-4)


def test_a_sentence_transformer_that_reads_images_is_a_dual_encoder(clip_folder, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Transformer

    own = SentenceTransformer(modules=[Transformer(str(clip_folder))], device="cpu")
    own.save(str(tmp_path / "st"))
    model = metrics.load_dual(f"sentence:{tmp_path / 'st'}")
    similarity = own.similarity(own.encode([Image.fromarray(image) for image in PICTURES]), own.encode(TEXTS))
    images, texts = model.encode(PICTURES), model.encode_text(TEXTS)
    assert cosines(images, texts) == pytest.approx(similarity.numpy(), abs=1e-6)
    assert np.ptp(similarity.numpy()) > 1e-3
    assert (model.scale, model.bias, model.width) == (1.0, 0.0, images.shape[1])


def test_quick_gelu_is_a_choice_that_changes_the_features(open_clip_checkpoint, open_clip_folder, tmp_path):
    source, architecture = open_clip_checkpoint
    openclip.convert(source, tmp_path / "quick", architecture=str(architecture), quick_gelu=True)
    quick, gelu = metrics.load_dual(str(tmp_path / "quick")), metrics.load_dual(str(open_clip_folder))
    assert (quick.describe()["quick_gelu"], gelu.describe()["quick_gelu"]) == (True, False)
    assert np.abs(quick.encode(PICTURES) - gelu.encode(PICTURES)).max() > 1e-4
    assert quick.fingerprint != gelu.fingerprint


@pytest.mark.parametrize(
    "reference, expected",
    [
        ("open_clip:ViT-B-32/laion400m_e32", True),
        ("open_clip:ViT-B-32/laion400m_e32#gelu", False),  # as the released scripts ran these weights
        ("open_clip:ViT-B-32/datacomp_xl_s13b_b90k#quickgelu", True),
    ],
)
def test_the_activation_can_be_said(monkeypatch, reference, expected):
    import open_clip

    asked = []

    def create(name, tag, **options):
        asked.append((name, tag, options["force_quick_gelu"]))
        raise RuntimeError("no weights here")

    monkeypatch.setattr(open_clip, "create_model_from_pretrained", create)
    with pytest.raises(metrics.MetricError, match="no weights here"):
        metrics.load_dual(reference)
    tag = reference.partition("/")[2].partition("#")[0]
    assert asked == [("ViT-B-32", tag, expected)]


def test_a_checkpoint_as_con_clip_and_negationclip_give_them_out_is_converted(open_clip_checkpoint, tmp_path):
    """CoN-CLIP: the state dict of OpenAI's package under "model", beside that of the optimiser and logs.
    NegationCLIP: the state dict alone. Half precision becomes float32."""
    source, architecture = open_clip_checkpoint
    named = torch.load(source, weights_only=True)["state_dict"]
    state = {name.removeprefix("module."): value for name, value in named.items()}
    optimiser = {"state": {0: {"step": 3}}, "param_groups": [{"lr": 1e-6, "params": [0]}]}
    torch.save({"model": state, "optimizer": optimiser, "logs": {"loss": [0.1]}}, tmp_path / "conclip.pt")
    torch.save(state, tmp_path / "negationclip.pt")
    torch.save({name: value.half() for name, value in named.items()}, tmp_path / "half.pt")
    features = []
    for name in ("conclip", "negationclip", "half"):
        words = ["--architecture", str(architecture), "--quick-gelu"]
        words += [str(tmp_path / f"{name}.pt"), str(tmp_path / name)]
        run.convert(config.ConvertConfig.parse(words))
        model = metrics.load_dual(str(tmp_path / name))
        assert model.quick_gelu
        assert plain.number_types(tmp_path / name) == {"float32"}
        features.append(model.encode_text(["no dog"]))
    np.testing.assert_array_equal(features[0], features[1])
    assert features[2] == pytest.approx(features[0], rel=0.02, abs=0.02)


def test_a_pickle_that_would_run_something_is_not_run(tmp_path):
    import pickle

    class Harm:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "harm",))

    (tmp_path / "bad.pt").write_bytes(pickle.dumps({"state_dict": Harm()}))
    with pytest.raises(metrics.MetricError, match="could run code when read"):
        openclip.convert(tmp_path / "bad.pt", tmp_path / "out", architecture="ViT-B-32")
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "out").exists()


def test_a_model_with_one_tower_is_refused(tmp_path):
    from transformers import ViTConfig, ViTModel

    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    ViTModel(ViTConfig(**size, image_size=32)).save_pretrained(tmp_path / "vit")
    with pytest.raises(metrics.MetricError, match=r"has no get_(image|text)_features"):
        metrics.load_dual(str(tmp_path / "vit"))


def test_frames_are_normalised_before_they_are_averaged():
    frames = np.array([[3.0, 0.0], [0.0, 1.0]], dtype=np.float32)
    assert pool(frames) == pytest.approx([0.5, 0.5])
    assert pool(frames[:1]) == pytest.approx([3.0, 0.0])
    assert normalise(np.zeros((1, 3))).tolist() == [[0, 0, 0]]


def test_an_architecture_that_does_not_fit_is_a_sentence_and_leaves_nothing(open_clip_checkpoint, tmp_path):
    source, _ = open_clip_checkpoint
    other = {**OPEN_CLIP, "embed_dim": 32}
    nonsense = {**OPEN_CLIP, "vision_cfg": {"layers": "many"}}
    for content, said in ((other, "does not fit"), (nonsense, "does not fit")):
        (tmp_path / "other.json").write_text(json.dumps(content))
        with pytest.raises(metrics.MetricError, match=said):
            openclip.convert(source, tmp_path / "out", architecture=str(tmp_path / "other.json"))
        assert [path.name for path in tmp_path.iterdir()] == ["other.json"]


def test_weights_that_are_cut_off_are_a_sentence(open_clip_folder, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(open_clip_folder, folder)
    weights = folder / openclip.WEIGHTS
    for length in (0, 4, 1000, weights.stat().st_size // 2):
        weights.write_bytes((open_clip_folder / openclip.WEIGHTS).read_bytes()[:length])
        with pytest.raises(metrics.MetricError, match=r"Cannot load '.*cut' with open_clip: \S"):
            metrics.load_dual(str(folder))
