"""Decides by rules whether an English sentence affirms or denies an object, to filter generated captions.
Unclear sentences are refused and counted: that costs a sample and puts no wrong one into the data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from nein.metrics.plurals import singular
from nein.wording.families import plural

Polarity = Literal["affirmed", "denied", "missing", "both", "unclear"]

# --- the rules: patterns of lower-case text --------------------------------------------------------

#: Where a new clause begins, which a denial does not reach. Commas that list things do not end a clause.
_BREAK = re.compile(
    r"[.;:!?]+"
    r"|,?\s*\b(?:but|however|although|though|whereas|while|yet|instead(?! of)|and there (?:is|are)|and it)\b"
    r"|\band\s+(?=(?:does|do|is|are|has|have|contains?|shows?|features?|includes?|lacks?|without|no|not)\b)"
    r"|,\s*(?=(?:with|without|there|it|this|which|featuring|showing|although|no|not|nor|neither|lacking)\b)"
)
#: Words that deny what follows them within the clause.
_DENIES_AHEAD = re.compile(
    r"\b(?:no|not|never|without|neither|nor|none|lacks?|lacking|excludes?|excluding|omits?|omitting"
    r"|absence of|absent (?:of|an?|any|the)|absent\b[^,;]* (?:is|are)|(?:de)?void of|barren of|bereft of"
    r"|free (?:of|from)|rid of|rather than|instead of|missing(?: an?| the| any)|cannot|nowhere|minus|sans"
    r"|zero|hardly|scarcely|lacked|fail(?:s|ed|ing|ure)? to|unaccompanied by"
    r")\b|n't\b"
)
#: Words that deny what stands before them within the clause.
_DENIES_BACK = re.compile(
    r"\b(?:is|are|was|were|remains?|appears?)\s+(?:\w+\s+)?(?:absent|missing|excluded|omitted|nowhere)\b"
    r"|\b(?:is|are|was|were|does|do|can|could)(?:\s+not|n't|not)\b|\bnowhere\b"
    r"|\bnot (?:present|visible|in|part|seen)\b|^-(?:free|less)\b"
)
#: "Without a dog in sight, a cat ...": the comma ends the denial.
_OPENING_DENIAL = re.compile(
    r"((?:^|[.;:!?])\s*(?:without|lacking|with no|devoid of|free of|in the absence of)\b[^,.;]*),"
)
#: "not only a dog", "is not the only dog": no denial.
_NO_DENIAL = re.compile(
    r"\bnot (?:only|just|merely|simply)\b|\b(?:no|without(?: a)?) doubt\b|\bnothing but\b"
    r"|\b(?:is|are|was|were)(?: not|n't) (?:alone|(?:the )?only)\b"
)
#: A denial denied: "no lack of dogs", "you cannot miss the dog", "dogs are not missing".
_DOUBLE_DENIAL = re.compile(
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


# --- mentions and their polarity -------------------------------------------------------------------
def find_mentions(sentence: str, noun: str) -> list[tuple[int, int]]:
    """(start, end) of every mention of a noun in a sentence, singular or plural, in any case."""
    distinct = {form.casefold() for form in (noun, plural(noun), singular(noun))}
    forms = sorted(distinct, key=len, reverse=True)  # the longest is tried first
    pattern = r"(?<!\w)(?:" + "|".join(re.escape(form) for form in forms) + r")(?!\w)"
    return [match.span() for match in re.finditer(pattern, sentence.casefold())]


def find_polarity(sentence: str, noun: str) -> Polarity:
    """How a sentence speaks of a noun; "both": mentions differ, "unclear": a mention follows no rule.

    >>> find_polarity("A dog runs on the beach, without a cat in sight.", "cat")
    'denied'"""
    polarities = {_classify_mention(sentence, span) for span in find_mentions(sentence, noun)}
    if not polarities:
        return "missing"
    if "unclear" in polarities:
        return "unclear"
    return "both" if len(polarities) > 1 else polarities.pop()


def denies(sentence: str) -> bool:
    """Whether a sentence has a word that denies anything.

    >>> denies("A man is not only smiling."), denies("A man without a hat.")
    (False, True)"""
    text = _NO_DENIAL.sub(" ", _lower(sentence))
    return bool(_DENIES_AHEAD.search(text) or _DENIES_BACK.search(text))


def find_change(
    sentence: str,
    affirmed: Sequence[str],
    denied: Sequence[str],
    *,
    keep_order_of: str | None = None,
    others: Sequence[str] = (),
) -> str:
    """The reason to refuse a paraphrase; "" to accept it.

    affirmed, denied  The objects that the original affirms, and denies.
    keep_order_of     The original, if the paraphrase must keep which of both comes first.
    others            Known objects of the image that the original does not name."""
    expectations = [*((noun, "affirmed") for noun in affirmed), *((noun, "denied") for noun in denied)]
    for noun, expected in expectations:
        actual = find_polarity(sentence, noun)
        if actual == "missing":
            return "an object is lost"
        if actual != expected:
            return "polarity unclear" if actual == "unclear" else "polarity changed"
    if any(find_mentions(sentence, noun) for noun in others):
        return "an object is added"
    if keep_order_of is not None and affirmed and denied:
        texts = (keep_order_of, sentence)
        before, now = (_find_first(text, denied) < _find_first(text, affirmed) for text in texts)
        if before != now:  # which of both comes first
            return "order changed"
    return ""


def _find_first(text: str, nouns: Sequence[str]) -> int:
    """Where the first mention of any noun begins; the end of the text without one."""
    return min((start for noun in nouns for start, _ in find_mentions(text, noun)), default=len(text))


def _lower(sentence: str) -> str:
    """Lower case, with straight apostrophes."""
    return sentence.casefold().replace("\u2019", "'")


def _classify_mention(sentence: str, span: tuple[int, int]) -> Literal["affirmed", "denied", "unclear"]:
    """How the clause around a mention speaks of it."""
    # Both replacements keep the length, so that the span still fits.
    text = _NO_DENIAL.sub(lambda match: " " * len(match.group()), _lower(sentence))
    text = _OPENING_DENIAL.sub(r"\1;", text)
    start, end = 0, len(text)
    for match in _BREAK.finditer(text):
        if match.end() <= span[0]:
            start = match.end()
        elif match.start() >= span[1]:
            end = match.start()
            break
    before, after = text[start : span[0]], text[span[1] : end]
    if _DOUBLE_DENIAL.search(before) or _DOUBLE_DENIAL.search(after) or _HEDGED.search(before):
        return "unclear"
    if _HEDGED_BEHIND.search(after):
        return "unclear"
    return "denied" if _DENIES_AHEAD.search(before) or _DENIES_BACK.search(after) else "affirmed"
