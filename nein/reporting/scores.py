"""`ScoreTable`: the scores of a run as one table, from which all estimates are made; on disk scores.csv."""

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
from nein.reporting import figures
from nein.reporting.figures import Figure
from nein.statistics import Estimate

#: Columns of every table, besides "value". source: the image that dependent samples share, their cluster.
COLUMNS = ("id", "source", "metric", "variant", "reason")


class Pairs(NamedTuple):
    """The values of samples that are scored in two tables."""

    first: np.ndarray  # (N,) float64
    second: np.ndarray  # (N,) float64
    clusters: list[int]  # (N,) numbers of their sources


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """A DataFrame of scores: `value` is float64, NaN for an unscored sample; all other columns are
    categories, NaN for none, so that a row takes about 30 bytes besides the names of samples.

    Its methods, in order: make a table; select rows; columns as arrays; estimates; two tables; files.
    """

    frame: pd.DataFrame

    @classmethod
    def from_rows(cls, rows: Iterable[Any], details: Sequence[str] = ()) -> ScoreTable:
        """The table of rows, dataclasses or mappings: `id`, `value` (None: unscored; `reason` says why), and
        others of `COLUMNS` and `details`. A sample without `source` is its own; `metric` is "accuracy"."""
        # Per column: its name, entry -> code in order of appearance, and the code of each row, -1 for none.
        collected = [(name, dict[Any, int](), array("i")) for name in (*COLUMNS, *details)]
        values = array("d")
        for item in rows:
            row = item if isinstance(item, Mapping) else vars(item)
            defaults = {"source": row["id"], "metric": "accuracy"}
            for name, code_of, codes in collected:
                entry = row.get(name, defaults.get(name))
                codes.append(-1 if entry is None else code_of.setdefault(entry, len(code_of)))
            values.append(math.nan if row["value"] is None else row["value"])
        columns: dict[str, Any] = {}
        for name, code_of, codes in collected:
            categories: Any = list(code_of)
            columns[name] = pd.Categorical.from_codes(np.frombuffer(codes, np.intc), categories)
        return cls(pd.DataFrame({**columns, "value": np.frombuffer(values, np.float64)}, copy=False))

    def __len__(self) -> int:
        return len(self.frame)

    def where(self, **entries: Any) -> ScoreTable:
        """The rows with these entries; a tuple allows any member, None is no entry, as in missing columns."""
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
        """The distinct entries of a column, as they appear."""
        return self.frame[column].dropna().unique().tolist()

    def groups(self, *columns: str) -> Iterator[tuple[tuple[Any, ...], ScoreTable]]:
        """Yields (entries of the columns, "" for none; their rows), in order of first appearance."""
        for key, part in self.frame.groupby(list(columns), observed=True, sort=False, dropna=False):
            yield tuple("" if entry != entry else entry for entry in key), ScoreTable(part)  # NaN != NaN

    @property
    def scored(self) -> ScoreTable:
        """The rows with a value."""
        is_scored = ~np.isnan(self.values)
        return self if is_scored.all() else ScoreTable(self.frame[is_scored])

    @property
    def values(self) -> np.ndarray:
        """(N,) float64, NaN where unscored."""
        return self.frame["value"].to_numpy()

    @property
    def clusters(self) -> list[int]:
        """(N,) the number of each row's source."""
        return self.frame["source"].cat.codes.tolist()

    def count_reasons(self) -> Counter[str]:
        """Reason -> number of rows without a value, the commonest first."""
        reasons = self.frame.loc[np.isnan(self.values), "reason"].astype(object).fillna("")
        return Counter(dict(Counter(reasons).most_common()))

    def estimate(self, low: float | None = 0.0, high: float = 1.0) -> Estimate | None:
        """The mean of the scored rows, clustered by source. low, high: the range; low=None: without."""
        scored = self.scored
        if low is None:
            return statistics.mean(scored.values, scored.clusters)
        return statistics.bounded_mean(scored.values, scored.clusters, low, high)

    def figure(self, **labels: Any) -> Figure:
        """The mean of values in [0, 1] as a row of the frame of estimates. labels: its dimensions."""
        return self.make_figure(self.estimate(), unit="%", **labels)

    def make_figure(self, estimate: Estimate | None, *, unit: str, **labels: Any) -> Figure:
        """An estimate of this table as a row, with the number of unscored samples and their reasons."""
        if reasons := self.count_reasons():
            labels["reasons"] = dict(reasons)
        return figures.figure(estimate, unit=unit, unscored=reasons.total(), **labels)

    def figures(self, **labels: Any) -> pd.DataFrame:
        """The means as a frame: `figure` of every metric and variant."""
        groups = self.groups("metric", "variant")
        rows = (part.figure(**labels, metric=metric, variant=variant) for (metric, variant), part in groups)
        return figures.frame(rows)

    def subtract(self, other: ScoreTable) -> ScoreTable:
        """Value minus value in another table, by sample and metric; NaN if one is unscored."""
        keys = ["id", "metric"]
        subtrahend = other.frame[[*keys, "value"]]
        merged = self.frame.merge(subtrahend, on=keys, suffixes=("", "_other"), validate="one_to_one")
        gap = merged["value"] - merged["value_other"]
        variant = pd.Categorical(["gap"] * len(merged))
        return ScoreTable(merged.drop(columns="value_other").assign(value=gap, variant=variant))

    def gap(self, affirmed: str, negated: str, **labels: Any) -> list[Figure]:
        """The negation gap of values in [0, 1], as rows: the means of these two variants over the samples
        scored in both, and their paired difference ("gap") with its test."""
        rows = self.where(variant=affirmed)
        first, second, clusters = rows.pair(self.where(variant=negated))
        test = statistics.pairs_test(first, second, clusters)  # None without pairs
        means = test.means if test else (None, None)
        difference = test.difference if test else None
        tests: Figure = {"p": test.p, "p_least": test.least} if test else {}  # least: smallest possible p
        unscored = len(rows) - len(first)
        return [
            figures.number(means[0], unit="%", n=len(first), variant=affirmed, **labels),
            figures.number(means[1], unit="%", n=len(first), variant=negated, **labels),
            figures.figure(difference, unit="points", unscored=unscored, variant="gap", **tests, **labels),
        ]

    def pair(self, other: ScoreTable) -> Pairs:
        """The values of the samples that are scored in both tables, which have one row per sample."""
        value_of = dict(zip(other.frame["id"].tolist(), other.values.tolist(), strict=True))
        ids = self.frame["id"].tolist()
        if len(value_of) < len(other) or len({*ids}) < len(ids):
            raise ValueError("a sample has two rows in one of two tables that are paired")
        first, second = self.values, np.array([value_of.get(name, math.nan) for name in ids])
        scored = ~np.isnan(first) & ~np.isnan(second)
        clusters = pd.factorize(self.frame["source"][scored], use_na_sentinel=False)[0]  # as they appear
        return Pairs(first[scored], second[scored], clusters.tolist())

    def write(self, path: Path) -> None:
        """Writes scores.csv, without empty columns. No spreadsheet runs its text as a formula."""
        names = [name for name in self.frame if name not in ("id", "value")]
        frame = self.frame.drop(columns=[name for name in names if self.frame[name].isna().all()])
        for name in frame.columns.drop("value"):
            frame[name] = frame[name].map(figures.escape_formula)
        with atomic.write_file(path) as file:
            frame.to_csv(file, index=False, lineterminator="\n", mode="wb")

    @classmethod
    def read(cls, path: Path, columns: Sequence[str] = ()) -> ScoreTable:
        """The table of `write`: entries are text. Adds `columns` that the file lacks. Raises UserError."""
        try:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
            # Without the column "value", all samples are unscored.
            frame["value"] = frame["value"].astype(float) if "value" in frame else math.nan
            frame = frame.reindex(columns=list(dict.fromkeys([*COLUMNS, *columns, *frame])))
            for name in frame.columns.drop("value"):  # categories in the order of their first appearance
                entries = frame[name].astype(object).where(frame[name].notna(), None)
                entries = entries.map(figures.unescape_formula, na_action="ignore")
                frame[name] = entries.astype(pd.CategoricalDtype([*entries.dropna().unique()]))
            return cls(frame)
        except FileNotFoundError:
            raise UserError(f"'{path}' does not exist; rerun the command of the run.") from None
        except (OSError, ValueError, pd.errors.ParserError) as error:
            raise UserError(f"'{path}' holds no scores ({error}).") from None
