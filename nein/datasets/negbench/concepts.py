"""Which objects an image shows and which of the others a question may ask about: co-occurrence over a set.

Source: Alhamoud et al., "Vision-Language Models Do Not Understand Negation" (NegBench), section 3, appendix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from nein.datasets.negbench.polarity import mentions

NEGATIVES = 3  # absent objects kept per image, as published
IN_CAPTION = "object not annotated but in a caption, not taken for absent"

#: A row of a list of images (`Concepts.row`).
ROW = {
    "id": str, "path?": str, "problem?": str, "source_id?": str,
    **{f"{name}?": [str] for name in ("captions", "positives", "negatives", "unsure", "notes")},
}  # fmt: skip


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

    def row(self) -> dict[str, Any]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name))}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Concepts:
        given = ((item.name, row[item.name]) for item in fields(cls) if item.name in row)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given}
        return cls(**values)

    def noting(self, *notes: str) -> Concepts:
        return replace(self, notes=(*self.notes, *notes))


class CoOccurrence:
    """In how many images two objects are together."""

    def __init__(self, images: Iterable[Sequence[str]] = ()) -> None:
        self.images: Counter[str] = Counter()
        self._pairs: dict[str, Counter[str]] = {}
        for objects in images:
            distinct = list(dict.fromkeys(objects))
            self.images.update(distinct)
            for name in distinct:
                self._pairs.setdefault(name, Counter()).update(other for other in distinct if other != name)

    def negatives(
        self, positives: Sequence[str], count: int = NEGATIVES, never: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """At most `count` objects seen with `positives`, the most often seen first, neither among them nor in
        `never`. Counts are summed over the positives; ties: seen in more images, then the alphabet."""
        present = {*positives, *never}
        total: Counter[str] = Counter()
        for name in dict.fromkeys(positives):
            total.update(self._pairs.get(name, Counter()))
        ranked = sorted(total.keys() - present, key=lambda name: (-total[name], -self.images[name], name))
        return tuple(ranked[:count])


def with_negatives(
    images: Sequence[Concepts], count: int = NEGATIVES, *, screened: bool = True
) -> Iterator[Concepts]:
    """The images of an annotated set with absent objects, by the statistics of this set. screened: an object
    named in a caption and not annotated is passed over; released files deny it in 162 of COCO's 5,000."""
    seen = CoOccurrence(image.positives for image in images if not image.problem)
    for image in images:
        if image.problem:
            yield image
        else:
            text, passed = ". ".join(image.captions if screened else ()), list[str]()
            while True:
                absent = seen.negatives(image.positives, count, (*image.unsure, *passed))
                named = [name for name in absent if mentions(text, name)]
                if not named:
                    break
                passed += named
            yield replace(image.noting(*[IN_CAPTION] * len(passed)), negatives=absent)
