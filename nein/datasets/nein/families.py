"""NeIn's samples with a harder negation in place of their own sentence: the same pictures, another family.

What a sentence (`nein.wording.families`) names besides the object is known from the data: another object of
the same source picture, absent as the sample's own is, and one that the source's caption names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from nein.datasets.nein.samples import Dataset, Sample, records_hash
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError, unknown
from nein.wording import families
from nein.wording.nouns import named_in


def in_families(data: Dataset, labels: Sequence[str]) -> Dataset:
    """Every sample with a sentence of one of the families, drawn by the sample's id among those that can be
    said of it; `origin` counts those of which none can. Where the object must stay, the target is the sample
    itself. Data that know every thing of a picture have families of their own. Raises UserError.
    """
    if families.MINIMAL_PAIRS in labels:
        return _minimal_pairs(data, labels)
    for label in labels:
        if label not in families.LABELS:
            raise unknown("family of negation", label, families.LABELS)
    if any(sample.things for sample in data.samples):
        of_families = [sample for sample in data.samples if sample.family in labels]
        if not of_families:
            there = ", ".join(dict.fromkeys(str(sample.family) for sample in data.samples))
            raise UserError(f"The data have no sample of {', '.join(labels)}; they have {there}.")
        return _made(data, labels, of_families)
    for label in labels:
        if label in families.DRAWN:
            raise UserError(f"'{label}' names a colour and is said of drawn scenes alone: --data nano:scope.")
    objects = tuple(dict.fromkeys(sample.object for sample in data.samples))
    of_source: dict[str, list[str]] = {}
    for sample in data.samples:
        of_source.setdefault(sample.source_id, []).append(sample.object)
    said = [_reworded(sample, labels, of_source[sample.source_id], objects) for sample in data.samples]
    samples = [sample for sample in said if sample is not None]
    if not samples:
        raise UserError(
            f"No sentence of {', '.join(labels)} can be said of any sample: those that name a second object "
            "need one that is known to be absent, or to be there."
        )
    return _made(data, labels, samples)


def _made(data: Dataset, labels: Sequence[str], samples: Sequence[Sample], of_each: int = 1) -> Dataset:
    left_out = len(data.samples) - len(samples) // of_each
    origin = {**data.origin, "families": list(labels), "not said": left_out}
    return Dataset(tuple(samples), origin, records_hash(samples), data.missing)


def _minimal_pairs(data: Dataset, labels: Sequence[str]) -> Dataset:
    """Four samples in place of every plain or implicit one: its sentence and that without the denial, of the
    picture with the object and of the one without it. The target is what the sentence says."""
    if len(labels) > 1:
        raise UserError(f"--families {families.MINIMAL_PAIRS} goes with no other; leave out the others.")
    plain = [sample for sample in data.samples if (sample.family or "plain") in families.DENYING]
    if not plain:
        raise UserError(
            "The data have no sample whose sentence only denies its object, of which pairs are made."
        )
    cells = [_cell(sample, label) for sample in plain for label in families.CELLS]
    return _made(data, labels, cells, len(families.CELLS))


def _cell(sample: Sample, label: str) -> Sample:
    caption, picture = families.CELLS[label]
    pictures = sample.sample_path, sample.source_path
    text = sample.negative if caption else families.affirmed(sample.template, sample.object)
    return replace(
        sample, id=f"{sample.id}_{label.replace(', ', '_')}", negative=text, family=label,
        template=sample.template if caption else None, sample_path=pictures[picture],
        source_path=pictures[caption],
    )  # fmt: skip


def _reworded(
    sample: Sample, labels: Sequence[str], absent: Sequence[str], objects: Sequence[str]
) -> Sample | None:
    others = [name for name in absent if name != sample.object]
    present = [name for name in named_in((sample.caption,), objects) if name not in absent]
    has = {"": True, "T": bool(others), "A": bool(present)}
    possible = [label for label in labels if has[families.FAMILIES[label].needs]]
    if not possible:
        return None
    draw = random.Random(sample_seed(0, sample.id))
    label = draw.choice(possible)
    template = draw.choice(families.choices(label, sample.object, "fixed"))
    second, there = (draw.choice(names) if names else "" for names in (others, present))
    text = families.sentence(label, template, sample.object, second=second, present=there)
    stays = label in families.STAYS
    target = sample.sample_path if stays else sample.source_path
    plain = template if label == "plain" else None
    return replace(sample, negative=text, family=label, template=plain, source_path=target)
