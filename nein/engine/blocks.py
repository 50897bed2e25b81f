"""Work is cut into fixed blocks of consecutive records; a block is computed as a whole.

Blocks are cut over the whole data set, not over the selection: a batch then has the same members whatever
`--limit`, a kill or the number of processes, and with the same members every last bit of a result is the
same. The price is that a selection is rounded up to whole blocks; tables count the selected records only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Blocks:
    """Block b is the records [b * size, (b + 1) * size) of `count`.

    wanted  Indices of the selected records, ascending; a range where there are millions.
    """

    count: int
    size: int
    wanted: Sequence[int]

    @classmethod
    def first(cls, count: int, size: int, limit: int | None = None) -> Blocks:
        """The blocks of the first `limit` records, or of all."""
        return cls(count, size, range(count if limit is None else min(limit, count)))

    @property
    def numbers(self) -> list[int]:
        """The blocks that hold a selected record, ascending."""
        if isinstance(self.wanted, range) and self.wanted.step == 1:
            if not self.wanted:
                return []
            return list(range(self.wanted[0] // self.size, self.wanted[-1] // self.size + 1))
        return sorted({index // self.size for index in self.wanted})

    def members(self, number: int) -> range:
        """Indices of a block's records, selected or not."""
        return range(number * self.size, min((number + 1) * self.size, self.count))

    def all_members(self) -> Iterator[int]:
        """Indices of the records of every needed block: what will really be read."""
        for number in self.numbers:
            yield from self.members(number)
