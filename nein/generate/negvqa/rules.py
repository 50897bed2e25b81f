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

Refused, with the reason: yes-no questions (what "no" means as an answer to a negated one is ambiguous), why
and how (they ask about a fact; its negation asks about another one), questions that hold a negation, a
quantifier or a word like "only", shares of a whole, several questions, several wh-words, embedded questions
("What do you think ..."), co-ordinated verbs, clauses and participles before the place of the "not", and
every form not listed above. The grammar comes from spaCy's small English model; where it errs, so do the
rules, hence the check sheet.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from nein.generate.negvqa.grammar import (
    ATTRIBUTES,
    CONTRACTED,
    FINITE,
    ING_NOUNS,
    NAMING,
    OPINION,
    QUANTITIES,
    TRANSITIVE,
    Question,
    Refusal,
    phrase_end,
    read,
    split,
    starts_noun_phrase,
)

VERSION = 1  # of the rules: raise it when any output can change
AT_ONCE = 128  # documents that are parsed and held at once


def negate(questions: Sequence[str]) -> list[str | Refusal]:
    """The negation of each question, or the reason why the rules do not cover it."""
    parts, ahead = itertools.tee(map(_split, questions))
    sentences = (part[1] for part in ahead if not isinstance(part, Refusal))
    docs = _parser().pipe(sentences, batch_size=AT_ONCE)
    return [part if isinstance(part, Refusal) else _negated(part[0], next(docs)) for part in parts]


def _split(question: str) -> tuple[str, str] | Refusal:
    try:
        return split(question)
    except Refusal as refusal:
        return refusal.with_traceback(None)


def _negated(background: str, doc: Any) -> str | Refusal:
    try:
        question = read(doc)
        return background + _sentence(question)
    except Refusal as refusal:
        return refusal.with_traceback(None)  # which would keep the document


@lru_cache(maxsize=1)
def _parser() -> Any:
    from nein.metrics.objects import spacy_model

    return spacy_model()


def _sentence(question: Question) -> str:
    word = question.wh.lower_
    if word == "how":
        return _count(question)
    if word not in ("what", "which", "who", "whom", "whose", "where", "when"):
        raise Refusal(f"'{word}' asks about a fact, and its negation about another")
    _check_clause(question)
    if not question.auxiliary:
        return _with_do(question)
    if question.after.lower_ == "there":
        raise Refusal("'there' is covered after 'how many' only")
    if not starts_noun_phrase(question.after):
        return _after_verb(question)
    if question.verb.lemma_ != "be":
        return _inverted(question)
    rest = question.doc[question.after.i : question.end]
    participle = next((token for token in rest if _is_participle(token)), None)
    return _copula(question) if participle is None else _participle(question, participle)


def _is_participle(token: Any) -> bool:
    """Whether a token is a verb without a finite verb of its own."""
    finite = token.tag_ in FINITE or any(child.tag_ in FINITE for child in token.children)
    after_subject = any(child.dep_ in ("aux", "auxpass") and child.i < token.i for child in token.children)
    own_clause = token.dep_ in ("relcl", "acl", "advcl", "ccomp")  # "... that the woman is holding"
    return token.pos_ == "VERB" and not (finite and after_subject and own_clause)


def _check_clause(question: Question) -> None:
    """Refuses what may hide a second clause that the "not" would have to choose between."""
    head = question.main or question.verb
    if head.lemma_ in OPINION:
        raise Refusal("the question continues in an embedded clause")
    if any(child.dep_ == "conj" and child.pos_ in ("VERB", "AUX") for child in head.children):
        raise Refusal("it has several verbs side by side")
    if any(child.dep_ == "ccomp" and child.i > head.i for child in head.children):
        raise Refusal("the question continues in an embedded clause")
    if head.dep_ not in ("ROOT", "aux", "auxpass"):
        raise Refusal("its wh-word does not belong to the main clause")


def _after_verb(question: Question) -> str:
    """ "What is on the table?" -> "What is not on the table?" """
    if question.wh.lower_ in ("where", "when"):
        raise Refusal(f"'{question.wh.lower_}' is not asked in a form that is covered")
    if question.words & QUANTITIES and "of" in question.words:
        raise Refusal("the negation of a share is the rest of it")
    if question.verb.lower_ == "can":
        return _insert(question, question.verb.idx + 3, "not")
    return _insert(question, _behind(question.verb), " not")


def _with_do(question: Question) -> str:
    """ "Which animal eats grass?" -> "Which animal does not eat grass?" """
    verb = question.verb
    if question.words & QUANTITIES and "of" in question.words:
        raise Refusal("the negation of a share is the rest of it")
    if question.wh.lower_ in ("where", "when", "whom"):
        raise Refusal(f"'{question.wh.lower_}' is not asked in a form that is covered")
    if verb.pos_ != "VERB" or verb.tag_ == "MD":
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
    behind_subject = question.doc[phrase_end(question.after) : question.end]
    place = next((token for token in behind_subject if token.tag_ in forms), None)
    if place is None or place.dep_ == "relcl":
        raise Refusal("its verb is not where it is expected")
    _check_between(question, place)
    return _insert(question, place.idx, "not ")


