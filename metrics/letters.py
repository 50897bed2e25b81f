"""Reads which letter a multiple-choice answer chooses, by our own rule ("fixed") or by VLMEvalKit's.

NegVQA's numbers were computed by VLMEvalKit's of May 2025. `options` are the texts of A, B, C, ... in order:

    parse("A dog is on the left.", ["cat", "dog"])   -> Letter("B", ""): "A" is an article here
    parse("I cannot tell.", ["dog", "cat"])          -> Letter(None, "no option is named")
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nein.loading.errors import choose
from nein.metrics.base import MetricError
from nein.metrics.chat import strip_thoughts
from nein.metrics.judges.base import paper_says_present, parse_yes_no

LETTERS = string.ascii_uppercase
#: From what a choice is read: the written answer, or the probabilities of the letters.
SCORINGS = ("generated", "logprob")

#: Texts that pandas reads as missing: the default `na_values` of `pandas.read_csv`, which VLMEvalKit uses.
MISSING = frozenset(
    " #N/A #NA -1.#IND -1.#QNAN -NaN -nan 1.#IND 1.#QNAN <NA> N/A NA NULL NaN None n/a nan null".split(" ")
) | {"#N/A N/A"}


class Letter(NamedTuple):
    """The letter that an answer chooses, or None and a reason."""

    letter: str | None
    reason: str  # why there is no letter; "" if there is one
    declined: bool = False  # VLMEvalKit's rule: the answer refuses to choose; no language model is asked


_SEVERAL = Letter(None, "several options are named")


def parse(answer: str, options: Sequence[str | None], rule: str = "fixed") -> Letter:
    """Find the option that an answer chooses. Raises MetricError for an unknown rule, or unless there are 2
    to 26 options.

    rule  "fixed": a letter at the beginning or in a statement ("the answer is B"), else the text of exactly
          one option. "A" before another word is the article unless a sign or a word marks it as a letter.
          "vlmevalkit": see `read_vlmevalkit`; an option may be None (`drop_missing`)."""
    choose("letter rule", rule, RULES)
    if not 2 <= len(options) <= len(LETTERS):
        raise MetricError(f"A question needs 2 to {len(LETTERS)} options, not {len(options)}.")
    return RULES[rule](answer, options)


def drop_missing(options: Sequence[str]) -> tuple[str | None, ...]:
    """Options as VLMEvalKit reads them: None for those in `MISSING`."""
    return tuple(None if option in MISSING else option for option in options)


def read_verdicts(answers: Sequence[str], rule: str = "fixed") -> Letter:
    """Find the only option answered with yes, from one answer per option. rule: "fixed", the first word
    decides; "paper", only "yes" in any case is a yes, and everything else a no."""
    choose("yes-no rule", rule, ("fixed", "paper"))
    read = parse_yes_no if rule == "fixed" else paper_says_present
    verdicts = [read(answer) for answer in answers]  # None: neither yes nor no
    if None in verdicts:
        return Letter(None, f"the answer about option {LETTERS[verdicts.index(None)]} is neither yes nor no")
    if verdicts.count(True) != 1:
        return Letter(None, "yes to several options" if any(verdicts) else "no to every option")
    return Letter(LETTERS[verdicts.index(True)], "")


# --- the rule of VLMEvalKit ----------------------------------------------------------------
#: VLMEvalKit's text for an answer that its server did not give.
_FAILED = "Failed to obtain answer via API"
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)


def read_vlmevalkit(answer: str, options: Sequence[str | None]) -> Letter:
    """VLMEvalKit's exact matching (`can_infer`), its step before it asks a language model.

    The characters .()[],:;!*#{} become blanks; the only option whose letter is a word of its own is the
    answer. Else it is the only option whose text occurs in the answer (any case, also inside a word). A "Z"
    without a letter, and four sentences of refusal, choose nothing. Quirks kept: "A" as an article counts as
    the letter, and a lower-case letter does not.
    Source: https://github.com/open-compass/VLMEvalKit, vlmeval/utils/matching_util.py at commit 0f27427e of
    25 May 2025, days before NegVQA."""
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
_LEAD = r"(?:answer|option|choice|letter|choose|select|pick)"  # words that announce a letter
# Borders of a single letter: no Latin letter, digit or apostrophe with a letter touches it.
_LATIN = r"0-9A-Za-z_\u00c0-\u024f"
_BEFORE, _AFTER = rf"(?<![{_LATIN}'])", rf"(?![{_LATIN}]|'[{_LATIN}])"
#: Special tokens that decoding may leave in a text.
_SPECIAL_TOKEN = re.compile(r"<\|[\w-]{1,40}\|>|</?s>|<eos>|<end_of_turn>")
#: An answer in a JSON object, in a Python dictionary, or in tags.
_FIELD = re.compile(
    r"""["'](?:final[_ ])?(?:answer|choice|option|letter)["']\s*:\s*(?P<quote>["'])(?P<value>.*?)(?P=quote)"""
    r"|<answer>(?P<tagged>.*?)</answer>",
    re.IGNORECASE | re.DOTALL,
)
#: The whole text is a letter: "B", "(b).", "**B**".
_ALONE = re.compile(r"[\s*_`\"'(\[{<$#>.:-]*(?:<[a-z_]+>\s*)?(?P<letter>[A-Za-z])[\s*_`\"')\]}>$.,:;!?]*")


def read_fixed(answer: str, options: Sequence[str]) -> Letter:
    """Our own rule (`parse`). Thoughts and excluded letters ("not B") are ignored. In order: the whole answer
    is a letter; the whole is an option's text; then the steps of `_read_sentence`."""
    visible = strip_thoughts(_SPECIAL_TOKEN.sub(" ", _normalize(answer)))
    if visible is None:
        return Letter(None, "the answer was cut off while the model was thinking")
    text = visible.strip()
    fields = {field["value"] or field["tagged"] or "" for field in _FIELD.finditer(text)}
    if len(fields) == 1:
        text = fields.pop().strip()
    if not text:
        return Letter(None, "the answer is empty")
    letters = LETTERS[: len(options)]

    # The whole answer is a letter, or an option's text.
    if match := _ALONE.fullmatch(text):
        letter = match["letter"]
        # It may be the text of an option: any letter that is no option's, or a lower-case one ("b").
        if letter.upper() not in letters or (letter in map(_strip, options) and letter.islower()):
            if choice := _match_option(letter, options, _strip) or _match_option(letter, options, _fold):
                return choice
        return _make_letter(letter.upper(), letters)
    if choice := _match_option(text, options, _fold) or _match_option(text, options, _keep_words):
        return choice

    # It is a sentence; first without the letters that it excludes.
    text, excludes = _remove_excluded(_remove_list(text, letters, options), letters)
    if excludes and (match := _ALONE.fullmatch(text.strip(" ,"))):
        return _make_letter(match["letter"].upper(), letters)
    result = _read_sentence(text, letters, options)
    if excludes and result.reason == "no option is named":
        return Letter(None, "the answer only says which option it is not")
    return result


