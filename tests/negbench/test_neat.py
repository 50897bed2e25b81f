import copy
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from nein import metrics
from nein.datasets.negbench import remedy_texts
from nein.engine.errors import UserError
from nein.metrics.base import MetricError
from nein.metrics.dual import normalise, steering
from nein.metrics.dual.objects import ControlEncoder
from nein.metrics.dual.steering import Reading, stream
from nein.models.remedies import encoders
from nein.models.remedies.encoders import Adapted, Remedy
from tests.negbench.conftest import evaluate, rows_of

TEXTS = ("a cat", "a photo of a dog and a cat", "no dog")
THINGS = ("cat", "dog", "cup", "car", "bench")
READINGS = [
    Reading(f"a {a} but no {b}", f"a {a}", f"a {b}", f"a {b} but no {a}")
    for a, b in [("cat", "dog"), ("cup", "car"), ("bench", "cat"), ("dog", "bench"), ("car", "cup")]
]
CAPTIONS = [f"A {a} on a table. There is no {b}." for a in THINGS for b in THINGS[:2] if a != b]


def gallery(width, count=7):
    return normalise(np.random.default_rng(0).normal(size=(count, width)))


def unit(*shape, seed):
    return torch.from_numpy(normalise(np.random.default_rng(seed).normal(size=shape)))


def feature_of(encoder, state):
    """What the model makes of the last layer's states."""
    model, x = encoder.model, torch.from_numpy(state)
    with torch.no_grad():
        if hasattr(model, "text_model"):
            return model.text_projection(model.text_model.final_layer_norm(x)).numpy()
        return (model.ln_final(x) @ model.text_projection).numpy()


def test_the_last_state_is_the_one_that_becomes_the_feature(encoder):
    states = steering.states(encoder, TEXTS)
    assert len(states) == len(steering.stream(encoder).layers)
    made = feature_of(encoder, states[-1])
    np.testing.assert_allclose(made, encoder.encode_text(TEXTS), rtol=1e-4, atol=1e-5)


def test_steering_moves_every_layer_as_published_and_leaves_nothing_behind(encoder):
    states, plain = steering.states(encoder, TEXTS), encoder.encode_text(TEXTS)
    rng = np.random.default_rng(0)
    vectors = [v / np.linalg.norm(v) for v in rng.normal(size=(len(states), states[0].shape[1]))]
    with steering.steered(encoder, vectors, 0.0):
        np.testing.assert_allclose(encoder.encode_text(TEXTS), plain, rtol=1e-5, atol=1e-6)
    with steering.steered(encoder, vectors, 1.0):
        moved = encoder.encode_text(TEXTS)
    # With alpha 1 only the length of a state and the last direction are left of it.
    unit = feature_of(encoder, np.asarray(vectors[-1:], np.float32) * 1e3)
    np.testing.assert_allclose(moved / np.linalg.norm(moved, axis=1, keepdims=True),
                               np.repeat(unit / np.linalg.norm(unit), 3, 0), atol=2e-2)  # fmt: skip
    np.testing.assert_array_equal(encoder.encode_text(TEXTS), plain)


def test_the_sum_is_that_of_the_formula():
    t, p, v, i = (unit(4, 6, seed=seed) for seed in range(4))
    entropy = reversion = triplet = 0.0
    for k in range(4):
        weights = [math.exp(float(t[c] @ i[k]) / 0.03) for c in range(4)]
        shares = [one / sum(weights) for one in weights]
        entropy -= sum(share * math.log(share) for share in shares) / 4
        least = min(float(v[k] @ i[j]) for j in range(4) if j != k)
        reversion += max(0.0, float(v[k] @ i[k]) - least) / 0.07 / 4
        near, far = (float((t[k] - other[k] + 1e-6).norm()) for other in (p, v))
        triplet += (5 * near + 2 - far) / 4
    assert float(steering.loss(t, p, v, i)) == pytest.approx(entropy + reversion + triplet, rel=1e-9)


def by_hand(encoder, batches, pictures):
    """The same in a plain loop: a copy of the model whose normalisation layers are trained."""
    ours = copy.copy(encoder)
    ours.model = copy.deepcopy(encoder.model).requires_grad_(False)
    modules = [module for block in stream(ours).layers for module in block.modules()]
    norms = [module for module in modules if isinstance(module, torch.nn.LayerNorm)]
    moving = [parameter for norm in norms for parameter in (norm.weight, norm.bias)]
    optimiser = torch.optim.AdamW([one.requires_grad_() for one in moving], lr=2e-4, weight_decay=1e-3)
    shown = torch.from_numpy(pictures).float()
    online = []
    for batch in batches:
        for _ in range(3):
            names = ("text", "affirmed", "denied", "inverted")
            parts = ([getattr(one, name) for one in batch] for name in names)
            t, p, n, v = (torch.nn.functional.normalize(ours.text_features(part), dim=-1) for part in parts)
            scores = (p @ shown.T) * (1 - (n @ shown.T).clamp(min=0))
            steering.loss(t, p, v, shown[scores.argmax(1)]).backward()
            optimiser.step()
            optimiser.zero_grad()
        online.append(t.detach().numpy())
    return online, moving


