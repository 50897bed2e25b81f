"""The words a yes/no answer may begin with, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

YES = ("yes", "Yes", "YES", " yes", " Yes", " YES")
NO = ("no", "No", "NO", " no", " No", " NO")


def first_tokens(tokenizer: Any, words: Sequence[str]) -> set[int]:
    """Ids of the first token of every word that is not the unknown token."""
    firsts = {tuple(tokenizer(word, add_special_tokens=False)["input_ids"][:1]) for word in words}
    return {ids[0] for ids in firsts if ids and ids[0] != tokenizer.unk_token_id}
