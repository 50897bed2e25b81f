"""Figures that the authors print, for the paper preset to show beside ours: `paper_numbers.csv`, per cent.

paper_table1    Alhamoud et al., CVPR 2025, Table 1; its multiple choice is before features were normalised.
paper_alpha     The same, the table on the weight alpha of the contrastive loss.
repo_baseline   github.com/m1k2zoo/negbench @ 2ac009b, results/mcq/1_baseline_*.csv, corrected in March 2025.
repo_scaling    The same, 2_scaling_clip_*.csv.
repo_finetuned  The same, 3_finetuned_total.csv; "Our CLIP" and "Our NegCLIP" are on CC12M-NegFull.

All are over captions and options paraphrased by a language model, which the released scripts name.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.negbench.models import MODELS
from nein.benchmarks.negbench.scores import TEXT_TO_IMAGE
from nein.datasets.negbench.records import NEGATED, ORIGINAL
from nein.datasets.negbench.registry import MCQ, REPHRASED, RETRIEVAL
from nein.reporting import figures as frames
from nein.reporting.figures import number

_TYPES = {"MCQ-positive": "affirmation", "MCQ-negative": "negation", "MCQ-hybrid": "hybrid", "MCQ": "all"}
_KINDS = {"R@5": ORIGINAL, "R-Neg@5": NEGATED}
#: Source -> what a table says of it.
_PRINTED = {
    "paper_table1": "paper", "repo_baseline": "repository", "repo_scaling": "repository, scaling",
    "repo_finetuned": "repository",
}  # fmt: skip
_SETS = {"COCO": "coco", "VOC2007": "voc2007", "MSR-VTT": "msr-vtt"}


@lru_cache(maxsize=1)
def rows() -> tuple[Mapping[str, str], ...]:
    """Every line of `paper_numbers.csv`."""
    with Path(__file__).with_name("paper_numbers.csv").open(encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


def differs(row: str | None, quick_gelu: bool | None) -> str:
    """What sets a model apart from the printed figures of a row of `models.MODELS`, or "". quick_gelu:
    whether the model computes with it; None where that means nothing."""
    listed = MODELS.get(row or "")
    if listed is None or not listed.published or quick_gelu in (None, listed.quick_gelu):
        return ""
    return f"{'with' if listed.quick_gelu else 'without'} QuickGELU"


def beside(figures: pd.DataFrame, model: str, features: str, quick_gelu: bool | None = None) -> pd.DataFrame:
    """The printed figures of a model of `models.MODELS` beside its own; the model's name says that they are
    printed, and if they were computed otherwise.

    features    Whose multiple choice: the paper's "unnormalised", the repository's "normalised".
    quick_gelu  Of the model whose figures these are.
    """
    printed = []
    groups = figures[["model", "dataset", "data", "task", "variant"]].drop_duplicates()
    otherwise = differs(model, quick_gelu)
    for group in frames.records(groups):
        for row in _printed(model, group["dataset"], group["task"], group["variant"], features):
            words = ", ".join(filter(None, (_PRINTED[row.pop("file")], otherwise)))
            named = {**group, "model": f"{group['model']}, as printed ({words})", "source": "printed"}
            printed.append({**row, **named, "benchmark": "negbench"})
    return frames.frame(printed)


def gaps() -> Iterator[dict[str, Any]]:
    """What is printed as a leaderboard has it, of the first source that has a model."""
    ends = {"recall@5, retrieval": ("R@5", "R-Neg@5"), "choices, mcq": ("MCQ-positive", "MCQ-negative")}
    by = {
        (r["source"], r["model"], r["finetune_data"], r["dataset"], r["metric"]): r["value"] for r in rows()
    }
    for source, model, data, dataset in dict.fromkeys(key[:4] for key in by):
        for measure, metrics in ends.items():
            told, denied = (by.get((source, model, data, dataset, metric)) for metric in metrics)
            if source in _PRINTED and told and denied:
                tuned = "" if data == "none" else f" + {data}"
                yield {
                    "model": f"{model}{tuned}", "data": _SETS[dataset],
                    "measure": f"{measure} ({REPHRASED})", "affirmed": float(told) / 100,
                    "negated": float(denied) / 100,
                }  # fmt: skip


def _printed(
    model: str, dataset: str, task: str, variant: str, features: str = "normalised"
) -> list[dict[str, Any]]:
    listed = MODELS.get(model)
    if listed is None or variant != REPHRASED:
        return []
    sources: tuple[str, ...] = ("repo_baseline", "repo_scaling", "repo_finetuned")
    if task == RETRIEVAL or features == "unnormalised":
        sources = ("paper_table1",)
    figures: list[dict[str, Any]] = []
    values: dict[str, float] = {}
    for row in rows():
        source, metric = row["source"], row["metric"]
        mine = listed.published.get(source) == (row["model"], row["finetune_data"])
        if not mine or source not in sources or _SETS.get(row["dataset"]) != dataset:
            continue
        value = float(row["value"]) / 100
        if task == RETRIEVAL and metric in _KINDS:
            values[_KINDS[metric]] = value
            what: dict[str, Any] = {"metric": "recall@5", "kind": _KINDS[metric], "direction": TEXT_TO_IMAGE}
            figures.append({**number(value, unit="%", **what), "file": source})
        elif task == MCQ and metric in _TYPES:
            figure = number(value, unit="%", metric="accuracy", type=_TYPES[metric])
            figures.append({**figure, "file": source})
    if len(values) == 2:
        gap = number(
            values[ORIGINAL] - values[NEGATED], unit="points", metric="gap@5", direction=TEXT_TO_IMAGE
        )
        figures.append({**gap, "file": "paper_table1"})
    return figures
