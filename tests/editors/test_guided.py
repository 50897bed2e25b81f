import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers.models.attention_processor import Attention

from nein.editors.attention import Nag, NegativePrompts, Processor, Vsf

RULES = [Nag(), Nag(30.0, 1.2, 1.0), Vsf()]
PROMPT, NEGATIVE = 5, 3


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def guided(rule, query, prompt, negative):
    """One head's features of one token. prompt, negative, image: (key, value) of every token."""

    def attention(tokens, lowered=0):
        scores = [key @ query / math.sqrt(len(query)) - (lowered if k >= len(tokens) - len(negative) else 0)
                  for k, (key, _) in enumerate(tokens)]  # fmt: skip
        return softmax(np.array(scores)) @ np.array([value for _, value in tokens])

    if isinstance(rule, Vsf):
        flipped = [(key, -rule.scale * value) for key, value in negative]
        return attention([*prompt, *flipped], rule.bias)
    return attention(prompt), attention(negative)


def combined(rule, heads):
    """A token's features, all heads together; of NAG the norm is over all of them."""
    if isinstance(rule, Vsf):
        return np.concatenate(heads)
    plus, minus = (np.concatenate([head[side] for head in heads]) for side in (0, 1))
    away = plus + (rule.scale - 1) * (plus - minus)  # the paper's scale is one less
    ratio = np.abs(away).sum() / np.abs(plus).sum()
    return rule.alpha * away * min(ratio, rule.tau) / ratio + (1 - rule.alpha) * plus


def tokens(keys, values, head, rows):
    return [(keys[row, head], values[row, head]) for row in rows]


@pytest.mark.parametrize("rule", RULES)
@torch.no_grad()
def test_cross_attention_follows_the_formula_in_guided_rows_alone(rule):
    torch.manual_seed(0)
    attn = Attention(query_dim=16, cross_attention_dim=12, heads=2, dim_head=8)
    states, text, away = torch.randn(3, 4, 16), torch.randn(3, PROMPT, 12), torch.randn(1, NEGATIVE + 1, 12)
    kept = torch.tensor([[True] * NEGATIVE + [False]])  # padding, which NAG attends to
    found = Processor(False)(attn, states, text, negatives=NegativePrompts(rule, [1], away, kept))
    plain = Processor(False)(attn, states, text)
    torch.testing.assert_close(found[[0, 2]], plain[[0, 2]])

    def heads(layer, states):
        return layer(states).unflatten(-1, (2, 8)).numpy()

    query, key, value = heads(attn.to_q, states[1]), heads(attn.to_k, text[1]), heads(attn.to_v, text[1])
    no_key, no_value = heads(attn.to_k, away[0]), heads(attn.to_v, away[0])
    read = range(NEGATIVE + isinstance(rule, Nag))
    expected = [
        combined(rule, [
            guided(rule, query[place, head], tokens(key, value, head, range(PROMPT)),
                   tokens(no_key, no_value, head, read))
            for head in range(2)
        ])
        for place in range(4)
    ]  # fmt: skip
    expected = attn.to_out[0](torch.tensor(np.array(expected), dtype=torch.float32))
    torch.testing.assert_close(found[1], expected, atol=1e-5, rtol=1e-4)
    assert (found[1] - plain[1]).abs().max() > 0.01


@pytest.mark.parametrize("told", ["nag", "vsf", "nag:9"])
def test_an_editor_guides_one_sample_and_no_other(told, tiny_editor, requests_of):
    editor = tiny_editor(steps=4)
    plain, other = requests_of(2)
    avoiding = replace(plain, negative_prompt="a cup", guided=told)
    before = [result.image for result in editor.edit([plain, other])]
    after = [result.image.astype(int) for result in editor.edit([avoiding, other])]
    assert np.abs(after[0] - before[0]).max() > 1
    np.testing.assert_allclose(after[1], before[1], atol=1)
    together = editor.edit([avoiding, replace(other, negative_prompt="a long red bus", guided=told)])
    np.testing.assert_allclose(together[0].image.astype(int), after[0], atol=1)
    assert np.abs(together[1].image.astype(int) - before[1]).max() > 1
    weak = replace(avoiding, guided="nag:1.0001")  # Z' is Z+
    np.testing.assert_allclose(editor.edit([weak])[0].image.astype(int), before[0], atol=1)
