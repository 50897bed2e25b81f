"""The data sets that are read, and the order in which `--limit` takes their samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Record = TypeVar("Record")


def spread(records: Iterable[Record], image: Callable[[Record], Hashable]) -> tuple[Record, ...]:
    """The first record of every image, then the second of every image, and so on, each in the order of the
    file: the first N records are of as many images as can be, and are among the first N + 1."""
    seen: Counter[Hashable] = Counter()
    ranked = []
    for record in records:
        ranked.append((seen[image(record)], record))
        seen[image(record)] += 1
    return tuple(record for _, record in sorted(ranked, key=lambda pair: pair[0]))
