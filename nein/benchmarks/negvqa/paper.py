"""The numbers of the NegVQA paper, its Table 1 and notebook, and estimates that compare runs with them.

`paper_numbers.csv` is Table 1 as printed, in per cent: 20 models, original and negated questions, four
categories and the average. Source: NegVQA (ACL Findings 2025, arXiv:2505.22946).

`notebook_numbers.csv` counts the right answers of these models, and of two Chameleons, in 14 of 20 subsets;
Figure 5 draws them without numbers. Source: the output of plot_results.ipynb, github.com/yuhui-zh15/NegVQA
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

from nein.benchmarks.runner import PaperEstimate
from nein.datasets.negvqa import AVERAGE, HUB, VARIANTS, category_of
from nein.engine.folder import Row
from nein.reporting import figures as frames

# --- the printed numbers -------------------------------------------------------------------------
#: Questions per subset. Source: https://github.com/yuhui-zh15/NegVQA (0e4218b), add_negation.ipynb, whose
#: output is published with it.
SUBSETS = {
    "ScienceQA": 490, "RealWorldQA": 477, "AI2D": 471, "A-OKVQA": 465, "TableVQABench": 455, "VQAv2": 449,
    "GQA": 448, "InfoVQA": 445, "SEEDBench": 440, "TextVQA": 439, "OKVQA": 439, "ChartQA": 392, "MMStar": 381,
    "DocVQA": 350, "VizWiz": 312, "MathVision": 252, "MMMU": 240, "OCRVQA": 190, "MMVet": 161,
    "MathVista": 83,
}  # fmt: skip
#: Table 1's name -> how a reference of ours ends, in lower case.
HUB_IDS = {
    "InstructBLIP-7B": "instructblip-vicuna-7b", "InstructBLIP-13B": "instructblip-vicuna-13b",
    "DeepSeek-VL-1.3B": "deepseek-vl-1.3b-chat", "DeepSeek-VL-7B": "deepseek-vl-7b-chat",
    "LLaVA-1.5-7B": "llava-1.5-7b-hf", "LLaVA-1.5-13B": "llava-1.5-13b-hf",
    "Qwen2-VL-2B": "qwen2-vl-2b-instruct", "Qwen2-VL-7B": "qwen2-vl-7b-instruct",
    "Qwen2-VL-72B": "qwen2-vl-72b-instruct", "Molmo-1B": "molmoe-1b-0924",
    "Molmo-7B-O": "molmo-7b-o-0924", "Molmo-7B-D": "molmo-7b-d-0924", "Molmo-72B": "molmo-72b-0924",
    "Cambrian-8B": "cambrian-8b", "Cambrian-13B": "cambrian-13b", "Cambrian-34B": "cambrian-34b",
    "VILA1.5-3B": "vila1.5-3b", "VILA1.5-8B": "llama-3-vila1.5-8b", "VILA1.5-13B": "vila1.5-13b",
    "VILA1.5-40B": "vila1.5-40b",
}  # fmt: skip


@cache
def read_table_1() -> pd.DataFrame:
    """All 200 numbers of Table 1 in its order, as shares: model, category, variant, value, low, high, n."""
    names = {"questions": "variant", "accuracy": "value", "low95": "low", "high95": "high"}
    table = pd.read_csv(Path(__file__).with_name("paper_numbers.csv")).rename(columns=names)
    shares = {name: table[name] / 100 for name in ("value", "low", "high")}
    sizes: dict[str, int] = Counter()  # category, or the average -> questions
    for subset, count in SUBSETS.items():
        sizes[category_of(subset)] += count
        sizes[AVERAGE] += count
    return frames.with_columns(table, **shares, n=table["category"].map(sizes), metric="accuracy", unit="%")


@cache
def read_notebook() -> pd.DataFrame:
    """The accuracies of the notebook, as shares: model, variant, subset, value, n."""
    table = pd.read_csv(Path(__file__).with_name("notebook_numbers.csv"))
    table = table.rename(columns={"questions": "variant"}).set_index(["model", "variant"])
    counts = table.rename_axis(columns="subset").stack().reset_index(name="value")  # right answers
    n = counts["subset"].map(SUBSETS)
    return frames.with_columns(counts, value=counts["value"] / n, n=n, metric="accuracy", unit="%")


def find_paper_name(reference: str) -> str | None:
    """Table 1's name of the model behind a reference (hub id, folder, openai:URL#MODEL), if it has one:
    "llava-hf/llava-1.5-7b-hf@main" -> "LLaVA-1.5-7B"."""
    without_revision = re.sub(r"@.*$", "", reference.rpartition("#")[2].rstrip("/"))
    tail = without_revision.rpartition("/")[2].lower()
    return next((name for name, hub_id in HUB_IDS.items() if hub_id == tail), None)


def parse_size(name: str) -> tuple[str, float] | None:
    """Family and billions of parameters in a name: "Qwen2-VL-7B-Instruct" -> ("Qwen2-VL", 7.0)."""
    tail = name.rpartition("#")[2].rstrip("/").rpartition("/")[2]
    sized = re.match(r"(.+?)[-_](\d+(?:\.\d+)?)b(?![a-z])", tail, re.IGNORECASE)
    return (sized[1], float(sized[2])) if sized else None


def is_negvqa(data: Mapping[str, Any]) -> bool:
    """Whether the data of a run's manifest are NegVQA's own, so that Table 1 is comparable. They are if they
    come from its place on the hub, or if every subset has as many questions as there."""
    return data.get("name") == HUB or Counter(data.get("subsets")) == Counter(SUBSETS)


# --- estimates on the page --------------------------------------------------------------------------
def paper_gaps() -> Iterator[Row]:
    """The averages of Table 1, for `Benchmark.paper_gaps`."""
    for model, part in frames.select(read_table_1(), category=AVERAGE).groupby("model", sort=False):
        shares = dict(zip(part["variant"], part["value"], strict=True))
        ends = {"affirmed": shares["original"], "negated": shares["negated"]}
        yield {"model": model, "data": HUB, "measure": "accuracy (generated)", **ends}


def paper_estimates(source: str, run: Mapping[str, Any] | None) -> Iterator[PaperEstimate]:
    """Table 1, or its rows of the model of a run, for `Benchmark.paper_estimates`. A model in a folder is
    recognized by the folder's name, if that is the end of its hub id."""
    selected = {"model": find_paper_name(run["reference"]) or find_paper_name(run["name"])} if run else {}
    facts = {"task": "accuracy", "protocol": "paper", "scoring": "generated", "interval": "clustered"}
    for cell in frames.records(read_table_1(), **selected):
        key = {**facts, "variant": cell["variant"], "category": cell["category"]}  # selects our estimate
        yield PaperEstimate(cell["model"], key, cell["value"], unit="%", n=cell["n"])


