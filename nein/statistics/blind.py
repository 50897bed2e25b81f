"""What the texts of a test give away: a blind baseline (language-only in VQA, hypothesis-only in NLI).

A linear reader of words learns from the other images of the same file which options are right. It sees no
image, and of a question one option at a time.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence

import numpy as np

FOLDS = 5
INVERSE_PENALTY = 3.0  # C of the logistic regression
SHORT = 3  # words of an option up to which it is read together with its question: "yes", "no", "two dogs"
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

    TF-IDF of words and of pairs of neighbors (sublinear), logistic regression on "is this option right", five
    folds by the scene's hash, so that neither order nor further questions move one between folds.
    Raises ValueError with fewer scenes than fill two folds.
    """
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    if questions is None:
        questions = [""] * len(options)
    fold_of_scene = {scene: choose_fold(scene) for scene in scenes}
    if len({*fold_of_scene.values()}) < 2:
        raise ValueError(f"{len(fold_of_scene)} scenes are too few for a reader that learns from the others.")
    texts, right, owners = [], [], []  # one entry per option; owners: its question's index
    for index, (question, choices) in enumerate(zip(questions, options, strict=True)):
        for number, option in enumerate(choices):
            texts.append(_terms(question, option))
            right.append(number == answers[index])
            owners.append(index)
    is_right = np.array(right)
    folds = np.array([fold_of_scene[scene] for scene in scenes])[owners]
    scores = np.zeros(len(texts))
    for fold in np.unique(folds):
        tested = folds == fold
        learned = [text for text, test in zip(texts, tested, strict=True) if not test]
        if not any(learned):
            continue  # no word in the other folds: all scores stay 0, and options tie
        vectors = TfidfVectorizer(analyzer=list, sublinear_tf=True)
        # Fitted on the other folds alone: document frequencies of all texts would tell of an option which of
        # its words the question's other options repeat (docs/explanation/findings.md).
        train_vectors = vectors.fit_transform(learned)  # (options of the other folds, terms)
        test_vectors: sparse.csr_matrix = vectors.transform(
            [text for text, test in zip(texts, tested, strict=True) if test]
        )
        model = LogisticRegression(C=INVERSE_PENALTY, solver="liblinear").fit(
            train_vectors, is_right[~tested]
        )
        scores[tested] = model.decision_function(test_vectors)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))  # of every question its first option
    scores = scores.round(DIGITS)
    best = scores == np.maximum.reduceat(scores, starts)[owners]
    return np.add.reduceat(best & is_right, starts) / np.add.reduceat(best, starts)


def choose_fold(scene: str) -> int:
    """The fold of a scene's questions, 0 to 4, by its hash."""
    return int.from_bytes(hashlib.sha256(scene.encode()).digest()[:8], "big") % FOLDS


def _terms(question: str, option: str) -> list[str]:
    """Words and pairs of neighbors of an option; of a short one also with those of its question, for "yes"
    alone says nothing."""
    terms = _words_and_pairs(option)
    if question and len(option.split()) <= SHORT:
        terms += [f"{option.casefold()} | {term}" for term in _words_and_pairs(question)]
    return terms


def _words_and_pairs(text: str) -> list[str]:
    words = re.findall(r"\w+", text.casefold())
    return [*words, *map(" ".join, itertools.pairwise(words))]
