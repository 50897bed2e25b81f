"""What the rule-based negator reads off a parsed question: wh-phrase, finite verb, what comes next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: Words after which another "not" would cancel, strengthen or blur the negation.
NEGATIVE = frozenset(
    "not n't no never none neither nor nobody nothing nowhere without except excluding besides hardly "
    "barely rarely seldom cannot lack lacks lacking absent missing fail fails false incorrect incorrectly "
    "wrong untrue unlikely impossible least".split()
)
#: Words whose scope a "not" would change: "not all" is not "all not".
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
#: Verbs after which the question goes on in a clause: "What do you think the man is doing?"
OPINION = frozenset("think believe suppose guess assume imagine".split())
#: Verbs that need an object: before a preposition, the wh-word is theirs.
TRANSITIVE = frozenset("do hold wear use carry make throw catch touch pull push".split())
#: Verbs whose past participle asks for a name, use or material: "What is this animal called?"
NAMING = frozenset("call name use make know cover fill decorate".split())
ING_NOUNS = frozenset(
    "building painting ring king string thing wing spring evening morning ceiling clothing drawing sling "
    "sting swing pudding wedding meeting lightning railing sibling".split()
)
WH_TAGS = frozenset(("WDT", "WP", "WP$", "WRB"))
FINITE = frozenset(("MD", "VBZ", "VBP", "VBD"))
CONTRACTED = {
    "is": "isn't", "are": "aren't", "was": "wasn't", "were": "weren't", "do": "don't", "does": "doesn't",
    "did": "didn't", "has": "hasn't", "have": "haven't", "had": "hadn't", "can": "can't", "could": "couldn't",
    "will": "won't", "would": "wouldn't", "should": "shouldn't",
}  # fmt: skip


class Refusal(Exception):
    """The rules do not cover a question; the message says why."""


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
    def phrase(self) -> list[Any]:
        """The wh-phrase without the wh-word: "colour" of "What colour is ...", "of these" of "Which of"."""
        return list(self.doc[self.wh.i + 1 : self.verb.i])

    @property
    def words(self) -> set[str]:
        """The words of the wh-phrase in small letters."""
        return {token.lower_ for token in self.phrase}

    @property
    def asks_when_or_where(self) -> bool:
        """By its wh-word, a noun of time, or a preposition before it ("On which side ...")."""
        return self.wh.lower_ in ("where", "when") or bool(self.words & TIMES) or self.wh.i == 1

    @property
    def end(self) -> int:
        """Index of the first token of the closing punctuation."""
        last = len(self.doc)
        while last and (self.doc[last - 1].is_punct or self.doc[last - 1].is_space):
            last -= 1
        return last

    @property
    def auxiliary(self) -> bool:
        """Whether the finite verb is a form of be, a modal, or an auxiliary do or have."""
        if self.verb.tag_ == "MD" or self.verb.lemma_ == "be":
            return True
        return self.verb.lemma_ in ("do", "have") and self.verb.dep_ in ("aux", "auxpass")

    @property
    def main(self) -> Any | None:
        """The verb that the finite verb is an auxiliary of, if any."""
        is_main = self.verb.dep_ in ("aux", "auxpass") and self.verb.head != self.verb
        return self.verb.head if is_main else None


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


def read(doc: Any) -> Question:
    """The parts of a question sentence. Raises Refusal for forms outside the rules."""
    words = [token.lower_.replace("’", "'") for token in doc]
    if re.search(r"[\\$=^{}<>_|]", doc.text):
        raise Refusal("it holds formulas or marks")
    for word in words:
        if word in NEGATIVE:
            raise Refusal(f"it is negative already ('{word}')")
        if word in QUANTIFIERS:
            raise Refusal(f"'{word}' would change its scope")
    wh_words = [token for token in doc if token.tag_ in WH_TAGS and token.lower_ not in ("that", "when")]
    wh_words = wh_words or [token for token in doc if token.tag_ in WH_TAGS and token.lower_ != "that"]
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


def starts_noun_phrase(token: Any) -> bool:
    """Whether a noun phrase that is somebody's subject or complement begins at a token."""
    if token.pos_ in ("DET", "PRON", "PROPN", "NUM", "NOUN"):
        return True
    return any(chunk.start == token.i for chunk in token.doc.noun_chunks)


def phrase_end(token: Any) -> int:
    """Index behind the noun phrase (without what modifies it from behind) that begins at a token."""
    for chunk in token.doc.noun_chunks:
        if chunk.start <= token.i < chunk.end:
            return chunk.end
    return token.i + 1
