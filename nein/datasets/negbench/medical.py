"""CheXpert's and HAM10000's own tables: which findings a picture shows, and which it does not.

CheXpert (Irvin et al., arXiv:1901.07031), a row per picture, a column per finding; 1: there, 0: not, -1:
uncertain, empty: not mentioned, the last two counting as neither. HAM10000 (Tschandl et al.,
doi:10.1038/sdata.2018.161), one diagnosis per picture, commas or tabs between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from nein.datasets.negbench import official
from nein.datasets.negbench.concepts import Concepts, with_negatives
from nein.datasets.negbench.official import Records, Row
from nein.engine.errors import UserError

#: CheXpert's columns of findings but "No Finding", which is none.
_FINDINGS = """Enlarged Cardiomediastinum, Cardiomegaly, Lung Opacity, Lung Lesion, Edema, Consolidation, \
Pneumonia, Atelectasis, Pneumothorax, Pleural Effusion, Pleural Other, Fracture, Support Devices"""
FINDINGS = tuple(_FINDINGS.split(", "))
#: What the paper asks about in questions with two options: the commonest finding, and another one.
CONDITIONS = ("Lung Opacity", "Atelectasis")
PRESENT, ABSENT, UNCERTAIN = 1.0, 0.0, -1.0
#: HAM10000's codes -> the diagnosis in words.
_CODES = """akiec: actinic keratosis, bcc: basal cell carcinoma, bkl: benign keratosis, df: dermatofibroma, \
mel: melanoma, nv: melanocytic nevus, vasc: vascular lesion"""
DIAGNOSES = dict(pair.split(": ") for pair in _CODES.split(", "))
NO_FINDING = "no finding that is there"


def chexpert(path: Path, count: int) -> Iterator[Concepts]:
    """Each picture with `count` absent findings often seen with the present ones; a patient is a source."""
    images = []
    for row in Records(path, ("Path", *FINDINGS), None):
        name = PurePosixPath(official.cell(row.cells, "Path", path, row.line))
        labels = {finding.lower(): _label(row, finding, path) for finding in FINDINGS}
        found = tuple(finding for finding, label in labels.items() if label == PRESENT)
        unsure = tuple(finding for finding, label in labels.items() if label in (UNCERTAIN, None))
        patient = next((part for part in name.parts if part.startswith("patient")), "")
        problem = "" if found else NO_FINDING
        images.append(Concepts(str(name.with_suffix("")), str(name), (), found, (), unsure, problem, patient))
    yield from with_negatives(images, count)


def _label(row: Row, finding: str, path: Path) -> float | None:
    text = row.cells[finding].strip()
    if not text:
        return None
    for value in (PRESENT, ABSENT, UNCERTAIN):
        if text in (f"{value:g}", str(value)):
            return value
    where = f"'{path}', line {row.line}, {finding}"
    raise UserError(f"{where}: '{text}' is not a label; allowed: 1, 0, -1 or empty.")


def ham10000(path: Path, count: int) -> Iterator[Concepts]:
    """Whatever is not diagnosed is absent, whatever `count` is; a lesion is a source."""
    for row in Records(path, ("lesion_id", "image_id", "dx"), None):
        code, name, lesion = (
            official.cell(row.cells, column, path, row.line) for column in ("dx", "image_id", "lesion_id")
        )
        if code not in DIAGNOSES:
            allowed = ", ".join(DIAGNOSES)
            raise UserError(
                f"'{path}', line {row.line}, dx: '{code}' is not a diagnosis; allowed: {allowed}."
            )
        others = tuple(words for other, words in DIAGNOSES.items() if other != code)
        yield Concepts(name, f"{name}.jpg", (), (DIAGNOSES[code],), others, source_id=lesion)


#: Name of a source -> what reads its table.
TABLES: dict[str, Callable[[Path, int], Iterator[Concepts]]] = {"chexpert": chexpert, "ham10000": ham10000}
