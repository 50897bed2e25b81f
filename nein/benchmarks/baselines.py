"""Baselines of a model's accuracy, for benchmarks with questions and options: the model itself with the text
alone (a gray image) or the image alone, and a trained reader of the texts (`nein.statistics.blind`)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nein import statistics
from nein.engine.folder import Blocks
from nein.reporting import figures as frames
from nein.reporting.figures import Figure
from nein.reporting.scores import ScoreTable
from nein.statistics.blind import choose_fold, read_blindly

BASELINES = TEXT_ONLY, PICTURE_ONLY = "text only", "picture only"  # metrics, as are the names below
#: The score less that of "text only", on the same questions, paired.
GAIN = "gain over text"
#: The share that the trained reader gets right; the score less that, paired; the score where it is wrong.
READER = TEXT_READER, READER_GAIN, MISSED = "text reader", "gain over the reader", "where the reader misses"
READ = (
    "Text reader: it learned from the texts about the file's other images which option is right. Gain over "
    "it: paired, in points. Where it misses: accuracy on the n questions that it gets wrong."
)
SIDE, LEVEL = 224, 128  # of the image that shows nothing: pixels, gray level
#: Marks of the baselines on bars of accuracy, and how a caption explains them.
MARKS = {TEXT_ONLY: "D", PICTURE_ONLY: "o"}
MARKED = "white marks: the same without the image (diamond) and without the text (circle)"


def make_gray() -> np.ndarray:
    """(H, W, 3) uint8: an image that shows nothing."""
    return np.full((SIDE, SIDE, 3), LEVEL, np.uint8)


def spread_blocks(blocks: Blocks, most: int) -> Blocks:
    """Blocks for `most` records, rounded up to whole blocks, evenly spread over all."""
    numbers = blocks.numbers
    count = math.ceil(most / blocks.size)
    if len(numbers) <= count:
        return blocks
    chosen = {numbers[k * len(numbers) // count] for k in range(count)}
    return replace(blocks, indices=[index for index in blocks.indices if index // blocks.size in chosen])


class Question(NamedTuple):
    """A question as a text reader sees it."""

    text: str  # "" where the options say it all
    options: tuple[str, ...]
    answer: int  # index of the right option
    scene: str  # may not be in training and test at once: the image, or the pair that it belongs to


FEWEST = 200  # questions of a file that trains a reader


def read_texts(questions: Mapping[Any, Question]) -> dict[Any, float]:
    """Key of each question of a file -> 1 where the text reader is right, 0 where it is wrong, a share where
    several options are best; {} where the file teaches none."""
    values = _read_in_order(tuple(questions.values()))
    return dict(zip(questions, values, strict=True)) if values else {}


@functools.lru_cache(maxsize=8)  # the models of a command are asked about the same files
def _read_in_order(questions: tuple[Question, ...]) -> Sequence[float]:
    if len(questions) < FEWEST or len({choose_fold(question.scene) for question in questions}) < 2:
        return ()
    texts, options, answers, scenes = zip(*questions, strict=True)  # the columns
    return read_blindly(options, answers, scenes, texts).tolist()


def estimate_baselines(scores: ScoreTable, others: ScoreTable, **labels: Any) -> Iterator[Figure]:
    """The estimates of baselines and reader, whose rows are in `others`, and a model's gains over them."""
    gains = {TEXT_ONLY: GAIN, TEXT_READER: READER_GAIN}
    for name in (*BASELINES, TEXT_READER):
        rows = others.where(metric=name)
        if not len(rows):
            continue
        yield rows.figure(metric=name, **labels)
        if name in gains:
            values, base, clusters = scores.pair(rows)  # (questions,) each
            gain = statistics.bounded_mean(values - base, clusters, -1.0, 1.0)
            unscored = len(rows) - len(values)
            yield frames.figure(gain, unit="points", unscored=unscored, metric=gains[name], **labels)
        if name == TEXT_READER:
            missed = rows.frame.loc[rows.values < 1, "id"]
            on_missed = ScoreTable(scores.frame[scores.frame["id"].isin(missed)])
            yield on_missed.figure(metric=MISSED, **labels)
