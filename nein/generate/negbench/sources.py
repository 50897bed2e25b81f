"""The images that NegBench is made of: COCO, VOC2007, captions, medical tables, the nano world."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from nein.datasets import coco
from nein.datasets.negbench import official
from nein.datasets.negbench.records import PICTURE_SUFFIXES, VIDEO_SUFFIXES
from nein.datasets.negbench.sentences import Concepts, with_negatives
from nein.engine import atomic
from nein.generate import maker
from nein.generate.config import NegbenchConfig
from nein.generate.maker import NO_CAPTION, Listing
from nein.loading.errors import UserError

NO_OBJECT = "no annotated object"
BAD_FILE = "the annotation cannot be read"


def load(config: NegbenchConfig) -> Listing[Concepts]:
    """The images of `--source`, each id once. Raises UserError for a source that cannot be read, or without
    an image."""
    found: dict[str, Concepts] = {}
    notes = Counter[str]()
    for image in _read(config):
        if image.id in found:
            notes["listed twice, left out the second time"] += 1
            continue
        found[image.id] = image
        notes.update({f"unusable: {image.problem}": 1} if image.problem else {})
    if not found:
        raise UserError("The source lists no image; there is nothing to build from.")
    return Listing([*found.values()], {"kind": config.source}, notes)


def root(config: NegbenchConfig) -> Path | None:
    """The folder that the images' paths are relative to; None for images that are drawn or made."""
    if config.source in ("nano", "pairs") and config.captions is None:
        return None
    if config.source == "voc":
        return maker.image_folder(config.images, Path(str(config.instances)) / "JPEGImages")
    given = Path(str(config.captions or config.instances))
    return maker.image_folder(config.images, given if given.is_dir() else given.parent)


def _read(config: NegbenchConfig) -> Iterator[Concepts]:
    instances, captions = config.instances, config.captions
    if config.source in TABLES:
        return TABLES[config.source](Path(str(instances)), config.absent)
    if config.source == "voc":
        return _voc(config, Path(str(instances)))
    if config.made_by("text"):
        return (Concepts(f"pair-{number:06d}") for number in range(config.scenes))
    if config.source == "nano" or (config.source == "pairs" and captions is None):
        from nein.datasets.negbench import drawn

        return iter(drawn.concepts(config.split, config.scenes))
    annotated = config.source == "pairs" and instances is not None
    if config.source == "coco" or annotated or str(captions).endswith(".json"):
        return _coco(config)
    return _captioned(config, Path(str(captions)))


def _coco(config: NegbenchConfig) -> Iterator[Concepts]:
    """COCO's JSON files; an image without a caption yields questions only."""
    captions, instances = (None if p is None else Path(p) for p in (config.captions, config.instances))
    images = []
    for picture in coco.read(captions=captions, instances=instances).pictures:
        texts = maker.clean(picture.captions)
        objects = maker.clean(instance.category for instance in picture.objects)
        if config.concepts == "llm":
            problem = "" if texts else NO_CAPTION
        else:
            problem = "" if objects else NO_OBJECT
        images.append(Concepts(picture.stem, picture.file_name, texts, objects, problem=problem))
    if config.concepts == "llm":
        return iter(images)
    return with_negatives(images, config.absent, screened=config.protocol == "fixed")


def _voc(config: NegbenchConfig, folder: Path) -> Iterator[Concepts]:
    """PASCAL VOC's XML files. Objects marked difficult are neither asked about nor taken for absent."""
    annotations = folder / "Annotations"
    if not annotations.is_dir():
        raise UserError(f"'{folder}' has no folder Annotations; give VOC2007's folder as --instances.")
    stems = sorted(path.stem for path in annotations.glob("*.xml"))
    if config.image_set is not None:
        listing = folder / "ImageSets" / "Main" / f"{config.image_set}.txt"
        if not listing.is_file():
            raise UserError(f"There is no list '{listing}'; see --image-set.")
        stems = [line.split()[0] for line in atomic.read_text_lines(listing) if line.strip()]
    return with_negatives([_voc_image(annotations / f"{stem}.xml") for stem in stems], config.absent)


