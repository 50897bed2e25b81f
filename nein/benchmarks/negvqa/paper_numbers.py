"""NegVQA's Table 1 as printed, in per cent in `paper_numbers.csv`: 20 models, original and negated questions,
four categories and the average. Source: NegVQA (ACL Findings 2025, arXiv:2505.22946).

`notebook_numbers.csv` has the right answers of these models, and of two Chameleons, in 14 of 20 subsets,
which Figure 5 draws without numbers. Source: the output of plot_results.ipynb, github.com/yuhui-zh15/NegVQA
(0e4218b), whose accuracies are these counts over `SUBSETS`, to all six digits.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.runner import Printed
from nein.datasets.negvqa.questions import AVERAGE, HUB, VARIANTS, category_of
from nein.reporting import figures as frames

#: Questions per subset. Source: https://github.com/yuhui-zh15/NegVQA (0e4218b), add_negation.ipynb, whose
#: output is published with it.
SUBSETS = {
    "ScienceQA": 490, "RealWorldQA": 477, "AI2D": 471, "A-OKVQA": 465, "TableVQABench": 455, "VQAv2": 449,
    "GQA": 448, "InfoVQA": 445, "SEEDBench": 440, "TextVQA": 439, "OKVQA": 439, "ChartQA": 392, "MMStar": 381,
    "DocVQA": 350, "VizWiz": 312, "MathVision": 252, "MMMU": 240, "OCRVQA": 190, "MMVet": 161,
    "MathVista": 83,
}  # fmt: skip
QUESTIONS = sum(SUBSETS.values())
#: Questions per category, and of the average.
SIZES = {
    category: sum(n for subset, n in SUBSETS.items() if category in (AVERAGE, category_of(subset)))
    for category in ("General", "Reasoning", "OCR", "DocChart", AVERAGE)
}
#: Cells whose printed bounds are not p -/+ 1.96 sqrt(p (1 - p) / n) for any n, and why.
MISPRINTS = {
    ("Qwen2-VL-72B", "original", "DocChart"): "94.8 [93.2, 95.7] is not symmetric: the lower bound would be "
    "93.9 for the accuracy printed, and no accuracy has both bounds"
}
#: Table 1's name -> how a reference of ours ends, in lower case.
HUB_IDS = {
    "InstructBLIP-7B": "instructblip-vicuna-7b",
    "InstructBLIP-13B": "instructblip-vicuna-13b",
    "DeepSeek-VL-1.3B": "deepseek-vl-1.3b-chat",
    "DeepSeek-VL-7B": "deepseek-vl-7b-chat",
    "LLaVA-1.5-7B": "llava-1.5-7b-hf",
    "LLaVA-1.5-13B": "llava-1.5-13b-hf",
    "Qwen2-VL-2B": "qwen2-vl-2b-instruct",
    "Qwen2-VL-7B": "qwen2-vl-7b-instruct",
    "Qwen2-VL-72B": "qwen2-vl-72b-instruct",
    "Molmo-1B": "molmoe-1b-0924",
    "Molmo-7B-O": "molmo-7b-o-0924",
    "Molmo-7B-D": "molmo-7b-d-0924",
    "Molmo-72B": "molmo-72b-0924",
    "Cambrian-8B": "cambrian-8b",
    "Cambrian-13B": "cambrian-13b",
    "Cambrian-34B": "cambrian-34b",
    "VILA1.5-3B": "vila1.5-3b",
    "VILA1.5-8B": "llama-3-vila1.5-8b",
    "VILA1.5-13B": "vila1.5-13b",
    "VILA1.5-40B": "vila1.5-40b",
}


@lru_cache(maxsize=1)
def cells() -> tuple[Mapping[str, Any], ...]:
    """All 200 figures in the table's order, as rows of the frame of figures: shares, not per cent."""
    with (Path(__file__).parent / "paper_numbers.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            {
                **frames.number(float(row["accuracy"]) / 100, unit="%", n=SIZES[row["category"]]),
                "low": float(row["low95"]) / 100, "high": float(row["high95"]) / 100, "metric": "accuracy",
                "model": row["model"], "variant": row["questions"], "category": row["category"],
            }
            for row in csv.DictReader(file)
        )  # fmt: skip


def gaps() -> Iterator[dict[str, Any]]:
    """The averages of Table 1 as a leaderboard has them."""
    shares = {(c["model"], c["variant"]): c["value"] for c in cells() if c["category"] == AVERAGE}
    for model in dict.fromkeys(model for model, _ in shares):
        ends = {"affirmed": shares[model, "original"], "negated": shares[model, "negated"]}
        yield {"model": model, "data": HUB, "measure": "accuracy (generated)", **ends}


def published(source: str, run: Mapping[str, Any] | None) -> Iterator[Printed]:
    """Table 1 for `nein reproduce`: of the model of a run, by its manifest, or all. A model that lies in a
    folder is known by the name that it was given: the end of its hub id."""
    row = run and (printed_as(run["reference"]) or printed_as(run["name"]))
    for cell in cells():
        if run is None or cell["model"] == row:
            facts = {"task": "accuracy", "protocol": "paper", "scoring": "generated", "interval": "clustered"}
            facts |= {"variant": cell["variant"], "category": cell["category"]}
            yield Printed(cell["model"], facts, cell["value"], "%", cell["n"])


def printed_as(reference: str) -> str | None:
    """Table 1's name of a model that we call `reference` (hub id, folder, openai:URL#MODEL); None for one
    that is not in the table."""
    tail = re.sub(r"@.*$", "", reference.rpartition("#")[2].rstrip("/")).rpartition("/")[2].lower()
    return next((name for name, hub_id in HUB_IDS.items() if hub_id == tail), None)


