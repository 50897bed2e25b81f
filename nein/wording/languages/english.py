"""English. A number in brackets says which of its `sources` has the rule.

no, neither ... nor   The determiner "no" denies the noun phrase; "neither" and "nor" each of two [1].
not all               "not" before the quantifier denies it, and not what is said of each thing [1].
used to               A state of the past that has ended [1].
a, an; plural         The article goes by sound; plurals as `nein.wording.nouns` has them.
"""

from __future__ import annotations

from nein.wording.languages.base import Language, Named
from nein.wording.nouns import plural, with_article


def sentences(named: Named) -> list[tuple[str, str]]:
    thing, colour, second = named.thing, named.colour, named.second
    a, b, many = with_article(thing), with_article(named.other), plural(thing)
    return [
        (f"There are no {many} except the {colour} one.", f"There are {many} other than the {colour} one."),
        (f"There is neither {a} nor {b}.", f"There is {b} but no {thing}."),
        (f"There is {a} but not {b}.", f"There is {b} but not {a}."),
        (f"Not all {many} are {colour}.", f"All {many} are {colour}."),
        (f"There used to be {a}.", f"There is still {a}."),
        (f"There is {a} that is not {second}.", f"There is {a} that is {second}."),
    ]


ENGLISH = Language(
    "en", "English", sentences, "The following is not true: {}",
    ("Huddleston and Pullum, The Cambridge Grammar of the English Language (2002), chapter 9, Negation",),
)  # fmt: skip