def _voc_image(path: Path) -> Concepts:
    try:
        tree = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError, ValueError, LookupError):  # the last two: an unknown encoding
        return Concepts(path.stem, f"{path.stem}.jpg", problem=BAD_FILE)
    difficult: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for entry in tree.iter("object"):
        if name := (entry.findtext("name") or "").strip():
            difficult[(entry.findtext("difficult") or "").strip() == "1"][name] = None
    sure, unsure = tuple(difficult[False]), tuple(n for n in difficult[True] if n not in difficult[False])
    file, problem = (tree.findtext("filename") or "").strip(), "" if sure else NO_OBJECT
    return Concepts(path.stem, file or f"{path.stem}.jpg", (), sure, unsure=unsure, problem=problem)


def _captioned(config: NegbenchConfig, path: Path) -> Iterator[Concepts]:
    """Images with captions and no annotated objects; with `--thing video` also videos."""
    videos = VIDEO_SUFFIXES if config.thing == "video" else frozenset[str]()
    for picture in maker.captioned(path, PICTURE_SUFFIXES | videos):
        captions, name = maker.clean(picture.captions), picture.file_name
        problem = "" if captions else NO_CAPTION
        yield Concepts(name.removesuffix(Path(name).suffix), name, captions, problem=problem)


#: CheXpert's columns of findings but "No Finding", which is none.
_FINDINGS = """Enlarged Cardiomediastinum, Cardiomegaly, Lung Opacity, Lung Lesion, Edema, Consolidation, \
Pneumonia, Atelectasis, Pneumothorax, Pleural Effusion, Pleural Other, Fracture, Support Devices"""
FINDINGS = tuple(_FINDINGS.split(", "))
#: What the paper asks about in questions with two options: the commonest finding, and another one.
CONDITIONS = ("Lung Opacity", "Atelectasis")
#: HAM10000's codes -> the diagnosis in words.
_CODES = """akiec: actinic keratosis, bcc: basal cell carcinoma, bkl: benign keratosis, df: dermatofibroma, \
mel: melanoma, nv: melanocytic nevus, vasc: vascular lesion"""
DIAGNOSES = dict(pair.split(": ") for pair in _CODES.split(", "))
NO_FINDING = "no finding that is there"


def chexpert(path: Path, count: int) -> Iterator[Concepts]:
    """Each picture with `count` absent findings often seen with the present ones; a patient is a source."""
    images = []
    for line, row in official.iter_rows(path, ("Path", *FINDINGS)):
        where, labels = f"'{path}', line {line}", dict[str, float | None]()
        name = PurePosixPath(official.cell(row, "Path", where))
        for finding in FINDINGS:
            try:
                labels[finding.lower()] = float(row[finding]) if row[finding] else None
            except ValueError:
                labels[finding.lower()] = math.nan
            if labels[finding.lower()] not in (1, 0, -1, None):
                wrong = f"'{row[finding]}' is not a label; allowed: 1, 0, -1 or empty"
                raise UserError(f"{where}, {finding}: {wrong}.")
        found = tuple(finding for finding, label in labels.items() if label == 1)
        unsure = tuple(finding for finding, label in labels.items() if label in (-1, None))
        patient = next((part for part in name.parts if part.startswith("patient")), "")
        problem = "" if found else NO_FINDING
        images.append(Concepts(str(name.with_suffix("")), str(name), (), found, (), unsure, problem, patient))
    yield from with_negatives(images, count)


def ham10000(path: Path, count: int) -> Iterator[Concepts]:
    """Whatever is not diagnosed is absent, whatever `count` is; a lesion is a source."""
    for line, row in official.iter_rows(path, ("lesion_id", "image_id", "dx")):
        where = f"'{path}', line {line}"
        code, name, lesion = (official.cell(row, key, where) for key in ("dx", "image_id", "lesion_id"))
        if code not in DIAGNOSES:
            allowed = ", ".join(DIAGNOSES)
            raise UserError(f"{where}, dx: '{code}' is not a diagnosis; allowed: {allowed}.")
        others = tuple(words for other, words in DIAGNOSES.items() if other != code)
        yield Concepts(name, f"{name}.jpg", (), (DIAGNOSES[code],), others, source_id=lesion)


#: Name of a source -> what reads its table.
TABLES: dict[str, Callable[[Path, int], Iterator[Concepts]]] = {"chexpert": chexpert, "ham10000": ham10000}
