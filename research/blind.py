"""How many of a file's multiple-choice questions a reader answers who never sees an image.

    python -m research.blind FILE.csv...        # columns image_path, correct_answer, caption_0 to caption_3

Results: docs/explanation/findings.md.
"""

import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nein.statistics.blind import read_blindly


def main(argv: Sequence[str]) -> None:
    for file in map(Path, argv):
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        options = [[row[f"caption_{number}"] for number in range(4)] for row in rows]
        answers = [int(row["correct_answer"]) for row in rows]
        # positive/7_img.png and negative/7_img.png are a pair: one scene
        right = read_blindly(options, answers, [Path(row["image_path"]).name for row in rows])
        share = f"{100 * np.mean(right):.1f} % right, {np.sum(right < 1)} missed"
        print(f"{file.name}: {len(rows)} questions, {share}")


if __name__ == "__main__":
    main(sys.argv[1:])
