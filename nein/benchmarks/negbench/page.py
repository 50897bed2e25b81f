"""Single questions in the page of a NegBench report: the picture, its captions, what every model chose."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from metrics.letters import LETTERS
from nein.benchmarks.negbench import asking
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench.folder import Asked
from nein.datasets.negbench.records import ChoiceTask, Question
from nein.engine.errors import UserError
from nein.engine.folder import Row
from nein.reporting import cards, page, thumbnails
from nein.reporting.cards import Cell

log = logging.getLogger(__name__)
SIDE, LIMIT = 256, 400  # pixels of a picture's longer side; questions in a page
UNKNOWN = "made otherwise"  # an option of which no template is known
RIGHT = cards.Measure("right", "choice")
COLUMNS = ("caption", "made as", "chosen", "score")


@dataclass(frozen=True)
class Shown:
    """A question in the page: the name of its data set and its task as they are shown."""

    title: str
    task: ChoiceTask
    question: Question


@dataclass(frozen=True)
class Questions:
    """asked: id in the page -> the question. chosen: (model, that id) -> its row (`scores`)."""

    models: Sequence[str]
    asked: Mapping[str, Shown]
    chosen: Mapping[tuple[str, str], Row]

    @classmethod
    def of(cls, runs: Mapping[str, Sequence[Asked]], limit: int = LIMIT) -> Questions:
        """What was asked of models, by their name; `limit` random questions if there are more."""
        there = {
            _id(run, task, question): Shown(run.data.title, task, question)
            for runs_of_model in runs.values()
            for run in runs_of_model
            for task in _choices(run)
            for question in task.questions
        }
        asked = {identity: there[identity] for identity in cards.drawn(list(there), limit)}
        chosen = {}
        for model, runs_of_model in runs.items():
            for run in runs_of_model:
                try:
                    for task in _choices(run):
                        rows = ((_id(run, task, row["id"]), row) for row in run.rows(task))
                        chosen |= {(model, identity): row for identity, row in rows if identity in asked}
                except UserError as error:
                    log.warning("no question of '%s' is shown: %s", run.folder.path, error)
        return cls(list(runs), asked, chosen)

    def described(self) -> cards.Samples:
        asked = list(self.asked.values())
        return cards.Samples(
            list(self.asked),
            [one.question.asked or one.question.options[one.question.correct].text for one in asked],
            [" · ".join(filter(None, (one.title, one.question.type))) for one in asked],
            {
                "Task": [[f"{one.title}, {files.task_name(one.task)}"] for one in asked],
                "Right": [[_template(one.question, one.question.correct)] for one in asked],
                "Chosen": [self._templates(name, one.question) for name, one in self.asked.items()],
            },
            [cards.Member(model) for model in self.models],
            [RIGHT],
            [
                [[self.chosen.get((model, name), {}).get("credit") for name in self.asked]]
                for model in self.models
            ],
            words=("questions", "Model", "Asked"),
            heads=("choice",),
            columns=COLUMNS,
        )  # fmt: skip

    def details(self) -> Iterator[cards.Detail]:
        for name, one in self.asked.items():
            picture = asking.picture(one.task.media, one.question.image)
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

    def _templates(self, name: str, question: Question) -> list[str]:
        """What was chosen by any of the models."""
        rows = [row for model in self.models if (row := self.chosen.get((model, name))) is not None]
        taken = [_template(question, k) for row in rows if row["shares"] is not None for k in _taken(row)]
        return sorted({*taken, *(["none"] if any(row["shares"] is None for row in rows) else [])})


def part(runs: Callable[[], Mapping[str, Sequence[Asked]]]) -> page.Part:
    """What the page shows of single questions. runs: by model, as of `Questions.of`."""

    def make() -> tuple[cards.Samples, Iterator[cards.Detail]]:
        shown = Questions.of(runs())
        return shown.described(), shown.details()

    return cards.browser(make, title="Questions")


def _choices(run: Asked) -> list[ChoiceTask]:
    return [task for task in run.tasks if isinstance(task, ChoiceTask)]


def _id(run: Asked, task: ChoiceTask, question: Question | str) -> str:
    name = question if isinstance(question, str) else question.id
    return f"{run.data.name}/{files.task_name(task)}/{name}"


def _taken(row: Row) -> list[int]:
    """The options that a choice fell on: several where their scores are equal."""
    return [k for k, share in enumerate(row["shares"]) if share > 0]


def _template(question: Question, option: int) -> str:
    return question.options[option].template or UNKNOWN
