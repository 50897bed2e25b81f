"""NeIn's samples: the record, the loader of the official layout, and the check of everything before any work.

The official layout (github.com/tanbuinhat/NeIn) is a JSON array with `COCO, T_original, T_negative,
T_generated, NeIn` per sample beside two image folders: the COCO sources (the edit's target: the object is
not there) and the NeIn samples (the editor's input: the object was painted in).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.engine import atomic, shapes
from nein.engine.blocks import Blocks
from nein.engine.errors import Problems, UserError, near_match
from nein.wording import families
from nein.wording.languages.base import DEPTH, OTHERS

FIELDS = ("COCO", "T_original", "T_negative", "T_generated", "NeIn")
# What a data set built by `nein generate`, or drawn, may say besides; absent from the official files. The
# object is said where the sentence does not name it in English.
OPTIONAL_TEXTS = ("family", "object")
_DIFFICULTY = {"others": OTHERS, "depth": DEPTH}
OPTIONAL_FIELDS = (*OPTIONAL_TEXTS, *_DIFFICULTY, "things")
_THINGS = [{"name": str, "stays": bool, "without": str}]
# What the official evaluation scripts add to a copy of the file; of no use here, and no mistake.
SCORER_FIELDS = {
    "obj_in_nein", "removal_evaluation_ovd", "removal_evaluation_vqa", "highest_confidence_score",
    "correct_retention_obj",
}  # fmt: skip
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")  # in any case
TRACKS = ("negative", "remove", "add")
GUESSES = {
    "annotations": ("annotation file", ("{split}.json", "nein_{split}.json")),
    "source_images": ("folder of COCO images", ("coco_for_{split}", "coco_{split}", "coco", "source")),
    "nein_images": ("folder of NeIn images", ("nein_{split}", "NeIn_{split}", "nein", "NeIn")),
}


@dataclass(frozen=True)
class Thing:
    """A thing of a NeIn image. stays: whether the right edit leaves it. without: the image without it."""

    name: str
    stays: bool
    without: Path


@dataclass(frozen=True)
class Sample:
    """One NeIn sample.

    id           Stem of the NeIn image: unique, and the key of every file and record.
    source_id    Stem of the COCO image: up to five samples share one, so intervals are clustered by it.
    caption      T_original, describes the target.
    negative     T_negative, the instruction under test.
    generated    T_generated, "Add a/an OBJECT.", with which the NeIn image was made.
    object       The object, parsed from `generated` and found in `negative`.
    template     Index 0..12 into `families.NEGATIVE_TEMPLATES`, or None for a sentence of another form.
    source_path  The target of the edit: the COCO image, or, where nothing must go (`stays`), the NeIn image.
    sample_path  The NeIn image: what the editor is given.
    family       Kind of negation (a label of `families.LABELS`), or None where the data set names none.
    difficulty   What makes it difficult, and how much of that there is, where that is known.
    things       Every thing of the NeIn image, where that is known.
    """

    id: str
    source_id: str
    caption: str
    negative: str
    generated: str
    object: str
    template: int | None
    source_path: Path
    sample_path: Path
    family: str | None = None
    difficulty: tuple[tuple[str, int], ...] = ()
    things: tuple[Thing, ...] = ()

    @property
    def stays(self) -> bool:
        """Whether the right edit is none: nothing known must go or the sentence says the object is there."""
        return _stays(self.family, self.things)

    def instruction(self, track: str) -> str:
        """The sentence given to the editor, verbatim, on track "negative", "remove" or "add"."""
        if track == "negative":
            return self.negative
        return {"remove": families.removal, "add": families.addition}[track](self.object)


@dataclass(frozen=True)
class Dataset:
    """All samples in the order of the file, where they came from, and the hash of their records
    (`records_hash`), not of the pixels: these are pinned one by one in the records of a run.

    missing  Names of COCO and NeIn images that are in no folder, as far as listing these tells.
    """

    samples: tuple[Sample, ...]
    origin: dict[str, Any]
    records_sha256: str
    missing: frozenset[str] = frozenset()

    def select(self, limit: int | None, ids: Sequence[str] | None) -> list[int]:
        """Indices, in data order, of the first `limit` samples or, with `ids`, of those among the ids."""
        chosen = sorted(set(self.places(ids))) if ids else list(range(len(self.samples)))
        return chosen if limit is None else chosen[:limit]

    def places(self, ids: Sequence[str]) -> list[int]:
        """The index of every id. Raises UserError for one that is not there."""
        position = {sample.id: index for index, sample in enumerate(self.samples)}
        for wanted in ids:
            if wanted not in position:
                near = near_match(wanted, position)
                guess = f"did you mean '{near}'?" if near else "ids are NeIn file names without ending."
                raise UserError(f"There is no sample '{wanted}' in the data; {guess}")
        return [position[wanted] for wanted in ids]


@dataclass(frozen=True)
class Plan:
    """A data set, the selected indices in data order, and the block size."""

    dataset: Dataset
    selected: tuple[int, ...]
    batch_size: int

    @property
    def blocks(self) -> Blocks:
        return Blocks(len(self.dataset.samples), self.batch_size, self.selected)

    def members(self, block: int) -> list[Sample]:
        """The samples of a block, selected or not."""
        return [self.dataset.samples[index] for index in self.blocks.members(block)]

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of its data."""
        sha256, n = self.dataset.records_sha256, len(self.dataset.samples)
        return {**self.dataset.origin, "records_sha256": sha256, "n": n, "selected": len(self.selected)}


