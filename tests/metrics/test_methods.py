"""Methods with a head over CLIP: published layouts with random weights, against the formulas by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from nein import metrics
from nein.benchmarks.negbench import config, run
from nein.engine.errors import UserError
from nein.metrics import MetricError
from nein.metrics.judges import clipglasses, dcsm, methods
from tests.helpers import commands
from tests.metrics import tiny

WIDTH = 16
IMAGES = [tiny.picture(k, 40, 40) for k in range(2)]
TEXTS = [["a dog", "no dog on the bench", "a car behind it"], ["not a car", "car", "a bench without it"]]

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("method") / "clip"
    return tiny.make_clip(folder, 5, projection_dim=WIDTH, text={"num_hidden_layers": 4})


def glasses(file: Path, base: Path) -> Tensors:
    """A file of CLIPGlasses as the released training writes it."""
    with tiny.seeded(1):
        heads = clipglasses.Heads(WIDTH, 24, 12)
        for parameter in heads.parameters():
            parameter.data.normal_(0, 0.4)
    heads.frame.logit_scale.copy_(metrics.load_encoder("clip", str(base)).model.logit_scale)
    torch.save(heads.state_dict(), file)
    return heads.state_dict()


def cosines_read(file: Path, base: Path, **changes: Any) -> Tensors:
    """A file of DCSM as the released training writes it: modules and a tokenizer beside the tensors."""
    encoder = metrics.load_encoder("clip", str(base))
    rows = (32 // 8) ** 2 + 1
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


def converted(folder: Path, make: Callable[..., Tensors], method: str, base: Path) -> tuple[Path, Tensors]:
    tensors = make(folder / "published.pt", base)
    paths = [str(folder / name) for name in ("published.pt", "out")]
    run.convert(config.ConvertConfig.parse(["--architecture", method, "--base", str(base), *paths]))
    return folder / "out", tensors


def block(w: Tensors, start: str, x: torch.Tensor) -> torch.Tensor:
    x = F.gelu(F.linear(x, w[f"{start}.0.weight"]))
    return F.layer_norm(x, x.shape[-1:], w[f"{start}.2.weight"], w[f"{start}.2.bias"])


def attended(w: Tensors, start: str, q: torch.Tensor, kv: torch.Tensor, heads: int) -> torch.Tensor:
    weights, biases = w[f"{start}.in_proj_weight"].chunk(3), w[f"{start}.in_proj_bias"].chunk(3)
    parts = [
        F.linear(x, weight, bias).unflatten(-1, (heads, -1)).transpose(0, 1)
        for x, weight, bias in zip((q, kv, kv), weights, biases, strict=True)
    ]
    said = F.scaled_dot_product_attention(*parts).transpose(0, 1).flatten(1)
    return F.linear(said, w[f"{start}.out_proj.weight"], w[f"{start}.out_proj.bias"])


def by_hand(
    w: Tensors, image: torch.Tensor, text: torch.Tensor, weighed: list[float] | None = None
) -> tuple[float, bool]:
    """The score of one picture and one caption, (D,) each, and whether the caption denies. weighed: of the
    lens's three readings."""

    def linear(start: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w[f"{start}.weight"], w.get(f"{start}.bias"))

    def norm(start: str, x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"{start}.weight"], w[f"{start}.bias"], eps)

    weighed = weighed or [1 / 64] * 3  # the mean weight in a batch of 64
    c = sum(a * block(w, f"lens.semantic_v_proj.{k}", text) for k, a in enumerate(weighed))
    gate = linear("lens.res_gate.0", c).sigmoid().sigmoid()
    c = gate * c + (1 - gate) * text
    c = F.gelu(norm("lens.ffn.1", linear("lens.ffn.0", c)))
    denied = norm("lens.ffn.5", linear("lens.ffn.4", c))
    i, h, n = (F.normalize(x, dim=-1) for x in (image, text, denied))
    n = n + 1e-8
    x = torch.stack([h, i])
    for k in range(3):
        start = f"frame.cross_transformer.layers.{k}"
        x = norm(f"{start}.norm1", x + attended(w, f"{start}.self_attn", x, x, 8), 1e-6)
        wide = F.gelu(linear(f"{start}.linear1", x))
        x = norm(f"{start}.norm2", x + linear(f"{start}.linear2", wide), 1e-6)
    looking = w["frame.alpha"] * h + x[0]
    seen = attended(w, "frame.lambda_generator.cross_attn", looking[None], n[None], 4)[0]
    repels = F.gelu(linear("frame.lambda_generator.gate_controller.0", torch.cat([looking, seen])).sigmoid())
    hidden = F.gelu(norm("negDetector.classifier.1", linear("negDetector.classifier.0", text)))
    denies = float(linear("negDetector.classifier.4", hidden)) > 0
    scale = float(w["frame.logit_scale"].exp())
    taken = max(0.0, float(repels) * scale * float(n @ i)) if denies else 0.0
    return scale * float(h @ i) - taken, denies


