"""Reading the letter of a multiple-choice answer: our own rule, and VLMEvalKit's when NegVQA appeared, on
which its figures depend. `options` are the texts behind A, B, C, ... in order.

    parse("A dog is on the left.", ["cat", "dog"])   -> Letter("B", ""): "A" is an article here
    parse("I cannot tell.", ["dog", "cat"])          -> Letter(None, "no option is named")
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from nein.loading.errors import choose
from nein.metrics.base import MetricError, paper_present, parse_yes_no, without_thoughts

LETTERS = string.ascii_uppercase
Rule = Literal["fixed", "vlmevalkit"]
#: How a choice is read off a model: from what it writes, or from the probabilities of the letters.
SCORINGS = ("generated", "logprob")

#: What pandas takes for a missing value: the default `na_values` of `pandas.read_csv`, which VLMEvalKit uses.
MISSING = frozenset(
    " #N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A NA NULL NaN None n/a nan null".split(" ")
) | {"#N/A N/A"}


class Letter(NamedTuple):
    """`letter`, or None with the `reason`. `declined`: by a rule of VLMEvalKit the answer chooses none, which
    is a reading: nobody else is asked."""

    letter: str | None
    reason: str
    declined: bool = False


def parse(answer: str, options: Sequence[str | None], rule: str = "fixed") -> Letter:
    """The option that an answer chooses. Raises MetricError for an unknown rule, or not 2 to 26 options.

    rule  "fixed": a letter at the beginning or in a statement ("the answer is B"), else the text of exactly
          one option. "A" before another word is the article unless something marks it. "vlmevalkit": see
          the function; an option may be None (`without_missing`).
    """
    choose("letter rule", rule, RULES)
    if not 2 <= len(options) <= len(LETTERS):
        raise MetricError(f"A question needs 2 to {len(LETTERS)} options, not {len(options)}.")
    return RULES[rule](answer, options)


def without_missing(options: Sequence[str]) -> tuple[str | None, ...]:
    """As VLMEvalKit reads options: None for those that pandas takes for missing."""
    return tuple(None if option in MISSING else option for option in options)


def by_option(answers: Sequence[str], rule: str = "fixed") -> Letter:
    """The only option that got a yes; answers: what was said about each. rule: "fixed", the first word
    decides, or "paper", yes in any case and everything else a no."""
    choose("yes-no rule", rule, ("fixed", "paper"))
    read = [parse_yes_no(a) if rule == "fixed" else paper_present(a) for a in answers]
    if None in read:
        return Letter(None, f"the answer about option {LETTERS[read.index(None)]} is neither yes nor no")
    if read.count(True) != 1:
        return Letter(None, "yes to several options" if any(read) else "no to every option")
    return Letter(LETTERS[read.index(True)], "")


# --- the rule of VLMEvalKit ----------------------------------------------------------------


#: What the toolkit writes in place of an answer that its server failed to give.
_FAILED = "Failed to obtain answer via API"
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


def vlmevalkit(answer: str, options: Sequence[str | None]) -> Letter:
    """Exact matching as VLMEvalKit (`can_infer`) did it, before it asked a language model, days before NegVQA
    appeared.

    The characters .()[],:;!*#{} become blanks; the one option whose letter stands alone among the words is
    the answer. Else the one option whose text occurs in the answer (any case, also inside a word). A "Z"
    without a letter, and four sentences of refusal, choose nothing. Quirks kept: "A" as an article counts as
    the letter, and a lower-case letter does not.

    Source: https://github.com/open-compass/VLMEvalKit, vlmeval/utils/matching_util.py at commit 0f27427e of
    25 May 2025.
    """
    texts = {letter: text for letter, text in zip(LETTERS, options, strict=False) if text is not None}
    if _FAILED not in answer:  # can_infer_option
        words = re.sub(r"[.()\[\],:;!*#{}]", " ", answer).split()
        named = [letter for letter in texts if letter in words]
        refused = any(refusal in answer for refusal in _REFUSALS)
        if refused or (not named and "Z" in words):
            return Letter(None, "the answer declines", declined=True)
        if len(named) == 1:
            return Letter(named[0], "")
    matched = [letter for letter, text in texts.items() if text.lower() in answer.lower()]  # can_infer_text
    if len(matched) == 1:
        return Letter(matched[0], "")
    return Letter(None, "several options match" if matched else "no option is named")


# --- our own rule --------------------------------------------------------------------------


_NOT = r"(?:not|isn't|is not|cannot|can't|n't|never|neither|nor|except|rather than|instead of|other than)"
#: Words that deny an option's text behind them (a word may stand between), where apostrophes are blanks.
_DENIED = (
    r"(?:not|no|without|never|neither|nor|cannot|except|rather than|instead of|other than"
    r"|(?:is|are|does|do|can|has|have|was|were)n t)"
)
_LEAD = r"(?:answer|option|choice|letter|choose|select|pick)"
_MARK = r"[*_`\"'(\[{<$\s]*"  # what may stand between a lead word and its letter
# A letter alone: no Latin letter, digit or apostrophe with more touches it.
_LATIN = r"0-9A-Za-z_\u00c0-\u024f"
_OPEN, _SHUT = rf"(?<![{_LATIN}'])", rf"(?![{_LATIN}]|'[{_LATIN}])"
#: "the answer is B", "Answer: (B)", "option B", "I choose B", "\boxed{B}", "**B**", "(B)", "it must be B.";
#: no two parts in a row take the same blanks.
_STATED = re.compile(
    rf"(?:\b(?P<word>{_LEAD})\b(?:\s+(?:is|would be|should be|must be|are))?(?:\s*[:=])?(?:\s+{_LEAD})?"
    rf"(?:\s*(?:is(?:\s*[:=])?|[:=]))?{_MARK}(?P<lead>[A-Za-z]){_SHUT}"
    r"|\\boxed\{\s*(?:\\(?:text|textbf|mathrm|mathbf)\{)?\s*(?P<box>[A-Z])\b"
    r"|\*\*\s*\(?(?P<bold>[A-Z])(?:[).:]?\s*\*\*|[).:]\s)"
    r"|\(\s*(?P<round>[A-Z])\s*\)"
    rf"|{_OPEN}(?P<close>[A-Z])\s+is\s+(?:the\s+)?(?:correct|right|true|answer)\b"
    rf"|(?<=:)\s?(?P<colon>[A-Z]){_SHUT}(?-i:(?! [a-z]))"
    r"|\b(?:is|be|it's|es|est|ist|with|say|think|seems|so|thus|therefore)\s+(?P<said>[A-Z])"
    rf"{_SHUT}(?-i:(?!(?<=[AI]) [a-z])))",
    re.IGNORECASE,
)
_ALONE = re.compile(r"[\s*_`\"'(\[{<$#>.:-]*(?:<[a-z_]+>\s*)?(?P<letter>[A-Za-z])[\s*_`\"')\]}>$.,:;!?]*")
_FIRST = re.compile(
    r"[\s*_`\"'(\[{<$#]*(?P<letter>[A-Z])"
    r"(?:[)\].:,;*_`\"']+(?=\s|$|[A-Z*])|\s*[-–—:=]\s*(?=\S)|\s*\n|\s+(?:because|since|as|is correct)\b)"
)
_BARE = re.compile(rf"{_OPEN}[A-Z]{_SHUT}")
_SIGNS = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"'})
#: End of text and turns, as decoders leave them.
_SPECIAL = re.compile(r"<\|[\w-]{1,40}\|>|</?s>|<eos>|<end_of_turn>")
#: The answer in a JSON object, in Python's notation of one, or in tags.
_FIELD = re.compile(
    r"""["'](?:final[_ ])?(?:answer|choice|option|letter)["']\s*:\s*(?P<quote>["'])(?P<value>.*?)(?P=quote)"""
    r"|<answer>(?P<tagged>.*?)</answer>",
    re.IGNORECASE | re.DOTALL,
)


def fixed(answer: str, options: Sequence[str]) -> Letter:
    """See `parse`. What comes before the end of a <think> block, and letters that are excluded, do not count.
    In order: the whole answer is a letter; it is an option's text; statements; a marked letter at the
    beginning; the options' texts within it."""
    if (behind := without_thoughts(_SPECIAL.sub(" ", _normal(answer)))) is None:
        return Letter(None, "the answer was cut off while the model was thinking")
    text = behind.strip()
    fields = {field["value"] or field["tagged"] or "" for field in _FIELD.finditer(text)}
    if len(fields) == 1:
        text = fields.pop().strip()
    letters = LETTERS[: len(options)]
    if not text:
        return Letter(None, "the answer is empty")
    if whole := _ALONE.fullmatch(text):
        letter = whole["letter"]
        if letter.upper() not in letters or (letter in map(_name, options) and letter.islower()):
            if choice := _the_option(letter, options, _name) or _the_option(letter, options, _literal):
                return choice
        return _checked(letter.upper(), letters)
    if choice := _the_option(text, options, _literal) or _the_option(text, options, _plain):
        return choice
    text, excluded = _without_excluded(_without_list(text, letters, options), letters)
    if excluded and (left := _ALONE.fullmatch(text.strip(" ,"))):
        return _checked(left["letter"].upper(), letters)
    read = _read(text, letters, options)
    if excluded and read.reason == "no option is named":
        return Letter(None, "the answer only says which option it is not")
    return read