def _select_as_in_table(estimates: pd.DataFrame, name: str, **columns: str) -> pd.DataFrame:
    """A model's accuracies in the form of Table 1 (`source` "here"), by generated letters if any."""
    shares = frames.select(estimates, task="accuracy", protocol="paper", interval="normal", **columns)
    shares = shares[shares["value"].notna()]
    scoring = shares["scoring"].min()  # "generated" is before "logprob" in the alphabet
    return shares[shares["scoring"] == scoring].assign(model=name, source="here")


def compare_with_table_1(runs: Mapping[str, tuple[pd.DataFrame, str]]) -> pd.DataFrame:
    """Table 1 (task "table1", `source` "printed"); runs ("here", protocol "paper") stand below the model that
    they repeat, others at the end. runs: name -> (estimates, reference)."""
    measured: dict[str | None, list[pd.DataFrame]] = {}  # Table 1's name, None: not in it -> runs
    for name, (estimates, reference) in runs.items():
        rows = _select_as_in_table(estimates, name)
        measured.setdefault(find_paper_name(reference), []).append(rows)
    parts = []
    for model, part in read_table_1().groupby("model", sort=False):
        parts += [part.assign(source="printed"), *measured.get(str(model), ())]
    return frames.concat([*parts, *measured.get(None, ())], task="table1")


def summarize_models(runs: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The best model on each kind of questions, and the mean drop over models: of Table 1 (`source`
    "printed"), and of runs if there are several ("here"). Task "overall", protocol "paper"."""
    rows: list[Row] = []
    measured = frames.concat(_select_as_in_table(estimates, name) for name, estimates in runs.items())
    for source, table in (("printed", read_table_1()), ("here", measured)):
        part = frames.select(table, category=AVERAGE)
        if not len(part):
            continue
        # (models, 2): accuracy on original and on negated questions
        wide = part.pivot(index="model", columns="variant", values="value").reindex(columns=VARIANTS).dropna()
        if len(wide) > 1:
            labels: Row = {"task": "overall", "source": source, "n": len(wide)}
            drop = float((wide["original"] - wide["negated"]).mean())
            rows.append(frames.number(drop, unit="points", metric="mean drop", **labels))
            for variant, column in wide.items():
                best = frames.number(column.max(), unit="%", metric="best", variant=variant, **labels)
                rows.append({**best, "model": column.idxmax()})
    return frames.frame(rows)


def scale_paper_models() -> pd.DataFrame:
    """Accuracies of the models that the paper plots, by family and size: those of Table 1 (task "scaling"),
    and those of the notebook by subset (task "subset scaling")."""
    parts = []
    for task, table in (("scaling", read_table_1()), ("subset scaling", read_notebook())):
        points = table.assign(source="printed", low=None, high=None)  # drawn without intervals
        for model, part in points.groupby("model", sort=False):
            if model in HUB_IDS and model != "Molmo-7B-D":  # the paper plots Molmo-7B-O alone
                parts.append(_add_size(part, task, str(model)))
    return frames.concat(parts)


def scale_model(model: str, estimates: pd.DataFrame, reference: str) -> list[pd.DataFrame]:
    """The estimates of `scale_paper_models` for a model measured here; no rows if its size is not known."""
    name = find_paper_name(reference) or reference
    subsets = frames.select(estimates, task="subsets", metric="accuracy", headline="yes")
    subsets = subsets[subsets["value"].notna()].assign(model=model, source="here")
    averages = _select_as_in_table(estimates, model, headline="yes")
    return [_add_size(averages, "scaling", name), _add_size(subsets, "subset scaling", name)]


def _add_size(estimates: pd.DataFrame, task: str, name: str) -> pd.DataFrame:
    """Adds task, family and size to a model's estimates; no rows if its name does not tell its size."""
    parsed = parse_size(name)
    if parsed is None:
        return estimates.head(0)
    family, billions = parsed
    sized = estimates.assign(task=task, family=family, size=f"{billions:g}")
    # Subsets share their panel: there every variant has a line of its own.
    return sized.assign(line=f"{family}, " + sized["variant"]) if task == "subset scaling" else sized