def load_folder(
    root: Path | None, *, split: str = "val", annotations: Path | None = None,
    source_images: Path | None = None, nein_images: Path | None = None,
    columns: Mapping[str, str] | None = None,
) -> Dataset:  # fmt: skip
    """Reads the official layout under `root`; each of the three paths may be given instead of guessed.

    root     Folder with `<split>.json`, `coco_for_<split>/` and `nein_<split>/`, or other names of `GUESSES`.
    columns  Official field name -> name in this file, for files that call a field something else.

    Raises UserError naming every problem of the records at once; images are not looked at.
    """
    if root is not None and not root.is_dir():
        raise UserError(
            f"There is no data folder '{root}'; --data takes a folder in NeIn's official layout, "
            "'hub:OWNER/NAME' or 'nano'."
        )
    file = annotations or _guess(root, "annotations", split)
    coco = source_images or _guess(root, "source_images", split)
    nein = nein_images or _guess(root, "nein_images", split)
    for folder in (coco, nein):
        if not folder.is_dir():
            raise UserError(f"'{folder}' is not a folder of images.")
    records = atomic.read_json(file)
    if not isinstance(records, list):
        raise UserError(f"'{file}' must hold a JSON array with one object per sample, not {_kind(records)}.")
    origin = {
        "kind": "folder", "split": split, "annotations": str(file.resolve()),
        "source_images": str(coco.resolve()), "nein_images": str(nein.resolve()),
        "columns": dict(columns or {}),
    }  # fmt: skip
    samples, missing = _samples(records, coco, nein, f"'{file}'", columns or {})
    return Dataset(samples, origin, records_hash(samples), missing)


def _samples(
    records: Sequence[Any], source_images: Path, nein_images: Path, where: str, columns: Mapping[str, str]
) -> tuple[tuple[Sample, ...], frozenset[str]]:
    """The samples, and the images that are missing. Every fault of every record is in one UserError."""
    names = {field: columns.get(field, field) for field in FIELDS}
    coco_files, nein_files = _images_by_stem(source_images), _images_by_stem(nein_images)
    beside = nein_images.parent / f"without_{nein_images.name.rpartition('_')[2]}"  # without_val/, nein_val/
    problems, seen, samples = Problems(), set[str](), list[Sample]()
    for index, record in enumerate(records):
        fields = _fields(record, index, names, problems)
        if fields is None:
            continue
        label, source_id = fields["NeIn"], fields["COCO"]
        if label in seen:
            problems.add("duplicate id", label)
            continue
        seen.add(label)
        try:
            noun = fields.get("object") or families.object_of(fields["T_generated"], fields["T_negative"])
        except ValueError as error:
            problems.add("unusable sentence", f"{label} ({error})")
            continue
        family = fields.get("family")
        if family is not None and family not in families.LABELS:
            near = near_match(family, families.LABELS)
            guess = f" (did you mean {near!r}?)" if near else ""
            problems.add("unknown negation family", f"{family!r} in {label}{guess}")
            continue
        things = tuple(
            Thing(one["name"], one["stays"], beside / f"{one['without']}.png")
            for one in record.get("things", ())
        )
        sample_path = nein_files.get(label, nein_images / f"{label}.jpg")
        target = coco_files.get(source_id, source_images / f"{source_id}.jpg")
        samples.append(
            Sample(
                label, source_id, fields["T_original"], fields["T_negative"], fields["T_generated"],
                noun, families.template_of(fields["T_negative"], noun),
                source_path=sample_path if _stays(family, things) else target, sample_path=sample_path,
                family=family, things=things,
                difficulty=tuple((axis, record[key]) for key, axis in _DIFFICULTY.items() if key in record),
            )
        )  # fmt: skip
    problems.raise_if_any(where)
    if not samples:
        raise UserError(f"{where} has no samples.")
    wanted = {name for sample in samples for name in (sample.id, sample.source_id)}
    return tuple(samples), frozenset(wanted - nein_files.keys() - coco_files.keys())


