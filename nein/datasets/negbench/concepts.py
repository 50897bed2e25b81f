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
    """One image on its way to the data set.

    id         Unique in the set; the seed of everything drawn for the image.
    path       The image file as the CSV files will name it.
    captions   Affirmative captions; empty for sets without any (VOC).
    positives  Objects it shows, distinct, in order of first mention.
    unsure     Objects that may be there: asked about neither as present nor as absent.
    negatives  Absent objects, the most plausible first.
    problem    Why it yields nothing; empty if it does.
    source_id  The picture it stems from: what intervals are clustered by. Empty: `id`.
    notes      What happened to it on the way: counted in the card.
    """

    id: str
    path: str = ""
    captions: tuple[str, ...] = ()
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    problem: str = ""
    source_id: str = ""
    notes: tuple[str, ...] = ()

    def row(self) -> dict[str, Any]:
        """A JSON object that `of` turns back; what is empty is left out."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name))}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Concepts:
        given = ((item.name, row[item.name]) for item in fields(cls) if item.name in row)
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given}
        return cls(**values)

    def noting(self, *notes: str) -> Concepts:
        return replace(self, notes=(*self.notes, *notes))


class CoOccurrence:
    """How often two objects are in one image, counted over images and not over instances."""

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
        """The `count` objects most often seen with `positives` that are neither among them nor in `never`.

        Counts are summed over the positives; ties go to the object seen in more images, then to the alphabet.
        An object never seen with any of them is not chosen: fewer than `count` may come back.
        """
        present = {*positives, *never}
        total: Counter[str] = Counter()
        for name in dict.fromkeys(positives):
            total.update(self._pairs.get(name, Counter()))
        ranked = sorted(total.keys() - present, key=lambda name: (-total[name], -self.images[name], name))
        return tuple(ranked[:count])


def with_negatives(
    images: Sequence[Concepts], count: int = NEGATIVES, *, screened: bool = True
) -> Iterator[Concepts]:
    """The images of an annotated set with their absent objects filled in, by the statistics of this set.
    screened: an object that is not annotated but named in a caption of the image is passed over, and noted;
    the released files deny some of these (162 of COCO's 5,000 images)."""
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
