"""A small multiple-choice file in VMCBench's layout, with pictures, good and bad records."""

import json

import numpy as np
import pytest

from nein.engine import images

WORDS = ("cat", "dog", "car", "bench")


def rows():
    return [
        {
            "index": number, "image": f"pictures/{number % 6}.png",
            "question": f"What is on table {number}?", "answer": "ABCD"[number % 4],
            "category": ("VQAv2", "GQA", "TextVQA")[number % 3], **dict(zip("ABCD", WORDS, strict=True)),
        }
        for number in range(24)
    ]  # fmt: skip


def write(folder, records):
    path = folder / "choices.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in range(6):
        images.write_png(
            folder / "pictures" / f"{number}.png", np.full((9, 12, 3), 40 * number, dtype=np.uint8)
        )
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def choices(tmp_path):
    return write(tmp_path / "source", rows())
