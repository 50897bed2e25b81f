"""What NegBench's published texts say about themselves, and how our rule reads them; no image is needed.

    python -m research.published FILE.csv...    # multiple choice: a blind reader; retrieval: the denial rule

Results: docs/explanation/findings.md, docs/howto/mend.md.
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from nein.metrics.plurals import singular
from nein.statistics.blind import read_blindly
from nein.wording import denials


def choices(rows: pd.DataFrame) -> str:
    options = rows[[f"caption_{number}" for number in range(4)]].to_numpy().tolist()
    scenes = [
        Path(path).name for path in rows["image_path"]
    ]  # positive/7_img.png, negative/7_img.png: one scene
    right = read_blindly(options, rows["correct_answer"].tolist(), scenes)
    return f"{len(rows)} questions, {100 * np.mean(right):.1f} % right, {np.sum(right < 1)} missed"


def captions(rows: pd.DataFrame) -> str:
    for name in ("positive_objects", "negative_objects", "captions"):
        rows[name] = rows[name].map(ast.literal_eval)
    rows = rows.explode("captions")
    absent = [read.absent for read in denials.read(rows["captions"].tolist())]
    denied, wrong = (
        np.mean([names(found, objects) for found, objects in zip(absent, rows[column], strict=True)])
        for column in ("negative_objects", "positive_objects")
    )
    return f"{len(rows)} captions, denied object read in {denied:.2%}, a present one denied in {wrong:.2%}"


def names(found: tuple[str, ...], objects: list[str]) -> bool:
    """Whether a phrase is one of the objects, or ends in its name."""
    nouns = {singular(name) for name in objects if name.strip()}
    return any(f" {singular(phrase)}".endswith(f" {noun}") for phrase in found for noun in nouns)


def main(argv: Sequence[str]) -> None:
    for file in argv:
        table = pd.read_csv(file)
        print(f"{Path(file).name}: {captions(table) if 'captions' in table else choices(table)}")


if __name__ == "__main__":
    main(sys.argv[1:])