def _the_option(text: str, options: Sequence[str], form: Callable[[str], str]) -> Letter | None:
    """The one option that is the text in that form."""
    same = [k for k, option in enumerate(options) if form(option) == form(text)]
    return Letter(LETTERS[same[0]], "") if len(same) == 1 else None


def _read(text: str, letters: str, options: Sequence[str]) -> Letter:
    """The letter in a sentence."""
    by_text, first, several = (
        _by_text(text, options),
        _FIRST.match(text),
        Letter(None, "several options are named"),
    )
    if by_text.letter is not None and any(len(_plain(o)) > 1 and _BARE.search(_normal(o)) for o in options):
        # "Point A" is an option, its "A" is none.
        same = first is None or first["letter"] not in letters or first["letter"] == by_text.letter
        return by_text if same else several
    if stated := _stated(text, letters, options, first["letter"] if first else ""):
        return stated
    if _lists(text, letters):
        return several
    return _checked(first["letter"], letters) if first else by_text


def _name(option: str) -> str:
    return _normal(option).strip()


def _checked(letter: str, letters: str) -> Letter:
    return Letter(letter, "") if letter in letters else Letter(None, f"'{letter}' is no option")


def _normal(text: str) -> str:
    """Full-width, circled and mathematical letters as plain ones; no invisible characters."""
    plain = unicodedata.normalize("NFKC", text)
    return "".join(c for c in plain if unicodedata.category(c) != "Cf").translate(_SIGNS)


