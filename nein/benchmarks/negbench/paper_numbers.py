"""Figures that NegBench's authors print, for the paper preset to show beside ours.

`paper_numbers.csv` has one figure a line, in per cent. Its sources:

paper_table1         Alhamoud et al., CVPR 2025, Table 1. Its multiple-choice figures are from before the
                     features were normalised (`--features unnormalised`).
paper_alpha          The same, the table on the weight alpha of the contrastive loss.
repo_corrected       github.com/m1k2zoo/negbench @ 2ac009b, results/mcq/*.csv: corrected in March 2025.
repo_corrected_type  The same, by type of question.

All are over captions and options paraphrased by a language model, which the released scripts name.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from nein.benchmarks.negbench.models import MODELS
from nein.datasets.negbench.registry import MCQ, REPHRASED, RETRIEVAL

_TYPES = {"MCQ-positive": "affirmation", "MCQ-negative": "negation", "MCQ-hybrid": "hybrid", "MCQ": "all"}
_SETS = {"COCO": "coco", "VOC2007": "voc2007", "MSR-VTT": "msr-vtt"}


class Printed(NamedTuple):
    """A printed figure: per cent, and which source of `paper_numbers.csv` it is from."""

    value: float
    source: str


@lru_cache(maxsize=1)
def rows() -> tuple[Mapping[str, str], ...]:
    """Every line of `paper_numbers.csv`."""
    with Path(__file__).with_name("paper_numbers.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def figures(
    model: str, dataset: str, task: str, variant: str, *, features: str = "normalised"
) -> dict[str, Printed]:
    """Key -> figure of a model of `zoo.MODELS`; empty where none is printed.

    Keys: "recall@5/original", "recall@5/negated" (text to image), "accuracy/all", "accuracy/hybrid", ... Of
    the multiple-choice figures, those that were made with `features`: the paper's unnormalised, the
    repository's normalised.
    """
    known = MODELS.get(model)
    if known is None or variant != REPHRASED:
        return {}
    sources = {RETRIEVAL: ("paper_table1",)}.get(
        task,
        ("paper_table1",) if features == "unnormalised" else ("repo_corrected", "repo_corrected_type"),
    )
    found = {}
    for row in rows():
        source, metric = row["source"], row["metric"]
        mine = known.published.get(source) == (row["model"], row["finetune_data"])
        if not mine or source not in sources or _SETS.get(row["dataset"]) != dataset:
            continue
        if task == RETRIEVAL and metric in ("R@5", "R-Neg@5"):
            kind = "original" if metric == "R@5" else "negated"
            found[f"recall@5/{kind}"] = Printed(float(row["value"]), source)
        elif task == MCQ and metric in _TYPES:
            found[f"accuracy/{_TYPES[metric]}"] = Printed(float(row["value"]), source)
    return found
