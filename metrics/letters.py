"""Reading the letter of a multiple-choice answer out of what a model wrote. Two rules, because published
figures depend on one of them.

    parse("The answer is (B).", ["dog", "cat"])               -> Letter("B", "")
    parse("A dog is on the left.", ["cat", "dog"])            -> Letter("B", ""): "A" is an article here
    parse("I cannot tell.", ["dog", "cat"])                   -> Letter(None, "no option is named")

`options` are the texts behind the letters A, B, C, ... in order.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

from metrics.base import MetricError, choose

LETTERS = string.ascii_uppercase


class Letter(NamedTuple):
    """`letter`: one of the options' letters, or None with the `reason` why there is none."""

    letter: str | None
    reason: str


def parse(answer: str, options: Sequence[str], rule: str = "fixed") -> Letter:
    """The option that an answer chooses.

    rule  "fixed": a letter at the beginning or in a statement ("the answer is B", "(B)"), else the text of
          exactly one option. An answer that names several options, only excludes one, declines, or names
          none has no letter. "A" before another word is the article unless something marks it as a letter.
          "vlmevalkit": see `vlmevalkit`.

    Raises MetricError for an unknown rule, fewer than two options, or more than 26.
    """
    choose("letter rule", rule, RULES)
    if not 2 <= len(options) <= len(LETTERS):
        raise MetricError(f"A question needs 2 to {len(LETTERS)} options, not {len(options)}.")
    return RULES[rule](answer, options)


# --- the rule of VLMEvalKit ----------------------------------------------------------------


_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


def vlmevalkit(answer: str, options: Sequence[str]) -> Letter:
    """Exact matching as VLMEvalKit does it without a language model to help.

    The characters .()[],:;!*#{} become blanks; if exactly one option's letter stands alone among the words,
    and first does so among the last four of them, it is the answer. Else the option whose text occurs in the
    answer (any case, also inside a word), if it is one only and the answer is at most twice as long as all
    options together. Quirks kept: "A" as an article counts as the letter, and a lower-case letter does not.
    Where this returns no letter, the toolkit counts the answer as wrong.

    Source: https://github.com/open-compass/VLMEvalKit, vlmeval/utils/matching_util.py.
    """
    letters = LETTERS[: len(options)]
    if any(refusal in answer for refusal in _REFUSALS):
        return Letter(None, "the answer declines")
    words = re.sub(r"[.()\[\],:;!*#{}]", " ", answer).split()
    named = [letter for letter in letters if letter in words]
    if len(named) == 1 and words.index(named[0]) > len(words) - 5:
        return Letter(named[0], "")
    if not named and "Z" in words:
        return Letter(None, "the answer declines")
    low = answer.lower()
    if len(low) > 2 * sum(map(len, options)):
        return Letter(None, "no letter among the last words, and too long to match the options' texts")
    matched = [letter for letter, text in zip(letters, options, strict=False) if text.lower() in low]
    if len(matched) == 1:
        return Letter(matched[0], "")
    return Letter(None, "several options match" if matched else "no option is named")


# --- our own rule --------------------------------------------------------------------------


_DECLINES = re.compile(
    r"\b(?:(?:can(?:no|')?t|can not|unable to|not able to|impossible to|not possible to)\s+"
    r"(?:be\s+)?(?:see|view|determine|tell|answer|process|help|assist|say|provide|identif\w+)"
    r"|don't know|do not know|not sure|insufficient information|not enough information)\b",
    re.IGNORECASE,
)
_NOT = r"(?:not|isn't|is not|n't|never|neither|nor|except|rather than|instead of|other than)"
#: Words that deny an option's text behind them (a word may stand between), where apostrophes are blanks.
_DENIED = (
    r"(?:not|no|without|never|neither|nor|cannot|except|rather than|instead of|other than"
    r"|(?:is|are|does|do|can|has|have|was|were)n t)"
)
_LEAD = r"(?:answer|option|choice|letter|choose|select|pick)"
_MARK = r"[*_`\"'(\[{<$\s]*"  # what may stand between a lead word and its letter
#: "the answer is B", "Answer: (B)", "option B", "I choose B", "\boxed{B}", "**B**", "(B)", "it must be B."
_STATED = re.compile(
    rf"(?:\b{_LEAD}\b(?:\s+(?:is|would be|should be|must be|are))?\s*[:=]?(?P<no>\s+{_NOT})?(?:\s+{_LEAD})?"
    rf"\s*(?:is\s*)?[:=]?{_MARK}(?P<lead>[A-Za-z])(?![\w'’])"
    r"|\\boxed\{\s*(?:\\text\{)?\s*(?P<box>[A-Z])\b"
    r"|\*\*\s*\(?(?P<bold>[A-Z])[).:]?\s*(?:\*\*|\s)"
    rf"|(?P<not>\b{_NOT}\s+)?\(\s*(?P<round>[A-Z])\s*\)"
    r"|(?P<close>(?<![\w'’])[A-Z])\s+is\s+(?P<wrong>in|not\s+)?(?:the\s+)?(?:correct|right|true|answer)\b"
    rf"|(?P<never>\b{_NOT}\s+)?(?<![\w'.])(?P<end>[A-Z])[\s.!)*\"']*$)",
    re.IGNORECASE,
)
_ALONE = re.compile(r"[\s*_`\"'(\[{<$#.:]*(?:<[a-z_]+>\s*)?(?P<letter>[A-Za-z])[\s*_`\"')\]}>$.,:;!]*")
_FIRST = re.compile(
    r"[\s*_`\"'(\[{<$#]*(?P<letter>[A-Z])"
    r"(?:[)\].:,;*_`\"']+(?=\s|$|[A-Z*])|\s*[-–—:=]\s*(?=\S)|\s*\n|\s+(?:because|since|as|is correct)\b)"
)
_BARE = re.compile(r"(?<![\w'’])[A-Z](?![\w'’])")
_QUOTES = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "：": ":", "（": "(", "）": ")"})


