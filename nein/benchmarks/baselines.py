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

# --- names of metrics ------------------------------------------------------------------------
TEXT_ONLY, PICTURE_ONLY = "text only", "picture only"  # the model itself with one input
BASELINES = (TEXT_ONLY, PICTURE_ONLY)
GAIN = "gain over text"  # the model's accuracy minus that of TEXT_ONLY, on the same questions
TEXT_READER = "text reader"  # the reader's accuracy
READER_GAIN = "gain over the reader"  # the model's accuracy minus the reader's, on the same questions
ACCURACY_ON_MISSED = "where the reader misses"  # the model's, on questions that the reader gets wrong
READER_METRICS = (TEXT_READER, READER_GAIN, ACCURACY_ON_MISSED)
READER_NOTE = (
    "Text reader: it learned from the texts about the file's other images which option is right. Gain over "
    "it: paired, in points. Where it misses: accuracy on the n questions that it gets wrong."
)
MARKS = {TEXT_ONLY: "D", PICTURE_ONLY: "o"}  # of the baselines on bars of accuracy
MARKS_NOTE = "white marks: the same without the image (diamond) and without the text (circle)"

# --- the model with one input ----------------------------------------------------------------
SIDE, LEVEL = 224, 128  # of the image that shows nothing: pixels, gray level


def make_gray() -> np.ndarray:
    """(H, W, 3) uint8: an image that shows nothing."""
    return np.full((SIDE, SIDE, 3), LEVEL, np.uint8)


def spread_blocks(blocks: Blocks, target: int) -> Blocks:
    """The blocks that a baseline is measured on: enough for `target` records, evenly spread over all."""
    numbers = blocks.numbers
    count = math.ceil(target / blocks.size)
    if len(numbers) <= count:
        return blocks
    chosen = {numbers[k * len(numbers) // count] for k in range(count)}
    return replace(blocks, indices=[index for index in blocks.indices if index // blocks.size in chosen])


# --- the trained reader ----------------------------------------------------------------------
MIN_QUESTIONS = 200  # of a file, to train a reader


class Question(NamedTuple):
    """A question as a text reader sees it."""

    text: str  # "" where the options say it all
    options: tuple[str, ...]
    answer: int  # index of the right option
    scene: str  # may not be in training and test at once: the image, or the pair that it belongs to


def score_text_reader(questions: Mapping[Any, Question]) -> dict[Any, float]:
    """Key of each question of a file -> 1 where the reader is right, 0 where it is wrong, a share where
    several options are best. The reader never saw the question's scene; {}: too few questions to train."""
    values = _score_cached(tuple(questions.values()))  # a tuple, since keys of a cache are hashable
    return dict(zip(questions, values, strict=True)) if values else {}


@functools.lru_cache(maxsize=8)  # the models of a command are asked about the same files
def _score_cached(questions: tuple[Question, ...]) -> Sequence[float]:
    if len(questions) < MIN_QUESTIONS or len({choose_fold(question.scene) for question in questions}) < 2:
        return ()
    texts, options, answers, scenes = zip(*questions, strict=True)  # the columns
    return read_blindly(options, answers, scenes, texts).tolist()


# --- estimates -------------------------------------------------------------------------------
def estimate_baselines(scores: ScoreTable, baseline_scores: ScoreTable, **labels: Any) -> Iterator[Figure]:
    """The accuracy of baselines and reader, and a model's gains over them. scores: of the model."""
    gain_names = {TEXT_ONLY: GAIN, TEXT_READER: READER_GAIN}
    for name in (*BASELINES, TEXT_READER):
        rows = baseline_scores.where(metric=name)
        if not len(rows):
            continue
        yield rows.figure(metric=name, **labels)
        if name in gain_names:
            values, baseline_values, clusters = scores.pair(rows)  # (questions,) each
            gain = statistics.bounded_mean(values - baseline_values, clusters, -1.0, 1.0)
            unscored = len(rows) - len(values)
            yield frames.figure(gain, unit="points", unscored=unscored, metric=gain_names[name], **labels)
        if name == TEXT_READER:
            missed = rows.frame.loc[rows.values < 1, "id"]
            on_missed = ScoreTable(scores.frame[scores.frame["id"].isin(missed)])
            yield on_missed.figure(metric=ACCURACY_ON_MISSED, **labels)
