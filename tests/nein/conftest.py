"""Small data sets in NeIn's layout, and a way to run the command in a process of its own."""

import functools
import itertools
import json

import numpy as np
import pytest

from nein.engine.images import write_png
from nein.wording.families import NEGATIVE_TEMPLATES, addition, negative_sentence
from tests.helpers.commands import outcome

OBJECTS = ("cat", "traffic light", "apple", "dog", "umbrella")


def make_records(sources, per_source):
    """The annotations of `sources` pictures with `per_source` samples each; every template occurs in turn."""
    records = []
    for source, k in itertools.product(range(1, sources + 1), range(1, per_source + 1)):
        noun = OBJECTS[(source + k) % len(OBJECTS)]
        template = (source * per_source + k) % len(NEGATIVE_TEMPLATES)
        records.append({
            "COCO": f"COCO_{source:012d}", "T_original": f"A man and a red car near house number {source}.",
            "T_negative": negative_sentence(template, noun), "T_generated": addition(noun),
            "NeIn": f"NeIn_{source:012d}_{k}",
        })  # fmt: skip
    return records


def write_data(root, sources=3, per_source=2):
    rng = np.random.default_rng(sources * 100 + per_source)
    records = make_records(sources, per_source)
    for record in records:
        target = root / "coco_for_val" / f"{record['COCO']}.png"
        if not target.exists():
            write_png(target, rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        picture = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        write_png(root / "nein_val" / f"{record['NeIn']}.png", picture)
    (root / "val.json").write_text(json.dumps(records))
    return root


@pytest.fixture
def make_data(tmp_path):
    def make(sources=3, per_source=2, name="data"):
        return write_data(tmp_path / name, sources, per_source)

    return make


@pytest.fixture
def evaluate(capsys):
    return functools.partial(outcome, capsys, "eval")
