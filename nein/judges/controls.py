"""Changed pictures with the same questions, and changed questions about the same pictures: they show whether
a judge looks and reads (`nein.benchmarks.controls`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from nein.judges.known import Case, thinned
from nein.models.judges import Word

PICTURES = 64  # that every control is about


def of_cases(cases: Sequence[Case], kind: str) -> list[Case]:
    """Every control of pictures of the set "instances", of which all is known, or of any with objects."""
    usable = [case for case in cases if _present(case)]
    chosen = thinned([case for case in usable if case.set == "instances"] or usable, PICTURES)
    controls = []
    for index, case in enumerate(chosen):
        words = _present(case)
        gone = tuple(replace(word, present=False) for word in words)
        controls += [
            replace(
                case, control="black", picture=partial(_changed, case.picture, np.zeros_like), words=gone
            ),
            replace(case, control="mirrored", picture=partial(_changed, case.picture, np.fliplr)),
        ]
        names = {word.word for word in words}
        for other in (*chosen[index + 1 :], *chosen[:index]):  # the next picture with none of these objects
            if other.cluster != case.cluster and names.isdisjoint(word.word for word in _present(other)):
                theirs = tuple(replace(word, present=False) for word in _present(other))
                controls += [
                    replace(case, control="picture", picture=other.picture, words=gone),
                    replace(case, control="question", words=theirs),
                ]
                break
        if kind == "vqa":  # a detector is not asked in a sentence
            for wording, questions in (("negated", words), ("reversed", case.words)):
                reworded = tuple(replace(word, wording=wording) for word in questions)
                controls.append(replace(case, control=wording, words=reworded))
    return controls


def _present(case: Case) -> tuple[Word, ...]:
    return tuple(word for word in case.words if word.present)


def _changed(picture: Callable[[], np.ndarray], change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(change(picture()))
