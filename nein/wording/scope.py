"""Negation in scope: six families of negation, each a sentence and its twin, of which one is true.

"no" denies the noun phrase, "neither" and "nor" each of two; "not" before "all" denies the quantifier, and
not what is said of each thing; "used to" is a state that has ended (Huddleston and Pullum, The Cambridge
Grammar of the English Language, 2002, chapter 9).
"""

from __future__ import annotations

from dataclasses import dataclass

from nein.wording.nouns import plural, with_article

#: Families of `nein.wording.families`, in order.
CONSTRUCTIONS = ("except_one", "neither_nor", "scoped", "not_all", "past", "clause")
#: Whether the sentence and its twin have a denying word.
DENIES = {
    **dict.fromkeys(("except_one", "not_all", "clause"), (True, False)),
    **dict.fromkeys(("neither_nor", "scoped"), (True, True)),
    "past": (False, False),
}
#: What makes a sentence in scope difficult: how many things it is not about, how many denials of the whole.
OTHERS, DEPTH = "other things", "denials above"
#: What a sentence may name; their order is part of what is drawn.
THINGS = tuple(
    "airplane,apple,banana,bench,bicycle,bird,boat,book,bottle,bus,cake,car,cat,chair,cup,dog,kite,pizza,"
    "sheep,teddy bear,umbrella".split(",")
)
#: A denial of a whole sentence.
UNTRUE = "The following is not true: {}"


@dataclass(frozen=True)
class Named:
    """What a sentence names: two of THINGS, and two colors of the first."""

    thing: str
    other: str
    colour: str
    second: str


def sentences(construction: str, named: Named, depth: int = 0) -> tuple[str, str]:
    """A sentence and its twin, below `depth` denials of the whole, each of which makes either what the other
    was."""
    one, other, many = with_article(named.thing), with_article(named.other), plural(named.thing)
    color, second = named.colour, named.second
    said, twin = {
        "except_one": (
            f"There are no {many} except the {color} one",
            f"There are {many} other than the {color} one",
        ),
        "neither_nor": (f"There is neither {one} nor {other}", f"There is {other} but no {named.thing}"),
        "scoped": (f"There is {one} but not {other}", f"There is {other} but not {one}"),
        "not_all": (f"Not all {many} are {color}", f"All {many} are {color}"),
        "past": (f"There used to be {one}", f"There is still {one}"),
        "clause": (f"There is {one} that is not {second}", f"There is {one} that is {second}"),
    }[construction]
    said, twin = f"{said}.", f"{twin}."
    for _ in range(depth):
        said, twin = UNTRUE.format(twin), UNTRUE.format(said)
    return said, twin
