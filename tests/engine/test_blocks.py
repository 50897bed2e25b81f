from __future__ import annotations

import os

import pytest

from nein.engine.blocks import Blocks
from nein.engine.walk import Order


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


def test_nothing_wanted_needs_no_block() -> None:
    assert list(Blocks.first(0, 4).numbers) == []


def test_ten_million_records_are_no_list() -> None:
    blocks = Blocks.first(10_000_000, 32)
    assert isinstance(blocks.wanted, range)
    assert isinstance(blocks.numbers, range)
    assert len(blocks.numbers) == 312_500


def test_segments_hold_every_wanted_block_once_and_a_thousand_at_most() -> None:
    for blocks in (Blocks.first(10_000, 3), Blocks(10_000, 3, [2, 2999, 3000, 9999]), Blocks.first(0, 4)):
        segments = blocks.segments
        assert [number for numbers in segments.values() for number in numbers] == list(blocks.numbers)
        assert all(number // 1000 == segment for segment, part in segments.items() for number in part)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_everybody_comes_to_everything_and_begins_elsewhere(size: int) -> None:
    items = list(range(9))
    orders = [Order(rank, size).of(items) for rank in range(size)]
    assert all(sorted(order) == items for order in orders)
    assert [order[0] for order in orders] == items[:size]
    own = [order[: len(items[rank::size])] for rank, order in enumerate(orders)]
    assert sorted(item for share in own for item in share) == items


def test_commands_that_know_nothing_of_each_other_take_the_blocks_in_orders_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, orders = list(range(50)), []
    for process in (100, 101):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        orders.append(Order().of(items))
    assert all(sorted(order) == items for order in orders)
    together = sum(one == other for one, other in zip(*orders, strict=True))
    assert together < 10
