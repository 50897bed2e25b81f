"""Two pictures and two captions, each true of one and false of the other: what such a pair asks.

What Winoground asks (Thrush et al., CVPR 2022, arXiv:2204.03162), with its names for the scores:

    text   each picture chooses its caption
    image  each caption chooses its picture
    group  all of it

A model that is shown one picture is asked of both captions whether they are true of either.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.datasets.negbench.polarity import denies
from nein.datasets.negbench.records import AFFIRMATION, NEGATION, Group, Option, Question
from nein.datasets.nein.samples import load_folder
from nein.engine.errors import UserError
from nein.wording import families

YES, NO = "Yes", "No"
TEXT, IMAGE, GROUP = "text", "image", "group"
ONE_QUESTION, ONE_PICTURE, ALL_FOUR = "a question, both pictures", "a picture, both questions", "all four"
_BEAF = re.compile(r"Is there (an? .+) in the image\?")


@dataclass(frozen=True)
class Pair:
    """captions[k] is true of images[k], and false of the other.

    name    Unique in its task.     images  References.
    source  What resampling treats as one unit; "": these two pictures.
    groups  Further scores that the four questions are right together for; difficulty as `Question` has it.
    denies  Which captions have a denying word; None: those of which the rule for English says so.
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
        groups = (
            (ONE_QUESTION, f"{pair.name}/q{k}", 2), (ONE_PICTURE, f"{pair.name}/i{m}", 2),
            (ALL_FOUR, pair.name, 4), *pair.groups,
        )  # fmt: skip
        yield Question(
            f"{pair.name}/q{k}i{m}", pair.images[m], (Option(YES), Option(NO)), int(k != m),
            pair.kinds[k], source=pair.cluster, asked=f"Is it true of the picture? {text}", groups=groups,
            difficulty=pair.difficulty,
        )  # fmt: skip


def kind(text: str) -> str:
    return NEGATION if denies(text) else AFFIRMATION


def of_nein(path: Path) -> Iterator[Pair]:
    """NeIn's samples: the picture with the object and a sentence that affirms it, the source picture and the
    sample's own sentence. Those of other families than `families.DENYING` are left out."""
    for sample in load_folder(path.parent, split=path.stem, annotations=path).samples:
        if (sample.family or "plain") in families.DENYING:
            images = [f"{file.parent.name}/{file.name}" for file in (sample.sample_path, sample.source_path)]
            texts = families.affirmed(sample.template, sample.object), sample.negative
            yield Pair(sample.id, (images[0], images[1]), texts, sample.source_id)


def of_beaf(items: list[dict[str, Any]], path: Path, original: dict[str, str]) -> Iterator[Pair]:
    """BEAF's pictures and their copies without a thing: "There is a car in the image.", "There is no car in
    the image."

    original  Name of a copy -> name of the picture it was made from.
    """
    for item in items:
        if not item["removed_q"] or item["gt"] != "no" or item["image"] not in original:
            continue
        match = _BEAF.fullmatch(item["question"])
        if match is None:
            raise UserError(
                f"'{path}', id {item['id']}: the question {json.dumps(item['question'])} is not of the form "
                "'Is there a THING in the image?'."
            )
        thing = match[1]
        texts = f"There is {thing} in the image.", f"There is no {thing.partition(' ')[2]} in the image."
        whole = original[item["image"]]
        yield Pair(str(item["id"]), (whole, item["image"]), texts, whole)
