"""Drawn twins of CheXpert and HAM10000: tables in exactly the published form, pictures that only stand in.

They let the path from a medical table to questions and figures run where the real pictures, which are given
out on request, are not. Nothing about medicine follows from them.

    ROOT/valid.csv, ROOT/valid/patient64541/study1/view1_frontal.jpg                       CheXpert
    ROOT/HAM10000_metadata.csv, ROOT/HAM10000_images_part_1/ISIC_0024306.jpg               HAM10000
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from nein.datasets.negbench.medical import DIAGNOSES, FINDINGS
from nein.nano.data import drawn

SIZE = 64  # pixels
VERSION = 1  # of what is drawn: part of the name of the folder in the cache
COLOURS = ("#7a3b2e", "#c98a7d", "#8c6b4f", "#b5533c", "#2b1b17", "#5e3a24", "#9b1b30")


def table(source: str, count: int) -> Path:
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
        _save(folder / place, _chest(shown))
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
        _save(folder / "HAM10000_images_part_1" / f"{name}.jpg", _skin([*DIAGNOSES].index(code), number))
        rows.append([f"HAM_{lesion:07d}", name, code, "histo", 45.0, "male", "back"])
    _write(path, ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"], rows)


def _chest(shown: Sequence[str]) -> Callable[[ImageDraw.ImageDraw], None]:
    def draw(pen: ImageDraw.ImageDraw) -> None:
        pen.rectangle((0, 0, SIZE, SIZE), fill="#101010")
        for left in (6, 34):
            pen.ellipse((left, 8, left + 24, 58), fill="#4a4a4a")
        for name in shown:  # a place and a size of its own
            k = FINDINGS.index(name)
            x, y, r = 8 + 12 * (k % 5), 14 + 16 * (k // 5), 3 + k % 3
            pen.ellipse((x - r, y - r, x + r, y + r), fill="#e0e0e0")

    return draw


def _skin(kind: int, number: int) -> Callable[[ImageDraw.ImageDraw], None]:
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
