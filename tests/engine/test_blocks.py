from __future__ import annotations

import pytest

from nein.engine.blocks import Blocks


def test_blocks_are_cut_over_the_whole_and_not_over_the_selection() -> None:
    blocks = Blocks(10, 4, (1, 9))
    assert blocks.numbers == [0, 2]
    assert list(blocks.members(2)) == [8, 9]
    assert list(blocks.all_members()) == [0, 1, 2, 3, 8, 9]


@pytest.mark.parametrize("limit", [None, 1, 4, 5, 10, 99])
def test_the_first_records_need_the_same_blocks_however_they_are_named(limit: int | None) -> None:
    blocks = Blocks.first(10, 4, limit)
    assert list(blocks.numbers) == Blocks(10, 4, list(blocks.wanted)).numbers
    assert len(blocks.wanted) == min(10, limit or 10)


def test_nothing_wanted_needs_no_block_and_ten_million_records_are_no_list() -> None:
    assert list(Blocks.first(0, 4).numbers) == []
    blocks = Blocks.first(10_000_000, 32)
    assert isinstance(blocks.wanted, range)
    assert isinstance(blocks.numbers, range)
    assert len(blocks.numbers) == 312_500


def test_segments_hold_every_wanted_block_once_and_a_thousand_at_most() -> None:
    for blocks in (Blocks.first(10_000, 3), Blocks(10_000, 3, [2, 2999, 3000, 9999]), Blocks.first(0, 4)):
        segments = blocks.segments
        assert [number for numbers in segments.values() for number in numbers] == list(blocks.numbers)
        assert all(number // 1000 == segment for segment, part in segments.items() for number in part)
