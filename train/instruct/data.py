"""The data of a configuration: which samples, which sentences, and where the pictures come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nein.datasets.nein import loading
from nein.datasets.nein.samples import Sample, load_folder, records_hash, validate_images
from nein.engine.errors import UserError, unknown
from nein.nano.worlds import is_nano, world
from train.instruct.drawn import DrawnPictures
from train.instruct.options import TuneConfig
from train.instruct.pairs import Example, FilePictures, JoinedPictures, Pairs, Pictures
from train.instruct.shards import ShardPictures


def load(config: TuneConfig, *, check_images: bool = True) -> Pairs:
    """The pairs of a configuration. Raises UserError naming everything that is wrong with the data."""
    pictures: Pictures
    if config.data.startswith("shards:"):
        shards = ShardPictures(config.data.removeprefix("shards:"))
        samples, pictures = list(shards.samples), shards
        origin: dict[str, Any] = {"kind": "shards", "where": config.data, "shards": len(shards.groups)}
    else:
        dataset = _dataset(config)
        samples, origin = list(dataset.samples[: config.limit]), dict(dataset.origin)
        pictures = FilePictures(samples)
    chosen = _chosen(samples, config)
    if check_images and not config.data.startswith("shards:"):
        validate_images([samples[index] for index in chosen], f"The data set '{config.data}'")
    negative = [Example(samples[i].id, i, False, samples[i].negative) for i in chosen]
    facts = {
        "origin": origin,
        "records_sha256": records_hash(samples),
        "samples": len(samples),
        "used": len(chosen),
        "hold_out_objects": sorted(config.hold_out_objects),
        "hold_out_templates": sorted(int(t) for t in config.hold_out_templates),
    }
    affirmative: list[Example] = []
    if config.mix_affirmative:
        if is_nano(config.data):
            drawn = DrawnPictures(config.affirmative_pairs, config.base, tuple(config.hold_out_objects))
            affirmative = drawn.examples(first=len(pictures))
            pictures = JoinedPictures([pictures, drawn])
            facts["affirmative"] = drawn.describe()
        else:
            for i in chosen:
                sample = samples[i]
                affirmative.append(Example(f"{sample.id}/add", i, True, sample.instruction("add")))
                affirmative.append(Example(f"{sample.id}/remove", i, False, sample.instruction("remove")))
            facts["affirmative"] = {"pairs": len(affirmative), "kinds": "add and remove of the same samples"}
    return Pairs(pictures, negative, affirmative, facts)


def _dataset(config: TuneConfig) -> Any:
    if is_nano(config.data):
        from nein.nano import data as nano_data

        try:
            folder = nano_data.ensure(config.split, config.nano_sources, world=world(config.data))
        except (ValueError, OSError) as error:
            raise UserError(f"The miniature world cannot be drawn: {error}.") from None
        return load_folder(folder, split=config.split)
    return loading.load(
        config.data,
        split=config.split,
        annotations=config.annotations,
        source_images=config.source_images,
        nein_images=config.nein_images,
        columns=config.columns,
    )


def _chosen(samples: Sequence[Sample], config: TuneConfig) -> list[int]:
    objects = {sample.object for sample in samples}
    for name in config.hold_out_objects:
        if name not in objects:
            raise unknown("object to hold out", name, sorted(objects))
    ids = {sample.id for sample in samples}
    for name in config.exclude:
        if name not in ids:
            raise UserError(f"--exclude names '{name}', which is no sample of '{config.data}'.")
    templates = {int(word) for word in config.hold_out_templates}
    gone, excluded = set(config.hold_out_objects), set(config.exclude)
    chosen = [
        index
        for index, sample in enumerate(samples)
        if sample.object not in gone and sample.template not in templates and sample.id not in excluded
    ]
    if not chosen:
        raise UserError(f"No sample of '{config.data}' is left after --hold-out-* and --exclude.")
    return chosen
