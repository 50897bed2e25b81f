"""What a language has to say of negation in scope: six families of negation, each a sentence and its twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

#: Families of `nein.wording.families`, in order.
CONSTRUCTIONS = ("except_one", "neither_nor", "scoped", "not_all", "past", "clause")
#: Whether the sentence and its twin have a denying word; the same in every language.
DENIES = {
    "except_one": (True, False), "neither_nor": (True, True), "scoped": (True, True),
    "not_all": (True, False), "past": (False, False), "clause": (True, False),
}  # fmt: skip
#: What makes a sentence in scope difficult: how many things it is not about, how many denials of the whole.
OTHERS, DEPTH = "other things", "denials above"
#: The things that every language has a word for.
THINGS = (
    "airplane", "apple", "banana", "bench", "bicycle", "bird", "boat", "book", "bottle", "bus", "cake", "car",
    "cat", "chair", "cup", "dog", "kite", "pizza", "sheep", "teddy bear", "umbrella",
)  # fmt: skip
#: The colours that every language has a word for.
COLOURS = (
    "red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "grey", "white", "tan",
)  # fmt: skip


@dataclass(frozen=True)
class Named:
    """What a sentence names, in English: two of THINGS, two colours of the first."""

    thing: str
    other: str
    colour: str
    second: str


class Language:
    """As much grammar as the sentences need.

    code     As BCP 47 has it, "de".     title  In English.
    untrue   A denial of a whole sentence, {}, which leaves its order of words alone.
    sources  Grammars that have the rules; a number in brackets in a comment says which.
    nouns, colours  The forms of THINGS and COLOURS that the sentences need.
    """

    code: str
    title: str
    untrue: str
    sources: tuple[str, ...]
    nouns: ClassVar[Mapping[str, Any]]
    colours: ClassVar[Mapping[str, Any]]

    def sentences(self, a: Any, b: Any, colour: Any, second: Any) -> Sequence[tuple[str, str]]:
        """Per family of CONSTRUCTIONS a sentence and its twin, of the forms of two nouns and two colours:

        except_one   There are no cups except the red one. / There are cups other than the red one.
        neither_nor  There is neither a cup nor a dog. / There is a dog but no cup.
        scoped       There is a cup but not a dog. / There is a dog but not a cup.
        not_all      Not all cups are red. / All cups are red.
        past         There used to be a cup. / There is still a cup.
        clause       There is a cup that is not blue. / There is a cup that is blue.
        """
        raise NotImplementedError

    def pair(self, construction: str, named: Named, depth: int = 0) -> tuple[str, str]:
        """A sentence and its twin, below `depth` denials of the whole, each of which makes either what the
        other was."""
        nouns, colours = self.nouns, self.colours
        rows = self.sentences(
            nouns[named.thing], nouns[named.other], colours[named.colour], colours[named.second]
        )
        first, second = (self.capital(text[0]) + text[1:] for text in rows[CONSTRUCTIONS.index(construction)])
        for _ in range(depth):
            first, second = self.untrue.format(second), self.untrue.format(first)
        return first, second

    def capital(self, letter: str) -> str:
        return letter.upper()
