"""Rows of scores as columns: some tens of bytes of each, where a row as an object takes half a kilobyte."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Of a name that a row does not have.
NONE = -1


@dataclass(frozen=True)
class Scores:
    """What figures need of score rows, in their order.

    names   Key -> the names that occur under it, each once.
    places  Key -> of every row the place of its name among these, `NONE` for None or no entry, (n,) int32.
    value   Of every row its "value", NaN for None, (n,) float64.
    """

    names: Mapping[str, Sequence[str]]
    places: Mapping[str, np.ndarray]
    value: np.ndarray

    def __len__(self) -> int:
        return len(self.value)

    def of(self, chosen: np.ndarray) -> Scores:
        """Some of the rows: (n,) bool."""
        return Scores(self.names, {key: at[chosen] for key, at in self.places.items()}, self.value[chosen])

    def where(self, **wanted: str | None) -> Scores:
        """The rows whose names are these; None for rows without such a name."""
        chosen = np.ones(len(self), dtype=bool)
        for key, name in wanted.items():
            if name is not None and name not in self.names[key]:
                return self.of(np.zeros(len(self), dtype=bool))
            chosen &= self.places[key] == (NONE if name is None else self.names[key].index(name))
        return self.of(chosen)

    @property
    def scored(self) -> Scores:
        """The rows with a value."""
        return self.of(~np.isnan(self.value))

    def distinct(self, key: str) -> list[str]:
        """The names that occur in these rows, in order of first appearance."""
        at, first = np.unique(self.places[key], return_index=True)
        order = at[np.argsort(first)]
        return [self.names[key][place] for place in order.tolist() if place != NONE]

    def of_each(self, key: str) -> Iterator[str | None]:
        """The name of every row."""
        names = self.names[key]
        return (None if place == NONE else names[place] for place in self.places[key].tolist())

    def clusters(self, key: str) -> list[int]:
        """A number for every row, the same where the name is: what `nein.statistics` takes for clusters."""
        return self.places[key].tolist()

    def values_by(self, key: str) -> np.ndarray:
        """The value of the row of every name, NaN where there is none, (names,) float64."""
        values = np.full(len(self.names[key]), np.nan)
        values[self.places[key]] = self.value
        return values


class Collected:
    """Makes columns of rows that pass by.

    keys  Of the names that are wanted, besides the value.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._places: dict[str, dict[str | None, int]] = {key: {None: NONE} for key in keys}
        self._columns = {key: array("i") for key in keys}
        self._value = array("d")

    def passing(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """The same rows, each taken down."""
        each = [(key, self._places[key], column) for key, column in self._columns.items()]
        for row in rows:
            for key, places, column in each:
                column.append(places.setdefault(row.get(key), len(places) - 1))
            value = row["value"]
            self._value.append(math.nan if value is None else value)
            yield row

    def scores(self) -> Scores:
        """Of all rows that have passed by."""
        return Scores(
            {key: [name for name in places if name is not None] for key, places in self._places.items()},
            {key: np.frombuffer(column, np.intc) for key, column in self._columns.items()},
            np.frombuffer(self._value, np.float64),
        )


def of_rows(rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> Scores:
    """The columns of rows."""
    made = Collected(keys)
    for _ in made.passing(rows):
        pass
    return made.scores()
