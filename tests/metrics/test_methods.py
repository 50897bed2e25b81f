"""DCSM, a head over CLIP: the published layout with random weights, against the formula by hand."""

import shutil

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nein import metrics
from nein.benchmarks.negbench import config, run
from nein.metrics import MetricError
from nein.metrics.judges import dcsm
from nein.metrics.preprocess import normalised
from tests.metrics import tiny

WIDTH = 16
IMAGES = [tiny.picture(k, 40, 40) for k in range(2)]
TEXTS = [["a dog", "no dog on the bench", "a car behind it"], ["not a car", "car", "a bench without it"]]

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("method") / "clip"
    return tiny.make_clip(folder, 5, projection_dim=WIDTH, text={"num_hidden_layers": 4})


def cosines_read(file, base, rows=(32 // 8) ** 2 + 1, **changes):
    """A file of DCSM as the released training writes it: modules and a tokenizer beside the tensors."""
    encoder = metrics.load_encoder("clip", str(base))
    with tiny.seeded(2):
        head = dcsm.Reader(4, 4 * rows * 12, 8, len(dcsm.WORDS), rows)
        columns = torch.nn.Embedding(len(dcsm.WORDS), rows)
    state = {name: one for name, one in head.state_dict().items() if name != "columns_of"}
    content = {
        "epoch": 1, "model_state_dict": state, "clip_state_dict": encoder.model.state_dict(),
        "clip_text_tokenizer": encoder.tokenizer._tokenizer, "external_logic_token_embeddings": columns,
        "learned_lookup": None, **changes,
    }  # fmt: skip
    torch.save(content, file)
    return {**state, "columns": columns.weight.detach()}


def converted(folder, base):
    tensors = cosines_read(folder / "published.pt", base)
    paths = [str(folder / name) for name in ("published.pt", "out")]
    run.convert(config.ConvertConfig.parse(["--architecture", "dcsm", "--base", str(base), *paths]))
    return folder / "out", tensors


def test_dcsm_reads_the_map_of_cosines_with_the_columns_of_its_words(base, tmp_path):
    folder, w = converted(tmp_path, base)
    found = metrics.load_judge("itm", str(folder)).match(IMAGES, TEXTS)
    encoder = metrics.load_encoder("clip", str(base))
    model = encoder.model
    for image, row, scores in zip(IMAGES, TEXTS, found, strict=True):
        crop = torch.from_numpy(encoder.preprocess(image).copy())[None]
        pixels = normalised(crop, encoder.preprocess.mean, encoder.preprocess.std)
        with torch.no_grad():
            seen = model.vision_model(pixel_values=pixels).last_hidden_state
            patches = F.normalize(model.visual_projection(model.vision_model.post_layernorm(seen))[0], dim=-1)
            maps = []
            for text in row:
                text = text.replace(" behind ", " above ")
                ids = encoder.tokens([text], padding="max_length", max_length=12)
                said = model.text_model(**ids)
                tokens = F.normalize(model.text_projection(said.last_hidden_state[0]), dim=-1)
                one = patches @ tokens.T
                for word in set(text.split()) & set(dcsm.WORDS):
                    one[:, text.split().index(word)] = w["columns"][dcsm.WORDS.index(word)]
                maps.append(one)
            x = torch.stack(maps)
            x = ((x - x.mean()) / x.std())[:, None]
            for k in (1, 2):
                x = F.conv2d(x, w[f"conv{k}.weight"], w[f"conv{k}.bias"], padding=1).relu()
            x = F.linear(x.flatten(1), w["fc1.weight"], w["fc1.bias"]).relu()
            expected = F.linear(x, w["fc2.weight"], w["fc2.bias"])[:, 0]
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)  # float32, standardised
    assert dcsm.replaced("a box on top, in front of it") == "a box on above, below it"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda c: c["model_state_dict"].pop("fc1.weight"), "lacks weights"),
        (lambda c: c.pop("external_logic_token_embeddings"), "is not a DCSM"),
        (lambda c: c["model_state_dict"].pop("fc2.bias"), "Missing key.*fc2.bias"),
        (lambda c: c.update(learned_lookup=["no"]), "11 columns for the 1 words"),
        (lambda c: c["clip_state_dict"]["logit_scale"].add_(1), "over another CLIP"),
    ],
)
def test_a_file_that_lacks_something_or_stands_on_another_clip_is_refused_and_leaves_nothing(
    spoil, said, base, tmp_path
):
    cosines_read(tmp_path / "file.pt", base)
    # The file that was just made: as released, with modules and a tokenizer beside the tensors.
    content = torch.load(tmp_path / "file.pt", weights_only=False)
    spoil(content)
    torch.save(content, tmp_path / "file.pt")
    with pytest.raises(MetricError, match=said):
        dcsm.convert(tmp_path / "file.pt", tmp_path / "out", base=str(base))
    assert [p.name for p in tmp_path.iterdir()] == ["file.pt"]


def test_a_method_needs_the_clip_that_it_stands_on(base, tmp_path):
    folder, _ = converted(tmp_path, base)
    assert metrics.origins("itm", str(folder)) == []
    config = folder / "config.json"
    config.write_text(config.read_text().replace(str(base), "openai/clip-vit-base-patch32"))
    assert [one.reference for one in metrics.origins("itm", str(folder))] == ["openai/clip-vit-base-patch32"]


def test_objects_in_a_published_file_are_not_run(base, tmp_path):
    class Harm:
        def __reduce__(self):
            return (shutil.copyfile, (__file__, str(tmp_path / "harm")))

    cosines_read(tmp_path / "file.pt", base, grads=Harm())
    dcsm.convert(tmp_path / "file.pt", tmp_path / "out", base=str(base))
    assert not (tmp_path / "harm").exists()
    assert (tmp_path / "out" / "model.safetensors").is_file()
