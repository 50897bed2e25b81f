"""NegVQA's Table 1 as printed, in per cent in `paper_numbers.csv`: 20 models, original and negated questions,
four categories and the average. Source: NegVQA (ACL Findings 2025, arXiv:2505.22946).

`notebook_numbers.csv` has the right answers of these models, and of two Chameleons, in 14 of 20 subsets,
which Figure 5 draws without numbers. Source: the output of plot_results.ipynb, github.com/yuhui-zh15/NegVQA
(0e4218b), whose accuracies are these counts over `SUBSETS`, to all six digits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.runner import Printed
from nein.datasets.negvqa import AVERAGE, HUB, VARIANTS, category_of
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


@cache
def cells() -> pd.DataFrame:
    """All 200 figures in the table's order: shares, not per cent."""
    table = pd.read_csv(Path(__file__).parent / "paper_numbers.csv").rename(columns={"questions": "variant"})
    given = {"value": table.pop("accuracy"), "low": table.pop("low95"), "high": table.pop("high95")}
    shares = {name: column / 100 for name, column in given.items()}
    return frames.label(table, **shares, n=table["category"].map(SIZES), metric="accuracy", unit="%")


@cache
def subset_cells() -> pd.DataFrame:
    """The figures of the notebook by subset."""
    table = pd.read_csv(Path(__file__).parent / "notebook_numbers.csv").rename(
        columns={"questions": "variant"}
    )
    right = (
        table.set_index(["model", "variant"]).rename_axis(columns="subset").stack().reset_index(name="value")
    )
    n = right["subset"].map(SUBSETS)
    return frames.label(right, value=right["value"] / n, n=n, metric="accuracy", unit="%")


def gaps() -> Iterator[dict[str, Any]]:
    """The averages of Table 1 as a leaderboard has them."""
    for model, part in frames.select(cells(), category=AVERAGE).groupby("model", sort=False):
        shares = dict(zip(part["variant"], part["value"], strict=True))
        ends = {"affirmed": shares["original"], "negated": shares["negated"]}
        yield {"model": model, "data": HUB, "measure": "accuracy (generated)", **ends}


def published(source: str, run: Mapping[str, Any] | None) -> Iterator[Printed]:
    """Table 1 for `nein reproduce`: of the model of a run, by its manifest, or all. A model that lies in a
    folder is known by the name that it was given: the end of its hub id."""
    wanted = {"model": printed_as(run["reference"]) or printed_as(run["name"])} if run else {}
    facts = {"task": "accuracy", "protocol": "paper", "scoring": "generated", "interval": "clustered"}
    for cell in frames.records(cells(), **wanted):
        of = {**facts, "variant": cell["variant"], "category": cell["category"]}
        yield Printed(cell["model"], of, cell["value"], "%", cell["n"])


def printed_as(reference: str) -> str | None:
    """Table 1's name of a model that we call `reference` (hub id, folder, openai:URL#MODEL); None for one
    that is not in the table."""
    tail = re.sub(r"@.*$", "", reference.rpartition("#")[2].rstrip("/")).rpartition("/")[2].lower()
    return next((name for name, hub_id in HUB_IDS.items() if hub_id == tail), None)


def family(name: str) -> tuple[str, float] | None:
    """("Qwen2-VL", 7.0), family and billions of parameters, from a name that says so
    ("Qwen2-VL-7B-Instruct"); None for a name that does not."""
    tail = name.rpartition("#")[2].rstrip("/").rpartition("/")[2]
    sized = re.match(r"(.+?)[-_](\d+(?:\.\d+)?)b(?![a-z])", tail, re.IGNORECASE)
    return (sized[1], float(sized[2])) if sized else None


def is_negvqa(data: Mapping[str, Any]) -> bool:
    """Whether a run's data, as its manifest has them, are the published ones, of which alone Table 1 speaks:
    those on the hub, or any others with the same number of questions in every subset."""
    return data.get("name") == HUB or Counter(data.get("subsets")) == Counter(SUBSETS)


def as_printed(figures: pd.DataFrame, name: str, **where: str) -> pd.DataFrame:
    """A model's accuracies as Table 1 has them (`source` "here"), of what it wrote where it was asked to."""
    shares = frames.select(figures, task="accuracy", protocol="paper", interval="normal", **where)
    shares = shares[shares["value"].notna()]
    return shares[shares["scoring"] == shares["scoring"].min()].assign(model=name, source="here")


def table_1(runs: Mapping[str, tuple[pd.DataFrame, str]]) -> pd.DataFrame:
    """Table 1 (task "table1", `source` "printed"), and below each of its models those measured here ("here",
    protocol "paper"); others stand at the end. runs: name -> (figures, reference)."""
    here = [(printed_as(reference), as_printed(own, name)) for name, (own, reference) in runs.items()]
    parts = []
    for model, part in cells().groupby("model", sort=False):
        parts += [part.assign(source="printed"), *(own for printed, own in here if printed == model)]
    return frames.concat([*parts, *(own for printed, own in here if printed is None)], task="table1")


def over_models(runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The best model of either kind of questions, and the mean drop over models (task "overall"): of Table 1
    ("printed") and, where there are several, of the figures of runs ("here"), protocol "paper"."""
    rows: list[dict[str, Any]] = []
    here = frames.concat(as_printed(figures, name) for name, figures in runs.items())
    for source, part in (("printed", cells()), ("here", here)):
        if not len(part := frames.select(part, category=AVERAGE)):
            continue
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
    printed = printed_as(reference)
    theirs = frames.select(cells(), model=printed).assign(model=model, source="printed")
    both = frames.concat([as_printed(figures, model), theirs], task="beside", printed_as=printed)
    pairs = both.groupby(["variant", "category"], sort=False) if len(theirs) else ()
    parts = [pair for _, pair in pairs if len(pair) == 2]
    subsets = frames.select(figures, task="subsets", metric="accuracy", headline="yes")
    subsets = subsets[subsets["value"].notna()].assign(model=model, source="here")
    parts.append(_sized(as_printed(figures, model, headline="yes"), "scaling", printed or reference))
    return frames.concat([*parts, _sized(subsets, "subset scaling", printed or reference)])


def by_size() -> pd.DataFrame:
    """The printed figures of the models that the paper draws, by family and size (task "scaling"), and those
    of the notebook by subset (task "subset scaling")."""
    parts = []
    for task, table in (("scaling", cells()), ("subset scaling", subset_cells())):
        table = table.assign(source="printed", low=None, high=None)
        for model, part in table.groupby("model", sort=False):
            if model in HUB_IDS and model != "Molmo-7B-D":  # as in the paper's plots
                parts.append(_sized(part, task, str(model)))
    return frames.concat(parts)


def _sized(figures: pd.DataFrame, task: str, name: str) -> pd.DataFrame:
    """The figures of a model with its family and size; none where its name does not say them."""
    if (size := family(name)) is None:
        return figures.head(0)
    line = {"line": f"{size[0]}, " + figures["variant"]} if task == "subset scaling" else {}
    return figures.assign(task=task, family=size[0], size=f"{size[1]:g}", **line)
