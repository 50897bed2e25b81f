"""Defines the folder of a run of NegVQA and its rows: answers and matches (docs/reference/files.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import NotRequired

from nein.engine.atomic import Row, record
from nein.engine.folder import MANIFEST_FIELDS, Folder

ANSWERS, BLIND, MATCHES = "answers", "blind", "matches"  # the stages and their outputs
OPTIONAL_TEXT, OPTIONAL_ROW = NotRequired[str | None], NotRequired[Row | None]  # of entries of a manifest


@dataclass(frozen=True)
class Answer:
    """One question with its answer: a line of answers/ or blind/."""

    id: str
    variant: str
    subset: str
    category: str
    source: str  # names the image: intervals cluster by it
    question: str
    options: tuple[str, ...]
    answer: str  # the right letter
    text: str | None = None  # the generated answer; None: none was requested
    logprobs: tuple[float | None, ...] | None = None  # ln p per letter; None in it: the server lists none
    each: tuple[str, ...] | None = None  # a judge's yes or no per option; None: it was not asked so
    error: str = ""  # why there is no answer
    baseline: str = ""  # in blind/: see `nein.benchmarks.baselines`


@dataclass(frozen=True)
class Match:
    """The matcher's reading of an answer: a line of matches/."""

    id: str
    variant: str
    said: str | None = None  # the matcher's reply; None: `letter` was drawn, or there is an `error`
    letter: str | None = None  # None: the matcher finds no option
    reason: str = ""  # how the letter was found, or why there is none
    error: str = ""  # why the matcher gave no reply: it is asked again


class AnswersDir(Folder):
    """The folder OUT/<model>."""

    benchmark, content_name = "negvqa", ANSWERS  # in the manifest; in messages
    row_types: ClassVar = {ANSWERS: Answer, BLIND: Answer, MATCHES: Match}
    _DATA = record({"sha256": str, "questions": int, "columns": OPTIONAL_ROW, "revision": OPTIONAL_TEXT})
    manifest_type: ClassVar = record({
        **MANIFEST_FIELDS, "preset": str, "protocol": str, "reference": str, "matcher": str,
        "identity": record({"prompt": str, "asking": OPTIONAL_TEXT}),
        "scoring": list[str], "limit": int, "data": _DATA,
    })  # fmt: skip
