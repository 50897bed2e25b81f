"""A table from numbers to numbers against a dictionary."""

from __future__ import annotations

import random

from nein.engine.compact import Numbers, key_of


def test_it_holds_what_a_dictionary_holds_the_newer_number_for_a_key_put_again() -> None:
    rng, table, expected = random.Random(0), Numbers(fresh=7), dict[int, int]()
    keys = [rng.getrandbits(64) for _ in range(300)] + [0, 2**64 - 1]
    for step in range(2000):
        key = rng.choice(keys)
        table.put(key, step)
        expected[key] = step
        probe = rng.choice(keys)
        assert table.get(probe) == expected.get(probe)
    assert {key: table.get(key) for key in expected} == expected
    assert table.get(12345) is None


def test_a_key_is_added_once() -> None:
    table = Numbers(fresh=4)
    first = [table.add(key_of(str(k))) for k in range(50)]
    again = [table.add(key_of(str(k))) for k in range(50)]
    assert all(first)
    assert not any(again)
