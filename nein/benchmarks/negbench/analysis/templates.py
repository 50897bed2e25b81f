"""The templates of the analysis: 24 affirmed and 24 negated ones about one object, 23 + 24 + 24 about two.

The paper prints five of each group (Alhamoud et al., CVPR 2025, appendix); they come first and are marked
(`PUBLISHED`). The rest is written here in the same spirit: the k-th negated template denies what the k-th
affirmed one says. {A}, {B}: object with article; {a}, {b}: without, after "no".
"""

from __future__ import annotations

from typing import NamedTuple

from nein.wording.templates import indefinite

AFFIRMED, DENIED, TWO, HYBRID, NEITHER = "affirmed", "denied", "two", "hybrid", "neither"
GROUPS = (AFFIRMED, DENIED, TWO, HYBRID, NEITHER)
TITLES = {
    AFFIRMED: "A", DENIED: "not A", TWO: "A and B", HYBRID: "A, not B", NEITHER: "neither A nor B",
}  # fmt: skip
#: The first so many of every group are the paper's.
PUBLISHED = 5

_ONE = (
    ("This image includes {A}", "This image does not include {A}"),
    ("{A} is present in this image", "{A} is not present in this image"),
    ("This image shows {A}", "This image lacks {A}"),
    ("{A} is depicted in this image", "{A} is not depicted in this image"),
    ("{A} appears in this image", "{A} does not appear in this image"),
    ("This image features {A}", "This image does not feature {A}"),
    ("This image contains {A}", "This image does not contain {A}"),
    ("There is {A} in this image", "There is no {a} in this image"),
    ("{A} can be seen in this image", "{A} cannot be seen in this image"),
    ("{A} is visible in this image", "{A} is not visible in this image"),
    ("This is an image with {A}", "This is an image without {A}"),
    ("This image has {A} in it", "This image does not have {A} in it"),
    ("You can see {A} in this image", "You cannot see {A} in this image"),
    ("This image depicts {A}", "This image does not depict {A}"),
    ("This image displays {A}", "This image does not display {A}"),
    ("This image presents {A}", "This image does not present {A}"),
    ("{A} is shown in this image", "{A} is not shown in this image"),
    ("{A} is part of this image", "{A} is not part of this image"),
    ("{A} is found in this image", "{A} is nowhere to be found in this image"),
    ("{A} occurs in this image", "{A} is missing from this image"),
    ("{A} is in the picture", "{A} is not in the picture"),
    ("The picture shows {A}", "The picture does not show {A}"),
    ("This photo contains {A}", "This photo contains no {a}"),
    ("The scene includes {A}", "The scene excludes {A}"),
)

TEMPLATES: dict[str, tuple[str, ...]] = {
    AFFIRMED: tuple(yes for yes, _ in _ONE),
    DENIED: tuple(no for _, no in _ONE),
    TWO: (
        "This image includes {A} and {B}",
        "{A} and {B} are present in this image",
        "This image shows {A} and {B}",
        "{A} and {B} are depicted in this image",
        "{A} and {B} appear in this image",
        "This image features {A} and {B}",
        "This image contains {A} and {B}",
        "There are {A} and {B} in this image",
        "{A} and {B} can be seen in this image",
        "{A} and {B} are visible in this image",
        "This is an image with {A} and {B}",
        "This image has {A} and {B} in it",
        "You can see {A} and {B} in this image",
        "This image depicts both {A} and {B}",
        "This image displays {A} and {B}",
        "This image presents {A} and {B}",
        "{A} and {B} are shown in this image",
        "{A} and {B} are part of this image",
        "{A} and {B} are found in this image",
        "Both {A} and {B} are in the picture",
        "The picture shows {A} together with {B}",
        "This photo contains both {A} and {B}",
        "The scene includes {A} as well as {B}",
    ),
    HYBRID: (
        "This image includes {A} but not {B}",
        "{A} is present in this image but not {B}",
        "This image shows {A} but not {B}",
        "This image features {A} but not {B}",
        "{A} appears in this image but not {B}",
        "This image contains {A} but not {B}",
        "There is {A} but no {b} in this image",
        "{A} can be seen in this image but {B} cannot",
        "{A} is visible in this image but {B} is not",
        "This is an image with {A} but without {B}",
        "This image has {A} in it but not {B}",
        "You can see {A} in this image but not {B}",
        "This image depicts {A} but not {B}",
        "This image displays {A} but not {B}",
        "This image presents {A} and not {B}",
        "{A} is shown in this image but {B} is not",
        "{A} is part of this image but {B} is not",
        "{A} is found in this image but not {B}",
        "{A} occurs in this image while {B} does not",
        "{A} is in the picture and {B} is not",
        "The picture shows {A} but no {b}",
        "This photo contains {A} without {B}",
        "The scene includes {A} and excludes {B}",
        "{A} is depicted in this image but {B} is missing",
    ),
    NEITHER: (
        "This image includes neither {A} nor {B}",
        "Neither {A} nor {B} are present in this image",
        "This image shows neither {A} nor {B}",
        "Neither {A} nor {B} are depicted in this image",
        "Neither {A} nor {B} appear in this image",
        "This image features neither {A} nor {B}",
        "This image contains neither {A} nor {B}",
        "There is neither {A} nor {B} in this image",
        "Neither {A} nor {B} can be seen in this image",
        "Neither {A} nor {B} is visible in this image",
        "This is an image without {A} or {B}",
        "This image does not have {A} or {B} in it",
        "You can see neither {A} nor {B} in this image",
        "This image depicts neither {A} nor {B}",
        "This image displays neither {A} nor {B}",
        "This image presents neither {A} nor {B}",
        "Neither {A} nor {B} is shown in this image",
        "Neither {A} nor {B} is part of this image",
        "Neither {A} nor {B} is found in this image",
        "Neither {A} nor {B} is in the picture",
        "The picture shows neither {A} nor {B}",
        "This photo contains no {a} and no {b}",
        "The scene includes neither {A} nor {B}",
        "This image lacks both {A} and {B}",
    ),
}

#: Pairs of objects that occur in COCO and in the miniature world.
PAIRS: tuple[tuple[str, str], ...] = (
    ("dog", "cat"), ("car", "bicycle"), ("cup", "chair"), ("boat", "airplane"), ("person", "umbrella"),
    ("apple", "banana"), ("laptop", "clock"), ("bird", "sheep"),
)  # fmt: skip


class Sentence(NamedTuple):
    """A filled template. `first`: whether {A} is the pair's first object (else its second)."""

    text: str
    group: str
    template: int
    first: bool

    @property
    def published(self) -> bool:
        return self.template < PUBLISHED


def fill(template: str, a: str, b: str, article: str = "a_an") -> str:
    """The sentence about objects a and b, its first letter a capital, without a full stop (as printed)."""
    named = {"A": a, "B": b} if article == "none" else {"A": indefinite(a), "B": indefinite(b)}
    text = template.format(**named, a=a, b=b)
    return text[:1].upper() + text[1:]


def sentences(pair: tuple[str, str], article: str = "a_an") -> list[Sentence]:
    """Every template, about the pair's objects in both orders: 2 x 119 sentences."""
    made = []
    for group in GROUPS:
        for first in (True, False):
            a, b = pair if first else pair[::-1]
            for index, template in enumerate(TEMPLATES[group]):
                made.append(Sentence(fill(template, a, b, article), group, index, first))
    return made