def _match_option(text: str, options: Sequence[str], simplify: Callable[[str], str]) -> Letter | None:
    """Find the only option that equals the text after `simplify`; None if none or several do."""
    matches = [k for k, option in enumerate(options) if simplify(option) == simplify(text)]
    return Letter(LETTERS[matches[0]], "") if len(matches) == 1 else None


#: A marked letter at the beginning: "B. ", "B: dog", "B because".
_FIRST_LETTER = re.compile(
    r"[\s*_`\"'(\[{<$#]*(?P<letter>[A-Z])"
    r"(?:[)\].:,;*_`\"']+(?=\s|$|[A-Z*])|\s*[-–—:=]\s*(?=\S)|\s*\n|\s+(?:because|since|as|is correct)\b)"
)
_LETTER_WORD = re.compile(rf"{_BEFORE}[A-Z]{_AFTER}")


def _read_sentence(text: str, letters: str, options: Sequence[str]) -> Letter:
    """Find the letter, in order: option texts that hold letters, statements, a first letter, option texts."""
    by_text = _find_option_text(text, options)
    first = _FIRST_LETTER.match(text)  # a marked letter at the beginning
    # Options such as "Point A" hold letters, which must not be read as answers.
    hold_letters = any(len(_keep_words(o)) > 1 and _LETTER_WORD.search(_normalize(o)) for o in options)
    if by_text.letter is not None and hold_letters:
        agrees = first is None or first["letter"] not in letters or first["letter"] == by_text.letter
        return by_text if agrees else _SEVERAL
    if stated := _find_statement(text, letters, options, first["letter"] if first else ""):
        return stated
    if _lists_letters(text, letters):
        return _SEVERAL
    return _make_letter(first["letter"], letters) if first else by_text


