"""The check sheet, one HTML file with random conversions, on which a person ticks what is right; and
`nein negvqa check FILE...`: from its ticks, as it exports them, to the accuracy of the conversion."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nein.datasets.negvqa.questions import VARIANTS
from nein.engine import atomic, shapes
from nein.engine.errors import UserError
from nein.generate.negvqa.config import CheckConfig
from nein.reporting import cards, page
from nein.statistics import bounded_mean

FORMAT = "nein negvqa check 1"
HOW = (
    "An item is right when the negated question is good English, asks for the opposite of the original with "
    "little changed, and the option marked for each question is right for the picture. Ticks stay in this "
    "browser; export them when you are done."
)
SIDE = 320  # pixels of a picture's longer side, so that writing on it can be read
#: What can be wrong with a conversion: the paper names the first two (NegVQA, section 3).
ERRORS = {
    "unnatural": "the negated question is unnatural or ungrammatical",
    "twice": "a condition or a negation is negated as well",
    "answer": "the letter of the negated question is not right",
    "original": "the original question or its letter is wrong already",
    "other": "something else (see the note)",
}


#: What an exported file holds, and one of its items.
_EXPORTED = {"population": int, "items": {}, "sheet?": str, "checker?": (str, None)}
_MARK = {"verdict": (str, None), "error?": (str, None)}


def read(path: Path) -> dict[str, Any]:
    """An exported file, checked. Raises UserError."""
    content = atomic.read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(
            f"'{path}' is not a check sheet's export; export one from check.html of nein negvqa generate."
        )
    if shapes.fault(content, _EXPORTED):
        raise UserError(f"'{path}' has no items; export it from the check sheet again.")
    for name, mark in content["items"].items():
        known = not shapes.fault(mark, _MARK) and mark["verdict"] in ("right", "wrong", None)
        if not known or (mark["verdict"] == "wrong") != (mark.get("error") in ERRORS):
            raise UserError(
                f"'{path}', item '{name}': {mark!r:.80} is not a verdict of the sheet; export it again."
            )
    return content


def evaluate(ticks: Mapping[str, Any]) -> dict[str, Any]:
    """What one person found, of a file from `read`: items by verdict (`open` ones have none), the wrong ones
    by kind; the share of right ones with its exact 95 % interval, None without a checked item."""
    marks = list(ticks["items"].values())
    verdicts = Counter(mark["verdict"] for mark in marks)
    right, wrong = verdicts["right"], verdicts["wrong"]
    share = bounded_mean([1.0] * right + [0.0] * wrong, range(right + wrong))
    return {
        "sheet": str(ticks.get("sheet", "")), "checker": str(ticks.get("checker") or ""),
        "population": ticks["population"], "right": right, "wrong": wrong, "open": verdicts[None],
        "accuracy": share and share.value, "low": share and share.low, "high": share and share.high,
        "errors": dict(Counter(mark["error"] for mark in marks if mark["verdict"] == "wrong")),
    }  # fmt: skip


def describe(checked: Mapping[str, Any]) -> str:
    """The figures in words."""
    who = f"{checked['checker']}: " if checked["checker"] else ""
    if checked["accuracy"] is None:
        return f"{who}none of {checked['open']} items is ticked yet.\n"
    right, wrong = checked["right"], checked["wrong"]
    percent, low, high = (f"{100 * checked[name]:.1f}" for name in ("accuracy", "low", "high"))
    lines = [
        f"{who}{right} of {right + wrong} checked conversions are right: {percent} % (95 % interval {low} to "
        f"{high}, exact), a random sample of {checked['population']}; {checked['open']} not ticked."
    ]
    lines += [f"  {count:4d} wrong: {ERRORS[kind]}" for kind, count in sorted(checked["errors"].items())]
    return "\n".join(lines) + "\n"


def agreement(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """How far two people agree on the items both have ticked."""
    from nein.statistics.calibration import cohen_kappa

    values = [
        {name: float(m["verdict"] == "right") for name, m in one["items"].items() if m["verdict"]}
        for one in (first, second)
    ]
    both = values[0].keys() & values[1].keys()
    if not both:
        return "No item was ticked by both.\n"
    same = sum(values[0][name] == values[1][name] for name in both)
    kappa = cohen_kappa(values[0], values[1], {name: name for name in both})
    text = f"Both ticked {len(both)} items and agree on {same}"
    if kappa is None or kappa.low is None or kappa.high is None:
        return f"{text}; Cohen's kappa does not exist where both always say the same.\n"
    return f"{text}; Cohen's kappa {kappa.value:.2f} ({kappa.low:.2f} to {kappa.high:.2f}).\n"


def run(options: CheckConfig) -> str:
    """The accuracy of a conversion with its interval, in words. Raises UserError."""
    ticked = [read(path) for path in options.files]
    sheets = {one["sheet"] for one in ticked}
    if len(sheets) > 1:
        raise UserError("The files belong to different check sheets; give the files of one sheet.")
    figures = [evaluate(one) for one in ticked]
    text = "".join(map(describe, figures))
    if len(ticked) == 2:
        text += agreement(*ticked)
    if options.out is not None:
        atomic.write_json(options.out, figures)
    return text


def write_sheet(path: Path, rows: Sequence[Mapping[str, Any]], *, population: int, negator: str) -> None:
    """Writes the sheet of `rows`, records of `convert.record` whose pictures lie beside `path`.

    population  How many conversions the rows were drawn from.
    """
    ids, categories = [row["index"] for row in rows], [row["category"] for row in rows]
    # 16 hex digits over everything that is to be checked.
    text = json.dumps([dict(row) for row in rows], sort_keys=True, ensure_ascii=False)
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    facts = {"format": FORMAT, "sheet": name, "population": population, "negator": negator, "ids": ids}
    samples = cards.Samples(
        ids, [f"{number} of {len(rows)}" for number in range(1, len(rows) + 1)], categories,
        {"Category": [[category] for category in categories]},
        [cards.Member(variant) for variant in VARIANTS], words=("items", "", ""),
        heads=("question", "A", "B"), page=len(rows),
    )  # fmt: skip
    browser = cards.browser(lambda: (samples, (_detail(path, row) for row in rows)), title="Items")
    values = {"facts": page.script_json(facts), "errors": ERRORS}
    subtitle = f"{len(rows)} random items out of {population} (negated by: {negator}). {HOW}"
    ticks = page.Part("check", "Ticks", Path(__file__).parent / "templates", lambda: values)
    made = page.Page("Are these negated questions right?", subtitle, parts=[browser, ticks])
    atomic.write_text(path, page.render(made))


def _detail(path: Path, row: Mapping[str, Any]) -> cards.Detail:
    said = []
    for variant in VARIANTS:
        right = row[f"{variant}_answer"]
        options = [cards.Cell(row[letter], mark="right" if right == letter else "") for letter in "AB"]
        said.append(cards.Said(cells=[cards.Cell(row[f"{variant}_question"]), *options]))
    picture = cards.of_file(path.parent / row["image"], SIDE)
    return cards.Detail([("", picture)], said=said)
