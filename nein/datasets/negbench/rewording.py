"""More wordings of NegBench's sentences, for the miniature world: to train on many, to test on one not seen.

They have the forms of `sentences.WORDINGS`, and two more for the sentence before or behind a caption:
"absence", as in "There is no {x} in the {thing}.", and "presence", its opposite. No published set has them.
"""

from __future__ import annotations

from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION

PAIR, ABSENCE, PRESENCE = "pair", "absence", "presence"
FORMS = (PAIR, AFFIRMATION, NEGATION, HYBRID, ABSENCE, PRESENCE)


def _forms(
    pair: str, affirmation: str, negation: str, hybrid: str, absence: str, presence: str
) -> dict[str, str]:
    return dict(zip(FORMS, (pair, affirmation, negation, hybrid, absence, presence), strict=True))


def _verb(what: str, third: str, plain: str, but: str = ", but not") -> dict[str, str]:
    """The forms of a verb: "This image features A and B", "does not feature N"."""
    yes, no = f"{what} {third}", f"{what} does not {plain}"
    return _forms(
        f"{yes} {{A}} and {{B}}",
        f"{yes} {{A}}",
        f"{no} {{N}}",
        f"{yes} {{A}}{but} {{N}}",
        f"{no} {{x}}",
        f"{yes} {{x}}",
    )


#: Held out of every training: a new verb, with denying words that `VARIED` has in other sentences.
UNSEEN = "includes"
#: Held out of every training: "lacks" occurs nowhere else.
NEGATOR = "lacks"
HELD_OUT = {
    UNSEEN: _verb("This {thing}", "includes", "include", " but not"),
    NEGATOR: _forms(
        "This {thing} features {A} and {B}",
        "This {thing} features {A}",
        "This {thing} lacks {N}",
        "This {thing} features {A}, but lacks {N}",
        "The {thing} lacks {x}",
        "The {thing} features {x}",
    ),
}
#: For training, beside "code".
VARIED = {
    "shows": _verb("The picture", "shows", "show", " but not"),
    "contains": _verb("The photo", "contains", "contain"),
    "depicts": _verb("It", "depicts", "depict", ", not"),
    "there": _forms(
        "There is {A} and {B} here", "There is {A} here", "There is no {N} here",
        "There is {A} here, but no {N}", "There is no {x} here", "There is {x} here",
    ),
    "has": _forms(
        "The scene has {A} and {B}", "The scene has {A}", "The scene has no {N}",
        "The scene has {A} and no {N}", "The scene has no {x}", "The scene has {x}",
    ),
    "visible": _forms(
        "{A} and {B} are visible", "{A} is visible", "{N} is not visible", "{A} is visible, {N} is not",
        "{x} is not visible", "{x} is visible",
    ),
    "see": _forms(
        "We see {A} and {B}", "We see {A}", "We see no {N}", "We see {A} and no {N}", "We see no {x}",
        "We see {x}",
    ),
    "without": _forms(
        "A view with {A} and {B}", "A view with {A}", "A view without {N}", "A view with {A} and without {N}",
        "It is a view without {x}", "It is a view with {x}",
    ),
    "any": _forms(
        "In this place are {A} and {B}", "In this place is {A}", "In this place is not any {N}",
        "In this place is {A}, not any {N}", "In this place is not any {x}", "In this place is {x}",
    ),
}  # fmt: skip
REWORDED = {**HELD_OUT, **VARIED}
#: The sentence beside a caption, also in the released wording.
CAPTION_FORMS: dict[str, dict[str, str]] = {
    "code": {ABSENCE: "There is no {x} in the {thing}", PRESENCE: "There is {x} in the {thing}"},
    **REWORDED,
}
