"""What a language has to say of negation in scope: six families of negation, each a sentence and its twin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Language:
    """code     As BCP 47 has it, "de".     title  In English.
    sentences  What is named -> per family of CONSTRUCTIONS a sentence and its twin, in this order:

        except_one   There are no cups except the red one. / There are cups other than the red one.
        neither_nor  There is neither a cup nor a dog. / There is a dog but no cup.
        scoped       There is a cup but not a dog. / There is a dog but not a cup.
        not_all      Not all cups are red. / All cups are red.
        past         There used to be a cup. / There is still a cup.
        clause       There is a cup that is not blue. / There is a cup that is blue.

    untrue     A denial of a whole sentence, {}, which leaves its order of words alone.
    sources    Grammars that have the rules, in the order in which the module names them.
    """

    code: str
    title: str
    sentences: Callable[[Named], Sequence[tuple[str, str]]]
    untrue: str
    sources: tuple[str, ...]

    def pair(self, construction: str, named: Named, depth: int = 0) -> tuple[str, str]:
        """A sentence and its twin, below `depth` denials of the whole, each of which makes either what the
        other was."""
        said = self.sentences(named)[CONSTRUCTIONS.index(construction)]
        first, second = (f"{text[:1].upper()}{text[1:]}" for text in said)
        for _ in range(depth):
            first, second = self.untrue.format(second), self.untrue.format(first)
        return first, second
