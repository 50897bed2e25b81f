"""How the baselines of NegBench are measured: "text only" and "picture only" of `nein.benchmarks.baselines`.

Of an encoder, and for nothing: the mean of the features of all pictures of the task (or of all its sentences)
stands in place of each. By linearity its score is the mean of the scores with all of them: the additive parts
of the text and of the picture (Hessel & Lee, EMNLP 2020, arXiv:2010.06572). A model that has to be asked is
shown a grey picture (what a question alone gives away: Goyal et al., CVPR 2017, arXiv:1612.00837), each
distinct question once. Of pictures to choose from each is told a caption that says nothing, and of a question
with answers the picture is shown with one that asks nothing.

Where the words are taken away of captions that are to be chosen from, nothing is left to choose by, and the
picture alone gets what guessing gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from metrics.dual.base import prepare, products
from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY, grey, spread
from nein.benchmarks.negbench import retrieval
from nein.benchmarks.negbench.retrieval import Ranks
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.records import ChoiceTask, Option, Question
from nein.engine.blocks import Blocks

GREY = "grey"  # the reference of the picture that says nothing
#: The caption, and the question, that says nothing, for models that are told one.
SAID, ASKED = "A picture.", "What is the answer?"
_ROWS = 4096  # features worked on at once


# --- encoders ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Means:
    """(D,) float64 means of prepared features: of the pictures and of the sentences of a task."""

    picture: np.ndarray
    text: np.ndarray

    @classmethod
    def of(cls, pictures: np.ndarray, texts: np.ndarray, features: str = "normalised") -> Means:
        """pictures, texts: (N, D) and (M, D), as the model gives them."""
        return cls(*(_mean(each, np.arange(len(each)), features) for each in (pictures, texts)))


def _mean(vectors: np.ndarray, rows: np.ndarray, features: str) -> np.ndarray:
    """Of those rows, prepared."""
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(rows), _ROWS):
        total += prepare(vectors[rows[start : start + _ROWS]], features).sum(0)
    return total / max(1, len(rows))


def alone(
    pictures: np.ndarray, texts: np.ndarray, said: np.ndarray, shown: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(scores of the captions with the mean picture, of the gallery with the mean caption), float32.

    pictures, texts  (P, D) and (T, D) features, which may lie in a file.
    said             (N,) the row of `texts` of each caption, N >= 1.
    shown            (G,) the row of `pictures` of each entry of the gallery.
    """
    of_pictures, of_texts = (
        _mean(vectors, rows, "normalised") for vectors, rows in ((pictures, shown), (texts, np.unique(said)))
    )
    return _scores(texts, said, of_pictures), _scores(pictures, shown, of_texts)


def _scores(vectors: np.ndarray, rows: np.ndarray, other: np.ndarray) -> np.ndarray:
    parts = [
        products(prepare(vectors[rows[start : start + _ROWS]]), other) for start in range(0, len(rows), _ROWS)
    ]
    return np.concatenate(parts)


def of_captions(shown: np.ndarray, place: np.ndarray) -> dict[str, Ranks]:
    """Baseline -> the place of every caption's picture, where all captions find the same.

    shown  (G,) scores of the gallery with the mean caption.     place  (N,) the entry of each caption.
    """
    entries = np.arange(len(shown))
    return {
        TEXT_ONLY: retrieval.alone(np.zeros_like(shown), entries, len(shown)).taken(place),
        PICTURE_ONLY: retrieval.alone(shown, entries, len(shown)).taken(place),
    }


def of_gallery(said: np.ndarray, place: np.ndarray, entries: int) -> dict[str, Ranks]:
    """Baseline -> the place of every gallery entry's captions, where all entries find the same.

    said  (N,) scores of the captions with the mean picture.
    """
    return {
        TEXT_ONLY: retrieval.alone(said, place, entries),
        PICTURE_ONLY: retrieval.alone(np.zeros_like(said), place, entries),
    }


# --- models that are asked ---------------------------------------------------------------------


@dataclass(frozen=True)
class Distinct:
    """Questions that stand for those of a task: each distinct one once, without its picture or its words.

    name  The baseline.
    task  Of the questions that are asked.
    """

    name: str
    task: ChoiceTask
    _by_words: dict[tuple[str, ...], Question] = field(default_factory=dict)

    @classmethod
    def without_pictures(cls, task: ChoiceTask) -> Distinct:
        return cls._of(TEXT_ONLY, task)

    @classmethod
    def without_words(cls, task: ChoiceTask) -> Distinct:
        return cls._of(PICTURE_ONLY, task)

    @classmethod
    def _of(cls, name: str, task: ChoiceTask) -> Distinct:
        by_words: dict[tuple[str, ...], Question] = {}
        for question in task.questions:
            if not _alike(name, question):
                by_words.setdefault(_words(name, question), _blinded(name, question))
        media = Drawn(lambda _: grey()) if name == TEXT_ONLY else task.media
        return cls(name, replace(task, questions=tuple(by_words.values()), media=media), by_words)

    def of(self, question: Question) -> Question | None:
        """The question that stands for one of the task; None where its options are all alike."""
        return None if _alike(self.name, question) else self._by_words[_words(self.name, question)]

    def same_order(self, question: Question, asked: Question, values: Sequence[float]) -> list[float]:
        """Values of the options of the question that was asked, in the order of the task's question."""
        named = (_option(self.name, one) for one in asked.options)
        given = dict(zip(named, values, strict=True))
        return [given[_option(self.name, one)] for one in question.options]

    def blocks(self, size: int, questions: Sequence[Question], most: int) -> Blocks:
        """The blocks with what stands for `questions`, evenly spread where that is more than `most`."""
        place = {one.id: index for index, one in enumerate(self.task.questions)}
        standing = (self.of(question) for question in questions)
        return spread(Blocks(len(place), size, sorted({place[one.id] for one in standing if one})), most)


def _alike(name: str, question: Question) -> bool:
    """Whether nothing is left to choose by: captions without their words."""
    pictures = any(option.image for option in question.options)
    return name == PICTURE_ONLY and not question.asked and not pictures


def _words(name: str, question: Question) -> tuple[str, ...]:
    """What makes two questions the same one."""
    left = question.asked if name == TEXT_ONLY else question.image if question.asked else ""
    return left, *sorted(_option(name, option) for option in question.options)


def _option(name: str, option: Option) -> str:
    """What of an option the model still gets."""
    return option.image if name == PICTURE_ONLY and option.image else option.text


def _blinded(name: str, question: Question) -> Question:
    if name == PICTURE_ONLY and question.asked:
        return replace(question, asked=ASKED, groups=())
    if name == PICTURE_ONLY:
        told = tuple(replace(one, text=SAID) for one in question.options)
        return replace(question, options=told, groups=())
    options = tuple(replace(one, image="") for one in question.options)
    return replace(question, image=GREY, options=options, groups=())
