"""Work is cut into fixed blocks of consecutive records, over the whole data set and not over the selection: a
batch has the same members, and a result the same last bits, whatever `--limit`, kills or processes there are.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nein.engine import atomic

#: Consecutive blocks whose files share a folder: no listing and no list in memory is longer.
SEGMENT = 1000
SELECTION = {"size": int, "unit?": int, "records": [[int, int]]}


@dataclass(frozen=True)
class Blocks:
    """Block b is the records [b * size, (b + 1) * size) of `count`.

    wanted  Indices of the selected records, ascending; a range where there are millions.
    unit    Records of which one worker has all blocks; 0: a block.
    """

    count: int
    size: int
    wanted: Sequence[int]
    unit: int = 0

    @classmethod
    def first(cls, count: int, size: int, limit: int | None = None) -> Blocks:
        """The blocks of the first `limit` records, or of all."""
        return cls(count, size, range(count if limit is None else min(limit, count)))

    @classmethod
    def read(cls, entry: Any, where: str) -> Blocks:
        """What `selection` wrote. Raises UserError, which begins with `where`."""
        atomic.check(entry, SELECTION, where)
        ranges = [range(first, end) for first, end in entry["records"]]
        wanted: Sequence[int] = ranges[0] if len(ranges) == 1 else [*itertools.chain(*ranges)]
        count = max((part.stop for part in ranges), default=0)
        return cls(count, entry["size"], wanted, entry.get("unit", 0))

    @property
    def selection(self) -> dict[str, Any]:
        """Which records are selected, for a manifest: [[first, end], ...], and the block size."""
        unit = {"unit": self.unit} if self.unit else {}
        return {
            "size": self.size,
            **unit,
            "records": [[span.start, span.stop] for span in spans(self.wanted)],
        }

    @property
    def units(self) -> Blocks:
        """The same records in blocks of a unit."""
        return Blocks(self.count, self.unit, self.wanted) if self.unit else self

    def covers(self, other: Blocks) -> bool:
        """Whether all selected records of another selection are selected here."""
        if isinstance(self.wanted, range) and self.wanted.step == 1:
            return not other.wanted or (other.wanted[0] in self.wanted and other.wanted[-1] in self.wanted)
        return set(self.wanted).issuperset(other.wanted)

    def unit_of(self, number: int) -> int:
        return number * self.size // self.unit if self.unit else number

    @property
    def numbers(self) -> Sequence[int]:
        """The blocks that hold a selected record, ascending; a range where the records are one."""
        if isinstance(self.wanted, range) and self.wanted.step == 1:
            if not self.wanted:
                return range(0)
            return range(self.wanted[0] // self.size, self.wanted[-1] // self.size + 1)
        return sorted({index // self.size for index in self.wanted})

    def share(self, rank: int, size: int) -> Sequence[int]:
        """The needed blocks of worker `rank` of `size`, ascending."""
        numbers = self.numbers
        if size == 1:
            return numbers
        if self.unit or not isinstance(numbers, range):
            return [number for number in numbers if self.unit_of(number) % size == rank]
        return range(numbers.start + (rank - numbers.start) % size, numbers.stop, size)

    def members(self, number: int) -> range:
        """Indices of a block's records, selected or not."""
        return range(number * self.size, min((number + 1) * self.size, self.count))

    def needed(self, number: int) -> range:
        """Those up to the last selected one: a block that a limit cuts is made again when the limit grows."""
        members = self.members(number)
        last = self.wanted[bisect.bisect_left(self.wanted, members.stop) - 1]
        return range(members.start, last + 1)

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
