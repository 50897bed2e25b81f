"""Trains a blind baseline: the share of a test's questions that a reader of their texts alone gets right.

It learns from the other images of the same file which words the right options have, and sees no image (in VQA
a language-only baseline, in NLI hypothesis-only).
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence

import numpy as np

FOLDS = 5  # each is read by a model of the others
INVERSE_PENALTY = 3.0  # C of the logistic regression
SHORT = 3  # words of an option that says nothing without its question, at most: "yes", "no", "two dogs"
DIGITS = 9  # scores that agree so far are tied: the last bits differ between processors


def read_blindly(
    options: Sequence[Sequence[str]],
    answers: Sequence[int],
    scenes: Sequence[str],
    questions: Sequence[str] | None = None,
) -> np.ndarray:
    """(N,) in [0, 1]: 1 where the reader's best option is the right one, 0 where it is another, the right
    one's share where several are best.

    options    Of every question its options' texts, two or more.
    answers    (N,) index of the right one.
    scenes     (N,) what may not be in training and test at once: an image, or the pair that it belongs to.
    questions  (N,) texts; None where the options say it all.

    Features: TF-IDF of words and of pairs of neighbors (sublinear). Model: logistic regression on "is this
    option right", one option at a time. Folds: by the scene's hash, so that neither order nor further
    questions move a scene. Raises ValueError with fewer scenes than fill two folds.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    fold_of_scene = {scene: choose_fold(scene) for scene in scenes}
    if len({*fold_of_scene.values()}) < 2:
        raise ValueError(f"{len(fold_of_scene)} scenes are too few for a reader that learns from the others.")
    # One entry per option: its terms, whether it is right, the index of its question.
    texts, right, owners = [], [], []
    for index, choices in enumerate(options):
        for number, option in enumerate(choices):
            texts.append(_list_terms(questions[index] if questions else "", option))
            right.append(number == answers[index])
            owners.append(index)
    is_right = np.array(right)
    folds = np.array([fold_of_scene[scene] for scene in scenes])[owners]
    # The score of every option, by a model of the other folds.
    scores = np.zeros(len(texts))
    for fold in np.unique(folds):
        is_tested = folds == fold
        learned = [texts[index] for index in np.flatnonzero(~is_tested)]
        tested = [texts[index] for index in np.flatnonzero(is_tested)]
        if not any(learned):
            continue  # no word in the other folds: all scores stay 0, and options tie
        # Fitted on the other folds alone: document frequencies of all texts would tell of an option which of
        # its words the question's other options repeat (docs/explanation/findings.md).
        vectorizer = TfidfVectorizer(analyzer=list, sublinear_tf=True)
        vectors = vectorizer.fit_transform(learned)  # (options of the other folds, terms), sparse
        model = LogisticRegression(C=INVERSE_PENALTY, solver="liblinear").fit(vectors, is_right[~is_tested])
        scores[is_tested] = model.decision_function(vectorizer.transform(tested))
    # Of every question the share of its best options that are right.
    scores = scores.round(DIGITS)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))  # index of its first option
    is_best = scores == np.maximum.reduceat(scores, starts)[owners]
    return np.add.reduceat(is_best & is_right, starts) / np.add.reduceat(is_best, starts)


def choose_fold(scene: str) -> int:
    """The fold of a scene's questions, 0 to 4, by its hash."""
    return int.from_bytes(hashlib.sha256(scene.encode()).digest()[:8], "big") % FOLDS


def _list_terms(question: str, option: str) -> list[str]:
    """Words and pairs of neighbors of an option; of a short one also those of its question, marked."""
    terms = _words_and_pairs(option)
    if question and len(option.split()) <= SHORT:
        terms += [f"{option.casefold()} | {term}" for term in _words_and_pairs(question)]
    return terms


def _words_and_pairs(text: str) -> list[str]:
    words = re.findall(r"\w+", text.casefold())
    return [*words, *map(" ".join, itertools.pairwise(words))]
