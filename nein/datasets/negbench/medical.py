"""CheXpert's and HAM10000's own tables: which findings a picture shows, and which it does not.

CheXpert (Irvin et al., arXiv:1901.07031): train.csv, valid.csv or test_labels.csv, a row per picture:

    Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Enlarged Cardiomediastinum,...,Support Devices
    CheXpert-v1.0-small/valid/patient64541/study1/view1_frontal.jpg,Male,73,Frontal,AP,0.0,1.0,1.0,1.0,...

1 is there, 0 is not, -1 is uncertain, an empty cell not mentioned: the last two count as neither.

HAM10000 (Tschandl et al., doi:10.1038/sdata.2018.161): HAM10000_metadata, one diagnosis per picture:

    lesion_id,image_id,dx,dx_type,age,sex,localization
    HAM_0000118,ISIC_0027419,bkl,histo,80.0,male,scalp

Separated by commas, or by tabs where the header has one.

`drawn_table` draws twins of both: tables in exactly the published form, pictures that only stand in. They let
the path from a table to figures run where the real pictures, which are given out on request, are not. Nothing
about medicine follows from them.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from PIL import Image, ImageDraw

from nein.datasets.negbench.concepts import Concepts, with_negatives
from nein.datasets.negbench.official import Records, Row
from nein.engine.errors import UserError
from nein.nano.data import drawn

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
SIZE = 64  # pixels of a twin's pictures
VERSION = 1  # of what is drawn: part of the name of the folder in the cache
COLOURS = ("#7a3b2e", "#c98a7d", "#8c6b4f", "#b5533c", "#2b1b17", "#5e3a24", "#9b1b30")


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


# --- drawn twins ---------------------------------------------------------------------------------


def drawn_table(source: str, count: int) -> Path:
    """The table of a twin with `count` pictures, "chexpert" or "ham10000", drawn on first use."""
    name, write = {
        "chexpert": ("valid.csv", _write_chexpert),
        "ham10000": ("HAM10000_metadata.csv", _write_ham10000),
    }[source]

    def draw(folder: Path) -> None:
        write(folder, folder / name, count)

    return drawn(f"{source}-{count}-{VERSION}", draw, proof=name) / name


def _write_chexpert(folder: Path, path: Path, count: int) -> None:
    """One to four findings in a picture, one in six findings uncertain or not mentioned; some pictures of one
    patient."""
    rows: list[Sequence[object]] = []
    for number in range(count):
        rng = random.Random(number)
        labels: dict[str, float | str] = dict.fromkeys(FINDINGS, 0.0)
        for name in rng.sample(FINDINGS, rng.choice((0, 1, 2, 2, 3, 4))):
            labels[name] = 1.0
        for name in FINDINGS:
            if labels[name] == 0.0 and rng.random() < 1 / 6:
                labels[name] = rng.choice((-1.0, ""))
        shown = [name for name in FINDINGS if labels[name] == 1.0]
        place = f"valid/patient{64541 + number // 2}/study1/view{number % 2 + 1}_frontal.jpg"
        _save(folder / place, _draw_chest(shown))
        person = rng.choice(("Male", "Female")), rng.randint(18, 90), "Frontal", rng.choice(("AP", "PA"))
        rows.append([f"CheXpert-v1.0-small/{place}", *person, float(not shown), *labels.values()])
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "No Finding", *FINDINGS]
    _write(path, header, rows)


def _write_ham10000(folder: Path, path: Path, count: int) -> None:
    """One diagnosis in a picture; every fourth picture is a second one of the lesion before it."""
    rows: list[Sequence[object]] = []
    for number in range(count):
        lesion = number - (number % 4 == 3)
        code = random.Random(lesion).choice([*DIAGNOSES])
        name = f"ISIC_{24306 + number:07d}"
        _save(folder / "HAM10000_images_part_1" / f"{name}.jpg", _draw_skin([*DIAGNOSES].index(code), number))
        rows.append([f"HAM_{lesion:07d}", name, code, "histo", 45.0, "male", "back"])
    _write(path, ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"], rows)


def _draw_chest(shown: Sequence[str]) -> Callable[[ImageDraw.ImageDraw], None]:
    def draw(pen: ImageDraw.ImageDraw) -> None:
        pen.rectangle((0, 0, SIZE, SIZE), fill="#101010")
        for left in (6, 34):
            pen.ellipse((left, 8, left + 24, 58), fill="#4a4a4a")
        for name in shown:  # a place and a size of its own
            k = FINDINGS.index(name)
            x, y, r = 8 + 12 * (k % 5), 14 + 16 * (k // 5), 3 + k % 3
            pen.ellipse((x - r, y - r, x + r, y + r), fill="#e0e0e0")

    return draw


def _draw_skin(kind: int, number: int) -> Callable[[ImageDraw.ImageDraw], None]:
    def draw(pen: ImageDraw.ImageDraw) -> None:
        rng = random.Random(number)
        pen.rectangle((0, 0, SIZE, SIZE), fill="#e8b9a0")
        r = 8 + 2 * kind
        x, y = (rng.randint(r + 2, SIZE - r - 2) for _ in range(2))
        pen.ellipse((x - r, y - r, x + r, y + r), fill=COLOURS[kind])

    return draw


def _save(path: Path, draw: Callable[[ImageDraw.ImageDraw], None]) -> None:
    picture = Image.new("RGB", (SIZE, SIZE))
    draw(ImageDraw.Draw(picture))
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, quality=90)


def _write(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
