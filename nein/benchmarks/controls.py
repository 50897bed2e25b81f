"""Controls of a judge: what it must notice, and what must make no difference to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from nein.reporting import figures as frames
from nein.reporting.figures import figure
from nein.statistics.estimates import bounded_mean

Rows = Sequence[Mapping[str, Any]]
#: Control -> what it is. A judge that looks and reads says yes to objects that are there, and here seldom.
NOTICED = {
    "black": "a black picture",
    "picture": "another picture",
    "question": "a question about another picture's object",
    "negated": "the question negated",
}
#: A judge that looks and reads answers as before.
INDIFFERENT = {"mirrored": "the mirrored picture", "reversed": "the options in the other order"}
TITLES = {**NOTICED, **INDIFFERENT}
STEADY = 0.9  #: share of answers that stay, below which (shown by the interval) a judge is flagged


def figures(plain: Rows, controls: Rows, judge: str) -> Iterator[dict[str, Any]]:
    """Rows of the frame (task "controls") from a calibration's rows, without and with a `control`.

    before, after  Share of yes to objects that are there, and to the control's questions, over pictures.
    fall           Before minus after.
    same           Share of answers that stay.
    flag           (a column) What the judge fails.
    """
    uncontrolled, controlled = _frame(plain), _frame(controls)
    key = ["set", "id"]
    for control in (name for name in TITLES if name in set(controlled["control"])):
        part = controlled[controlled["control"] == control]
        what: dict[str, Any] = {"task": "controls", "judge": judge, "group": control}
        if control in INDIFFERENT:
            both = part.merge(uncontrolled, on=[*key, "word"], suffixes=("", "_before"))
            both = both.dropna(subset=["yes", "yes_before"])
            same = bounded_mean((both["yes"] == both["yes_before"]).to_numpy(), both["cluster"].tolist())
            steady = same is not None and (same.high is None or same.high >= STEADY)
            flag = "" if steady else "answers otherwise"
            unscored = len(part) - len(both)
            yield figure(same, unit="%", unscored=unscored, metric="same", flag=flag, **what)
            continue
        before = (
            uncontrolled[uncontrolled["present"].astype(bool)].groupby(key)["yes"].mean().rename("before")
        )
        after = part.groupby(key).agg(after=("yes", "mean"), cluster=("cluster", "first"))
        both = after.join(before).dropna()
        clusters = both["cluster"].tolist()
        fall = bounded_mean((both["before"] - both["after"]).to_numpy(), clusters, -1.0, 1.0)
        flag = "" if fall is not None and fall.low is not None and fall.low > 0 else "not shown to notice it"
        for metric in ("before", "after"):
            yield figure(bounded_mean(both[metric].to_numpy(), clusters), unit="%", metric=metric, **what)
        unscored = int(part["yes"].isna().sum())
        yield figure(fall, unit="points", unscored=unscored, metric="fall", flag=flag, **what)


def _frame(rows: Rows) -> pd.DataFrame:
    names = ("control", "set", "id", "cluster", "word", "present")
    columns: dict[str, Any] = {name: [row.get(name, "") for row in rows] for name in names}
    columns["yes"] = pd.Series([row["verdict_fixed"] for row in rows], dtype=object).astype(float)
    return pd.DataFrame(columns)


def flags(figures: pd.DataFrame, judges: Iterable[str]) -> list[str]:
    """A sentence for each of the judges that fails a control, or was calibrated without any."""
    sentences = []
    for judge in judges:
        rows = frames.records(figures, task="controls", judge=judge)
        failed = {TITLES[row["group"]]: row["flag"] for row in rows if row["flag"]}
        unseen = [title for title, flag in failed.items() if title in NOTICED.values()]
        moved = [title for title in failed if title in INDIFFERENT.values()]
        parts = [f"is not shown to notice {' or '.join(unseen)}"] if unseen else []
        parts += [f"answers otherwise for {' or '.join(moved)}"] if moved else []
        if not rows:
            parts = ["was calibrated without controls: give nein calibrate again"]
        if parts:
            sentences.append(f"the judge {judge} {', and '.join(parts)} (table 'Judges under controls').")
    return sentences
