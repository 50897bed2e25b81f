"""CheXpert's and HAM10000's own tables: which findings a picture shows, and which it does not.

CheXpert (Irvin et al., arXiv:1901.07031): train.csv, valid.csv or test_labels.csv, a row per picture:

    Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,...,Support Devices
    CheXpert-v1.0-small/valid/patient64541/study1/view1_frontal.jpg,Male,73,Frontal,AP,0.0,1.0,1.0,1.0,...

1 is there, 0 is not, -1 is uncertain, an empty cell not mentioned: the last two count as neither.

HAM10000 (Tschandl et al., doi:10.1038/sdata.2018.161): HAM10000_metadata, one diagnosis per picture:

    lesion_id,image_id,dx,dx_type,age,sex,localization
    HAM_0000118,ISIC_0027419,bkl,histo,80.0,male,scalp

Separated by commas, or by tabs where the header has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from nein.datasets.negbench.concepts import Concepts, with_negatives
from nein.datasets.negbench.official import Records, Row
from nein.engine.errors import UserError

#: CheXpert's columns of findings but "No Finding", which is none.
FINDINGS = (
    "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema", "Consolidation",
    "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture",
    "Support Devices",
)  # fmt: skip
PRESENT, ABSENT, UNCERTAIN = 1.0, 0.0, -1.0
#: HAM10000's codes -> the diagnosis in words.
DIAGNOSES = {
    "akiec": "actinic keratosis",
    "bcc": "basal cell carcinoma",
    "bkl": "benign keratosis",
    "df": "dermatofibroma",
    "mel": "melanoma",
    "nv": "melanocytic nevus",
    "vasc": "vascular lesion",
}
NO_FINDING = "no finding that is there"


def chexpert(path: Path, count: int) -> Iterator[Concepts]:
    """The pictures of a table of CheXpert, each with the `count` absent findings most often seen with the
    present ones, as in other annotated sets. Pictures of one patient share a source."""
    yield from with_negatives([_chest(row, path) for row in _rows(path, ("Path", *FINDINGS))], count)


def _chest(row: Row, path: Path) -> Concepts:
    name = _cell(row, "Path", path)
    values = {finding: _label(row, finding, path) for finding in FINDINGS}

    def having(*labels: float | None) -> tuple[str, ...]:
        return tuple(finding.lower() for finding, value in values.items() if value in labels)

    patient = next((part for part in PurePosixPath(name).parts if part.startswith("patient")), "")
    shown = having(PRESENT)
    return Concepts(
        str(PurePosixPath(name).with_suffix("")),
        name,
        positives=shown,
        unsure=having(UNCERTAIN, None),
        problem="" if shown else NO_FINDING,
        source_id=patient,
    )


def _label(row: Row, finding: str, path: Path) -> float | None:
    text = row.cells[finding].strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 2.0
    if value not in (PRESENT, ABSENT, UNCERTAIN):
        raise UserError(
            f"'{path}', line {row.line}, {finding}: '{text}' is no label; allowed: 1, 0, -1 or empty."
        )
    return value


def ham10000(path: Path, count: int) -> Iterator[Concepts]:
    """The pictures of HAM10000's table. Whatever is not diagnosed is absent; `count` changes nothing, since a
    diagnosis is never seen with another. Pictures of one lesion share a source."""
    for row in _rows(path, ("lesion_id", "image_id", "dx")):
        code, name = _cell(row, "dx", path), _cell(row, "image_id", path)
        if code not in DIAGNOSES:
            allowed = ", ".join(DIAGNOSES)
            raise UserError(f"'{path}', line {row.line}, dx: '{code}' is no diagnosis; allowed: {allowed}.")
        others = tuple(words for other, words in DIAGNOSES.items() if other != code)
        lesion = _cell(row, "lesion_id", path)
        yield Concepts(name, f"{name}.jpg", (), (DIAGNOSES[code],), others, source_id=lesion)


#: Name of a source -> what reads its table.
TABLES: dict[str, Callable[[Path, int], Iterator[Concepts]]] = {"chexpert": chexpert, "ham10000": ham10000}


def _rows(path: Path, needed: tuple[str, ...]) -> Records:
    try:
        with path.open("rb") as file:
            tabs = b"\t" in file.readline()
    except OSError:
        tabs = False  # the reader says what is wrong with the file
    return Records(path, needed, "\t" if tabs else ",")


def _cell(row: Row, column: str, path: Path) -> str:
    text = row.cells[column].strip()
    if not text:
        raise UserError(f"'{path}', line {row.line}: the column '{column}' is empty.")
    return text
