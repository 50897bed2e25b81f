"""Negating a question by rule, offline. It covers common wh-questions and refuses everything else.

Scope: one wh-question (what, which, who, whose, where, when, how many) in English with one clause that can be
negated, optionally after sentences of background or a leading condition, which stay as they are.

    What is on the table?               What is not on the table?           the wh-phrase is the subject
    Which animal eats grass?            Which animal does not eat grass?
    What is the man holding?            What is the man not holding?        before the main verb
    What is the title of this book?     What is not the title of this book?
    What color is the car?              What color is the car not?          a property of a short subject
    What color is the car on the left?  What color isn't the car on the left?
    How many dogs are there?            What is not the number of dogs?     a number stays the answer

Everything else is refused with the reason. The grammar comes from spaCy's small English model; where it errs,
so do the rules, hence the check sheet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

VERSION = 2  # of the rules: raise it when any output can change

#: Words after which another "not" would cancel, strengthen or blur the negation.
NEGATIVE = frozenset(
    "not n't no never none neither nor nobody nothing nowhere without except excluding besides hardly "
    "barely rarely seldom cannot lack lacks lacking absent missing fail fails false incorrect incorrectly "
    "wrong untrue unlikely impossible least".split()
)
#: Words whose scope a "not" would change: "not all" is "not all not".
QUANTIFIERS = frozenset(
    "all every each both any anyone anything anybody everyone everything everybody some somebody someone "
    "something only also else too yet still already just even ever always either solely".split()
)
#: Nouns that ask for a property of what follows: "What colour is the car?" has the car as its subject.
ATTRIBUTES = frozenset(
    "color colour shape size brand type kind sort style make model age gender sex material pattern breed "
    "species nationality ethnicity year time day date month season number temperature speed length height "
    "width depth weight price flavor flavour texture way direction side angle position".split()
)
#: Nouns that ask when: "What year was the photo taken?"
TIMES = frozenset("year month day date time season century decade".split())
#: Shares of a whole: "What percentage does not vote?" asks for the rest, not for what is no right answer.
QUANTITIES = frozenset("percentage percent number amount proportion fraction share ratio quantity".split())
#: Verbs that need an object: before a preposition, the wh-word is theirs.
TRANSITIVE = frozenset("do hold wear use carry make throw catch touch pull push".split())
#: Verbs after which the question goes on in a clause: "What do you think the man is doing?"
OPINION = frozenset("think believe suppose guess assume imagine".split())
WH_TAGS = frozenset(("WDT", "WP", "WP$", "WRB"))
FINITE = frozenset(("MD", "VBZ", "VBP", "VBD"))


class Refusal(Exception):
    """The rules do not cover a question; the message says why."""


def negate(questions: Sequence[str]) -> list[str | Refusal]:
    """The negation of each question, or the reason why the rules do not cover it."""
    results: list[str | Refusal] = []
    for question in questions:
        try:
            background, sentence = split(question)
            results.append(background + _negation(read(_parser()(sentence))))
        except Refusal as refusal:
            results.append(refusal.with_traceback(None))  # which would keep the parsed sentence
    return results


def describe() -> dict[str, Any]:
    """Everything that decides a negation, JSON-serialisable."""
    meta = _parser().meta
    return {"negator": "rules", "version": VERSION, "grammar": f"{meta['name']} {meta['version']}"}


@lru_cache(maxsize=1)
def _parser() -> Any:
    from nein.metrics.presence import spacy_model

    return spacy_model()


def split(text: str) -> tuple[str, str]:
    """(background, question): the last sentence, and everything before it, which is never touched.

    Raises Refusal unless the last sentence, and it alone, is a question.
    """
    whole = text.strip()
    if not whole.endswith("?"):
        raise Refusal("it does not end in a question mark")
    if whole.count("?") > 1:
        raise Refusal("it asks more than one question")
    start = max((m.end() for m in re.finditer(r"(?:[.!:;]|\n)\s+|\n", whole)), default=0)
    return whole[:start], whole[start:]


@dataclass(frozen=True)
class Question:
    """A parsed question.

    doc    The spaCy document of the question sentence alone.
    wh     Its wh-word; verb: the first finite verb after it; after: the token behind that verb.
    """

    doc: Any
    wh: Any
    verb: Any
    after: Any

    @property
    def phrase(self) -> list[str]:
        """The wh-phrase without the wh-word: "colour" of "What colour is ...", "of these" of "Which of"."""
        return [token.lower_ for token in self.doc[self.wh.i + 1 : self.verb.i]]

    @property
    def asks_when_or_where(self) -> bool:
        """By its wh-word, a noun of time, or a preposition before it."""
        return self.wh.lower_ in ("where", "when") or self.wh.i == 1 or not TIMES.isdisjoint(self.phrase)

    @property
    def end(self) -> int:
        """Index of the first token of the closing punctuation."""
        return max(token.i for token in self.doc if not (token.is_punct or token.is_space)) + 1

    @property
    def is_helped(self) -> bool:
        """Whether the finite verb is a form of be, a modal, or an auxiliary do or have."""
        helps = self.verb.lemma_ in ("do", "have") and self.verb.dep_ in ("aux", "auxpass")
        return self.verb.tag_ == "MD" or self.verb.lemma_ == "be" or helps

    def insert(self, offset: int, words: str) -> str:
        return self.doc.text[:offset] + words + self.doc.text[offset:]


def read(doc: Any) -> Question:
    """The parts of a question sentence. Raises Refusal for forms outside the rules."""
    if re.search(r"[\\$=^{}<>_|]", doc.text):
        raise Refusal("it holds formulas or marks")
    for word in (token.lower_.replace("’", "'") for token in doc):
        if word in NEGATIVE:
            raise Refusal(f"it is negative already ('{word}')")
        if word in QUANTIFIERS:
            raise Refusal(f"'{word}' would change its scope")
    found = [token for token in doc if token.tag_ in WH_TAGS and token.lower_ != "that"]
    wh_words = [token for token in found if token.lower_ != "when"] or found
    if not wh_words:
        raise Refusal("it is no wh-question; the answer to a negated yes-no question is ambiguous")
    if len(wh_words) > 1:
        raise Refusal("it has more than one wh-word")
    wh = wh_words[0]
    before = doc[: wh.i]
    if len(before) and before[-1].text != "," and not (len(before) == 1 and before[0].pos_ == "ADP"):
        raise Refusal("its wh-word is not at the beginning")
    verb = next((token for token in doc[wh.i + 1 :] if token.tag_ in FINITE), None)
    if verb is None or verb.i + 1 >= len(doc):
        raise Refusal("it has no finite verb")
    if any(token.text == "," or token.pos_ in ("VERB", "AUX") for token in doc[wh.i + 1 : verb.i]):
        raise Refusal("its wh-phrase is not simple")
    return Question(doc, wh, verb, doc[verb.i + 1])


def _negation(question: Question) -> str:
    word = question.wh.lower_
    if word == "how":
        return _count(question)
    if word not in ("what", "which", "who", "whom", "whose", "where", "when"):
        raise Refusal(f"'{word}' asks about a fact, and its negation about another")
    _check_clause(question)
    if not question.is_helped:
        return _with_do(question)
    if question.after.lower_ == "there":
        raise Refusal("'there' is covered after 'how many' only")
    if not _starts_noun_phrase(question.after):
        return _after_verb(question)
    if question.verb.lemma_ != "be":
        return _inverted(question)
    rest = question.doc[question.after.i : question.end]
    verb = next((token for token in rest if _is_participle(token)), None)
    return _copula(question) if verb is None else _participle(question, verb)


# --- where the "not" goes, by form ---------------------------------------------------------------


def _after_verb(question: Question) -> str:
    """ "What is on the table?" -> "What is not on the table?" """
    _check_subject(question, ("where", "when"))
    if question.verb.lower_ == "can":
        return question.insert(question.verb.idx + 3, "not")
    return question.insert(_behind(question.verb), " not")


def _with_do(question: Question) -> str:
    """ "Which animal eats grass?" -> "Which animal does not eat grass?" """
    verb = question.verb
    _check_subject(question, ("where", "when", "whom"))
    if verb.pos_ != "VERB":
        raise Refusal("its finite verb is of no form that is covered")
    helper = {"VBZ": "does", "VBD": "did", "VBP": "do"}[verb.tag_]
    first = verb
    while first.i > question.wh.i + 1 and first.nbor(-1).pos_ == "ADV":
        first = first.nbor(-1)
    text = question.doc.text
    adverbs = text[first.idx : verb.idx]
    return f"{text[: first.idx]}{helper} not {adverbs}{verb.lemma_}{text[_behind(verb) :]}"


def _inverted(question: Question) -> str:
    """ "What does the sign say?" -> "What does the sign not say?", with do, have or a modal."""
    forms = ("VBN",) if question.verb.lemma_ == "have" else ("VB", "VBP")
    behind_subject = question.doc[_phrase_end(question.after) : question.end]
    anchor = next((token for token in behind_subject if token.tag_ in forms), None)
    if anchor is None or anchor.dep_ == "relcl":
        raise Refusal("its verb is not where it is expected")
    _check_between(question, anchor)
    return question.insert(anchor.idx, "not ")


def _participle(question: Question, verb: Any) -> str:
    """ "What is the man holding?" -> "What is the man not holding?"

    Told from the words, for parsers often take the participle for an attribute of the subject. And it may be
    one: "What is the animal standing on the left?" asks what the animal is.
    """
    anchor = verb.nbor(-1) if verb.nbor(-1).lower_ == "being" else verb
    _check_between(question, anchor)
    tail = question.doc[verb.i + 1 : question.end]
    if question.asks_when_or_where:
        between = question.doc[_phrase_end(question.after) : anchor.i]
        is_main = all(token.pos_ == "ADV" for token in between)
    else:
        has_object = len(tail) > 1 and verb.lemma_ not in TRANSITIVE
        is_main = (verb.tag_ == "VBG" or anchor != verb) and not has_object
        is_main = is_main and (not len(tail) or tail[0].pos_ == "ADP")
    if not is_main:
        raise Refusal("it cannot be told whether the participle belongs to the subject")
    return question.insert(anchor.idx, "not ")


def _copula(question: Question) -> str:
    """A form of "be" with a noun phrase behind it and no participle."""
    after, end, last = question.after, question.end, question.doc[question.end - 1]
    stop = _phrase_end(after)
    if last.pos_ == "ADP":  # "What is the cat on?" -> "What is the cat not on?"
        if stop == end - 1:
            return question.insert(last.idx, "not ")
        raise Refusal("a preposition ends it whose place cannot be told")
    if last.lower_.endswith("ing") and last.tag_ in ("NN", "JJ"):
        raise Refusal(f"it cannot be told whether '{last.text}' is a verb")
    referring = after.tag_ == "PRP" or after.lower_ in ("this", "that", "these", "those")
    if referring or question.asks_when_or_where or not ATTRIBUTES.isdisjoint(question.phrase):
        if any(token.tag_ in FINITE for token in question.doc[after.i : end]):
            raise Refusal("a clause stands before the place of the negation")
        if stop == end:
            return question.insert(_behind(last), " not")
        if referring:
            raise Refusal("its subject is not where it is expected")
        if "," in question.doc[question.verb.i :].text or question.verb.text.startswith(("'", "’")):
            raise Refusal("its subject is too long for a negation behind it")
        return question.insert(_behind(question.verb), "n't")
    bare = question.wh.lower_ in ("what", "who", "which") and not question.phrase
    if not bare and after.lower_ not in ("the", "a", "an"):
        raise Refusal("it cannot be told whether the wh-phrase is the subject")
    return question.insert(_behind(question.verb), " not")


def _count(question: Question) -> str:
    """ "How many dogs are on the bed?" -> "What is not the number of dogs that are on the bed?" """
    doc, wh, verb = question.doc, question.wh, question.verb
    if doc[wh.i + 1].lower_ != "many":
        raise Refusal("'how' asks about a manner or a degree")
    noun = doc[wh.i + 2 : verb.i]
    if not any(token.pos_ in ("NOUN", "PROPN") for token in noun) or noun[0].pos_ == "ADV":
        raise Refusal("it does not say how many of what")
    start = "What is" if wh.is_title else "what is"
    beginning = f"{doc.text[: wh.idx]}{start} not the number of {noun.text.removeprefix('of ')}"
    if question.after.lower_ == "there":
        tail = doc[question.after.i + 1 :]
        if verb.lemma_ != "be" or (len(tail) and tail[0].pos_ in ("VERB", "AUX")):
            raise Refusal("it cannot be told which verb is meant")
        return beginning + doc.text[_behind(question.after) :]
    if verb.lemma_ == "do" or (_starts_noun_phrase(question.after) and question.is_helped):
        raise Refusal("what is counted is not the subject")
    _check_clause(question)
    return f"{beginning} that {doc.text[verb.idx :]}"


# --- what is looked at ---------------------------------------------------------------------------


def _check_clause(question: Question) -> None:
    """Refuses what may hide a second clause that the "not" would have to choose between."""
    verb = question.verb
    head = verb.head if verb.dep_ in ("aux", "auxpass") else verb
    if any(child.dep_ == "conj" and child.pos_ in ("VERB", "AUX") for child in head.children):
        raise Refusal("it has several verbs side by side")
    clauses = any(child.dep_ == "ccomp" and child.i > head.i for child in head.children)
    if head.lemma_ in OPINION or clauses:
        raise Refusal("the question continues in an embedded clause")
    if head.dep_ not in ("ROOT", "aux", "auxpass"):
        raise Refusal("its wh-word does not belong to the main clause")


def _check_subject(question: Question, uncovered: Sequence[str]) -> None:
    if "of" in question.phrase and not QUANTITIES.isdisjoint(question.phrase):
        raise Refusal("the negation of a share is the rest of it")
    if question.wh.lower_ in uncovered:
        raise Refusal(f"'{question.wh.lower_}' is not asked in a form that is covered")


def _check_between(question: Question, anchor: Any) -> None:
    """Nothing but the subject may stand between the finite verb and the place of the negation."""
    between = question.doc[question.verb.i + 1 : anchor.i]
    if any(token.tag_ in (*FINITE, "WDT") or token.dep_ == "relcl" or token.text == "," for token in between):
        raise Refusal("a clause stands before the place of the negation")
    if any(token.pos_ == "VERB" for token in between):
        raise Refusal("it cannot be told which verb is meant")


def _is_participle(token: Any) -> bool:
    """Whether a token is a verb without a finite verb of its own."""
    finite = token.tag_ in FINITE or any(child.tag_ in FINITE for child in token.children)
    after_subject = any(child.dep_ in ("aux", "auxpass") and child.i < token.i for child in token.children)
    own_clause = token.dep_ in ("relcl", "acl", "advcl", "ccomp")  # "... that the woman is holding"
    return token.pos_ == "VERB" and not (finite and after_subject and own_clause)


def _starts_noun_phrase(token: Any) -> bool:
    """Whether a noun phrase that is somebody's subject or complement begins at a token."""
    kinds = ("DET", "PRON", "PROPN", "NUM", "NOUN")
    return token.pos_ in kinds or any(chunk.start == token.i for chunk in token.doc.noun_chunks)


def _phrase_end(token: Any) -> int:
    """Index behind the noun phrase (without what modifies it from behind) that begins at a token."""
    ends = (chunk.end for chunk in token.doc.noun_chunks if chunk.start <= token.i < chunk.end)
    return next(ends, token.i + 1)


def _behind(token: Any) -> int:
    return token.idx + len(token.text)