def records_hash(samples: Iterable[Sample]) -> str:
    """SHA-256 hex over the five official fields of every sample in order, its object where these do not say
    it, and its family and things if it has any."""
    digest = hashlib.sha256()
    for sample in samples:
        row = [sample.source_id, sample.caption, sample.negative, sample.generated, sample.id]
        row += [sample.family] if sample.family else []
        row += [f"object {sample.object}"] if sample.object != families.added(sample.generated) else []
        row += [f"{thing.name} {thing.stays}" for thing in sample.things]
        digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def validate_images(samples: Iterable[Sample], where: str, full: bool = False) -> None:
    """Raises UserError naming every missing, empty or unreadable image, by opening its header, or with `full`
    by decoding all of it; for training and `nein data check`. An evaluation finds such images in its blocks:
    their samples are unscored."""
    from nein.engine.images import ImageError, decode, probe

    problems, checked = Problems(), set[Path]()
    for sample in samples:
        known = (("picture without a thing", thing.without) for thing in sample.things)
        for role, path in (
            ("COCO image", sample.source_path), ("NeIn image", sample.sample_path), *known,
        ):  # fmt: skip
            if path in checked:
                continue
            checked.add(path)
            if not path.is_file():
                problems.add(f"missing {role}", str(path))
                continue
            try:
                (decode if full else probe)(path)
            except ImageError as error:
                problems.add(f"unreadable {role}", str(error))
    problems.raise_if_any(where)


def _fields(record: Any, index: int, names: Mapping[str, str], problems: Problems) -> dict[str, str] | None:
    if not isinstance(record, dict):
        problems.add("record that is not an object", f"number {index} is {_kind(record)}")
        return None
    label = str(record.get(names["NeIn"], f"number {index}"))
    good = True
    for unknown in sorted(set(record) - set(names.values()) - SCORER_FIELDS - set(OPTIONAL_FIELDS)):
        near = near_match(unknown, names.values())
        guess = f" (did you mean {near!r}?)" if near else ""
        problems.add("unknown field", f"{unknown!r} in {label}{guess}")
        good = False
    for name in names.values():
        value = record.get(name)
        if name not in record:
            problems.add("missing field", f"{name!r} in {label}")
        elif not isinstance(value, str) or not value.strip():
            problems.add("field that is not a non-empty text", f"{name!r} in {label} is {value!r:.60}")
        else:
            continue
        good = False
    if not good:
        return None
    fields = {field: record[name].strip() for field, name in names.items()}
    for name in OPTIONAL_TEXTS:
        if record.get(name) is not None:
            fields[name] = str(record[name])
    for name, shape in (*((name, int) for name in _DIFFICULTY), ("things", _THINGS)):
        if name in record and (fault := shapes.fault(record[name], shape)):
            problems.add(f"field '{name}' of another form", f"{label}: {fault}")
            return None
    for field in ("COCO", "NeIn"):  # they become file names: nothing that could leave the folder
        plain = fields[field] == Path(fields[field]).name and fields[field].isprintable()
        if not plain or fields[field].startswith("."):
            problems.add("name that is not a plain file stem", f"{field} {fields[field]!r}")
            return None
    return fields


def _stays(family: str | None, things: Sequence[Thing]) -> bool:
    return all(thing.stays for thing in things) if things else family in families.STAYS


def _images_by_stem(folder: Path) -> dict[str, Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
    return {path.stem: path for path in files}


def _guess(root: Path | None, key: str, split: str) -> Path:
    what, names = GUESSES[key]
    options = [name.format(split=split) for name in names]
    if root is not None:
        for name in options:
            if (root / name).exists():
                return root / name
    place = f"'{root}' has no {what} ({' or '.join(options)})" if root else f"No {what} was given"
    option = f"--{key.replace('_', '-')}"
    raise UserError(f"{place}; choose another --split, or name it with {option}, which nein eval takes.")


def _kind(value: Any) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
