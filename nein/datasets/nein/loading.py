"""From what `--data` says to a `Dataset`: the nano world, a folder, or a data set on the hub."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nein.datasets import hub
from nein.datasets.nein.samples import FIELDS, OPTIONAL_TEXTS, Dataset, Sample, load_folder, records_hash
from nein.engine import atomic
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError, unknown
from nein.loading.digests import json_digest
from nein.nano.scenes import SPLITS, is_nano, world
from nein.wording import families
from nein.wording.nouns import named_in

IMAGE_COLUMNS = ("source_image", "sample_image")


def load(
    data: str,
    *,
    split: str = "val",
    annotations: str | None = None,
    source_images: str | None = None,
    nein_images: str | None = None,
    columns: Mapping[str, str] | None = None,
    cache: Path | None = None,
    families: Sequence[str] = (),
) -> Dataset:
    """Loads "nano[:WORLD]", "nano:scope" (negation in scope), a folder in the official layout, or
    "hub:OWNER/NAME[@REVISION]". Raises UserError.

    columns  Renamed fields: the five official names, of the hub also `source_image` and `sample_image`.
    families Labels of `nein.wording.families`: other sentences in place of the data's own (`in_families`).
    cache    Where a hub data set is laid out as files, once; the platform's cache folder by default.
    """
    for key in columns or {}:
        if key not in (*FIELDS, *IMAGE_COLUMNS):
            raise UserError(f"--columns has no key '{key}'; allowed: {', '.join((*FIELDS, *IMAGE_COLUMNS))}.")
    given = {"source_images": source_images, "nein_images": nein_images}
    folders: dict[str, Any] = {name: Path(path) if path else None for name, path in given.items()}
    if is_nano(data):
        found, origin = load_folder(_drawn(data, split), split=split), {"kind": "nano"}
    elif reference := hub.reference(data):
        root = from_hub(reference, split, columns or {}, cache or atomic.cache_root())
        found, origin = load_folder(root, split=split, **folders), {"kind": "hub", **reference._asdict()}
    else:
        folders["annotations"] = Path(annotations) if annotations else None
        found, origin = load_folder(Path(data), split=split, columns=columns, **folders), {}
    found = replace(found, origin={**found.origin, **origin})
    return in_families(found, families) if families else found


def _drawn(data: str, split: str) -> Path:
    from nein.nano import data as nano_data
    from nein.nano import scope

    if data == scope.DATA:
        return scope.ensure(split)
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    return nano_data.ensure(split, world=world(data))


def reload(origin: Mapping[str, Any], moved: str | None = None, split: str = "val") -> Dataset:
    """The data set that a manifest's `data` entry describes. moved: --data, where it is elsewhere now."""
    families = origin.get("families", ())
    if moved:
        return load(moved, split=split, families=families)
    places = {name: Path(origin[name]) for name in ("annotations", "source_images", "nein_images")}
    data = load_folder(None, split=origin.get("split", "val"), columns=origin.get("columns"), **places)
    return in_families(data, families) if families else data


def from_hub(data: hub.Reference, split: str, columns: Mapping[str, str], cache: Path) -> Path:
    """Lays a data set of the hub out officially below `cache`, once; returns that folder. An image cell is
    `{"bytes": ..., "path": ...}`, written as it is. Raises UserError when a column is missing."""
    table = None if (version := hub.version(data)) else hub.read(data, split)
    facts = {"name": data.name, "version": version or hub.version(data), "columns": columns}
    root = cache / "hub" / f"{data.name.replace('/', '--')}-{split}-{json_digest(facts)[:16]}"
    if (root / f"{split}.json").is_file():  # written last, so its presence means the rest is there
        return root
    table = hub.read(data, split) if table is None else table
    where = f"The data set '{data.name}'"
    names = {key: columns.get(key, key) for key in (*FIELDS, *IMAGE_COLUMNS)}
    missing = [names[key] for key in FIELDS if names[key] not in table.column_names]
    if missing:
        raise UserError(
            f"{where} has no column {', '.join(repr(name) for name in missing)}; it has "
            f"{', '.join(table.column_names)}. Say which is which with "
            "--columns.NAME COLUMN, for example --columns.T_negative prompt."
        )
    folders = {"source_image": (f"coco_for_{split}", "COCO"), "sample_image": (f"nein_{split}", "NeIn")}
    records, written = [], set[Path]()
    for row in table:
        record = {field: str(row[names[field]]) for field in FIELDS}
        record |= {name: str(row[name]) for name in OPTIONAL_TEXTS if row.get(name) is not None}
        records.append(record)
        for key, (folder, stem) in folders.items():
            if names[key] not in table.column_names:
                continue
            cell = row[names[key]]
            if not isinstance(cell, Mapping) or not isinstance(cell.get("bytes"), bytes):
                raise UserError(f"{where} has no image files in column '{names[key]}'.")
            content = cell["bytes"]
            suffix = "webp" if content[8:12] == b"WEBP" else "png" if content[:4] == b"\x89PNG" else "jpg"
            file = root / folder / f"{Path(record[stem]).name}.{suffix}"
            if file not in written:
                written.add(file)
                atomic.write_bytes(file, content)
    atomic.write_json(root / f"{split}.json", records)
    return root


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
            existing = ", ".join(dict.fromkeys(str(sample.family) for sample in data.samples))
            raise UserError(f"The data have no sample of {', '.join(labels)}; they have {existing}.")
        return _made(data, labels, of_families)
    for label in labels:
        if label in families.DRAWN:
            raise UserError(f"'{label}' names a colour and is said of drawn scenes alone: --data nano:scope.")
    objects = tuple(dict.fromkeys(sample.object for sample in data.samples))
    of_source: dict[str, list[str]] = {}
    for sample in data.samples:
        of_source.setdefault(sample.source_id, []).append(sample.object)
    reworded = [_reworded(sample, labels, of_source[sample.source_id], objects) for sample in data.samples]
    samples = [sample for sample in reworded if sample is not None]
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
    cells = []
    for sample in plain:
        images = sample.sample_path, sample.source_path
        for label, (denied, absent) in families.CELLS.items():
            name = f"{sample.id}_{label.replace(', ', '_')}"
            cell = replace(
                sample, id=name, family=label, sample_path=images[absent], source_path=images[denied]
            )
            if not denied:
                text = families.affirmed(sample.template, sample.object)
                cell = replace(cell, negative=text, template=None)
            cells.append(cell)
    return _made(data, labels, cells, len(families.CELLS))


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
    second, known = (draw.choice(names) if names else "" for names in (others, present))
    text = families.sentence(label, template, sample.object, second=second, present=known)
    stays = label in families.STAYS
    target = sample.sample_path if stays else sample.source_path
    plain = template if label == "plain" else None
    return replace(sample, negative=text, family=label, template=plain, source_path=target)
