"""Two pictures and two captions, each true of one and false of the other: what such a pair asks.

As Winoground (Thrush et al., CVPR 2022, arXiv:2204.03162), with its names for the scores: "text", each
picture chooses its caption; "image", each caption chooses its picture; "group", all of it. A model that is
shown one picture is asked of both captions whether they are true of either.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from nein.datasets.negbench.polarity import denies
from nein.datasets.negbench.records import AFFIRMATION, NEGATION, Group, Option, Question

YES, NO = "Yes", "No"
TEXT, IMAGE, GROUP = "text", "image", "group"
ONE_QUESTION, ONE_PICTURE, ALL_FOUR = "a question, both pictures", "a picture, both questions", "all four"


@dataclass(frozen=True)
class Pair:
    """captions[k] is true of images[k], and false of the other.

    source  What resampling treats as one unit; "": these two pictures.
    groups  Further scores that the four questions are right together for; difficulty as `Question` has it.
    denies  Which captions have a denying word; None: by the rule for English.
    """

    name: str
    images: tuple[str, str]
    captions: tuple[str, str]
    source: str = ""
    groups: tuple[Group, ...] = ()
    difficulty: tuple[tuple[str, int], ...] = ()
    denies: tuple[bool, bool] | None = None

    @property
    def cluster(self) -> str:
        return self.source or " ".join(self.images)

    @property
    def kinds(self) -> list[str]:
        """Of both captions."""
        denying = self.denies or [denies(text) for text in self.captions]
        return [NEGATION if one else AFFIRMATION for one in denying]


def compared(pair: Pair) -> Iterator[Question]:
    """Which caption for each picture, and which picture for each caption."""
    kinds = pair.kinds
    for k in (0, 1):
        captions = tuple(Option(text, which) for text, which in zip(pair.captions, kinds, strict=True))
        shown = tuple(Option(pair.captions[k], kinds[k], image) for image in pair.images)
        for score, options in ((TEXT, captions), (IMAGE, shown)):
            groups = ((score, pair.name, 2), (GROUP, pair.name, 4), *pair.groups)
            yield Question(
                f"{pair.name}/{score}{k}", pair.images[k], options, k, kinds[k], source=pair.cluster,
                groups=groups, difficulty=pair.difficulty,
            )  # fmt: skip


def asked(pair: Pair) -> Iterator[Question]:
    """Of both captions, whether they are true of either picture."""
    for k, m in itertools.product((0, 1), (0, 1)):
        text = pair.captions[k]
        groups = (*asked_groups(pair.name, k, m), *pair.groups)
        yield Question(
            f"{pair.name}/q{k}i{m}", pair.images[m], (Option(YES), Option(NO)), int(k != m),
            pair.kinds[k], source=pair.cluster, asked=f"Is it true of the picture? {text}", groups=groups,
            difficulty=pair.difficulty,
        )  # fmt: skip


def asked_groups(name: str, question: int, picture: int) -> tuple[Group, ...]:
    return (
        (ONE_QUESTION, f"{name}/q{question}", 2), (ONE_PICTURE, f"{name}/i{picture}", 2), (ALL_FOUR, name, 4),
    )  # fmt: skip


def kind(text: str) -> str:
    return NEGATION if denies(text) else AFFIRMATION
