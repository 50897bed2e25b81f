"""What a model gets right by the text alone (a grey picture), and by the picture alone; and what a reader of
texts that is trained on the other images of the same file gets right (`nein.statistics.blind`)."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nein import statistics
from nein.engine.folder import Blocks
from nein.reporting import figures as frames
from nein.reporting.figures import Figure
from nein.reporting.scores import ScoreTable
from nein.statistics.blind import choose_fold, read_blindly

BASELINES = TEXT_ONLY, PICTURE_ONLY = "text only", "picture only"
#: The score less that of "text only", on the same questions, paired.
GAIN = "gain over text"
#: The trained reader's share right; the score less that, paired; the score on the questions that it misses.
READER = TEXT_READER, READER_GAIN, MISSED = "text reader", "gain over the reader", "where the reader misses"
READ = (
    "Text reader: it learned from the texts about the file's other pictures which option is right. Gain over "
    "it: paired, in points. Where it misses: accuracy on the questions that it has wrong, n of them."
)
#: A file with fewer questions trains no reader.
FEWEST = 200
SIDE, LEVEL = 224, 128
#: Of the baselines on bars of accuracy, and what a caption says of them.
MARKS = {TEXT_ONLY: "D", PICTURE_ONLY: "o"}
MARKED = "white marks: the same without the picture (diamond) and without the text (circle)"


def grey() -> np.ndarray:
    """A picture that says nothing: (H, W, 3) uint8."""
    return np.full((SIDE, SIDE, 3), LEVEL, np.uint8)


def spread(blocks: Blocks, most: int) -> Blocks:
    """As many of the blocks, evenly spread, as hold `most` records."""
    numbers, count = blocks.numbers, -(-most // blocks.size)
    if len(numbers) <= count:
        return blocks
    taken = {numbers[k * len(numbers) // count] for k in range(count)}
    return replace(blocks, indices=[index for index in blocks.indices if index // blocks.size in taken])


class Question(NamedTuple):
    """What a text reader learns from."""

    text: str  # "" where the options say it all
    options: tuple[str, ...]
    answer: int  # index of the right option
    scene: str  # may not be in training and test at once: the image, or the pair that it belongs to


Key = TypeVar("Key", bound=Hashable)


def read_texts(questions: Mapping[Key, Question]) -> dict[Key, float]:
    """Key of each question of a file -> 1 where the text reader is right, 0 where it is wrong, a share where
    several options are best; {} where the file teaches none."""
    return dict(zip(questions, _read(tuple(questions.values())), strict=False))


@functools.lru_cache(maxsize=8)  # the models of a command are asked about the same files
def _read(questions: tuple[Question, ...]) -> Sequence[float]:
    if len(questions) < FEWEST or len({choose_fold(question.scene) for question in questions}) < 2:
        return ()
    texts, options, answers, scenes = zip(*questions, strict=True)
    return read_blindly(options, answers, scenes, texts).tolist()


def figures(scores: ScoreTable, others: ScoreTable, **what: Any) -> Iterator[Figure]:
    """Of baselines and reader, of which `others` has the rows, and what a model's scores are beside them."""
    for name in (*BASELINES, TEXT_READER):
        if len(rows := others.where(metric=name)):
            yield rows.figure(metric=name, **what)
            if name != PICTURE_ONLY:
                yield _gain(scores, rows, metric=GAIN if name == TEXT_ONLY else READER_GAIN, **what)
            if name == TEXT_READER:
                missed = rows.frame.loc[rows.values < 1, "id"]
                on_missed = ScoreTable(scores.frame[scores.frame["id"].isin(missed)])
                yield on_missed.figure(metric=MISSED, **what)


def _gain(scores: ScoreTable, baseline: ScoreTable, **what: Any) -> Figure:
    """The score less that of a baseline on the same questions, paired, in points."""
    seen, unseen, clusters = scores.pair(baseline)
    estimate = statistics.bounded_mean(seen - unseen, clusters, -1.0, 1.0)
    return frames.figure(estimate, unit="points", unscored=len(baseline) - len(seen), **what)
