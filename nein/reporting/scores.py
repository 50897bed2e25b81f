"""The scores of a run as one table, from the rows of its blocks: the source of all estimates."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nein import statistics
from nein.engine import atomic
from nein.loading.errors import UserError
from nein.reporting import figures as frames
from nein.reporting.figures import Figure
from nein.statistics import Estimate

#: Columns of every table, besides "value". source: what samples that depend on each other share: a picture.
COLUMNS = ("id", "source", "metric", "variant", "reason")


class Pairs(NamedTuple):
    """first, second: (n,) float64, the values of pairs scored in both; clusters: of each, its source."""

    first: np.ndarray
    second: np.ndarray
    clusters: list[int]


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """A DataFrame of scores: `value` is float64, NaN for an unscored sample; all other columns are
    categories, NaN for none. About 30 bytes a row, besides the names of samples."""

    frame: pd.DataFrame

    @classmethod
    def from_rows(cls, rows: Iterable[Any], details: Sequence[str] = ()) -> ScoreTable:
        """The table of rows, dataclasses or mappings, which are read once: `value` (a number; None: unscored,
        for the `reason`), `id`, and their other fields of `COLUMNS` and `details`. The default of `source` is
        the sample itself, that of `metric` "accuracy"."""
        collected = [(name, dict[Any, int](), array("i")) for name in (*COLUMNS, *details)]
        values = array("d")
        for item in rows:
            row = item if isinstance(item, Mapping) else vars(item)
            defaults = {"source": row["id"], "metric": "accuracy"}
            for name, codes, column in collected:
                entry = row.get(name, defaults.get(name))
                column.append(-1 if entry is None else codes.setdefault(entry, len(codes)))
            value = row["value"]
            values.append(math.nan if value is None else value)
        columns: dict[str, Any] = {
            name: pd.Categorical.from_codes(np.frombuffer(column, np.intc), list(codes))  # type: ignore[call-overload]
            for name, codes, column in collected
        }
        return cls(pd.DataFrame({**columns, "value": np.frombuffer(values, np.float64)}, copy=False))

    def __len__(self) -> int:
        return len(self.frame)

    def where(self, **entries: Any) -> ScoreTable:
        """The rows with these entries; a tuple allows any of its members, None stands for no entry."""
        chosen = np.ones(len(self), dtype=bool)
        for name, entry in entries.items():
            column = self.frame[name] if name in self.frame else pd.Series(np.nan, self.frame.index)
            if entry is None:
                chosen &= column.isna().to_numpy()
            else:
                matches = column.isin(entry) if isinstance(entry, tuple) else column == entry
                chosen &= matches.to_numpy()
        return ScoreTable(self.frame[chosen])

    def names(self, column: str) -> list[Any]:
        return self.frame[column].dropna().unique().tolist()

    def groups(self, *names: str) -> Iterator[tuple[tuple[Any, ...], ScoreTable]]:
        """(entries of the columns, "" for none; their rows), in order of first appearance."""
        for key, part in self.frame.groupby(list(names), observed=True, sort=False, dropna=False):
            yield tuple("" if entry != entry else entry for entry in key), ScoreTable(part)

    @property
    def scored(self) -> ScoreTable:
        known = ~np.isnan(self.values)
        return self if known.all() else ScoreTable(self.frame[known])

    @property
    def values(self) -> np.ndarray:
        """(n,) float64, NaN where unscored."""
        return self.frame["value"].to_numpy()

    @property
    def clusters(self) -> list[int]:
        """The number of each row's source."""
        return self.frame["source"].cat.codes.tolist()

    def count_reasons(self) -> Counter[str]:
        """Reason -> number of rows without a value, the commonest first."""
        lost = np.isnan(self.values)
        if not lost.any():
            return Counter()
        reasons = self.frame.loc[lost, "reason"].astype(object).fillna("")
        return Counter(dict(Counter(reasons).most_common()))

    def estimate(self, low: float | None = 0.0, high: float = 1.0) -> Estimate | None:
        """The mean of the scored rows, clustered by source; None without any. low, high: the range of values
        and of the interval; low=None: no range."""
        scored = self.scored
        if low is None:
            return statistics.mean(scored.values, scored.clusters)
        return statistics.bounded_mean(scored.values, scored.clusters, low, high)

    def figure(self, *, unit: str = "%", low: float | None = 0.0, high: float = 1.0, **labels: Any) -> Figure:
        """`estimate` as a row of the frame of estimates; what: its dimensions."""
        return self.describe(self.estimate(low, high), unit=unit, **labels)

    def describe(self, estimate: Estimate | None, *, unit: str, **labels: Any) -> Figure:
        """A row of another estimate of this table, with the number and reasons of unscored samples."""
        if reasons := self.count_reasons():
            labels["reasons"] = dict(reasons)
        return frames.figure(estimate, unit=unit, unscored=reasons.total(), **labels)

    def figures(self, **labels: Any) -> pd.DataFrame:
        groups = self.groups("metric", "variant")
        return frames.frame(part.figure(**labels, metric=key[0], variant=key[1]) for key, part in groups)

    def less(self, other: ScoreTable) -> ScoreTable:
        """Value minus value in another table, by sample and metric, NaN if one is unscored: the negation gap
        of two variants."""
        keys, theirs = ["id", "metric"], other.frame[["id", "metric", "value"]]
        merged = self.frame.merge(theirs, on=keys, suffixes=("", "_other"), validate="one_to_one")
        gap, variant = merged["value"] - merged["value_other"], pd.Categorical(["gap"] * len(merged))
        return ScoreTable(merged.drop(columns="value_other").assign(value=gap, variant=variant))

    def gap(self, affirmed: str, negated: str, **labels: Any) -> list[Figure]:
        """The negation gap of values in [0, 1], as rows: means of two variants over the samples scored in
        both, and their paired difference ("gap") with its test."""
        rows = self.where(variant=affirmed)
        first, second, clusters = rows.pair(self.where(variant=negated))
        test = statistics.pairs_test(first, second, clusters)
        tests: Figure = {"p": test.p, "p_least": test.least} if test else {}
        difference, lost = test.difference if test else None, len(rows) - len(first)
        ends = zip((affirmed, negated), test.means if test else (None, None), strict=True)
        return [
            *(frames.number(mean, unit="%", n=len(first), variant=name, **labels) for name, mean in ends),
            frames.figure(difference, unit="points", unscored=lost, variant="gap", **tests, **labels),
        ]

    def pair(self, other: ScoreTable) -> Pairs:
        """The values of the samples that both tables have, one row each."""
        second_of = dict(zip(other.frame["id"].tolist(), other.values.tolist(), strict=True))
        columns = (self.frame[name].tolist() for name in ("id", "source", "value"))
        rows = [*zip(*columns, strict=True)]
        if len(second_of) < len(other) or len({sample for sample, _, _ in rows}) < len(rows):
            raise ValueError("a sample has two rows in one of two tables that are paired")
        numbers: dict[Any, int] = {}  # source -> its number, in order of appearance
        pairs = [
            (first, second, numbers.setdefault(source, len(numbers)))
            for sample, source, first in rows
            if not math.isnan(first) and not math.isnan(second := second_of.get(sample, math.nan))
        ]
        values = np.array([(first, second) for first, second, _ in pairs]).reshape(-1, 2)  # (n, 2)
        return Pairs(values[:, 0], values[:, 1], [cluster for _, _, cluster in pairs])

    def write(self, path: Path) -> None:
        frame = self.frame.drop(
            columns=[
                name for name in self.frame if name not in ("id", "value") and self.frame[name].isna().all()
            ]
        )
        for name in frame.columns.drop("value", errors="ignore"):
            frame[name] = frame[name].map(frames.escape_formula)
        with atomic.write_file(path) as file:
            frame.to_csv(file, index=False, lineterminator="\n", mode="wb")

    @classmethod
    def read(cls, path: Path, columns: Sequence[str] = ()) -> ScoreTable:
        """The table of `write`; entries are text. columns: added empty if the file lacks them. Raises
        UserError for an unreadable file."""
        try:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
            frame["value"] = frame["value"].astype(float) if "value" in frame else math.nan
            frame = frame.reindex(columns=list(dict.fromkeys([*COLUMNS, *columns, *frame])))
            for name in frame.columns.drop("value"):  # categories in the order of their first appearance
                entries = frame[name].astype(object).where(frame[name].notna(), None)
                entries = entries.map(frames.unescape_formula, na_action="ignore")
                frame[name] = entries.astype(pd.CategoricalDtype([*entries.dropna().unique()]))
            return cls(frame)
        except FileNotFoundError:
            raise UserError(f"'{path}' does not exist; rerun the command of the run.") from None
        except (OSError, ValueError, pd.errors.ParserError) as error:
            raise UserError(f"'{path}' holds no scores ({error}).") from None
