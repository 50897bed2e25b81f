"""The tables of a NegVQA report as plain data, from the summaries of runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from nein.benchmarks.negvqa import table1
from nein.benchmarks.nein.reporting.sections import Table, p_text, percent, record, span
from nein.datasets.negvqa.categories import AVERAGE, CATEGORIES, OTHER, TITLES

#: Run name -> summary, as `nein.benchmarks.negvqa.figures.summary` makes it.
Summaries = Mapping[str, Mapping[str, Any]]
WORDS = {"original": "original", "negated": "negated"}
CLUSTERED = "95 % intervals clustered by picture (Wilson's at the effective sample size)"
NORMAL = "95 % intervals by the normal approximation, p ± 1.96 √(p(1 − p)/n), as in the paper"


def all_tables(found: Summaries) -> list[Table]:
    """Every table of the report, those without rows left out."""
    made = [
        *[accuracies(found, p, kind) for p in ("fixed", "paper") for kind in ("clustered", "normal")],
        gaps(found),
        outcomes(found),
        positions(found),
        agreements(found),
        subsets(found),
        *comparisons(found),
        unscored(found),
    ]
    return [table for table in made if table.rows]


def _pick(summary: Mapping[str, Any], what: str, **wanted: str) -> list[Mapping[str, Any]]:
    return [e for e in summary[what] if all(e[key] == value for key, value in wanted.items())]


def _categories(found: Summaries) -> list[str]:
    present = {entry["category"] for summary in found.values() for entry in summary["accuracy"]}
    return [c for c in (*CATEGORIES, OTHER, AVERAGE) if c in present]


def _scorings(summary: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(entry["scoring"] for entry in summary["accuracy"]))


def accuracies(found: Summaries, protocol: str, interval: str) -> Table:
    """Accuracy per category and average, original above negated."""
    categories = _categories(found)
    rows, data = [], []
    for name, summary in found.items():
        for scoring in _scorings(summary):
            for variant in WORDS:
                own = {
                    e["category"]: e
                    for e in _pick(summary, "accuracy", scoring=scoring, protocol=protocol, variant=variant)
                }
                cells = [span(_estimate(own.get(c), interval)) for c in categories]
                average = own[AVERAGE]
                rows.append([name, scoring, variant, *cells, str(average["n"]), str(average["n_unscored"])])
                about = {"model": name, "scoring": scoring, "protocol": protocol, "variant": variant}
                data += [
                    {**record(_estimate(e, interval), category=c, interval=interval, **about),
                     "n_unscored": e["n_unscored"]}
                    for c, e in own.items()
                ]  # fmt: skip
    how = {
        "fixed": "Over all questions of a category; answers without a readable letter are unscored.",
        "paper": "As published: a category is the unweighted mean of its subsets, letters are read by "
        "VLMEvalKit's rule, and what it cannot read is wrong.",
    }[protocol]
    which = {"clustered": CLUSTERED, "normal": NORMAL}[interval]
    if (protocol, interval) == ("paper", "clustered"):
        which += "; clustered bootstrap where subsets are averaged"
    title = (
        f"Accuracy, protocol '{protocol}', {'clustered' if interval == 'clustered' else 'normal'} intervals"
    )
    columns = ["model", "scoring", "questions", *(TITLES.get(c, c) for c in categories), "n", "unscored"]
    return Table(f"accuracy_{protocol}_{interval}", title, columns, rows, data, f"{how} {which}.")


def _estimate(entry: Mapping[str, Any] | None, interval: str = "clustered") -> Any:
    if entry is None:
        return None
    prefix = "" if interval == "clustered" else "normal_"
    ends = {"low": entry[f"{prefix}low"], "high": entry[f"{prefix}high"]}
    return SimpleNamespace(value=entry["value"], n=entry["n"], clusters=entry["clusters"], **ends)


def _p(value: float | None) -> str:
    return "–" if value is None else p_text(value)


def gaps(found: Summaries) -> Table:
    """The negation gap per category, in the words and columns of the reports on edited pictures."""
    rows, data = [], []
    for name, summary in found.items():
        for entry in _pick(summary, "paired", protocol="fixed"):
            gap = SimpleNamespace(value=entry["gap"], low=entry["low"], high=entry["high"])
            times = SimpleNamespace(value=entry["ratio"], low=entry["ratio_low"], high=entry["ratio_high"])
            n = entry["n"]
            told = (entry["both"] + entry["only_original"]) / n if n else None
            denied = (entry["both"] + entry["only_negated"]) / n if n else None
            title = TITLES.get(entry["category"], entry["category"])
            rows.append([name, entry["scoring"], title, percent(told), percent(denied), span(gap),
                         span(times, 1, 2), _p(entry["p"]), str(n)])  # fmt: skip
            kept = ("scoring", "category", "gap", "low", "high", "ratio", "ratio_low", "ratio_high", "p", "n",
                    "clusters")  # fmt: skip
            data.append({"model": name, "original": told, "negated": denied, **{k: entry[k] for k in kept}})
    columns = ["model", "scoring", "category", "original", "negated", "gap (points)", "ratio", "p", "pairs"]
    note = (
        "Accuracy in per cent on original questions and on their negations, over pairs scored in both. Gap: "
        "the paired difference, clustered by picture; 0: nothing is lost by the negation. Ratio: clustered "
        "bootstrap; – where no negated question was right."
    )
    return Table("gap", "Negation gap", columns, rows, data, note)


def outcomes(found: Summaries) -> Table:
    """Both questions of a pair together."""
    rows, data = [], []
    for name, summary in found.items():
        for entry in _pick(summary, "paired", protocol="fixed"):
            counts = [entry[key] for key in ("both", "only_original", "only_negated", "neither")]
            cells = [f"{count} ({percent(count / entry['n'])})" if entry["n"] else "0" for count in counts]
            title = TITLES.get(entry["category"], entry["category"])
            rows.append([name, entry["scoring"], title, *cells, str(entry["n"]), str(entry["n_unscored"]),
                         _p(entry["p_mcnemar"]), _p(entry["p"])])  # fmt: skip
            data.append({"model": name, **{k: v for k, v in entry.items() if k != "protocol"}})
    columns = ["model", "scoring", "category", "both right", "only original", "only negated", "neither",
               "pairs", "unscored", "p (McNemar)", "p (clustered)"]  # fmt: skip
    note = (
        "Pairs, and per cent of them. A model that does not read the negation gives one answer to both "
        "questions and is right on one of them only; a constant letter cannot have both right. McNemar's "
        "exact test takes pairs for independent; the other p respects questions about one picture."
    )
    return Table("outcomes", "Pairs: original and negated together", columns, rows, data, note)


def positions(found: Summaries) -> Table:
    """Share of "A"."""
    rows, data = [], []
    for name, summary in found.items():
        for entry in _pick(summary, "letters", protocol="fixed"):
            share = SimpleNamespace(value=entry["share_a"], low=entry["low"], high=entry["high"])
            rows.append([name, entry["scoring"], entry["variant"], span(share), percent(entry["right_a"]),
                         str(entry["n"])])  # fmt: skip
            data.append({"model": name, **{k: v for k, v in entry.items() if k != "protocol"}})
    columns = ["model", "scoring", "questions", "answered A %", "A is right %", "letters"]
    note = "Position bias: a share of A far from the share that is right means that the place decides."
    return Table("position", "Position bias", columns, rows, data, note)


def agreements(found: Summaries) -> Table:
    """Generated and likeliest letter."""
    rows, data = [], []
    for name, summary in found.items():
        entry = summary.get("agreement")
        if entry:
            rows.append([name, percent(entry["share"]), str(entry["same"]), str(entry["n"])])
            data.append({"model": name, **entry})
    columns = ["model", "same letter %", "same", "questions with both"]
    note = "The letter that is written against the letter with the highest probability in the first forward."
    return Table("agreement", "Two ways of scoring", columns, rows, data, note)


def subsets(found: Summaries) -> Table:
    """Accuracy per subset, one row per model and subset."""
    rows, data = [], []
    for name, summary in found.items():
        for scoring in _scorings(summary):
            pairs: dict[str, dict[str, Any]] = {}
            for entry in _pick(summary, "subsets", scoring=scoring, protocol="fixed"):
                pairs.setdefault(entry["subset"], {})[entry["variant"]] = entry
            for subset, own in pairs.items():
                cells = [span(_estimate(own.get(variant))) for variant in WORDS]
                ends = [own[v]["value"] for v in WORDS if v in own]
                known = len(ends) == 2 and None not in ends
                drop = f"{100 * (ends[0] - ends[1]):.1f}" if known else "–"
                counts = [str(own[v]["n"]) for v in WORDS if v in own]
                rows.append([name, scoring, subset, *cells, drop, " / ".join(counts)])
                data += [{"model": name, **entry} for entry in own.values()]
    columns = ["model", "scoring", "subset", "original", "negated", "difference", "n"]
    note = f"{CLUSTERED}."
    return Table("subsets", "Accuracy by subset", columns, rows, data, note)


def comparisons(found: Summaries) -> list[Table]:
    """Own figures of models that Table 1 has, beside the printed ones."""
    rows, data = [], []
    for name, summary in found.items():
        printed = table1.known(summary["reference"])
        if printed is None or summary["preset"] == "nano":
            continue
        scoring = "generated" if "generated" in _scorings(summary) else _scorings(summary)[0]
        for entry in _pick(summary, "accuracy", scoring=scoring, protocol="paper"):
            cell = table1.cell(printed, entry["variant"], entry["category"])
            if cell is None or entry["value"] is None:
                continue
            title = TITLES.get(entry["category"], entry["category"])
            inside = cell.low <= entry["value"] <= cell.high
            here, difference = span(_estimate(entry, "normal")), 100 * (entry["value"] - cell.value)
            rows.append([name, printed, entry["variant"], title, here, span(cell), f"{difference:+.1f}",
                         "yes" if inside else "no"])  # fmt: skip
            data.append({"model": name, "printed_as": printed, "variant": entry["variant"],
                         "category": entry["category"], "value": entry["value"], "printed": cell.value,
                         "printed_low": cell.low, "printed_high": cell.high})  # fmt: skip
    columns = ["model", "in Table 1", "questions", "category", "here", "printed", "difference", "inside"]
    note = (
        "Protocol 'paper', normal intervals on both sides. Table 1 was made with VLMEvalKit, whose wording "
        "is --prompt vlmevalkit."
    )
    return [Table("table1", "Beside the paper's Table 1", columns, rows, data, note)]


def unscored(found: Summaries) -> Table:
    """Why answers have no letter."""
    rows, data = [], []
    for name, summary in found.items():
        for entry in summary["unscored"]:
            rows.append([name, entry["scoring"], entry["protocol"], entry["variant"], str(entry["count"]),
                         entry["reason"]])  # fmt: skip
            data.append({"model": name, **entry})
    columns = ["model", "scoring", "protocol", "questions", "answers", "reason"]
    note = "Answers without a letter: unscored under 'fixed', wrong under 'paper' when they were generated."
    return Table("unscored", "Answers without a letter", columns, rows, data, note)