def _make_letter(letter: str, letters: str) -> Letter:
    return Letter(letter, "") if letter in letters else Letter(None, f"'{letter}' is no option")


# Forms of a text: " Ａ “Red” Dog." => _strip: 'A "Red" Dog.' _fold: 'a "red" dog.' _keep_words: "a red dog"
def _normalize(text: str) -> str:
    """Replace full-width, circled and mathematical letters and quotes by plain ones; drop invisible signs."""
    plain = unicodedata.normalize("NFKC", text).translate(str.maketrans("’‘“”", "''\"\""))
    return "".join(c for c in plain if unicodedata.category(c) != "Cf")


def _strip(text: str) -> str:
    return _normalize(text).strip()


def _fold(text: str) -> str:
    return " ".join(_normalize(text).casefold().split())


def _keep_words(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s.%/-]", " ", _normalize(text).lower()).split()).strip(" .")


def _remove_list(text: str, letters: str, options: Sequence[str]) -> str:
    """Remove a repeated list of the options ("A. cat B. dog"), which chooses nothing."""
    items = []  # patterns: "A. cat", "(B) dog"
    for letter, option in zip(letters, options, strict=True):
        option_text = re.escape(_strip(option))
        items.append(rf"\(?{letter}[).:]+" + (rf"\s*{option_text}" if option_text else r"(?![).:])"))
    return re.sub(rf"(?<!\w)(?:(?:{'|'.join(items)})[\s,.;|]*){{2,}}", " ", text, flags=re.IGNORECASE).strip()


def _remove_excluded(text: str, letters: str) -> tuple[str, bool]:
    """Return (text without the letters that it rules out, whether there were any)."""
    letter = rf"(?:the\s+)?(?:{_LEAD}\s+)?\(?[{letters}]\)?{_AFTER}"
    no = r"(?:not|isn't|is not|cannot|can't|n't|never|neither|nor|except|rather than|instead of|other than)"
    no_letter = (  # "not B", "but it isn't the option B"
        rf"(?:,\s*|\band\s+|\bbut\s+)?(?:\b|(?<=[a-z]))(?i:(?!n?either|nor){no})\s+(?:be\s+)?"
        rf"(?!{letter}\s+(?:n?or|and)\b){letter}"
    )
    wrong = r"not\s+(?:the\s+)?(?:correct|right|true|answer)"
    letter_is_wrong = (  # "B is not correct", "option B can be ruled out"
        rf"{_BEFORE}(?i:(?:{_LEAD}\s+)?)\(?[{letters}]\)?\s+(?i:(?:is|are|was|can be|must be|could be)\s+"
        rf"(?:incorrect|wrong|false|excluded|eliminated|ruled out|{wrong})"
        r"(?:\s+(?:option|answer|choice))?)\b"
    )
    remaining, count = re.subn(f"{no_letter}|{letter_is_wrong}", " ", text)
    return remaining.strip(), count > 0


_MARKS = r"[*_`\"'(\[{<$\s]*"  # characters allowed between a word of `_LEAD` and its letter
#: A statement that names a letter. No two adjacent parts match the same blanks: matching stays linear.
_STATEMENT = re.compile(
    # "the answer is B", "Answer: (B)", "option B", "I choose B"
    rf"(?:\b(?P<word>{_LEAD})\b(?:\s+(?:is|would be|should be|must be|are))?(?:\s*[:=])?(?:\s+{_LEAD})?"
    rf"(?:\s*(?:is(?:\s*[:=])?|[:=]))?{_MARKS}(?P<lead>[A-Za-z]){_AFTER}"
    r"|\\boxed\{\s*(?:\\(?:text|textbf|mathrm|mathbf)\{)?\s*(?P<box>[A-Z])\b"  # "\boxed{B}"
    r"|\*\*\s*\(?(?P<bold>[A-Z])(?:[).:]?\s*\*\*|[).:]\s)"  # "**B**"
    r"|\(\s*(?P<round>[A-Z])\s*\)"  # "(B)"
    rf"|{_BEFORE}(?P<subject>[A-Z])\s+is\s+(?:the\s+)?(?:correct|right|true|answer)\b"  # "B is correct"
    rf"|(?<=:)\s?(?P<colon>[A-Z]){_AFTER}(?-i:(?! [a-z]))"  # "the animal: B"
    # "it must be B.", "I think B"
    r"|\b(?:is|be|it's|es|est|ist|with|say|think|seems|so|thus|therefore)\s+(?P<object>[A-Z])"
    rf"{_AFTER}(?-i:(?!(?<=[AI]) [a-z])))",
    re.IGNORECASE,
)


