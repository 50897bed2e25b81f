"""Which objects an image shows and which of the others a question may ask about: co-occurrence over a set.

Source: Alhamoud et al., "Vision-Language Models Do Not Understand Negation" (NegBench), section 3, appendix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nein.datasets.negbench.polarity import mentions

NEGATIVES = 3  # absent objects kept per image, as published
IN_CAPTION = "object not annotated but in a caption, not taken for absent"


@dataclass(frozen=True)
class Concepts:
    """One image on its way to the data set."""

    id: str  # unique; the seed of everything drawn for the image
    path: str = ""  # as the CSV files will name it
    captions: tuple[str, ...] = ()  # affirmative; none in sets without any (VOC)
    positives: tuple[str, ...] = ()  # objects it shows, distinct, in order of first mention
    negatives: tuple[str, ...] = ()  # absent objects, the most plausible first
    unsure: tuple[str, ...] = ()  # may be there: asked about neither as present nor as absent
    problem: str = ""  # why it yields nothing
    source_id: str = ""  # picture it stems from, what intervals are clustered by; "": `id`
    notes: tuple[str, ...] = ()  # what happened to it on the way: counted in the card

    def noting(self, *notes: str) -> Concepts:
        return replace(self, notes=(*self.notes, *notes))


def with_negatives(
    images: Sequence[Concepts], count: int = NEGATIVES, *, screened: bool = True
) -> Iterator[Concepts]:
    """The images of an annotated set with at most `count` absent objects: those most often seen with the
    present ones in this set; ties: seen in more images, then the alphabet. screened: an object named in a
    caption and not annotated is passed over; released files deny it in 162 of COCO's 5,000."""
    showing: Counter[str] = Counter()  # in how many images an object is
    together: dict[str, Counter[str]] = {}  # object -> in how many of its images each other one is
    for image in images:
        distinct = set() if image.problem else set(image.positives)
        showing.update(distinct)
        for name in distinct:
            together.setdefault(name, Counter()).update(distinct - {name})
    for image in images:
        if image.problem:
            yield image
            continue
        seen: Counter[str] = Counter()
        for name in set(image.positives):
            seen.update(together[name])
        others = seen.keys() - {*image.positives, *image.unsure}
        text = ". ".join(image.captions if screened else ())
        absent, passed = list[str](), 0
        for name in sorted(others, key=lambda name: (-seen[name], -showing[name], name)):
            if len(absent) == count:
                break
            if mentions(text, name):
                passed += 1
            else:
                absent.append(name)
        yield replace(image.noting(*[IN_CAPTION] * passed), negatives=tuple(absent))
