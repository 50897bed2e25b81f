"""Work is cut into fixed blocks of consecutive records, over the whole data set and not over the selection: a
batch has the same members, and a result the same last bits, whatever `--limit`, kills or processes there are.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Consecutive blocks whose files share a folder: no listing and no list in memory is longer.
SEGMENT = 1000


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
    def numbers(self) -> Sequence[int]:
        """The blocks that hold a selected record, ascending; a range where the records are one."""
        if isinstance(self.wanted, range) and self.wanted.step == 1:
            if not self.wanted:
                return range(0)
            return range(self.wanted[0] // self.size, self.wanted[-1] // self.size + 1)
        return sorted({index // self.size for index in self.wanted})

    @property
    def segments(self) -> dict[int, Sequence[int]]:
        """Segment -> its wanted blocks, both ascending."""
        numbers = self.numbers
        if not isinstance(numbers, range):
            return {key: list(group) for key, group in itertools.groupby(numbers, lambda n: n // SEGMENT)}
        return {
            segment: range(max(numbers.start, segment * SEGMENT), min(numbers.stop, (segment + 1) * SEGMENT))
            for segment in range(numbers.start // SEGMENT, -(-numbers.stop // SEGMENT))
        }

    def members(self, number: int) -> range:
        """Indices of a block's records, selected or not."""
        return range(number * self.size, min((number + 1) * self.size, self.count))

    def all_members(self) -> Iterator[int]:
        """Indices of the records of every needed block: what will really be read."""
        return itertools.chain.from_iterable(map(self.members, self.numbers))


def spans(numbers: Sequence[int]) -> list[range]:
    """The runs of consecutive numbers among ascending ones."""
    if isinstance(numbers, range):
        return [numbers] if numbers else []
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    found = ([number for _, number in run] for _, run in runs)
    return [range(members[0], members[-1] + 1) for members in found]


def sample_seed(run_seed: int, sample_id: str, repeat: int = 0) -> int:
    """A seed in [0, 2**63): the first 63 bits of SHA-256 over "run seed / sample id / repeat". A sample and
    its affirmative twin start from the same noise, so that their difference is paired."""
    digest = hashlib.sha256(f"{run_seed}/{sample_id}/{repeat}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