def fixed(answer: str, options: Sequence[str]) -> Letter:
    """See `parse`. In order: the whole answer is a letter; statements; a marked letter at the beginning;
    the options' texts; a single bare capital that is no article."""
    text = answer.translate(_QUOTES).strip()
    letters = LETTERS[: len(options)]
    if not text:
        return Letter(None, "the answer is empty")
    if whole := _ALONE.fullmatch(text):
        return _checked(whole["letter"].upper(), letters)
    exact = [k for k, option in enumerate(options) if _plain(option) == _plain(text)]
    if len(exact) == 1:
        return Letter(letters[exact[0]], "")
    if stated := _stated(text, letters, options):
        return stated
    if (first := _FIRST.match(text)) and not _lists(text, letters):
        return _checked(first["letter"], letters)
    by_text = _by_text(text, options)
    if by_text.letter is not None or by_text.reason != "no option is named":
        return by_text
    bare = {found for found in _BARE.findall(text) if found in letters and found not in "AI"}
    if _lists(text, letters):
        return Letter(None, "several options are named")
    if len(bare) == 1 and not re.search(rf"\b{_NOT}\b", text, re.IGNORECASE):
        return Letter(bare.pop(), "")
    if _DECLINES.search(text):
        return Letter(None, "the answer declines")
    return Letter(None, "several options are named" if len(bare) > 1 else "no option is named")


def _checked(letter: str, letters: str) -> Letter:
    return Letter(letter, "") if letter in letters else Letter(None, f"'{letter}' is no option")


def _stated(text: str, letters: str, options: Sequence[str]) -> Letter | None:
    """What the statements of an answer agree on; None when there is none."""
    named: list[str] = []
    answers: list[str] = []  # those called the answer
    excluded = False
    for found in _STATED.finditer(text):
        kind = next(k for k in ("lead", "box", "bold", "round", "close", "end") if found[k])
        letter = found[kind]
        if letter.islower() and kind != "lead":
            continue
        if kind == "lead" and _is_article(text, found.end("lead"), letter):
            continue
        if found["no"] or found["not"] or found["wrong"] or found["never"]:
            excluded = True
            continue
        named.append(letter.upper())
        if re.match("answer", found[0], re.IGNORECASE):
            answers.append(letter.upper())
    inside = [letter for letter in named if letter in letters]
    if not inside:
        if named:
            return Letter(None, f"'{named[-1]}' is no option")
        if excluded and _by_text(text, options).letter is None:
            return Letter(None, "the answer only says which option it is not")
        return None
    if _lists(text, letters):
        return Letter(None, "several options are named")
    if len(set(inside)) > 1 and set(answers) != {inside[-1]}:
        return Letter(None, "several options are named")
    return Letter(inside[-1], "")


def _is_article(text: str, end: int, letter: str) -> bool:
    """Whether a small letter that ends at `end` begins a phrase ("the answer is a dog")."""
    return letter.islower() and re.match(r" [a-z]", text[end:]) is not None


def _lists(text: str, letters: str) -> bool:
    """Whether letters are joined: "A and B", "A or B", "A, B", "neither A nor B"."""
    one = rf"\(?[{letters}]\)?"
    return re.search(rf"(?<!\w){one}\s*(?:and|n?or|&|/|,)\s*{one}(?![\w'])", text) is not None


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s.%/-]", " ", text.translate(_QUOTES).lower()).split()).strip(" .")


def _by_text(text: str, options: Sequence[str]) -> Letter:
    """The one option whose text occurs as whole words; the longer of two that overlap; not where it is denied
    ("no dog", "not a dog", "does not show a dog")."""
    rest = f" {_plain(text)} "
    found: list[int] = []
    denied = False
    for k in sorted(range(len(options)), key=lambda k: -len(_plain(options[k]))):
        wanted = _plain(options[k])
        if not wanted:
            continue
        pattern = (
            rf"(?<![\w-])(?P<no>{_DENIED} (?:\w+ )??(?:(?:a|an|the|any) )?)?"
            rf"(?:(?:a|an|the) )?{re.escape(wanted)}(?![\w-])"
        )
        hits = list(re.finditer(pattern, rest))
        if any(not hit["no"] for hit in hits):
            found.append(k)
        elif hits:
            denied = True
        rest = re.sub(pattern, " ", rest)
    if len(found) == 1:
        return Letter(LETTERS[found[0]], "")
    if found:
        return Letter(None, "several options are named")
    return Letter(None, "the answer only says which option it is not" if denied else "no option is named")


#: The rules by name.
RULES: dict[str, Callable[[str, Sequence[str]], Letter]] = {"fixed": fixed, "vlmevalkit": vlmevalkit}
