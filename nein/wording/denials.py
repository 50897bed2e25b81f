"""A rule that finds the objects which an English sentence denies.

A word that denies ("no", "without", "lacks", "free of", "missing", "except" after "all") denies the noun
phrase that follows it, or the one before it: "a cup is missing"; but "absent is a cup". A "not" does where
its verb says what there is: "does not have", "is not in the image", but not "is not brown". What is denied
an even number of times is there: "is not without a cat". "No one" and "unoccupied" deny a person.

The rule is told neither the object's name nor that a sentence is negative.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nein.wording.families import plural

#: Heads of noun phrases that name no object: the image itself, and words of the idioms that deny.
SETTING = frozenset(
    """image picture photo photograph shot scene view sight frame part case presence absence anything
    everything nothing something everyone nobody all none it they this that there here one trace sign time
    place rest""".split()
)
#: They deny the noun phrase that follows, or, where no object follows, the one before: "none of it is seen".
FOLLOWED = tuple(
    "no,neither,nor,no longer,not a single,no sign of,no trace of,without,lack,absence of,absent of,free of,"
    "devoid of,void of,empty of,vacant of,bare of,clear of,rather than,instead of,never,used to be,exclude,"
    "omit,hardly any,zero,unaccompanied by,unattended by,unoccupied by".split(",")
)
#: They deny the noun phrase before them, or where one follows at once ("missing is a cup"), that one.
PRECEDED = tuple("missing,absent,nowhere,gone,not part of,used to be there,lacking,- free,- less".split(","))
#: They say that no person is there; the first, behind "no" or "without".
SOMEBODY = frozenset("one anyone anybody".split())
NOBODY = frozenset("nobody unoccupied uninhabited unattended".split())
#: They deny what follows where "everything" or its like is before them.
EXCEPTIONS = ("but", "except", "except for", "besides", "apart from", "other than", "save for", "bar")
EVERYTHING = frozenset("everything all anything everyone".split())
#: Verbs and complements with which a "not" says that something is absent.
EXISTENCE = frozenset(
    """have contain show include feature depict display want need be appear exist see find visible there
    here present true any""".split()
)
_DETERMINERS = frozenset(
    "a an the no not n't neither nor any single some only this that these those another all every".split()
)
# "not all cats" leaves some, "not only a cat" denies none.
_PARTIAL = frozenset("all every only just merely everything everyone".split())
_CONNECTING = frozenset("and but or with while is are does do has have , there".split())
_LONGEST = 4
_IDIOMS = frozenset("sign trace of used to be there a single part than".split())
_CUE_WORDS = frozenset(word for cue in (*FOLLOWED, *PRECEDED) for word in cue.split()) - _IDIOMS


@dataclass(frozen=True)
class Denials:
    """The objects of a sentence, without their articles, in order."""

    absent: tuple[str, ...]
    present: tuple[str, ...]
    doubled: bool = False  # whether something is there that was denied twice
    affirmed: str = ""  # without what is denied: "A cat on a mat. There is no dog." -> "A cat on a mat."


@dataclass
class _Phrase:
    """A noun phrase doc[start:end], or `name`. denied: how many times."""

    start: int
    end: int
    article: bool
    denied: int = 0
    name: str = ""


def read(sentences: Sequence[str]) -> list[Denials]:
    """Finds the objects that every sentence denies. Raises MetricError without spaCy's English model."""
    from nein.metrics.presence import spacy_model

    plain = [sentence.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") for sentence in sentences]
    return [_read(doc) for doc in spacy_model().pipe(plain)]


def _read(doc: Any) -> Denials:
    phrases = list(_phrases(doc))
    words = [token.lower_ for token in doc]
    lemmas = [token.lemma_.lower() for token in doc]
    index, left_out = 0, set[int]()
    while index < len(words):
        for length in range(_LONGEST, 0, -1):
            cue = {" ".join(form[index : index + length]) for form in (words, lemmas)}
            denied = _find_denied(doc, words, cue, index, index + length, phrases)
            if denied is not None:
                for phrase in denied:
                    phrase.denied += 1
                    first = min(index, phrase.start - phrase.article)
                    left_out |= {*range(first, max(index + length, phrase.end))}
                index += length - 1
                break
        index += 1
    phrases = [phrase for phrase in phrases if phrase.denied or not phrase.name]
    named = [(p.name or " ".join(words[p.start : p.end]), p.denied % 2 == 1) for p in phrases]
    absent = tuple(name for name, odd in named if odd)
    present = tuple(name for name, odd in named if not odd)
    doubled = any(phrase.denied and phrase.denied % 2 == 0 for phrase in phrases)
    return Denials(absent, present, doubled, _keep_affirmed(doc, phrases, left_out) if absent else doc.text)


def _keep_affirmed(doc: Any, phrases: Sequence[_Phrase], left_out: set[int]) -> str:
    """The sentences that affirm something, without the words at `left_out` and dangling connectives."""
    ends = sorted({token.i + 1 for token in doc if token.lower_ in (".", ";", "!")} | {len(doc)})
    parts, start = [], 0
    for end in ends:
        if any(start <= phrase.start < end and phrase.denied % 2 == 0 for phrase in phrases):
            tokens = [token for token in doc[start:end] if token.i not in left_out and not token.is_punct]
            while tokens and tokens[-1].lower_ in _CONNECTING:
                tokens.pop()
            while tokens and tokens[0].lower_ in _CONNECTING:
                tokens.pop(0)
            stop = doc[end - 1].text if doc[end - 1].is_punct else ""
            parts.append("".join(token.text_with_ws for token in tokens).strip() + stop)
        start = end
    return " ".join(parts)


def _phrases(doc: Any) -> Iterator[_Phrase]:
    """The noun phrases that name objects: runs of adjectives and nouns. The parser's chunks would take
    "an oven but no chair" for one: short sentences are parsed wrongly more often than tagged."""
    start = 0
    while start < len(doc):
        end = start
        while end < len(doc) and _may_name(doc, end):
            end += 1
        next_start = max(end, start + 1)
        if (person := _person(doc, start)) is not None:
            yield person
            start = person.end
            continue
        while end > start and doc[end - 1].lemma_.lower() in EXISTENCE | {"nearby"}:
            end -= 1
        article = start > 0 and doc[start - 1].lower_ in _DETERMINERS
        a_noun = any(token.pos_ in ("NOUN", "PROPN") for token in doc[start:end])
        if end > start and (a_noun or start == 0 or _opens(doc[start - 1])):
            last = doc[end - 1]
            idiom = last.lower_ in ("sign", "trace") and not (end < len(doc) and doc[end].lower_ == "of")
            if last.lemma_.lower() not in SETTING or idiom:
                yield _Phrase(start, end, article)
        start = next_start


def _person(doc: Any, index: int) -> _Phrase | None:
    """The person that "no one" or "unoccupied" denies; of "anyone" only another word may deny it."""
    word, before = doc[index].lower_, doc[index - 1].lower_ if index else ""
    predicate = doc[index].dep_ != "amod"  # "the bench is unoccupied", and no unattended bag
    if word in NOBODY and predicate and doc[index : index + 2].text.lower() != f"{word} by":
        return _Phrase(index, index + 1, article=False, denied=1, name="person")
    if word in SOMEBODY and (word != "one" or before == "no"):
        return _Phrase(index, index + 1, article=False, name="person")
    return None


def _may_name(doc: Any, index: int) -> bool:
    """Whether a word may be part of the name of an object."""
    token = doc[index]
    if token.lower_ in _DETERMINERS or _is_cue(token) or _person(doc, index):
        return False
    if token.pos_ in ("NOUN", "PROPN", "ADJ") or (index > 0 and doc[index - 1].lemma_ in ("without", "lack")):
        return True
    if token.pos_ == "ADV":  # the second word of "fire hydrant", as the tagger has it
        return index > 0 and doc[index - 1].pos_ == "NOUN" and not token.is_stop
    if token.pos_ in ("VERB", "ADP"):  # "Tie is missing.", "without surfboard", "any stop sign", as tagged
        if index == 0:
            return len(doc) > 1 and doc[1].pos_ in ("AUX", "NOUN") and doc[0].tag_ != "VBG"
        return _opens(doc[index - 1])
    return False


def _opens(token: Any) -> bool:
    """Whether what comes next names an object, whatever the tagger thinks of it."""
    return token.lower_ in _DETERMINERS - {"n't", "to"} or token.lemma_.lower() in ("without", "lack")


def _find_denied(
    doc: Any, words: list[str], cue: set[str], start: int, end: int, phrases: list[_Phrase]
) -> list[_Phrase] | None:
    """The phrases denied by the cue doc[start:end], given as written and as lemmas; None without a cue."""
    # A denial reaches as far as no new clause begins.
    following = [
        part for part in phrases if part.start >= end and not {"but", ";", "."} & set(words[end : part.start])
    ]
    before = [phrase for phrase in phrases if phrase.end <= start]
    if cue & set(PRECEDED):
        inverted = _find_inverted(words, end, following)
        return _join_phrases(words, inverted, any_article=False) if inverted else before[-1:]
    if cue & set(EXCEPTIONS) and EVERYTHING & set(words[:start]) and words[end : end + 1] != ["no"]:
        return _join_phrases(words, following, any_article=True)
    if "absence of" in cue and "," in words[end:]:  # "in the absence of a cup, a dog sleeps"
        comma = words.index(",", end)
        following = [phrase for phrase in following if phrase.start < comma]
    if cue & set(FOLLOWED):
        return _join_phrases(words, following, any_article="no" not in cue) if following else before[-1:]
    if cue & {"not", "n't"}:
        if end < len(words) and words[end] in _PARTIAL:
            return []
        return (
            _join_phrases(words, following, any_article=True) or before[-1:]
            if _is_existence(doc[start])
            else []
        )
    return None


def _find_inverted(words: list[str], end: int, following: list[_Phrase]) -> list[_Phrase]:
    """The phrases denied by a cue before them: "missing is a cup", "absent from the image is a cup"; none in
    "a cup is missing from the image"."""
    if words[end : end + 1] == ["from"]:
        verbs = [index for index in range(end, len(words)) if words[index] in ("is", "are")]
        if not verbs or "," in words[end : verbs[0]]:
            return []
        end = verbs[0]
    following = [phrase for phrase in following if phrase.start > end]
    between = words[end : following[0].start] if following else []
    opened = between[:1] in (["is"], ["are"], ["a"], ["an"], ["any"])
    return following if opened and set(between[1:]) <= _DETERMINERS else []


def _join_phrases(words: list[str], phrases: list[_Phrase], *, any_article: bool) -> list[_Phrase]:
    """The first phrase and those joined to it: both of "no cats or dogs", the first of "no cat and a dog"."""
    joined = phrases[:1]
    for phrase in phrases[1:]:
        between = set(words[joined[-1].end : phrase.start]) - _DETERMINERS
        listed = between and between <= {"or", "and", ","}
        new_article = phrase.article and "and" in between and not any_article
        if not listed or new_article or words[phrase.start - 1] in ("not", "no", "nor"):
            break
        joined.append(phrase)
    return joined


def _is_existence(negation: Any) -> bool:
    """Whether a "not" belongs to a verb that says what there is, or to a noun phrase: "a cat, not a dog"."""
    head = negation.head
    if negation.i == 0 or head.pos_ in ("NOUN", "PROPN"):
        return True
    if head.lemma_.lower() == "be":
        complements = [child for child in head.children if child.dep_ in ("acomp", "attr", "oprd")]
        adjectives = [child for child in complements if child.pos_ in ("ADJ", "VERB")]
        return all(child.lemma_.lower() in EXISTENCE or _is_cue(child) for child in adjectives)
    return head.lemma_.lower() in EXISTENCE or _is_cue(head)


def _is_cue(token: Any) -> bool:
    return token.lemma_.lower() in _CUE_WORDS


#: What denies -> what stands there without the denial; the first that fits, once.
_DENIALS = {
    r"\bcan(?:not|'t)\b": "can",
    r"\bwon't\b": "will",
    r"\bain't\b": "is",
    r"(?<=[a-z])n't\b": "",
    r"\s+(?:not|never)\b": "",
    r"\bno such\b": "one such",
    r"\bno\b": "a",
    r"\bwithout\b": "with",
    r"\banywhere but ": "",
    r"\b(?:missing|absent) from\b": "in",
    r"\blacks\b": "has",
    r"\black\b": "have",
}


def remove_denial(question: str) -> str | None:
    """The question without its only denial, else None: "Where isn't the cat?" -> "Where is the cat?".
    The rule misses "a wrong number"; "not only" and "not all" deny no answer."""
    plain = question.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if re.search(r"\bnot (?:only|just|all|every)\b", plain, re.IGNORECASE):
        return None
    matches = list(re.finditer("|".join(f"({pattern})" for pattern in _DENIALS), plain, re.IGNORECASE))
    if len(matches) != 1:
        return None
    [match] = matches
    return plain[: match.start()] + [*_DENIALS.values()][(match.lastindex or 1) - 1] + plain[match.end() :]


#: What becomes of a thing that an instruction denies, in the text that a rewriter makes of it.
OUTCOMES = {
    "removed": "the text asks for its removal",
    "denied": "the text still denies it",
    "dropped": "the text does not name it",
    "affirmed": "the text names it as something that is there",
}
#: Words before the name of what is to go, and what must not stand between: "Remove the dog but keep the cup."
_REMOVING = (
    r"\b(?:remov|eras|delet|eliminat|clear|strip|take out|take away|get rid of)\w*\b"
    r"(?:(?!\b(?:keep|leave|preserve)\b).)*?|\breplac\w*\b(?:(?!\b(?:with|by)\b).)*?"
)


def find_outcome(text: str, thing: str) -> tuple[str | None, str]:
    """(key of OUTCOMES, "") for a new instruction about `thing`; (None, why) where the rule cannot tell."""
    name = rf"(?<![\w-])(?:{re.escape(thing)}|{re.escape(plural(thing))})(?![\w-])"
    if not re.search(name, text, re.IGNORECASE):
        return "dropped", ""
    for sentence in re.split(r"[.;!]\s*", text):  # "Remove the cup and the dog; keep the table."
        if re.search(rf"(?:{_REMOVING}){name}", sentence, re.IGNORECASE):
            return "removed", ""
    [reading] = read([text])
    for outcome, phrases in (("denied", reading.absent), ("affirmed", reading.present)):
        if any(re.search(name, phrase, re.IGNORECASE) for phrase in phrases):
            return outcome, ""
    return None, f"the rule reads no phrase with '{thing}'"
