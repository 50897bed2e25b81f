"""CheXpert's and HAM10000's own tables: which findings a picture shows, and which it does not.

CheXpert (Irvin et al., arXiv:1901.07031), a row per picture, a column per finding; 1: there, 0: not, -1:
uncertain, empty: not mentioned, the last two counting as neither. HAM10000 (Tschandl et al.,
doi:10.1038/sdata.2018.161), one diagnosis per picture, commas or tabs between.
`drawn_table` draws twins of both: tables in exactly that form, pictures that only stand in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import pandas as pd
from PIL import Image, ImageDraw

from nein.datasets.negbench import official
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
#: What the paper asks about in questions with two options: the commonest finding, and another one.
CONDITIONS = ("Lung Opacity", "Atelectasis")
PRESENT, ABSENT, UNCERTAIN = 1.0, 0.0, -1.0
#: HAM10000's codes -> the diagnosis in words.
DIAGNOSES = {
    "akiec": "actinic keratosis", "bcc": "basal cell carcinoma", "bkl": "benign keratosis",
    "df": "dermatofibroma", "mel": "melanoma", "nv": "melanocytic nevus", "vasc": "vascular lesion",
}  # fmt: skip
NO_FINDING = "no finding that is there"
SIZE = 64  # pixels of a twin's pictures
VERSION = 1  # of what is drawn: part of the name of the folder in the cache
COLOURS = ("#7a3b2e", "#c98a7d", "#8c6b4f", "#b5533c", "#2b1b17", "#5e3a24", "#9b1b30")


def chexpert(path: Path, count: int) -> Iterator[Concepts]:
    """Each picture with `count` absent findings often seen with the present ones; a patient is a source."""
    images = []
    for row in Records(path, ("Path", *FINDINGS), None):
        name = PurePosixPath(official.cell(row.cells, "Path", path, row.line))
        labels = {finding.lower(): _label(row, finding, path) for finding in FINDINGS}
        shown = tuple(finding for finding, label in labels.items() if label == PRESENT)
        unsure = tuple(finding for finding, label in labels.items() if label in (UNCERTAIN, None))
        patient = next((part for part in name.parts if part.startswith("patient")), "")
        problem = "" if shown else NO_FINDING
        images.append(Concepts(str(name.with_suffix("")), str(name), (), shown, (), unsure, problem, patient))
    yield from with_negatives(images, count)


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
            f"'{path}', line {row.line}, {finding}: '{text}' is not a label; allowed: 1, 0, -1 or empty."
        )
    return value


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


# --- drawn twins ---------------------------------------------------------------------------------


def drawn_table(source: str, count: int) -> Path:
    """The table of a twin with `count` pictures, drawn on first use."""
    lesions = source == "ham10000"
    name, write = ("HAM10000_metadata.csv", _write_ham10000) if lesions else ("valid.csv", _write_chexpert)

    def draw(folder: Path) -> None:
        write(folder, folder / name, count)

    return drawn(f"{source}-{count}-{VERSION}", draw, proof=name) / name


def _write_chexpert(folder: Path, path: Path, count: int) -> None:
    """One to four findings in a picture, some uncertain or not mentioned; two pictures of a patient."""
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
        picture = Image.new("RGB", (SIZE, SIZE), "#101010")
        pen = ImageDraw.Draw(picture)
        for left in (6, 34):
            pen.ellipse((left, 8, left + 24, 58), fill="#4a4a4a")
        for k in map(FINDINGS.index, shown):  # a place and a size of its own
            x, y, r = 8 + 12 * (k % 5), 14 + 16 * (k // 5), 3 + k % 3
            pen.ellipse((x - r, y - r, x + r, y + r), fill="#e0e0e0")
        _save(folder / place, picture)
        person = rng.choice(("Male", "Female")), rng.randint(18, 90), "Frontal", rng.choice(("AP", "PA"))
        rows.append([f"CheXpert-v1.0-small/{place}", *person, float(not shown), *labels.values()])
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "No Finding", *FINDINGS]
    pd.DataFrame(rows, columns=header).to_csv(path, index=False, lineterminator="\n")


def _write_ham10000(folder: Path, path: Path, count: int) -> None:
    """One diagnosis in a picture; every fourth picture is a second one of the lesion before it."""
    rows: list[Sequence[object]] = []
    for number in range(count):
        lesion = number - (number % 4 == 3)
        code = random.Random(lesion).choice([*DIAGNOSES])
        name = f"ISIC_{24306 + number:07d}"
        kind, rng = [*DIAGNOSES].index(code), random.Random(number)
        picture = Image.new("RGB", (SIZE, SIZE), "#e8b9a0")
        r = 8 + 2 * kind
        x, y = (rng.randint(r + 2, SIZE - r - 2) for _ in range(2))
        ImageDraw.Draw(picture).ellipse((x - r, y - r, x + r, y + r), fill=COLOURS[kind])
        _save(folder / "HAM10000_images_part_1" / f"{name}.jpg", picture)
        rows.append([f"HAM_{lesion:07d}", name, code, "histo", 45.0, "male", "back"])
    header = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]
    pd.DataFrame(rows, columns=header).to_csv(path, index=False, lineterminator="\n")


def _save(path: Path, picture: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, quality=90)