def is_negvqa(data: Mapping[str, Any]) -> bool:
    """Whether a run's data, as its manifest has them, are the published ones, of which alone Table 1 speaks:
    those on the hub, or any others with the same number of questions in every subset."""
    return data.get("name") == HUB or Counter(data.get("subsets")) == Counter(SUBSETS)


def table_1(runs: Mapping[str, tuple[pd.DataFrame, str]]) -> pd.DataFrame:
    """Table 1 (task "table1", `source` "printed"), and below each of its models those measured here ("here",
    protocol "paper"); others stand at the end. runs: name -> (figures, reference)."""
    rows: list[dict[str, Any]] = []
    for printed in (*dict.fromkeys(cell["model"] for cell in cells()), None):
        rows += [{**cell, "source": "printed"} for cell in cells() if cell["model"] == printed]
        for name, (figures, reference) in runs.items():
            if printed_as(reference) == printed:
                rows += [{**row, "model": name, "source": "here"} for row in _as_printed(figures)]
    return frames.label(frames.frame(rows), task="table1")


def over_models(runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The best model of either kind of questions, and the mean drop over models (task "overall"): of Table 1
    ("printed") and, where there are several, of the figures of runs ("here"), protocol "paper"."""
    shares = [{**cell, "source": "printed"} for cell in cells()]
    for name, figures in runs.items():
        shares += [{**row, "model": name, "source": "here"} for row in _as_printed(figures)]
    rows: list[dict[str, Any]] = []
    every = frames.select(pd.DataFrame(shares), category=AVERAGE)
    for source, part in every.groupby("source", sort=False):
        wide = part.pivot(index="model", columns="variant", values="value").reindex(columns=VARIANTS).dropna()
        if len(wide) > 1:
            what: dict[str, Any] = {"task": "overall", "source": source, "n": len(wide)}
            drop = float((wide["original"] - wide["negated"]).mean())
            rows.append(frames.number(drop, unit="points", metric="mean drop", **what))
            for variant, column in wide.items():
                best = frames.number(column.max(), unit="%", metric="best", variant=variant, **what)
                rows.append({**best, "model": column.idxmax()})
    return frames.frame(rows)


def beside(figures: pd.DataFrame, model: str, reference: str) -> pd.DataFrame:
    """Figures of Table 1 beside a model's own (task "beside"), and its own by size (task "scaling"); both
    of protocol "paper", with `source` "here" or "printed"; and its subsets by size (task "subset scaling").
    """
    printed, size = printed_as(reference), family(printed_as(reference) or reference)
    rows: list[dict[str, Any]] = []
    printed_cells = {(c["variant"], c["category"]): c for c in cells() if c["model"] == printed}
    for row in _as_printed(figures):
        if other := printed_cells.get((row["variant"], row["category"])):
            what = {"model": model, "task": "beside", "printed_as": printed}
            rows += [{**row, **what, "source": "here"}, {**other, **what, "source": "printed"}]
    if size is not None:
        named = {"model": model, "source": "here", "family": size[0], "size": f"{size[1]:g}"}
        rows += [{**row, **named, "task": "scaling"} for row in _as_printed(figures, headline="yes")]
        subsets = frames.select(figures, task="subsets", metric="accuracy", headline="yes")
        for row in frames.records(subsets[subsets["value"].notna()]):
            rows.append({**row, **named, "task": "subset scaling", "line": f"{size[0]}, {row['variant']}"})
    return frames.frame(rows)


def _as_printed(figures: pd.DataFrame, **where: str) -> list[dict[str, Any]]:
    """A model's accuracies as Table 1 has them, of what it wrote where it was asked to write."""
    shares = frames.select(figures, task="accuracy", protocol="paper", interval="normal", **where)
    shares = shares[shares["value"].notna()]
    scorings = sorted(shares["scoring"].unique())  # "generated" comes first
    return frames.records(frames.select(shares, scoring=tuple(scorings[:1])))


def subset_cells() -> Iterator[dict[str, Any]]:
    """The figures of the notebook by subset, as rows of the frame of figures."""
    with (Path(__file__).parent / "notebook_numbers.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            what = {"metric": "accuracy", "model": row.pop("model"), "variant": row.pop("questions")}
            for subset, right in row.items():
                n = SUBSETS[subset]
                yield frames.number(int(right) / n, unit="%", n=n, subset=subset, **what)


def by_size() -> pd.DataFrame:
    """The printed figures of the models that the paper draws, by family and size (task "scaling"), and those
    of the notebook by subset (task "subset scaling")."""
    rows = []
    for printed in (*cells(), *subset_cells()):
        size = family(printed["model"])
        drawn = printed["model"] in HUB_IDS and printed["model"] != "Molmo-7B-D"  # as in the paper's plots
        if size is not None and drawn:
            named = {"task": "scaling", "source": "printed", "family": size[0], "size": f"{size[1]:g}"}
            if "subset" in printed:
                named |= {"task": "subset scaling", "line": f"{size[0]}, {printed['variant']}"}
            rows.append({**printed, **named, "low": None, "high": None})
    return frames.frame(rows)


def family(name: str) -> tuple[str, float] | None:
    """("Qwen2-VL", 7.0), family and billions of parameters, from a name that says so
    ("Qwen2-VL-7B-Instruct"); None for a name that does not."""
    tail = name.rpartition("#")[2].rstrip("/").rpartition("/")[2]
    sized = re.match(r"(.+?)[-_](\d+(?:\.\d+)?)b(?![a-z])", tail, re.IGNORECASE)
    return (sized[1], float(sized[2])) if sized else None