def _without_list(text: str, letters: str, options: Sequence[str]) -> str:
    """The text without a repeated list of the options ("A. cat B. dog"), which chooses nothing."""
    texts = [re.escape(_normal(option).strip()) for option in options]
    behind = [rf"\s*{text}" if text else r"(?![).:])" for text in texts]
    item = "|".join(rf"\(?{letter}[).:]+{rest}" for letter, rest in zip(letters, behind, strict=True))
    return re.sub(rf"(?<!\w)(?:(?:{item})[\s,.;|]*){{2,}}", " ", text, flags=re.IGNORECASE).strip()


def _without_excluded(text: str, letters: str) -> tuple[str, bool]:
    """The text without letters that it rules out, and whether there were any."""
    letter = rf"(?:the\s+)?(?:{_LEAD}\s+)?\(?[{letters}]\)?{_SHUT}"
    before = (
        rf"(?:,\s*|\band\s+|\bbut\s+)?(?:\b|(?<=[a-z]))(?i:(?!n?either|nor){_NOT})\s+(?:be\s+)?"
        rf"(?!{letter}\s+(?:n?or|and)\b){letter}"
    )
    wrong = r"not\s+(?:the\s+)?(?:correct|right|true|answer)"
    behind = (
        rf"{_OPEN}(?i:(?:{_LEAD}\s+)?)\(?[{letters}]\)?\s+(?i:(?:is|are|was|can be|must be|could be)\s+"
        rf"(?:incorrect|wrong|false|excluded|eliminated|ruled out|{wrong})"
        r"(?:\s+(?:option|answer|choice))?)\b"
    )
    rest, count = re.subn(f"{before}|{behind}", " ", text)
    return rest.strip(), count > 0