def _check_between(question: Question, place: Any) -> None:
    """Nothing but the subject may stand between the finite verb and the place of the negation."""
    between = question.doc[question.verb.i + 1 : place.i]
    clauses = [token for token in between if token.tag_ in (*FINITE, "WDT") or token.dep_ == "relcl"]
    if clauses or any(token.text == "," for token in between):
        raise Refusal("a clause stands before the place of the negation")
    if any(token.pos_ == "VERB" for token in between):
        raise Refusal("it cannot be told which verb is meant")


def _participle(question: Question, verb: Any) -> str:
    """ "What is the man holding?" -> "What is the man not holding?"

    Told from the words, for parsers often take the participle for an attribute of the subject. And it may be
    one: "What is the animal standing on the left?" asks what the animal is.
    """
    place = verb.nbor(-1) if verb.nbor(-1).lower_ == "being" else verb
    _check_between(question, place)
    tail = question.doc[verb.i + 1 : question.end]
    stranded = len(tail) == 1 and tail[0].pos_ == "ADP"
    if question.asks_when_or_where:
        behind_subject = phrase_end(question.after)
        if all(token.pos_ == "ADV" for token in question.doc[behind_subject : place.i]):
            return _insert(question, place.idx, "not ")
    elif verb.tag_ == "VBG" or place != verb:
        followed = len(tail) > 1 and tail[0].pos_ == "ADP" and verb.lemma_ in TRANSITIVE
        if not len(tail) or stranded or followed:
            return _insert(question, place.idx, "not ")
    elif verb.lemma_ in NAMING:
        if not len(tail) or stranded:
            return _insert(question, place.idx, "not ")
    elif not question.phrase and question.doc[phrase_end(question.after)].lower_ == "of":
        return _insert(question, _behind(question.verb), " not")  # "the name of the colony shown"
    raise Refusal("it cannot be told whether the participle belongs to the subject")


def _copula(question: Question) -> str:
    """A form of "be" with a noun phrase behind it and no participle."""
    after, end, last = question.after, question.end, question.doc[question.end - 1]
    stop = phrase_end(after)
    if last.pos_ == "ADP":  # "What is the cat on?" -> "What is the cat not on?"
        if stop == end - 1:
            return _insert(question, last.idx, "not ")
        raise Refusal("a preposition ends it whose place cannot be told")
    if last.lower_.endswith("ing") and last.tag_ in ("NN", "JJ") and last.lower_ not in ING_NOUNS:
        raise Refusal(f"it cannot be told whether '{last.text}' is a verb")
    referring = after.tag_ == "PRP" or after.lower_ in ("this", "that", "these", "those")
    asks_property = question.asks_when_or_where or bool(question.words & ATTRIBUTES)
    if asks_property or referring:
        if any(token.tag_ in FINITE for token in question.doc[after.i : end]):
            raise Refusal("a clause stands before the place of the negation")
        if stop == end:
            return _insert(question, _behind(last), " not")
        if referring:
            raise Refusal("its subject is not where it is expected")
        return _contracted(question)
    bare = question.wh.lower_ in ("what", "who", "which") and not question.phrase
    if not bare and after.lower_ not in ("the", "a", "an"):
        raise Refusal("it cannot be told whether the wh-phrase is the subject")
    return _insert(question, _behind(question.verb), " not")


def _contracted(question: Question) -> str:
    """ "Where is the man in the hat?" -> "Where isn't the man in the hat?" """
    verb = question.verb
    if verb.lower_ not in CONTRACTED or "," in question.doc[verb.i :].text:
        raise Refusal("its subject is too long for a negation behind it")
    text = question.doc.text
    return text[: verb.idx] + CONTRACTED[verb.lower_] + text[_behind(verb) :]


def _count(question: Question) -> str:
    """ "How many dogs are on the bed?" -> "What is not the number of dogs that are on the bed?" """
    doc, wh, verb = question.doc, question.wh, question.verb
    if wh.i + 1 >= len(doc) or doc[wh.i + 1].lower_ != "many":
        raise Refusal("'how' asks about a manner or a degree")
    noun = doc[wh.i + 2 : verb.i]
    if not any(token.pos_ in ("NOUN", "PROPN") for token in noun) or noun[0].pos_ == "ADV":
        raise Refusal("it does not say how many of what")
    name = noun.text.removeprefix("of ")
    start = "What is" if wh.is_title else "what is"
    beginning = f"{doc.text[: wh.idx]}{start} not the number of {name}"
    if question.after.lower_ == "there":
        if verb.lemma_ != "be":
            raise Refusal("its verb is of no form that is covered")
        tail = doc[question.after.i + 1 :]
        if len(tail) and tail[0].pos_ in ("VERB", "AUX"):
            raise Refusal("it cannot be told which verb is meant")
        return beginning + doc.text[_behind(question.after) :]
    if verb.lemma_ == "do" or (starts_noun_phrase(question.after) and question.auxiliary):
        raise Refusal("what is counted is not the subject")
    _check_clause(question)
    return f"{beginning} that {doc.text[verb.idx :]}"


def _insert(question: Question, offset: int, words: str) -> str:
    text = question.doc.text
    return text[:offset] + words + text[offset:]


def _behind(token: Any) -> int:
    return token.idx + len(token.text)


def describe() -> dict[str, Any]:
    """Everything that decides a negation, JSON-serialisable."""
    meta = _parser().meta
    return {"negator": "rules", "version": VERSION, "grammar": f"{meta['name']} {meta['version']}"}
