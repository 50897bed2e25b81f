"""The check sheet, a page on which people label random conversions as right or wrong, and
`nein negvqa check FILE...`: from their labels to the accuracy of the conversion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nein.datasets.negvqa.questions import VARIANTS
from nein.engine import atomic
from nein.generate.negvqa.config import CheckConfig
from nein.reporting import cards, labels, tables
from nein.reporting import figures as frames
from nein.statistics import bounded_mean

HOW = (
    "A conversion is right when the negated question is good English, asks for the opposite of the original "
    "with little changed, and the option marked for each question is right for the picture."
)
SIDE = 320  # pixels of a picture's longer side, so that writing on it can be read
RIGHT = "right"
#: What can be wrong with a conversion: the paper names the first two (NegVQA, section 3).
ERRORS = {
    "unnatural": "the negated question is unnatural or ungrammatical",
    "twice": "a condition or a negation is negated as well",
    "answer": "the letter of the negated question is not right",
    "original": "the original question or its letter is wrong already",
    "other": "something else (see the note)",
}
QUESTION = labels.Question("verdict", "Is the conversion right?", {
    RIGHT: RIGHT, **{kind: f"wrong: {text}" for kind, text in ERRORS.items()},
})  # fmt: skip


def evaluate(rows: Sequence[labels.Labelled]) -> Iterator[dict[str, Any]]:
    """What every rater found: items by verdict (`open` ones have none), the wrong ones by kind; the share of
    right ones with its exact 95 % interval, None without a checked item."""
    for rater in dict.fromkeys(row["rater"] for row in rows):
        verdicts = Counter(row[QUESTION.key] for row in rows if row["rater"] == rater)
        errors = {kind: verdicts[kind] for kind in ERRORS if verdicts[kind]}
        right, wrong = verdicts[RIGHT], sum(errors.values())
        share = bounded_mean([1.0] * right + [0.0] * wrong, range(right + wrong))
        yield {
            "sheet": rows[0]["sheet"], "rater": rater, "right": right, "wrong": wrong, "open": verdicts[""],
            "accuracy": share and share.value, "low": share and share.low, "high": share and share.high,
            "errors": errors,
        }  # fmt: skip


def describe(checked: Mapping[str, Any]) -> str:
    """The figures in words."""
    if checked["accuracy"] is None:
        return f"{checked['rater']}: none of {checked['open']} items is labelled yet.\n"
    right, wrong = checked["right"], checked["wrong"]
    percent, low, high = (f"{100 * checked[name]:.1f}" for name in ("accuracy", "low", "high"))
    lines = [
        f"{checked['rater']}: {right} of {right + wrong} checked conversions are right: {percent} % (95 % "
        f"interval {low} to {high}, exact), a random sample; {checked['open']} without a label."
    ]
    lines += [f"  {count:4d} wrong: {ERRORS[kind]}" for kind, count in sorted(checked["errors"].items())]
    return "\n".join(lines) + "\n"


def run(options: CheckConfig) -> str:
    """The accuracy of a conversion with its interval, in words. Raises UserError."""
    rows = labels.read(options.files, [QUESTION])
    figures = [*evaluate(rows)]
    text = "".join(map(describe, figures))
    # Raters agree where both say right, or both wrong, whatever the kind.
    verdict = labels.Question(QUESTION.key, QUESTION.text, dict.fromkeys((RIGHT, "wrong"), ""))
    plain = [row | {"verdict": row["verdict"] and ("wrong", RIGHT)[row["verdict"] == RIGHT]} for row in rows]
    agreed = labels.agreement(plain, [verdict], {row["item"]: row["item"] for row in rows})
    shown = tables.sheets([labels.AGREEMENT], frames.frame(agreed))
    if options.out is not None:
        atomic.write_json(options.out, figures)
    return "\n".join([text, *(tables.plain(sheet, len(sheet.rows)) + "\n" for sheet in shown)])


def write_sheet(path: Path, rows: Sequence[Mapping[str, Any]], *, population: int, negator: str) -> None:
    """Writes the sheet of `rows`, records of `convert.record` whose pictures lie beside `path`.

    population  How many conversions the rows were drawn from.
    """
    how = f"{len(rows)} random items out of {population} (negated by: {negator}). {HOW}"
    items = [
        labels.Item(
            str(row["index"]), row["category"], [("", cards.of_file(path.parent / row["image"], SIDE))],
            ("", "question", "A", "B"), [_asked(row, variant) for variant in VARIANTS],
        )
        for row in rows
    ]  # fmt: skip
    labels.write_page(path, "Are these negated questions right?", how, [QUESTION], items)


def _asked(row: Mapping[str, Any], variant: str) -> list[str]:
    right = row[f"{variant}_answer"]
    options = [f"✓ {row[letter]}" if letter == right else row[letter] for letter in "AB"]
    return [variant, row[f"{variant}_question"], *options]