@torch.no_grad()
def features(base: Path) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Of pictures that are not standardised, of captions, and of captions after each of the first layers."""
    encoder = metrics.load_encoder("clip", str(base))
    model, texts, states = encoder.model, {}, {}
    pixels = [torch.from_numpy(encoder.preprocess(x).copy()).permute(2, 0, 1)[None] / 255 for x in IMAGES]
    images = [model.get_image_features(pixel_values=x).pooler_output[0] for x in pixels]
    for text in (text for row in TEXTS for text in row):
        said = model.text_model(input_ids=encoder.tokens([text])["input_ids"], output_hidden_states=True)
        texts[text] = model.text_projection(said.pooler_output)[0]
        ends = torch.stack([hidden[0, -1] for hidden in said.hidden_states[1:4]])
        states[text] = model.text_projection(model.text_model.final_layer_norm(ends))
    return images, texts, states


def test_clipglasses_is_the_formula_for_every_picture_and_caption(base: Path, tmp_path: Path) -> None:
    folder, w = converted(tmp_path, glasses, "clipglasses", base)
    judge = metrics.load_judge("itm", str(folder))
    found = np.stack(judge.match(IMAGES, TEXTS))
    images, texts, _ = features(base)
    expected = [[by_hand(w, i, texts[text]) for text in row] for i, row in zip(images, TEXTS, strict=True)]
    assert {denies for row in expected for _, denies in row} == {True, False}
    # float32 through seven layers, in another order of additions
    wanted = [[score for score, _ in row] for row in expected]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    alone = [judge.match([image], [row])[0] for image, row in zip(IMAGES, TEXTS, strict=True)]
    np.testing.assert_allclose(np.stack(alone), found, rtol=1e-5, atol=1e-6)


def test_as_released_the_captions_of_a_batch_weigh_upon_each_other(base: Path, tmp_path: Path) -> None:
    folder, w = converted(tmp_path, glasses, "clipglasses", base)
    paper, fixed = (metrics.load_judge("itm", str(folder), protocol=p) for p in ("paper", "fixed"))
    assert paper.fingerprint != fixed.fingerprint
    found = paper.match(IMAGES, TEXTS)
    images, texts, states = features(base)
    for place in range(3):
        column = [row[place] for row in TEXTS]
        weights = []
        keys = [block(w, "lens.semantic_k_proj", texts[text]) for text in column]
        for k in range(3):
            queries = [block(w, f"lens.syntax_proj.{k}", states[text][k]) for text in column]
            likeness = [query @ key for query, key in zip(queries, keys, strict=True)]
            scaled = torch.stack(likeness) / WIDTH**0.5 * w["lens.attention_log_scale"][k]
            weights.append(scaled.softmax(0).tolist())
        for j, text in enumerate(column):
            expected, _ = by_hand(w, images[j], texts[text], [row[j] for row in weights])
            assert found[j][place] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert not np.allclose(np.stack(found), np.stack(fixed.match(IMAGES, TEXTS)), atol=1e-4)


# --- DCSM ----------------------------------------------------------------------------------


def test_dcsm_reads_the_map_of_cosines_with_the_columns_of_its_words(base: Path, tmp_path: Path) -> None:
    folder, w = converted(tmp_path, cosines_read, "dcsm", base)
    found = metrics.load_judge("itm", str(folder)).match(IMAGES, TEXTS)
    encoder = metrics.load_encoder("clip", str(base))
    model = encoder.model
    for image, row, scores in zip(IMAGES, TEXTS, found, strict=True):
        pixels = encoder.preprocess.normalise(torch.from_numpy(encoder.preprocess(image).copy())[None])
        with torch.no_grad():
            seen = model.vision_model(pixel_values=pixels).last_hidden_state
            patches = F.normalize(model.visual_projection(model.vision_model.post_layernorm(seen))[0], dim=-1)
            maps = []
            for text in row:
                text = text.replace(" behind ", " above ")
                ids = encoder.tokens([text], padding="max_length", limit=12)
                said = model.text_model(input_ids=ids.input_ids, attention_mask=ids.attention_mask)
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


# --- files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "make", "spoil", "said"),
    [
        ("clipglasses", glasses, lambda c: c.pop("frame.alpha"), "Missing key.*frame.alpha"),
        ("clipglasses", glasses, lambda c: c.pop("lens.semantic_k_proj.0.weight"), "lacks weights"),
        ("clipglasses", glasses, lambda c: c["frame.logit_scale"].fill_(1), "with the logit scale"),
        ("dcsm", cosines_read, lambda c: c.pop("external_logic_token_embeddings"), "is no DCSM"),
        ("dcsm", cosines_read, lambda c: c["model_state_dict"].pop("fc2.bias"), "Missing key.*fc2.bias"),
        ("dcsm", cosines_read, lambda c: c.update(learned_lookup=["no"]), "11 columns for the 1 words"),
        ("dcsm", cosines_read, lambda c: c["clip_state_dict"]["logit_scale"].add_(1), "over another CLIP"),
    ],
)
def test_a_file_that_lacks_something_or_stands_on_another_clip_is_refused_and_leaves_nothing(
    method: str, make: Any, spoil: Callable[[Any], Any], said: str, base: Path, tmp_path: Path
) -> None:
    make(tmp_path / "file.pt", base)
    # The file that was just made: as released, with modules and a tokenizer beside the tensors.
    content = torch.load(tmp_path / "file.pt", weights_only=False)
    spoil(content)
    torch.save(content, tmp_path / "file.pt")
    with pytest.raises(MetricError, match=said):
        methods.convert(tmp_path / "file.pt", tmp_path / "out", method=method, base=str(base))
    assert [p.name for p in tmp_path.iterdir()] == ["file.pt"]


def test_a_method_needs_the_clip_that_it_stands_on(base: Path, tmp_path: Path) -> None:
    folder, _ = converted(tmp_path, glasses, "clipglasses", base)
    assert metrics.origins("itm", str(folder)) == []
    config = folder / "config.json"
    config.write_text(config.read_text().replace(str(base), "openai/clip-vit-base-patch32"))
    assert [one.reference for one in metrics.origins("itm", str(folder))] == ["openai/clip-vit-base-patch32"]


def test_objects_in_a_published_file_are_not_run(base: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, tuple[str, str]]:
            return (shutil.copyfile, (__file__, str(tmp_path / "harm")))

    cosines_read(tmp_path / "file.pt", base, grads=Harm())
    methods.convert(tmp_path / "file.pt", tmp_path / "out", method="dcsm", base=str(base))
    assert not (tmp_path / "harm").exists()
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--architecture", "ViT-B-32", "--base", "nano:clip"], "--base says what a method"),
        (["--architecture", "dcsm", "--quick-gelu"], "--quick-gelu says nothing of dcsm"),
    ],
)
def test_options_that_do_not_go_together_are_a_sentence(given: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        config.ConvertConfig.parse([*given, "in.pt", "out"])


def test_methods_are_rows_of_negbench_in_the_drawn_world(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random heads over the nano CLIP: the whole path, and a choice as good as chance."""
    clip = metrics.load_encoder("clip", "nano:clip").model
    heads = clipglasses.Heads(clip.config.projection_dim, 32, 16)
    heads.frame.logit_scale.copy_(clip.logit_scale)
    torch.save(heads.state_dict(), tmp_path / "glasses.pth")
    methods.convert(tmp_path / "glasses.pth", tmp_path / "glasses", method="clipglasses", base="nano:clip")
    done = commands.outcome(
        capsys, "negbench", "eval", "--model", "none", "--match", tmp_path / "glasses", "--data", "nano",
        "--scenes", 12, "--tasks", "mcq", "--device", "cpu", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "glasses" in done.stdout