def test_steps_are_those_of_a_plain_loop(encoder):
    batches = [READINGS[:3], READINGS[3:]]
    pictures = gallery(encoder.width)
    expected, moving = by_hand(encoder, batches, pictures)
    before = [one.clone() for one in encoder.model.parameters()]
    made, norms = steering.adapt(encoder, batches, pictures)
    # AdamW divides by the size of a gradient, so that rounding of one near nothing may turn its step round.
    for ours, theirs in zip((one for pair in norms.parameters for one in pair), moving, strict=True):
        assert (ours - theirs).abs().mean() < 2e-5
    for ours, theirs in zip(made, expected, strict=True):
        np.testing.assert_allclose(normalise(ours), theirs, atol=2e-5)
    plain = encoder.encode_text([one.text for one in READINGS])
    assert np.abs(normalise(np.concatenate(made)) - normalise(plain)).max() > 1e-4
    after = list(encoder.model.parameters())
    assert all(map(torch.equal, before, after))
    assert all(one.grad is None for one in after)


@pytest.mark.parametrize("how", ["steered", "adapted"])
def test_another_thread_meanwhile_uses_the_model_as_it_is(encoder, how):
    plain = encoder.encode_text(TEXTS)
    if how == "steered":
        vectors = [np.ones(x.shape[1]) / x.shape[1] ** 0.5 for x in steering.states(encoder, TEXTS)]
        changed = steering.steered(encoder, vectors, 0.9)
    else:
        norms = steering.Norms(encoder)
        np.testing.assert_allclose(steering.encoded(encoder, norms, TEXTS), plain, rtol=1e-5, atol=1e-6)
        for scale, _ in norms.parameters:
            scale.data *= 2
        changed = norms.in_place()
    with changed, ThreadPoolExecutor(1) as pool:
        np.testing.assert_array_equal(pool.submit(encoder.encode_text, TEXTS).result(), plain)
        assert np.abs(encoder.encode_text(TEXTS) - plain).max() > 1e-3


def test_under_fixed_a_feature_does_not_depend_on_where_a_caption_stands(clip_folder, monkeypatch):
    encoder = metrics.load_dual(str(clip_folder), device="cpu", dtype="float32")
    monkeypatch.setattr(encoders, "BATCH", 3)
    pictures = gallery(encoder.width)
    made = {}
    for protocol in ("fixed", "paper"):
        arm = Remedy.parse("neat").around(encoder, protocol, 0)
        assert isinstance(arm, Adapted)
        made[protocol] = arm.encode_among(CAPTIONS, pictures, CAPTIONS)
        part = arm.encode_among(CAPTIONS[2:5], pictures, CAPTIONS)
        # sentences meet others in their passes through the encoder
        np.testing.assert_allclose(part, made[protocol][2:5], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(arm.encode_text(CAPTIONS), encoder.encode_text(CAPTIONS))
    # The one encodes all by the weights at the end; the other most of them by weights on the way.
    moved = np.abs(normalise(made["fixed"]) - normalise(made["paper"])).max(1)
    assert (moved > 1e-5).sum() > len(CAPTIONS) / 2
    plain = "A cat on a mat."  # is adapted to by neither, and encoded with the weights at the end by both
    for protocol in ("fixed", "paper"):
        arm = Remedy.parse("neat").around(encoder, protocol, 0)
        np.testing.assert_array_equal(
            arm.encode_among([plain], pictures, [plain]), encoder.encode_text([plain])
        )


def test_as_released_captions_lose_case_and_points():
    assert steering.cleaned('A cat. There is "no" DOG!') == "a cat there is no dog"
    assert steering.cleaned("word " * 90).count("word") == 77


def test_captions_are_taken_apart_by_rule_or_by_the_published_file(tmp_path):
    texts = ["A cat on a mat. There is no dog.", "A cat.", "There is no dog"]
    assert remedy_texts.invert(texts) == [
        ("A cat on a mat.", "A photo of a dog.", "A photo of a dog with no cat and no mat."),
        None,
        ("A photo.", "A photo of a dog.", "A photo of a dog."),
    ]
    header, file = "captions,pos_captions,neg_captions,inverted_captions", tmp_path / "y.csv"
    file.write_text(f"{header}\n['a'],['b'],\"[['c', 'd']]\",['e']\n")
    assert remedy_texts.read_inversions(file) == {"a": ("b", "c d", "e")}
    (tmp_path / "x.csv").write_text(f"{header}\n\"['a']\",[],[],[]\n")
    with pytest.raises(UserError, match=r"line 2: not every caption has"):
        Remedy.parse(f"neat@{tmp_path / 'x.csv'}").around(ControlEncoder("random"))
    assert Remedy.parse(f"neat@{file}").identity != Remedy.parse("neat").identity


def test_a_model_without_layers_to_adapt_is_a_sentence():
    with pytest.raises(MetricError, match="neither steered nor adapted"):
        Remedy.parse("neat").around(ControlEncoder("random"))
    with pytest.raises(UserError, match="There is no remedy 'neat:2'"):
        Remedy.parse("neat:2")


def test_a_limit_does_not_change_what_captions_adapt_to(tmp_path, clip_folder):
    words = ("--model", f"tiny={clip_folder}", "--mend", "neat", "--scenes", "8", "--tasks", "mcq")
    evaluate(tmp_path, "nano", None, *words, "--limit", "3")
    part = rows_of(tmp_path, "tiny+neat", "nano")["mcq.templated"]
    evaluate(tmp_path, "nano", None, *words)
    whole = rows_of(tmp_path, "tiny+neat", "nano")["mcq.templated"]
    assert whole[: len(part)] == part
    assert rows_of(tmp_path, "tiny", "nano")["mcq.templated"] != whole
