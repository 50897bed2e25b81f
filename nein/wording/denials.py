"""Find the objects that an English sentence denies, by a rule over spaCy's tags; remove a question's denial.

A cue ("no", "without", "lacks", "free of", "missing", "except" after "all") denies the noun phrase that
follows it, or the one before it: "a cup is missing"; but "absent is a cup". A "not" is a cue if its verb
asserts existence: "does not have", "is not in the image", but not "is not brown". Two denials cancel out:
"is not without a cat". "No one" and "unoccupied" deny a person. The rule has no list of objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nein.wording.families import plural

# Heads of noun phrases that name no object: the image itself, and words of idioms ("no sign of").
NO_OBJECTS = frozenset(
    """image picture photo photograph shot scene view sight frame part case presence absence anything
    everything nothing something everyone nobody all none it they this that there here one trace sign time
    place rest""".split()
)
# Cues that deny the phrase after them, or the one before if no object follows: "a cat is no longer seen".
LEADING = tuple(
    "no,neither,nor,no longer,not a single,no sign of,no trace of,without,lack,absence of,absent of,free of,"
    "devoid of,void of,empty of,vacant of,bare of,clear of,rather than,instead of,never,used to be,exclude,"
    "omit,hardly any,zero,unaccompanied by,unattended by,unoccupied by".split(",")
)
# Cues that deny the phrase before them ("cup - free"), or the one that follows at once: "missing is a cup".
TRAILING = tuple("missing,absent,nowhere,gone,not part of,used to be there,lacking,- free,- less".split(","))
SOMEBODY = frozenset("one anyone anybody".split())  # name a person: "no one", "without anybody"
NOBODY = frozenset("nobody unoccupied uninhabited unattended".split())  # deny a person, with no other cue
# Cues that deny the phrase after them if a word of `ALL_WORDS` is before them.
CUES_AFTER_ALL = ("but", "except", "except for", "besides", "apart from", "other than", "save for", "bar")
ALL_WORDS = frozenset("everything all anything everyone".split())
# Verbs and complements that assert existence, so that a "not" with them is a cue.
EXISTENCE = frozenset(
    """have contain show include feature depict display want need be appear exist see find visible there
    here present true any""".split()
)
_DETERMINERS = frozenset(
    "a an the no not n't neither nor any single some only this that these those another all every".split()
)
# A "not" before them denies nothing: "not all cats" leaves some, "not only a cat" denies none.
_PARTIAL = frozenset("all every only just merely everything everyone".split())
# Words that cannot begin or end what is left of a sentence without its denials.
_CONNECTING = frozenset("and but or with while is are does do has have , there".split())
_MAX_CUE_WORDS = 4
# Words of cues that are no cue alone; the others mark a cue by themselves.
_NO_CUE_ALONE = frozenset("sign trace of used to be there a single part than".split())
_CUE_WORDS = frozenset(word for cue in (*LEADING, *TRAILING) for word in cue.split()) - _NO_CUE_ALONE


# --- reading sentences -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Denials:
    """The objects of a sentence, without their articles, in order."""

    absent: tuple[str, ...]
    present: tuple[str, ...]
    doubled: bool = False  # whether an object is denied twice, and so is present
    affirmed: str = ""  # text without its denials: "A cat on a mat. There is no dog." -> "A cat on a mat."


@dataclass
class _Phrase:
    """A noun phrase, the words doc[start:end]."""

    start: int
    end: int
    has_article: bool  # whether the word before it is an article or another determiner
    denials: int = 0
    implied: str = ""  # name of an object that the words only imply: "person"; "": the words name it


def read(sentences: Sequence[str]) -> list[Denials]:
    """Find the objects that each sentence denies or affirms. Raises MetricError without spaCy's model."""
    from nein.metrics.presence import spacy_model

    plain = [sentence.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'") for sentence in sentences]
    return [_read_parsed(doc) for doc in spacy_model().pipe(plain)]


def _read_parsed(doc: Any) -> Denials:
    """Find the cues from left to right, and count the denials of each phrase: an odd number means absence."""
    phrases = list(_iter_phrases(doc))
    words = [token.lower_ for token in doc]
    lemmas = [token.lemma_.lower() for token in doc]
    index = 0
    left_out = set[int]()  # indices of the words of cues and of the phrases that they deny
    while index < len(words):
        end = index + 1  # of the cue that begins here, or of one word
        for length in range(_MAX_CUE_WORDS, 0, -1):  # the longest cue first
            cue = {" ".join(form[index : index + length]) for form in (words, lemmas)}
            denied = _find_denied(doc, words, cue, index, index + length, phrases)
            if denied is not None:
                end = index + length
                for phrase in denied:
                    phrase.denials += 1
                    first = min(index, phrase.start - phrase.has_article)
                    left_out.update(range(first, max(end, phrase.end)))
                break
        index = end
    phrases = [phrase for phrase in phrases if phrase.denials or not phrase.implied]
    names = [phrase.implied or " ".join(words[phrase.start : phrase.end]) for phrase in phrases]
    absent = tuple(name for name, phrase in zip(names, phrases, strict=True) if phrase.denials % 2 == 1)
    present = tuple(name for name, phrase in zip(names, phrases, strict=True) if phrase.denials % 2 == 0)
    doubled = any(phrase.denials and phrase.denials % 2 == 0 for phrase in phrases)
    affirmed = _keep_affirmed(doc, phrases, left_out) if absent else doc.text
    return Denials(absent, present, doubled, affirmed)


def _keep_affirmed(doc: Any, phrases: Sequence[_Phrase], left_out: set[int]) -> str:
    """The sentences that affirm something, without the words at `left_out` and dangling connectives."""
    ends = sorted({token.i + 1 for token in doc if token.lower_ in (".", ";", "!")} | {len(doc)})
    parts, start = [], 0  # start: of the sentence that ends at `end`
    for end in ends:
        if any(start <= phrase.start < end and phrase.denials % 2 == 0 for phrase in phrases):
            tokens = [token for token in doc[start:end] if token.i not in left_out and not token.is_punct]
            while tokens and tokens[-1].lower_ in _CONNECTING:
                tokens.pop()
            while tokens and tokens[0].lower_ in _CONNECTING:
                tokens.pop(0)
            stop = doc[end - 1].text if doc[end - 1].is_punct else ""
            parts.append("".join(token.text_with_ws for token in tokens).strip() + stop)
        start = end
    return " ".join(parts)


# --- noun phrases ----------------------------------------------------------------------------------------
def _iter_phrases(doc: Any) -> Iterator[_Phrase]:
    """Yield the noun phrases that name objects: runs of adjectives and nouns. spaCy's noun chunks come from
    its parser, which errs more often than its tagger: "an oven but no chair" is one chunk."""
    start = 0
    while start < len(doc):
        end = start
        while end < len(doc) and _may_name(doc, end):
            end += 1
        next_start = max(end, start + 1)
        person = _find_person(doc, start)
        if person is not None:
            yield person
            start = person.end
            continue
        # "a cat visible", "a cat nearby": the last word is not part of the name.
        while end > start and doc[end - 1].lemma_.lower() in EXISTENCE | {"nearby"}:
            end -= 1
        has_article = start > 0 and doc[start - 1].lower_ in _DETERMINERS
        has_noun = any(token.pos_ in ("NOUN", "PROPN") for token in doc[start:end])
        if end > start and (has_noun or start == 0 or _announces_object(doc[start - 1])):
            last = doc[end - 1]
            # "a stop sign" is an object, "no sign of" is not.
            is_sign = last.lower_ in ("sign", "trace") and not (end < len(doc) and doc[end].lower_ == "of")
            if last.lemma_.lower() not in NO_OBJECTS or is_sign:
                yield _Phrase(start, end, has_article)
        start = next_start


def _find_person(doc: Any, index: int) -> _Phrase | None:
    """A phrase for the person that a word implies; "unoccupied" also denies it, "anyone" needs a cue."""
    word, before = doc[index].lower_, doc[index - 1].lower_ if index else ""
    predicate = doc[index].dep_ != "amod"  # "the bench is unoccupied", not "an unattended bag"
    if word in NOBODY and predicate and doc[index : index + 2].text.lower() != f"{word} by":
        return _Phrase(index, index + 1, has_article=False, denials=1, implied="person")
    if word in SOMEBODY and (word != "one" or before == "no"):
        return _Phrase(index, index + 1, has_article=False, implied="person")
    return None


def _may_name(doc: Any, index: int) -> bool:
    """Whether a word may be part of the name of an object, by its tag and the words before it."""
    token = doc[index]
    if token.lower_ in _DETERMINERS or _is_cue(token) or _find_person(doc, index):
        return False
    if token.pos_ in ("NOUN", "PROPN", "ADJ") or (index > 0 and doc[index - 1].lemma_ in ("without", "lack")):
        return True
    if token.pos_ == "ADV":  # the second word of "fire hydrant", as the tagger has it
        return index > 0 and doc[index - 1].pos_ == "NOUN" and not token.is_stop
    if token.pos_ in ("VERB", "ADP"):  # "Tie is missing.", "without surfboard", "any stop sign", as tagged
        if index == 0:
            return len(doc) > 1 and doc[1].pos_ in ("AUX", "NOUN") and doc[0].tag_ != "VBG"
        return _announces_object(doc[index - 1])
    return False


def _announces_object(token: Any) -> bool:
    """Whether the word after `token` names an object, even if it is tagged otherwise."""
    return token.lower_ in _DETERMINERS - {"n't"} or token.lemma_.lower() in ("without", "lack")


# --- cues and what they deny -----------------------------------------------------------------------------
def _find_denied(
    doc: Any, words: list[str], cue: set[str], start: int, end: int, phrases: list[_Phrase]
) -> list[_Phrase] | None:
    """The phrases denied by the cue doc[start:end]; None if that is no cue. words, phrases: all of the
    sentence; cue: doc[start:end] as written and as lemmas."""
    next_word = words[end] if end < len(words) else ""
    following = [phrase for phrase in phrases if phrase.start >= end]
    # A denial ends where a new clause begins.
    following = [phrase for phrase in following if not {"but", ";", "."} & set(words[end : phrase.start])]
    before = [phrase for phrase in phrases if phrase.end <= start]
    if cue & set(TRAILING):  # "a cup is missing", "missing is a cup"
        inverted = _find_inverted(words, end, following)
        return _join_phrases(words, inverted, any_article=False) if inverted else before[-1:]
    if cue & set(CUES_AFTER_ALL) and ALL_WORDS & set(words[:start]) and next_word != "no":
        return _join_phrases(words, following, any_article=True)
    if "absence of" in cue and "," in words[end:]:  # "in the absence of a cup, a dog sleeps": only the cup
        comma = words.index(",", end)
        following = [phrase for phrase in following if phrase.start < comma]
    if cue & set(LEADING):
        return _join_phrases(words, following, any_article="no" not in cue) if following else before[-1:]
    if cue & {"not", "n't"}:  # "does not have a cup", "a cup is not there"
        if next_word in _PARTIAL or not _is_existence(doc[start]):
            return []
        return _join_phrases(words, following, any_article=True) or before[-1:]
    return None


def _find_inverted(words: list[str], end: int, following: list[_Phrase]) -> list[_Phrase]:
    """Those of the phrases after a cue of `TRAILING` that it denies: "missing is a cup", "absent from the
    image is a cup"; none in "a cup is missing from the image"."""
    if end < len(words) and words[end] == "from":
        verbs = [index for index in range(end, len(words)) if words[index] in ("is", "are")]
        if not verbs or "," in words[end : verbs[0]]:
            return []
        end = verbs[0]
    following = [phrase for phrase in following if phrase.start > end]
    between = words[end : following[0].start] if following else []
    opened = between and between[0] in ("is", "are", "a", "an", "any")
    return following if opened and set(between[1:]) <= _DETERMINERS else []  # nothing else in between


def _join_phrases(words: list[str], phrases: list[_Phrase], *, any_article: bool) -> list[_Phrase]:
    """The first phrase and those joined to it: both of "no cats or dogs", the first of "no cat and a dog".
    any_article: join also a phrase with its own article after "and"."""
    joined = phrases[:1]
    for phrase in phrases[1:]:
        between = set(words[joined[-1].end : phrase.start]) - _DETERMINERS
        listed = between and between <= {"or", "and", ","}
        new_article = phrase.has_article and "and" in between and not any_article
        if not listed or new_article or words[phrase.start - 1] in ("not", "no", "nor"):
            break
        joined.append(phrase)
    return joined


def _is_existence(negation: Any) -> bool:
    """Whether a "not" belongs to a verb that asserts existence, or to a noun phrase: "a cat, not a dog"."""
    head = negation.head
    if negation.i == 0 or head.pos_ in ("NOUN", "PROPN"):
        return True
    if head.lemma_.lower() == "be":
        complements = [child for child in head.children if child.dep_ in ("acomp", "attr", "oprd")]
        adjectives = [child for child in complements if child.pos_ in ("ADJ", "VERB")]
        return all(child.lemma_.lower() in EXISTENCE or _is_cue(child) for child in adjectives)
    return head.lemma_.lower() in EXISTENCE or _is_cue(head)


def _is_cue(token: Any) -> bool:
    """Whether a word alone marks a cue."""
    return token.lemma_.lower() in _CUE_WORDS


# --- removing a denial -----------------------------------------------------------------------------------
# Pattern of a denial -> its replacement; where two match, the first one counts.
_REPLACEMENTS = {
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
    """The question without its denial: "Where isn't the cat?" -> "Where is the cat?"; None unless it has
    exactly one. The rule misses "a wrong number"; "not only" and "not all" do not deny the answer."""
    plain = question.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if re.search(r"\bnot (?:only|just|all|every)\b", plain, re.IGNORECASE):
        return None
    matches = list(re.finditer("|".join(f"({pattern})" for pattern in _REPLACEMENTS), plain, re.IGNORECASE))
    if len(matches) != 1:
        return None
    [match] = matches
    replacement = list(_REPLACEMENTS.values())[(match.lastindex or 1) - 1]  # patterns are groups 1, 2, ...
    return plain[: match.start()] + replacement + plain[match.end() :]


# --- judging a rewriter's text ---------------------------------------------------------------------------
#: What may become of a denied thing in a rewriter's text.
OUTCOMES = {
    "removed": "the text asks for its removal",
    "denied": "the text still denies it",
    "dropped": "the text does not name it",
    "affirmed": "the text names it as something that is there",
}
# A verb of removal and the words up to a thing's name; not "Remove the dog but keep" before "the cup".
_REMOVING = (
    r"\b(?:remov|eras|delet|eliminat|clear|strip|take out|take away|get rid of)\w*\b"
    r"(?:(?!\b(?:keep|leave|preserve)\b).)*?|\breplac\w*\b(?:(?!\b(?:with|by)\b).)*?"
)


def find_outcome(text: str, thing: str) -> tuple[str | None, str]:
    """A key of `OUTCOMES` for `thing` in `text`, and ""; or None and the reason why the rule cannot tell."""
    pattern = rf"(?<![\w-])(?:{re.escape(thing)}|{re.escape(plural(thing))})(?![\w-])"
    if not re.search(pattern, text, re.IGNORECASE):
        return "dropped", ""
    for sentence in re.split(r"[.;!]\s*", text):  # "Remove the cup and the dog; keep the table."
        if re.search(rf"(?:{_REMOVING}){pattern}", sentence, re.IGNORECASE):
            return "removed", ""
    [reading] = read([text])
    for outcome, names in (("denied", reading.absent), ("affirmed", reading.present)):
        if any(re.search(pattern, name, re.IGNORECASE) for name in names):
            return outcome, ""
    return None, f"the rule reads no phrase with '{thing}'"
