"""Load NeIn's samples from a folder, the hub or the nano world, check them, and reword their sentences.

The official layout (github.com/tanbuinhat/NeIn) is a JSON array with `COCO, T_original, T_negative,
T_generated, NeIn` per sample, and two image folders: the COCO sources (the edit's target, without the object)
and the NeIn samples (the editor's input: the object was painted in).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typing_extensions import NotRequired

from nein.datasets import hub, interleave_sources, read_records
from nein.engine import atomic
from nein.engine.atomic import Row, record
from nein.engine.folder import Blocks, sample_seed
from nein.loading.digests import json_digest
from nein.loading.errors import Problems, UserError, near_match, unknown
from nein.nano import data as nano_data
from nein.nano import scope
from nein.nano.data import FIELDS as FIELDS  # the five official fields
from nein.nano.scenes import find_world, is_nano
from nein.wording import families
from nein.wording.families import DEPTH, OTHERS, find_named

_THING: Any = record({"name": str, "stays": bool, "without": str})  # see `SceneObject`
#: Fields that the official files lack; `object`: if the sentence does not name it in English.
_OPTIONAL = {"family": str, "object": str, "others": int, "depth": int, "things": list[_THING]}
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")  # in lower or upper case
TRACKS = ("negative", "remove", "add")  # the instructions of a sample: see `Sample.instruction`


# --- samples ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SceneObject:
    """A thing of a NeIn image."""

    name: str
    stays: bool  # whether the right edit leaves it
    without: Path  # file of the image without it


@dataclass(frozen=True)
class Sample:
    """One NeIn sample."""

    id: str  # stem of the NeIn image: unique, and the key of every file and record
    source_id: str  # stem of the COCO image: up to five samples share one, so intervals are clustered by it
    caption: str  # T_original, describes the target
    negative: str  # T_negative, the instruction under test
    generated: str  # T_generated, "Add a/an OBJECT.", the instruction that made the NeIn image
    object: str  # parsed from `generated` and found in `negative`
    template: int | None  # index into `families.NEGATIVE_TEMPLATES`; None: a sentence of another form
    source_path: Path  # the edit's target: the COCO image, or the NeIn image if nothing must go (`stays`)
    sample_path: Path  # the editor's input: the NeIn image
    family: str | None = None  # kind of negation (of `families.FAMILY_NAMES`), if the data name one
    difficulty: tuple[tuple[str, int], ...] = ()  # (`OTHERS` or `DEPTH`, number), if known
    things: tuple[SceneObject, ...] = ()  # every thing of the NeIn image, if known

    @property
    def stays(self) -> bool:
        """Whether the right edit changes nothing."""
        if self.things:
            return all(thing.stays for thing in self.things)
        return self.family in families.OBJECT_STAYS

    def instruction(self, track: str) -> str:
        """The sentence given to the editor on track "negative", "remove" or "add"."""
        if track == "negative":
            return self.negative
        return {"remove": families.write_removal, "add": families.write_addition}[track](self.object)


@dataclass(frozen=True)
class Dataset:
    """All samples and their origin."""

    samples: Sequence[Sample]
    origin: Row  # kind, annotation file, split, ...: what `reload` needs
    missing: frozenset[str] = frozenset()  # names of COCO and NeIn images that are in no folder

    @functools.cached_property
    def records_sha256(self) -> str:
        """Hash of the records in order; runs keep hashes of the pixels, image by image."""
        return hash_records(self.samples)

    def select(self, limit: int | None, ids: Sequence[str] | None) -> Sequence[int]:
        """Indices in data order: of the first `limit` samples, or of the first `limit` of the given ids."""
        chosen = sorted(set(self.find_indices(ids))) if ids else range(len(self.samples))
        return chosen if limit is None else chosen[:limit]

    def find_indices(self, ids: Sequence[str]) -> list[int]:
        """The index of every id. Raises UserError for an unknown one."""
        position = {sample.id: index for index, sample in enumerate(self.samples)}
        names = [image_name(text) for text in ids]
        for name in names:
            if name not in position:
                near = near_match(name, itertools.islice(position, 100_000))
                hint = f"did you mean '{near}'?" if near else "ids are NeIn file names without ending."
                raise UserError(f"There is no sample '{name}' in the data; {hint}")
        return [position[name] for name in names]

    def members(self, block: range) -> Sequence[Sample]:
        """The samples of a block, given its indices."""
        return self.samples[block.start : block.stop]

    def facts(self, blocks: Blocks) -> Row:
        """Origin, hash and numbers of samples, for the manifest of a run."""
        counts = {"n": len(self.samples), "selected": len(blocks.indices)}
        return {**self.origin, "records_sha256": self.records_sha256, **counts}


# --- reading a folder ------------------------------------------------------------------------------------
def load_folder(root: Path, *, split: str = "val", columns: Mapping[str, str] | None = None) -> Dataset:
    """Read the official layout: `<split>.json`, `coco_for_<split>/` and `nein_<split>/` in `root`, in the
    file's order. Images are not opened. columns: official field name -> name in this file, if they differ.
    Raises UserError with every problem of the records."""
    if not root.is_dir():
        raise UserError(f"'{root}' is not a folder; pass a folder in NeIn's layout, hub:OWNER/NAME or nano.")
    file, folders = root / f"{split}.json", [root / f"coco_for_{split}", root / f"nein_{split}"]
    for path in (file, *folders):
        if not path.exists():
            raise UserError(f"'{root}' has no {path.name}; pass another --split.")
    names = {field: (columns or {}).get(field, field) for field in FIELDS}  # official name -> in this file
    keys = dict.fromkeys(names.values(), str) | {key: NotRequired[kind] for key, kind in _OPTIONAL.items()}
    row_type: Any = record(keys)
    rows = atomic.read_json(file, list[row_type])
    images: list[dict[str, list[Path]]] = [{}, {}]  # for each folder: `image_name` -> files
    for files, folder in zip(images, folders, strict=True):
        for path in sorted(folder.iterdir()):
            if path.suffix.lower() in IMAGE_SUFFIXES:
                files.setdefault(image_name(path.name), []).append(path)
    samples = read_records(rows, lambda row: _make_sample(row, names, folders, images), f"'{file}'")
    stems = {stem for sample in samples for stem in (sample.id, sample.source_id)}
    origin: Row = {"kind": "folder", "split": split, "annotations": str(file.resolve())}
    origin["columns"] = dict(columns or {})
    return Dataset(samples, origin, missing=frozenset(stems - images[0].keys() - images[1].keys()))


def _make_sample(
    row: Row, names: Mapping[str, str], folders: Sequence[Path], images: Sequence[Mapping[str, list[Path]]]
) -> Sample:
    """The sample of a row. folders, images: of COCO's images, then of NeIn's. Raises ValueError."""
    allowed = {*names.values(), *_OPTIONAL}
    unknown_fields = sorted(row.keys() - allowed)
    if unknown_fields:
        near = near_match(unknown_fields[0], allowed)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(f"unknown field: {unknown_fields[0]!r}{hint}")
    texts = {field: row[name].strip() for field, name in names.items()}
    if not all(texts.values()):
        raise ValueError("a text that is empty")
    stems = [image_name(texts["COCO"]), image_name(texts["NeIn"])]
    for stem in (*stems, *(thing["without"] for thing in row.get("things", ()))):
        # Stems become paths, which must not leave the folder.
        if "/" in stem or not stem.isprintable() or stem.startswith("."):
            raise ValueError(f"{stem!r} is not a plain file stem")
    paths = []
    for stem, folder, by_name in zip(stems, folders, images, strict=True):
        files = by_name.get(stem) or [folder / f"{stem}.jpg"]  # a missing image is reported later
        if len(files) > 1:
            raise ValueError(f"two files of one name: {files[0]} and {files[1]}")
        paths += files
    family = row.get("family")
    if family is not None and family not in families.FAMILY_NAMES:
        raise unknown("negation family", family, families.FAMILY_NAMES)
    generated, negative = texts["T_generated"], texts["T_negative"]
    noun = families.strip_article(row.get("object") or "") or families.find_object(generated, negative)
    without = folders[1].parent / f"without_{folders[1].name.rpartition('_')[2]}"  # without_val/, nein_val/
    things = []
    for thing in row.get("things", ()):
        things.append(SceneObject(thing["name"], thing["stays"], without / f"{thing['without']}.png"))
    difficulties = {"others": OTHERS, "depth": DEPTH}  # field -> key of `difficulty`
    sample = Sample(
        id=stems[1],
        source_id=stems[0],
        caption=texts["T_original"],
        negative=negative,
        generated=generated,
        object=noun,
        template=families.find_template(negative, noun),
        source_path=paths[0],
        sample_path=paths[1],
        family=family,
        things=tuple(things),
        difficulty=tuple((key, row[field]) for field, key in difficulties.items() if field in row),
    )
    return replace(sample, source_path=sample.sample_path) if sample.stays else sample


def image_name(text: str) -> str:
    """Key of an image in records and folders: its file name without ending, accents composed (NFC)."""
    name = unicodedata.normalize("NFC", text)
    stem, _, ending = name.rpartition(".")
    return stem if stem and f".{ending.lower()}" in IMAGE_SUFFIXES else name


def hash_records(samples: Iterable[Sample]) -> str:
    """SHA-256 hex over the official fields of every sample in order, and over the optional ones it has."""
    digest = hashlib.sha256()
    for sample in samples:
        row = [sample.source_id, sample.caption, sample.negative, sample.generated, sample.id]
        if sample.family:
            row.append(sample.family)
        if sample.object != families.parse_added(sample.generated):
            row.append(f"object {sample.object}")
        row += [f"{thing.name} {thing.stays}" for thing in sample.things]
        digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def validate_images(samples: Iterable[Sample], source: str, full: bool = False) -> None:
    """Raise UserError with every missing or unreadable image. full: decode the pixels, not the header."""
    from nein.engine.images import ImageError, decode, read_size

    inspect = decode if full else read_size  # both raise ImageError
    problems = Problems()
    checked = set[Path]()  # many samples share an image
    for sample in samples:
        roles = {thing.without: "picture without a thing" for thing in sample.things}
        roles |= {sample.source_path: "COCO image", sample.sample_path: "NeIn image"}
        for path in [path for path in roles if path not in checked]:
            try:
                inspect(path)
            except ImageError as error:
                kind = "unreadable" if path.is_file() else "missing"
                problems.add(f"{kind} {roles[path]}", str(error) if path.is_file() else str(path))
        checked |= roles.keys()
    problems.raise_if_any(source)


# --- loading by name -------------------------------------------------------------------------------------
IMAGE_COLUMNS = ("source_image", "sample_image")  # columns of a data set on the hub


def load(
    data: str,
    *,
    split: str = "val",
    columns: Mapping[str, str] | None = None,
    cache: Path | None = None,
    families: Sequence[str] = (),
) -> Dataset:
    """The samples of `read_samples` in the order of `interleave_sources`: a limit then takes many images.
    families: labels of `nein.wording.families`, to reword the sentences (`rephrase_samples`)."""
    return _interleave(read_samples(data, split=split, columns=columns, cache=cache), families)


def read_samples(
    data: str, *, split: str, columns: Mapping[str, str] | None = None, cache: Path | None = None
) -> Dataset:
    """Read "nano[:WORLD]", "nano:scope" (negation in scope), a folder in the official layout, or
    "hub:OWNER/NAME[@REVISION]", in the file's order, as training does. Raises UserError.

    columns  Renamed fields: the five official names, and for the hub also `IMAGE_COLUMNS`.
    cache    Folder in which a hub data set is written as files, once (default: the user's cache).
    """
    for key in columns or {}:
        if key not in (*FIELDS, *IMAGE_COLUMNS):
            raise unknown("field of --columns", key, (*FIELDS, *IMAGE_COLUMNS))
    if is_nano(data):
        if data == scope.DATA:
            root = scope.ensure_edits(split)
        else:
            root = nano_data.ensure_data_set(split, world=find_world(data))
        origin: Row = {"kind": "nano"}
    elif reference := hub.parse(data):
        root = lay_out_hub(reference, split, columns or {}, cache or atomic.cache_root())
        origin = {"kind": "hub", **reference._asdict()}
    else:
        return load_folder(Path(data), split=split, columns=columns)
    dataset = load_folder(root, split=split)
    return replace(dataset, origin={**dataset.origin, **origin})


def reload(origin: Row, moved: str | None = None, split: str = "val") -> Dataset:
    """The data set that a manifest's `data` entry describes. moved: --data, if it lies elsewhere now."""
    families = origin.get("families", ())
    if moved:
        return load(moved, split=split, families=families)
    root, columns = Path(origin["annotations"]).parent, origin.get("columns")
    return _interleave(load_folder(root, split=origin.get("split", "val"), columns=columns), families)


def _interleave(data: Dataset, families: Sequence[str]) -> Dataset:
    """The samples in the order of `interleave_sources`, reworded if `families` are given."""
    data = replace(data, samples=interleave_sources(data.samples, lambda sample: sample.source_id))
    return rephrase_samples(data, families) if families else data


def lay_out_hub(data: hub.Reference, split: str, columns: Mapping[str, str], cache: Path) -> Path:
    """Write a data set of the hub in the official layout, once; returns the folder. Raises UserError."""
    if not hub.find_version(data):
        hub.read(data, split)  # downloads it; its version is known then
    facts = {"name": data.name, "version": hub.find_version(data), "columns": columns}
    root = cache / "hub" / f"{data.name.replace('/', '--')}-{split}-{json_digest(facts)[:16]}"
    if (root / f"{split}.json").is_file():  # written last, so the rest is there, too
        return root
    table = hub.read(data, split)
    source = f"The data set '{data.name}'"
    names = {key: columns.get(key, key) for key in (*FIELDS, *IMAGE_COLUMNS)}
    missing = [names[key] for key in FIELDS if names[key] not in table.column_names]
    if missing:
        raise UserError(
            f"{source} has no column {', '.join(repr(name) for name in missing)}; it has "
            f"{', '.join(table.column_names)}. Map fields to columns, "
            "for example --columns.T_negative prompt."
        )
    # Column of an image -> its folder, and the field with its name.
    folders = {"source_image": (f"coco_for_{split}", "COCO"), "sample_image": (f"nein_{split}", "NeIn")}
    records = []
    written = set[Path]()  # samples share source images
    for row in table:
        record = {field: str(row[names[field]]) for field in FIELDS}
        record |= {name: str(row[name]) for name in ("family", "object") if row.get(name) is not None}
        records.append(record)
        for key, (folder, field) in folders.items():
            if names[key] not in table.column_names:
                continue
            cell = row[names[key]]
            if not isinstance(cell, Mapping) or not isinstance(cell.get("bytes"), bytes):
                raise UserError(f"{source} has no image files in column '{names[key]}'.")
            content = cell["bytes"]
            suffix = "webp" if content[8:12] == b"WEBP" else "png" if content[:4] == b"\x89PNG" else "jpg"
            file = root / folder / f"{Path(record[field]).name}.{suffix}"
            if file not in written:
                written.add(file)
                atomic.write_bytes(file, content)
    atomic.write_json(root / f"{split}.json", records)
    return root


# --- rewording -------------------------------------------------------------------------------------------
def rephrase_samples(data: Dataset, labels: Sequence[str]) -> Dataset:
    """Give every sample a sentence of one of the families, drawn by its id. Samples that no family fits are
    left out and counted in `origin`. If the object must stay, the target is the input. Raises UserError."""
    if families.MINIMAL_PAIRS in labels:
        return _minimal_pairs(data, labels)
    for label in labels:
        if label not in families.FAMILY_NAMES:
            raise unknown("family of negation", label, families.FAMILY_NAMES)
    if any(sample.things for sample in data.samples):
        samples = [sample for sample in data.samples if sample.family in labels]
        if not samples:
            existing = ", ".join(dict.fromkeys(str(sample.family) for sample in data.samples))
            raise UserError(f"The data have no sample of {', '.join(labels)}; they have {existing}.")
    else:
        for label in labels:
            if label in families.SCENE_FAMILIES:
                raise UserError(f"'{label}' names a color and needs drawn scenes; pass --data nano:scope.")
        objects = tuple(dict.fromkeys(sample.object for sample in data.samples))
        absent: dict[str, list[str]] = {}  # source image -> objects that its samples deny
        for sample in data.samples:
            absent.setdefault(sample.source_id, []).append(sample.object)
        reworded = (_rephrase(sample, labels, absent[sample.source_id], objects) for sample in data.samples)
        samples = [sample for sample in reworded if sample is not None]
        if not samples:
            raise UserError(
                f"No sentence of {', '.join(labels)} fits any sample: families that name a "
                "second object need one that is known to be absent or present."
            )
    origin = {**data.origin, "families": list(labels), "not said": len(data.samples) - len(samples)}
    return Dataset(tuple(samples), origin, data.missing)


def _minimal_pairs(data: Dataset, labels: Sequence[str]) -> Dataset:
    """Make four samples of each plain or implicit one: the sentence affirms or denies, the input has the
    object or lacks it. The target is the image of which the sentence is true."""
    if len(labels) > 1:
        raise UserError(f"--families {families.MINIMAL_PAIRS} excludes all other families; pass it alone.")
    cells = []
    for sample in data.samples:
        if (sample.family or "plain") not in families.DENYING:
            continue
        images = sample.sample_path, sample.source_path  # with the object, without it
        for label, (denied, absent) in families.CELLS.items():
            cell = replace(sample, family=label, sample_path=images[absent], source_path=images[denied])
            if not denied:
                cell = replace(cell, negative=families.affirm(sample.template, sample.object), template=None)
            cells.append(replace(cell, id=f"{sample.id}_{label.replace(', ', '_')}"))
    if not cells:
        raise UserError("No sample has a sentence that only denies its object; pairs need such samples.")
    left_out = len(data.samples) - len(cells) // len(families.CELLS)
    origin = {**data.origin, "families": list(labels), "not said": left_out}
    return Dataset(tuple(cells), origin, data.missing)


def _rephrase(
    sample: Sample, labels: Sequence[str], absent: Sequence[str], objects: Sequence[str]
) -> Sample | None:
    """A sample with a sentence of one of the families; None if all need a second object and none is known.
    absent: objects that the samples of its source image deny; objects: all of the data set."""
    others = [name for name in absent if name != sample.object]
    present = [name for name in find_named((sample.caption,), objects) if name not in absent]
    has = {"": True, "T": bool(others), "A": bool(present)}  # value of `Family.needs` -> whether it is there
    possible = [label for label in labels if has[families.FAMILIES[label].needs]]
    if not possible:
        return None
    draw = random.Random(sample_seed(0, sample.id))
    label = draw.choice(possible)
    template = draw.choice(families.list_templates(label, sample.object, "fixed"))
    second = draw.choice(others) if others else ""
    named = draw.choice(present) if present else ""
    return replace(
        sample,
        negative=families.write_sentence(label, template, sample.object, second=second, present=named),
        family=label,
        template=template if label == "plain" else None,
        source_path=sample.sample_path if label in families.OBJECT_STAYS else sample.source_path,
    )
