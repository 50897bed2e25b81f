"""Readers of data sets; here, what they share: make records from rows, and order them for `--limit`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from nein.engine.atomic import Row
from nein.loading.errors import Problems, UserError

Record = TypeVar("Record")


def read_records(rows: Iterable[Row], make: Callable[[Row], Any], source: str) -> tuple[Any, ...]:
    """Make a record of every row. Raises UserError with all ValueErrors of `make`, and without rows."""
    problems, records = Problems(), Row()
    for number, row in enumerate(rows, start=1):
        try:
            record = make(row)
        except ValueError as error:
            problems.add(str(error), f"record {number}")
            continue
        if record.id in records:
            problems.add("duplicate id", record.id)
        records[record.id] = record
    problems.raise_if_any(source)
    if not records:
        raise UserError(f"{source} has no records.")
    return tuple(records.values())


def interleave_sources(records: Iterable[Record], image: Callable[[Record], Hashable]) -> tuple[Record, ...]:
    """The first record of every image, then the second of every image, ..., in file order: the first N have
    as many images as N records can have. image: record -> key of its image."""
    counts: Counter[Hashable] = Counter()
    ranked = []
    for record in records:
        ranked.append((counts[image(record)], record))
        counts[image(record)] += 1
    return tuple(record for _, record in sorted(ranked, key=lambda pair: pair[0]))