def _find_statement(text: str, letters: str, options: Sequence[str], first: str) -> Letter | None:
    """Find the letter that all statements agree on; None without statements. A letter called "the answer"
    outranks others. `first`, a marked letter at the beginning ("": none), must not disagree."""
    named: list[tuple[str, str]] = []  # (letter, group of `_STATEMENT` or "answer")
    for match in _STATEMENT.finditer(text):
        group = match.lastgroup or ""  # the group of the letter: no other group closes after it
        letter = match[group]
        lead_word = (match["word"] or "").lower()
        if letter.islower() and group != "lead":
            continue
        # "the answer is a dog" has an article, "option a" a letter.
        is_article = letter.islower() and re.compile(" [a-z]").match(text, match.end(group))
        if is_article and lead_word not in ("option", "choice", "letter"):
            continue
        named.append((letter.upper(), "answer" if lead_word == "answer" else group))
    if not named:
        return None
    valid = [(letter, group) for letter, group in named if letter in letters]
    if not valid:
        last_named = named[-1][0]
        return _match_option(last_named, options, _keep_words) or _make_letter(last_named, letters)
    if _lists_letters(text, letters):
        return _SEVERAL
    answers = {letter for letter, group in valid if group == "answer"}
    last, last_group = valid[-1]
    if len(answers) == 1 and (last in answers or last_group == "round"):
        return Letter(answers.pop(), "")
    stated = {letter for letter, _ in valid} | ({first} & set(letters))
    return Letter(last, "") if stated == {last} else _SEVERAL


def _lists_letters(text: str, letters: str) -> bool:
    """Whether letters are joined ("A and B", "A, B"), the only words ("A B"), or keys of a JSON object."""
    letter = rf"\(?([{letters}])\)?"
    joined = rf"{_BEFORE}{letter}\s*(?:and|n?or|&|/|,)\s*{letter}{_AFTER}"
    only_words = set(text.split()) if re.fullmatch(rf"(?:[{letters}]\s+)+[{letters}]", text) else set()
    keys = {match[2] for match in re.finditer(rf"([\"'])([{letters}])\1\s*:", text)}
    is_joined = any(match[1] != match[2] for match in re.finditer(joined, text))
    return is_joined or len(only_words) > 1 or len(keys) > 1


#: Words that deny the option text after them (one word may stand between); apostrophes are blanks.
_DENIAL = (
    r"(?:not|no|without|never|neither|nor|cannot|except|rather than|instead of|other than"
    r"|(?:is|are|does|do|can|has|have|was|were)n t)"
)


def _find_option_text(text: str, options: Sequence[str]) -> Letter:
    """Find the only option whose words occur and are not denied; the longer one where two overlap."""
    remaining = f" {_keep_words(text)} "  # words that no longer option has used
    named = []  # indices of options
    has_denied = False
    option_texts = [_keep_words(option) for option in options]
    for k in sorted(range(len(options)), key=lambda k: -len(option_texts[k])):
        option_text = option_texts[k]
        if not option_text or option_texts.count(option_text) > 1:  # "> 3" and "< 3" have the same words
            continue
        if re.fullmatch("[a-z]", option_text):  # "N" is no "n", and "a" before a word is the article
            letter = rf"{_BEFORE}{_strip(options[k])}{_AFTER}(?! [a-z])"
            if re.search(letter, _normalize(text)):
                named.append(k)
            continue
        pattern = (
            rf"(?<![\w-])(?P<no>{_DENIAL} (?:\w+ )??(?:(?:a|an|the|any) )?)?"
            rf"(?:(?:a|an|the) )?{re.escape(option_text)}(?![\w-])"
        )
        denials = [bool(hit["no"]) for hit in re.finditer(pattern, remaining)]  # per occurrence
        if not all(denials):
            named.append(k)
        elif denials:
            has_denied = True
        remaining = re.sub(pattern, " ", remaining)
    if named:
        return Letter(LETTERS[named[0]], "") if len(named) == 1 else _SEVERAL
    reason = "the answer only says which option it is not" if has_denied else "no option is named"
    return Letter(None, reason)


RULES: dict[str, Callable[[str, Any], Letter]] = {"fixed": read_fixed, "vlmevalkit": read_vlmevalkit}
