"""Single questions in the page of a NegBench report: the picture, its captions, what every model chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics.letters import LETTERS
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench import vlm
from nein.benchmarks.negbench.folder import ResultsDir
from nein.datasets.negbench.loading import DataSet
from nein.datasets.negbench.records import ChoiceTask, Question
from nein.engine import atomic
from nein.engine.folder import Row
from nein.reporting import cards, page, thumbnails
from nein.reporting.cards import Cell

SIDE, LIMIT = 256, 400  # pixels of a picture's longer side; questions in a page
UNKNOWN = "made otherwise"  # an option of which no template is known
RIGHT = cards.Measure("right", "choice")
COLUMNS = ("caption", "made as", "chosen", "score")
Sets = Callable[[], Sequence[DataSet]]


@dataclass(frozen=True)
class Results:
    """A finished run in the page.

    model  As tables name it.     tasks  Names of its tasks of multiple choice, as its files have them.
    """

    folder: ResultsDir
    model: str
    tasks: Sequence[str]

    @property
    def data(self) -> str:
        """SHA-256 of the records that were asked."""
        return str(self.folder.manifest()["data"]["records_sha256"])

    def rows(self) -> Iterator[tuple[str, Row]]:
        """(task, row), read anew."""
        for task in self.tasks:
            for row in atomic.checked_lines(files.samples(self.folder, task), files.CHOICE_ROW):
                yield task, row


@dataclass(frozen=True)
class Asked:
    """A question of a task of a data set."""

    data: DataSet
    task: ChoiceTask
    question: Question


@dataclass(frozen=True)
class Questions:
    """asked: id in the page -> the question. chosen: (model, that id) -> its row of samples/<task>.jsonl."""

    models: Sequence[str]
    asked: Mapping[str, Asked]
    chosen: Mapping[tuple[str, str], Row]

    @classmethod
    def of(cls, results: Sequence[Results], sets: Sequence[DataSet], limit: int = LIMIT) -> Questions:
        """What was asked of the sets, in data order; `limit` random questions if there are more."""
        named = {data.sha256: data for data in sets}
        here = [one for one in results if one.data in named]

        def answered() -> Iterator[tuple[str, str, Row]]:
            for one in here:
                for task, row in one.rows():
                    yield one.model, _id(named[one.data], task, row["id"]), row

        there = {identity for _, identity, _ in answered()}
        ids = [identity for identity, _ in _asked(sets) if identity in there]
        wanted = set(cards.drawn(ids, limit))
        asked = {identity: one for identity, one in _asked(sets) if identity in wanted}
        models = list(dict.fromkeys(one.model for one in results))
        chosen = {(model, name): row for model, name, row in answered() if name in wanted}
        return cls(models, asked, chosen)

    def described(self) -> cards.Samples:
        asked = list(self.asked.values())
        return cards.Samples(
            list(self.asked),
            [_sentence(one.question) for one in asked],
            [" · ".join(filter(None, (one.data.title, one.question.type))) for one in asked],
            {
                "Task": [[f"{one.data.title}, {files.task_name(one.task)}"] for one in asked],
                "Right": [[_template(one.question, one.question.correct)] for one in asked],
                "Chosen": [self._templates(name, one.question) for name, one in self.asked.items()],
            },
            [cards.Member(model) for model in self.models],
            [RIGHT],
            [[[self._value(model, name) for name in self.asked]] for model in self.models],
            words=("questions", "Model", "Asked"),
            heads=("choice",),
            columns=COLUMNS,
        )  # fmt: skip

    def details(self) -> Iterator[cards.Detail]:
        for name, one in self.asked.items():
            picture = vlm.picture(one.data.media, one.question.image)
            shown = {"none": picture} if isinstance(picture, str) else thumbnails.of_picture(picture, SIDE)
            captions = [
                f"{option.shown}{' (right)' if k == one.question.correct else ''}"
                for k, option in enumerate(one.question.options)
            ]
            said = [self._said(model, name, one.question) for model in self.models]
            yield cards.Detail([("", shown)], captions, said)

    def _said(self, model: str, name: str, question: Question) -> cards.Said | None:
        row = self.chosen.get((model, name))
        if row is None:
            return None
        line = row.get("answer") or ""
        if row["shares"] is None:
            return cards.Said(cells=[Cell("none", row["reason"], "none")], line=line)
        taken = [question.options[k] for k in _taken(row)]
        mark = {1.0: "right", 0.0: "wrong"}.get(row["credit"], "none")
        made = " or ".join(dict.fromkeys(option.template or UNKNOWN for option in taken))
        cell = Cell(" or ".join(option.shown for option in taken), made, mark)
        scores = row.get("scores")
        rows = [
            (
                f"{letter}: {question.options[k].shown}",
                _template(question, k),
                f"{100 * row['shares'][k]:.0f} %",
                f"{scores[k]:.3f}" if scores else "",
            )
            for letter, k in zip(LETTERS, row["shown"], strict=False)
        ]
        return cards.Said(cells=[cell], line=line, rows=rows)

    def _value(self, model: str, name: str) -> float | None:
        return self.chosen.get((model, name), {}).get("credit")

    def _templates(self, name: str, question: Question) -> list[str]:
        """What was chosen by any of the models."""
        rows = [row for model in self.models if (row := self.chosen.get((model, name))) is not None]
        taken = [_template(question, k) for row in rows if row["shares"] is not None for k in _taken(row)]
        return sorted({*taken, *(["none"] if any(row["shares"] is None for row in rows) else [])})


def part(results: Sequence[Results], sets: Sets) -> page.Part:
    """What the page shows of single questions.

    sets  Loads the data sets; those that none of the results is about may be among them.
    """

    def make() -> tuple[cards.Samples, Iterator[cards.Detail]]:
        shown = Questions.of(results, sets())
        return shown.described(), shown.details()

    return cards.browser(make, title="Questions")


def _asked(sets: Sequence[DataSet]) -> Iterator[tuple[str, Asked]]:
    """Every question of the sets with its id in the page, in data order."""
    for data in sets:
        for task in data.tasks:
            if isinstance(task, ChoiceTask):
                for question in task.questions:
                    yield _id(data, files.task_name(task), question.id), Asked(data, task, question)


def _id(data: DataSet, task: str, identity: Any) -> str:
    return f"{data.name}/{task}/{identity}"


def _sentence(question: Question) -> str:
    """What a question is headed by: what is asked, or the caption that is true."""
    return question.asked or question.options[question.correct].text


def _taken(row: Row) -> list[int]:
    """The options that a choice fell on: several where their scores are equal."""
    return [k for k, share in enumerate(row["shares"]) if share > 0]


def _template(question: Question, option: int) -> str:
    return question.options[option].template or UNKNOWN
