"""Rules for whether a sentence affirms or denies an object. Unclear sentences are refused and counted: that
costs a sample and never puts a wrong one into the data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from nein.metrics.plurals import singular
from nein.wording.families import plural

Polarity = Literal["affirmed", "denied", "missing", "both", "unclear"]

#: A new clause: a denial does not reach across it. Commas that list things do not end a clause.
_BREAK = re.compile(
    r"[.;:!?]+"
    r"|,?\s*\b(?:but|however|although|though|whereas|while|yet|instead(?! of)|and there (?:is|are)|and it)\b"
    r"|\band\s+(?=(?:does|do|is|are|has|have|contains?|shows?|features?|includes?|lacks?|without|no|not)\b)"
    r"|,\s*(?=(?:with|without|there|it|this|which|featuring|showing|although|no|not|nor|neither|lacking)\b)"
)
#: Words that deny what follows them within the clause.
_BEFORE = re.compile(
    r"\b(?:no|not|never|without|neither|nor|none|lacks?|lacking|excludes?|excluding|omits?|omitting"
    r"|absence of|absent (?:of|an?|any|the)|absent\b[^,;]* (?:is|are)|(?:de)?void of|barren of|bereft of"
    r"|free (?:of|from)|rid of|rather than|instead of|missing(?: an?| the| any)|cannot|nowhere|minus|sans"
    r"|zero|hardly|scarcely|lacked|fail(?:s|ed|ing|ure)? to|unaccompanied by"
    r")\b|n't\b"
)
#: Words that deny what stands before them within the clause.
_BEHIND = re.compile(
    r"\b(?:is|are|was|were|remains?|appears?)\s+(?:\w+\s+)?(?:absent|missing|excluded|omitted|nowhere)\b"
    r"|\b(?:is|are|was|were|does|do|can|could)(?:\s+not|n't|not)\b|\bnowhere\b"
    r"|\bnot (?:present|visible|in|part|seen)\b|^-(?:free|less)\b"
)
#: "Without a dog in sight, a cat ...": the comma ends the denial.
_OPENING = re.compile(
    r"((?:^|[.;:!?])\s*(?:without|lacking|with no|devoid of|free of|in the absence of)\b[^,.;]*),"
)
#: "not only a dog", "is not the only dog": no denial.
_HARMLESS = re.compile(
    r"\bnot (?:only|just|merely|simply)\b|\b(?:no|without(?: a)?) doubt\b|\bnothing but\b"
    r"|\b(?:is|are|was|were)(?: not|n't) (?:alone|(?:the )?only)\b"
)
#: A denial denied: "no lack of dogs", "you cannot miss the dog", "dogs are not missing".
_TWICE = re.compile(
    r"(?:\b(?:no|not|never|cannot|without|hardly|neither|nor)|n't)\s+(?:\w+\s+){0,2}?"
    r"(?:lack\w*|shortage|dearth|absen\w+|devoid|void|miss|missing|without|free|exclud\w+|omit\w*|far|fail\w*"
    r"|fewer|less|hidden|end)\b"
)
#: Neither said to be there nor said not to be: "there might be a dog", "everything except a dog".
_HEDGED = re.compile(
    r"\b(?:if|whether|perhaps|maybe|possibly|(?:might|may|could|would)\b(?! not)|imagin\w+|resembl\w+"
    r"|looks? like|except\w*|exception|apart|aside from|other than|save for|but for|besides)\b"
)
_HEDGED_BEHIND = re.compile(r"^\s+(?:\w+\s+)?(?:might|may|could|would)\b(?! not)")


def mentions(sentence: str, noun: str) -> list[tuple[int, int]]:
    """Spans of a noun in a sentence, singular or plural, in any case."""
    forms = sorted({form.casefold() for form in (noun, plural(noun), singular(noun))}, key=len, reverse=True)
    pattern = r"(?<!\w)(?:" + "|".join(re.escape(form) for form in forms) + r")(?!\w)"
    return [match.span() for match in re.finditer(pattern, sentence.casefold())]


def polarity(sentence: str, noun: str) -> Polarity:
    """How a sentence speaks of a noun; "both" where mentions differ, "unclear" where one is neither plainly.

    >>> polarity("A dog runs on the beach, without a cat in sight.", "cat")
    'denied'
    """
    ways = {_classify_mention(sentence, span) for span in mentions(sentence, noun)}
    if not ways or "unclear" in ways:
        return "unclear" if ways else "missing"
    return "both" if len(ways) > 1 else ways.pop()


def denies(sentence: str) -> bool:
    """Whether a sentence has a word that denies anything.

    >>> denies("A man is not only smiling."), denies("A man without a hat.")
    (False, True)
    """
    text = _HARMLESS.sub(" ", _plain(sentence))
    return bool(_BEFORE.search(text) or _BEHIND.search(text))


def find_change(
    sentence: str,
    affirmed: Sequence[str],
    denied: Sequence[str],
    *,
    keep_order_of: str | None = None,
    others: Sequence[str] = (),
) -> str:
    """The reason to refuse a paraphrase; "" to accept it.

    affirmed, denied  What the original says is there, and is not.
    keep_order_of     The original, if what comes first in it, affirmation or denial, has to come first still.
    others            Known objects of the image that the original does not speak of.
    """
    for noun, expected in (*((n, "affirmed") for n in affirmed), *((n, "denied") for n in denied)):
        actual = polarity(sentence, noun)
        if actual == "missing":
            return "an object is lost"
        if actual != expected:
            return "polarity unclear" if actual == "unclear" else "polarity changed"
    if any(mentions(sentence, noun) for noun in others):
        return "an object is added"

    def first(text: str, nouns: Sequence[str]) -> int:
        return min((a for noun in nouns for a, _ in mentions(text, noun)), default=len(text))

    if keep_order_of is not None and affirmed and denied:
        before, after = (first(text, denied) < first(text, affirmed) for text in (keep_order_of, sentence))
        if before != after:
            return "order changed"
    return ""


def _plain(sentence: str) -> str:
    return sentence.casefold().replace("\u2019", "'")


def _classify_mention(sentence: str, span: tuple[int, int]) -> Literal["affirmed", "denied", "unclear"]:
    text = _plain(sentence)
    text = _OPENING.sub(r"\1;", _HARMLESS.sub(lambda match: " " * len(match.group()), text))
    start, end = 0, len(text)
    for match in _BREAK.finditer(text):
        if match.end() <= span[0]:
            start = match.end()
        elif match.start() >= span[1]:
            end = match.start()
            break
    before, behind = text[start : span[0]], text[span[1] : end]
    if _TWICE.search(before) or _TWICE.search(behind) or _HEDGED.search(before):
        return "unclear"
    if _HEDGED_BEHIND.search(behind):
        return "unclear"
    return "denied" if _BEFORE.search(before) or _BEHIND.search(behind) else "affirmed"
