"""The tables of a NegVQA report as plain data, from the summaries of runs."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from nein.negvqa import table1
from nein.negvqa.categories import AVERAGE, CATEGORIES, OTHER, TITLES
from nein.reporting.sections import Table, percent, record, span

#: Run name -> summary, as `nein.negvqa.figures.summary` makes it.
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


def gaps(found: Summaries) -> Table:
    """The negation gap per category."""
    categories = _categories(found)
    rows, data = [], []
    for name, summary in found.items():
        for scoring in _scorings(summary):
            own = {e["category"]: e for e in _pick(summary, "paired", scoring=scoring, protocol="fixed")}
            cells = []
            for category in categories:
                entry = own.get(category)
                gap = entry and SimpleNamespace(value=entry["gap"], low=entry["low"], high=entry["high"])
                cells.append(span(gap))
                if entry is not None:
                    figures = {key: entry[key] for key in ("gap", "low", "high", "p", "n", "clusters")}
                    data.append({"model": name, "scoring": scoring, "category": category, **figures})
            rows.append([name, scoring, *cells, str(own[AVERAGE]["n"])])
    columns = ["model", "scoring", *(TITLES.get(c, c) for c in categories), "pairs"]
    note = (
        "The negation gap is what is lost when the same thing is asked in its negated form: accuracy on the "
        "original question minus accuracy on its negation, over pairs scored in both, in points. "
        "95 % intervals clustered by picture. 0: nothing is lost."
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
                         p_value(entry["p_mcnemar"]), p_value(entry["p"])])  # fmt: skip
            data.append({"model": name, **{k: v for k, v in entry.items() if k != "protocol"}})
    columns = ["model", "scoring", "category", "both right", "only original", "only negated", "neither",
               "pairs", "unscored", "p (McNemar)", "p (clustered)"]  # fmt: skip
    note = (
        "Pairs, and per cent of them. A model that does not read the negation gives one answer to both "
        "questions and is right on one of them only; a constant letter cannot have both right. McNemar's "
        "exact test takes pairs for independent; the other p respects questions about one picture."
    )
    return Table("outcomes", "Pairs: original and negated together", columns, rows, data, note)


def p_value(value: float | None) -> str:
    """ "0.034", "< 0.001", "–"."""
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


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
