"""States at the end of sentences: read where the feature is taken, and moved as published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from nein.metrics.base import MetricError
from nein.metrics.dual import DualEncoder, steering
from nein.metrics.dual.objects import ControlEncoder

TEXTS = ("a cat", "a photo of a dog and a cat", "no dog")


def feature_of(encoder: DualEncoder, state: np.ndarray) -> np.ndarray:
    """What the model makes of the last layer's states."""
    model, x = encoder.model, torch.from_numpy(state)
    with torch.no_grad():
        if hasattr(model, "text_model"):
            return model.text_projection(model.text_model.final_layer_norm(x)).numpy()
        return (model.ln_final(x) @ model.text_projection).numpy()


def test_the_last_state_is_the_one_that_becomes_the_feature(encoder: DualEncoder) -> None:
    states = steering.states(encoder, TEXTS)
    assert len(states) == len(steering.stream(encoder).layers)
    made = feature_of(encoder, states[-1])
    np.testing.assert_allclose(made, encoder.encode_text(TEXTS), rtol=1e-4, atol=1e-5)


def test_steering_moves_every_layer_as_published_and_leaves_nothing_behind(encoder: DualEncoder) -> None:
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


def test_another_thread_meanwhile_uses_the_model_as_it_is(encoder: DualEncoder) -> None:
    plain, states = encoder.encode_text(TEXTS), steering.states(encoder, TEXTS)
    vectors = [np.ones(state.shape[1]) / state.shape[1] ** 0.5 for state in states]
    with steering.steered(encoder, vectors, 0.9), ThreadPoolExecutor(1) as pool:
        np.testing.assert_array_equal(pool.submit(encoder.encode_text, TEXTS).result(), plain)
        assert np.abs(encoder.encode_text(TEXTS) - plain).max() > 0.01


def test_what_cannot_be_steered_is_a_sentence() -> None:
    with pytest.raises(MetricError, match="neither steered nor adapted; that of a CLIP"):
        steering.stream(ControlEncoder("random"))
