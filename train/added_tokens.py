"""A tokenizer that knows a word: the word becomes a token of its own, which begins as what it was read as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


@torch.no_grad()
def teach(tokenizer: Any, model: Any, words: Sequence[str]) -> int:
    """Adds `words` to a fast tokenizer of transformers, and their rows to the model's embeddings; how many.

    model  Has `resize_token_embeddings`. A new row, also of an output layer, is the mean of the rows of the
           pieces that the word was cut into. Words that are one token already are passed over.
    """
    from tokenizers import AddedToken

    pieces = {word: tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words}
    new = [word for word in words if len(pieces[word]) > 1]
    first = len(tokenizer)
    # With the blank before it: byte-level tokenizers keep it in the word.
    tokenizer.add_tokens([AddedToken(word, single_word=True, lstrip=True, normalized=True) for word in new])
    assert len(tokenizer) == first + len(new), (first, len(tokenizer), new)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for layer in filter(None, (model.get_input_embeddings(), model.get_output_embeddings())):
        for place, word in enumerate(new, start=first):
            layer.weight[place] = layer.weight[pieces[word]].mean(0)
    return len(new)
