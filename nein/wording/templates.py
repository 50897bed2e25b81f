"""The thirteen negative templates of NeIn and its article rule.

Source: Bui et al., "NeIn: Telling What You Don't Want" (CVPR Workshops 2025), Table 2, in the order of the
authors' code (github.com/tanbuinhat/NeIn, generation_phase).
"""

from __future__ import annotations

import re

from nein.wording import nouns

NEGATIVE_TEMPLATES: tuple[str, ...] = (
    "The image doesn't have any {S}.", "The image does not have any {S}.", "The image cannot have any {S}.",
    "No {S} present in the image.", "No {S} in the image.", "The image is without {S}.",
    "Not a single {S} in sight.", "{S} is not part of the scene.", "The image lacks {S}.",
    "{S} is nowhere to be seen in the image.", "{S} is missing from the image.", "A scene without {S}.",
    "The image lacks the presence of {S}.",
)  # fmt: skip


def indefinite(phrase: str) -> str:
    """The phrase with "an" before a written vowel, else "a": NeIn's rule, which also says "a scissors"."""
    return f"{'an' if phrase[:1].lower() in tuple('aeiou') else 'a'} {phrase}"


def negative_sentence(template: int, noun: str) -> str:
    """The negative sentence of template 0..12 for an object; its first letter is a capital."""
    sentence = NEGATIVE_TEMPLATES[template].replace("{S}", noun)
    return sentence[:1].upper() + sentence[1:]


def addition(noun: str) -> str:
    """The sentence NeIn's own generation used: "Add a cat."."""
    return f"Add {indefinite(noun)}."


def removal(noun: str) -> str:
    """The affirmative twin of a negative instruction: "Remove the cat."."""
    return f"Remove the {noun}."


def template_of(sentence: str, noun: str) -> int | None:
    """Which template (0..12) a negative sentence was made from, or None if from none of them."""
    wanted, name = sentence.strip().rstrip(".").casefold(), noun.casefold()
    for index in range(len(NEGATIVE_TEMPLATES)):
        text = negative_sentence(index, noun).rstrip(".").casefold()
        if wanted in (text, text.replace(f"{name} is ", f"{name} are ")):  # "skis are": agreement mended
            return index
    return None


def added(generated: str) -> str | None:
    """The object in "Add a/an X."; None for a sentence of another form."""
    match = re.fullmatch(r"Add (?:a|an|some) (.+?)\.?", generated.strip())
    return match.group(1).strip() if match else None


def object_of(generated: str, negated: str) -> str:
    """The object in "Add a/an X." (or "Add some Xs."), checked against the negative sentence of the sample.

    Raises ValueError when the sentence has another form or the object does not occur in the negative one.
    """
    noun = added(generated)
    if noun is None:
        raise ValueError(f"T_generated {generated!r} is not of the form 'Add a/an OBJECT.'")
    forms = f"{re.escape(noun)}|{re.escape(nouns.plural(noun))}"
    if not re.search(rf"(?<!\w)(?:{forms})(?!\w)", negated, flags=re.IGNORECASE):
        raise ValueError(f"the object {noun!r} of T_generated does not occur in T_negative {negated!r}")
    return noun