def _stated(text: str, letters: str, options: Sequence[str], first: str) -> Letter | None:
    """What the statements of an answer agree on; None without one. The one letter that is called the answer
    stands above others; `first`, a marked letter at the beginning, must not disagree."""
    named: list[tuple[str, str]] = []  # letter, and how it is named
    for match in _STATED.finditer(text):
        kind = next(k for k in ("lead", "box", "bold", "round", "close", "colon", "said") if match[k])
        letter = match[kind]
        if letter.islower() and kind != "lead":
            continue
        # An article: "the answer is a dog", not "option a".
        article = letter.islower() and re.match(r" [a-z]", text[match.end(kind) : match.end(kind) + 2])
        if article and match["word"].lower() not in ("option", "choice", "letter"):
            continue
        named.append((letter.upper(), "answer" if (match["word"] or "").lower() == "answer" else kind))
    inside = [(letter, kind) for letter, kind in named if letter in letters]
    if not inside:
        if not named:
            return None
        return _the_option(named[-1][0], options, _plain) or _checked(named[-1][0], letters)
    several = Letter(None, "several options are named")
    if _lists(text, letters):
        return several
    answers = {letter for letter, kind in inside if kind == "answer"}
    last, kind = inside[-1]
    if len(answers) == 1 and (last in answers or kind == "round"):
        return Letter(answers.pop(), "")
    others = {letter for letter, _ in inside} | ({first} & set(letters))
    return several if others != {last} else Letter(last, "")


def _lists(text: str, letters: str) -> bool:
    """Whether letters are joined ("A and B", "A, B"), stand alone side by side, or are keys of an object."""
    letter = rf"\(?([{letters}])\)?"
    joined = rf"{_OPEN}{letter}\s*(?:and|n?or|&|/|,)\s*{letter}{_SHUT}"
    alone = set(text.split()) if re.fullmatch(rf"(?:[{letters}]\s+)+[{letters}]", text) else set()
    keys = {match[2] for match in re.finditer(rf"([\"'])([{letters}])\1\s*:", text)}
    several = any(match[1] != match[2] for match in re.finditer(joined, text))
    return several or len(alone) > 1 or len(keys) > 1


def _literal(text: str) -> str:
    return " ".join(_normal(text).casefold().split())


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s.%/-]", " ", _normal(text).lower()).split()).strip(" .")


def _by_text(text: str, options: Sequence[str]) -> Letter:
    """The one option whose text occurs as whole words, undenied; the longer of two that overlap."""
    rest, named, denied = f" {_plain(text)} ", [], False
    plain = [_plain(option) for option in options]
    for k in sorted(range(len(options)), key=lambda k: -len(plain[k])):
        wanted = plain[k]
        if not wanted or plain.count(wanted) > 1:  # "> 3" and "< 3": words alone do not tell them apart
            continue
        if re.fullmatch("[a-z]", wanted):  # "N" is no "n", and "a" before a word is the article
            letter = rf"{_OPEN}{_name(options[k])}{_SHUT}(?! [a-z])"
            named += [k] if re.search(letter, _normal(text)) else []
            continue
        pattern = (
            rf"(?<![\w-])(?P<no>{_DENIED} (?:\w+ )??(?:(?:a|an|the|any) )?)?"
            rf"(?:(?:a|an|the) )?{re.escape(wanted)}(?![\w-])"
        )
        denials = [bool(hit["no"]) for hit in re.finditer(pattern, rest)]
        named += [] if all(denials) else [k]
        denied |= bool(denials) and all(denials)
        rest = re.sub(pattern, " ", rest)
    if named:
        return Letter(LETTERS[named[0]], "") if len(named) == 1 else Letter(None, "several options are named")
    return Letter(None, "the answer only says which option it is not" if denied else "no option is named")


RULES: dict[str, Callable[[str, Any], Letter]] = {"fixed": fixed, "vlmevalkit": vlmevalkit}
