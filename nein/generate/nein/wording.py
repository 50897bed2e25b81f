"""The sentences of the filters and of the generation, in the released code's words or in mended ones.

Source: github.com/tanbuinhat/NeIn @ 22fafb0, generation_phase/ and filtering_phase/. What "fixed" mends:

    article    by sound ("an hour"), none for plurals ("Add some skis."), where the code goes by the letter
    joining    a full stop is added after a caption that does not end with one, where the code looks for a dot
               anywhere, so that "Two men at 5 p.m" runs into the next sentence
"""

from __future__ import annotations

from nein.metrics.judges.base import PromptTemplate
from nein.wording import nouns, templates


def named(noun: str, protocol: str) -> str:
    """The object as it is added and asked for: "a cat"; "a skis" (paper) or "some skis" (fixed)."""
    return templates.indefinite(noun) if protocol == "paper" else nouns.with_article(noun, some=True)


def addition(noun: str, protocol: str) -> str:
    """The instruction that makes the sample: "Add a cat."."""
    return f"Add {named(noun, protocol)}."


def matched_text(caption: str, noun: str, protocol: str) -> str:
    """What filter 1 matches with the picture: the caption, and that the object is there (algorithm 2)."""
    if protocol == "paper":
        joint = " " if "." in caption else ". "
    else:
        joint = " " if caption.rstrip().endswith((".", "!", "?")) else ". "
    return f"{caption}{joint}This image has {named(noun, protocol)}."


def questions(caption: str, noun: str, template: PromptTemplate, protocol: str) -> list[str]:
    """The prompts of filter 2: does the caption describe the picture, and is the object in it."""
    return [template.ask_caption(caption), template.ask_presence(named(noun, protocol))]
