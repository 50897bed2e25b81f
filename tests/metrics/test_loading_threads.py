"""A fast tokenizer keeps state between calls: judges and encoders that share one take turns."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from nein.metrics.loading import SharedTokenizer


def test_a_shared_tokenizer_is_in_one_thread_at_a_time_and_answers_each_caller():
    inside, overlaps = [], []

    def tokenizer(text, padding=False):
        inside.append(text)
        overlaps.append(len(inside) > 1)
        time.sleep(0.005)
        inside.remove(text)
        return {"input_ids": [len(text)], "padding": padding}

    shared = SharedTokenizer(tokenizer)
    texts = ["a" * n for n in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: shared(text, padding=True), texts))
    assert overlaps == [False] * 8
    assert answers == [{"input_ids": [n], "padding": True} for n in range(1, 9)]
