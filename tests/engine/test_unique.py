from __future__ import annotations

from nein.engine.answers import Unique


def test_a_name_is_new_once_whatever_its_characters() -> None:
    names = Unique()
    assert [names.add(name) for name in ("a", "b", "a", "\ud83d", "\ud83d", "")] == [
        True, True, False, True, False, True,
    ]  # fmt: skip
    assert Unique().add("a")
