from __future__ import annotations

from nein.datasets.nein.samples import Dataset, Plan


def made(n: int, selected: tuple[int, ...], size: int) -> Plan:
    return Plan(Dataset(tuple(range(n)), {}, ""), selected, size)  # type: ignore[arg-type]


def test_blocks_do_not_depend_on_the_selection():
    whole, part = made(10, tuple(range(10)), 4), made(10, (1, 5), 4)
    assert whole.blocks.numbers == [0, 1, 2]
    assert part.blocks.numbers == [0, 1]
    assert [part.members(b) for b in part.blocks.numbers] == [whole.members(b) for b in (0, 1)]
    assert whole.members(2) == [8, 9]
    assert part.selection() == [1, 5]
    assert part.all_members() == list(range(8))
