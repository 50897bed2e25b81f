"""Single questions in the page of a NegVQA report: what every model says to one and to its negation."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nein.benchmarks.negvqa import scores
from nein.benchmarks.negvqa.folder import ANSWERS, AnswersDir
from nein.benchmarks.runner import selected
from nein.datasets.negvqa.questions import VARIANTS, Item
from nein.engine import images
from nein.engine.errors import UserError
from nein.reporting import cards, page, thumbnails
from nein.reporting.cards import Cell
from nein.reporting.thumbnails import Thumbnail

SIDE = 256
OUTCOMES: dict[tuple[float | None, float | None], str] = {
    (1.0, 1.0): "both right",
    (1.0, 0.0): "only original",
    (0.0, 1.0): "only negated",
    (0.0, 0.0): "neither",
}
MARKS = {1.0: "right", 0.0: "wrong", None: "none"}
MEASURES = tuple(cards.Measure(variant, f"{variant} question") for variant in VARIANTS)
COLUMNS = ("question", "answer", "read as", "log p")
Line = Mapping[str, Any]
#: Reads lines anew, one at a time.
Lines = Callable[[], Iterable[Line]]


@dataclass(frozen=True)
class Questions:
    """What was asked, said and read, of the questions that are shown.

    asked     Question id -> its two lines, of the first model.
    replies   (model, question id, variant) -> its row in a block.
    verdicts  The same with the scoring -> how it was read under the protocol "fixed".
    headlines Model -> the scoring that makes an answer right or wrong, where it has that.
    pictures  Question id -> its picture; empty: no pictures.
    """

    asked: Mapping[str, Sequence[Line]]
    models: Sequence[str]
    replies: Mapping[tuple[str, str, str], Line]
    verdicts: Mapping[tuple[str, str, str, str], Line]
    headlines: Mapping[str, str]
    pictures: Mapping[str, Item]

    def read(self, model: str, identity: str, variant: str) -> list[Line]:
        """The letters that were read, the one that decides first."""
        scorings = sorted(("generated", "logprob"), key=lambda scoring: scoring != self.headlines.get(model))
        keys = [(model, identity, variant, scoring) for scoring in scorings]
        return [self.verdicts[key] for key in keys if key in self.verdicts]

    def value(self, model: str, identity: str, variant: str) -> float | None:
        """1.0 right, 0.0 wrong, None unscored or not asked."""
        read = self.read(model, identity, variant)
        return read[0]["value"] if read else None

    def outcome(self, model: str, identity: str) -> str:
        """What becomes of the pair, as facets name it."""
        pair = self.value(model, identity, "original"), self.value(model, identity, "negated")
        return OUTCOMES.get(pair, "unscored")

    def described(self) -> cards.Samples:
        ids = list(self.asked)
        outcomes = [sorted({self.outcome(model, name) for model in self.models}) for name in ids]
        return cards.Samples(
            ids,
            [self.asked[name][0]["question"] for name in ids],
            [self.asked[name][0]["subset"] for name in ids],
            {"Subset": [[self.asked[name][0]["subset"]] for name in ids], "Pair": outcomes},
            [cards.Member(model) for model in self.models],
            MEASURES,
            [
                [[self.value(model, name, variant) for name in ids] for variant in VARIANTS]
                for model in self.models
            ],
            chosen=VARIANTS[1],
            rivals=(*VARIANTS, "Negation decides"),
            words=("questions", "Model", "Asked"),
            heads=VARIANTS,
            columns=COLUMNS,
        )

    def details(self) -> Iterator[cards.Detail]:
        for name, lines in self.asked.items():
            options = zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", lines[0]["options"], strict=False)
            texts = [
                f"{line['variant'].capitalize()}: {line['question']} ({line['answer']})" for line in lines
            ]
            thumbnail = self._picture(name)
            yield cards.Detail(
                [("", thumbnail)] if thumbnail else [],
                [*texts, "   ".join(f"{letter}: {text}" for letter, text in options)],
                [self._said(model, name) for model in self.models],
            )

    def _said(self, model: str, name: str) -> cards.Said:
        cells, rows = [], []
        for variant in VARIANTS:
            row = self.replies.get((model, name, variant))
            if row is None:
                cells.append(Cell("not asked", mark="none"))
                continue
            read = ", ".join(
                f"{r['scoring']} {r['letter'] or r['reason']}" for r in self.read(model, name, variant)
            )
            said = row["error"] or row["text"] or ""
            logs = " / ".join("–" if p is None else f"{p:.2f}" for p in row["logprobs"] or ())
            cells.append(Cell(said, read, MARKS[self.value(model, name, variant)]))
            rows.append((row["question"], said, read, logs))
        return cards.Said(cells=cells, rows=rows)

    def _picture(self, name: str) -> Thumbnail | None:
        if name not in self.pictures:
            return None
        try:
            return thumbnails.of_picture(self.pictures[name].load(), SIDE)
        except images.ImageError as error:
            return {"none": str(error)}


def questions(
    answers: Mapping[str, tuple[Lines, Sequence[str]]],
    items: Sequence[Item] | None,
    limit: int,
    headlines: Mapping[str, str],
) -> Questions:
    """The first model's questions in data order, `limit` random ones if there are more.

    answers  Model -> (rows of its answers, which the first model's are read twice of; how they are scored).
    items    The questions with their pictures, or None: no pictures.
    """
    first = next(iter(answers))
    shown = dict.fromkeys(cards.drawn(_ids(first, answers[first][0]), limit))
    replies, verdicts = {}, {}
    for model, (read, scorings) in answers.items():
        for row in read():
            if row["id"] not in shown:
                continue
            key = model, row["id"], row["variant"]
            replies[key] = row
            for scoring in scorings:
                said = scores.read(row, scoring, "fixed", "fixed")
                verdicts[model, row["id"], row["variant"], scoring] = {"scoring": scoring, **said}
    return Questions(
        {name: [replies[first, name, variant] for variant in VARIANTS] for name in shown},
        list(answers),
        replies,
        verdicts,
        headlines,
        {item.id: item for item in items or () if item.id in shown},
    )


def _ids(model: str, answers: Lines) -> list[str]:
    """The questions that a model was asked. Raises UserError for one without its other half."""
    halves: dict[str, dict[str, None]] = {variant: {} for variant in VARIANTS}
    for row in answers():
        halves.setdefault(row["variant"], {})[sys.intern(row["id"])] = None
    original, negated = (halves[variant] for variant in VARIANTS)
    if torn := next(iter(original.keys() ^ negated.keys()), None):
        raise UserError(f"The answers of '{model}' lack a half of question '{torn}'; give its command again.")
    return list(original)


def part(
    named: Mapping[str, AnswersDir], items: Sequence[Item] | None, limit: int, headlines: Mapping[str, str]
) -> page.Part:
    """What the page shows of single questions; arguments as of `questions`, with finished runs by name."""

    def make() -> tuple[cards.Samples, Iterator[cards.Detail]]:
        answers = {
            name: (functools.partial(selected, folder, ANSWERS), folder.manifest()["scoring"])
            for name, folder in named.items()
        }
        shown = questions(answers, items, limit, headlines)
        return shown.described(), shown.details()

    return cards.browser(make, title="Answers")
