"""From what `--data` says to a `Dataset`: the nano world, a folder, or a data set on the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nein.datasets import hub
from nein.datasets.nein.families import in_families
from nein.datasets.nein.samples import FIELDS, OPTIONAL_TEXTS, Dataset, load_folder
from nein.engine import atomic
from nein.engine.errors import UserError, unknown
from nein.nano.scenes import is_nano, world

IMAGE_COLUMNS = ("source_image", "sample_image")


def load(
    data: str, *, split: str = "val", annotations: str | None = None, source_images: str | None = None,
    nein_images: str | None = None, columns: Mapping[str, str] | None = None, cache: Path | None = None,
    families: Sequence[str] = (),
) -> Dataset:  # fmt: skip
    """Loads "nano[:WORLD]", "nano:scope[-LANGUAGE]" (negation in scope), a folder in the official layout, or
    "hub:OWNER/NAME[@REVISION]". Raises UserError.

    columns  Renamed fields: the five official names, of the hub also `source_image` and `sample_image`.
    families Labels of `nein.wording.families`: other sentences in place of the data's own (`in_families`).
    cache    Where a hub data set is laid out as files, once; the platform's cache folder by default.
    """
    columns = dict(columns or {})
    for key in columns:
        if key not in (*FIELDS, *IMAGE_COLUMNS):
            raise UserError(f"--columns has no key '{key}'; allowed: {', '.join((*FIELDS, *IMAGE_COLUMNS))}.")
    given = {"source_images": source_images, "nein_images": nein_images}
    folders: dict[str, Any] = {name: Path(path) if path else None for name, path in given.items()}
    origin: dict[str, Any] = {}
    if is_nano(data):
        found, origin = load_folder(_drawn(data, split), split=split), {"kind": "nano"}
    elif reference := hub.reference(data):
        root = from_hub(reference, split, columns, cache or atomic.cache_root())
        found, origin = load_folder(root, split=split, **folders), {"kind": "hub", **reference._asdict()}
    else:
        fields = {key: value for key, value in columns.items() if key in FIELDS}
        file = Path(annotations) if annotations else None
        found = load_folder(Path(data), split=split, annotations=file, columns=fields, **folders)
    found = replace(found, origin={**found.origin, **origin})
    return in_families(found, families) if families else found


def _drawn(data: str, split: str) -> Path:
    from nein.nano import data as nano_data
    from nein.nano import scope

    if data.startswith("nano:scope"):
        if data not in scope.DATA:
            raise unknown("language of negation in scope", data, scope.DATA)
        return scope.ensure(split, scope.DATA[data])
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
    """Lays a data set of the hub out officially below `cache`, once; returns that folder."""
    content = json.dumps([data.name, data.revision, split, sorted(columns.items())])
    key = hashlib.sha256(content.encode()).hexdigest()[:16]
    root = cache / "hub" / f"{data.name.replace('/', '--')}-{split}-{key}"
    if not (root / f"{split}.json").is_file():  # written last, so its presence means the rest is there
        table = hub.read(data, split)
        lay_out(table, table.column_names, columns, root, split, where=f"the data set '{data.name}'")
    return root


def lay_out(
    rows: Iterable[Mapping[str, Any]], column_names: Iterable[str], columns: Mapping[str, str], root: Path,
    split: str, *, where: str,
) -> None:  # fmt: skip
    """Writes rows as `<split>.json`, `coco_for_<split>/` and `nein_<split>/` below `root`. An image cell is
    `{"bytes": ..., "path": ...}`, written as it is. Raises UserError when a column is missing."""
    present = list(column_names)
    names = {key: columns.get(key, key) for key in (*FIELDS, *IMAGE_COLUMNS)}
    missing = [names[key] for key in FIELDS if names[key] not in present]
    if missing:
        raise UserError(
            f"{where} has no column {', '.join(repr(name) for name in missing)}; it has "
            f"{', '.join(present)}. "
            "Say which is which with --columns.NAME COLUMN, for example --columns.T_negative prompt."
        )
    folders = {"source_image": (f"coco_for_{split}", "COCO"), "sample_image": (f"nein_{split}", "NeIn")}
    records, written = [], set[Path]()
    for row in rows:
        record = {field: str(row[names[field]]) for field in FIELDS}
        record |= {name: str(row[name]) for name in OPTIONAL_TEXTS if row.get(name) is not None}
        records.append(record)
        for key, (folder, stem) in folders.items():
            if names[key] not in present:
                continue
            cell = row[names[key]]
            if not isinstance(cell, Mapping) or not isinstance(cell.get("bytes"), bytes):
                raise UserError(f"Column '{names[key]}' of {where} does not hold image files.")
            plain = Path(record[stem]).name
            data = cell["bytes"]
            kind = "webp" if data[8:12] == b"WEBP" else "png" if data.startswith(b"\x89PNG") else "jpg"
            file = root / folder / f"{plain}.{kind}"
            if file not in written:
                written.add(file)
                atomic.write_bytes(file, cell["bytes"])
    atomic.write_json(root / f"{split}.json", records)
