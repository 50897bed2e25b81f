"""The folder of a run of NegVQA with its rows (docs/reference/files.md), and the paper's numbers.

`paper_numbers.csv` is Table 1 as printed, in per cent: 20 models, original and negated questions, four
categories and the average. Source: NegVQA (ACL Findings 2025, arXiv:2505.22946).

`notebook_numbers.csv` counts the right answers of these models, and of two Chameleons, in 14 of 20 subsets;
Figure 5 draws them without numbers. Source: the output of plot_results.ipynb, github.com/yuhui-zh15/NegVQA
(0e4218b), whose accuracies are these counts over `SUBSETS`, to all six digits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from typing_extensions import NotRequired

from nein.datasets.negvqa import AVERAGE, HUB, category_of
from nein.engine.atomic import Row, record
from nein.engine.folder import MANIFEST_FIELDS, Folder
from nein.reporting import figures as frames

ANSWERS, BLIND, MATCHES = "answers", "blind", "matches"  # the stages and their outputs


@dataclass(frozen=True)
class Answer:
    """One question with its answer: a line of answers/ or blind/."""

    id: str
    variant: str
    subset: str
    category: str
    source: str  # names the image: intervals cluster by it
    question: str
    options: tuple[str, ...]
    answer: str  # the right letter
    text: str | None = None  # the generated answer; None: none was requested
    logprobs: tuple[float | None, ...] | None = None  # per letter
    each: tuple[str, ...] | None = None  # a judge's yes or no per option
    error: str = ""  # why there is no answer
    baseline: str = ""  # in blind/: see `nein.benchmarks.baselines`


@dataclass(frozen=True)
class Match:
    """The matcher's reading of an answer: a line of matches/."""

    id: str
    variant: str
    said: str | None = None  # the matcher's reply
    letter: str | None = None
    reason: str = ""  # how the letter was found, or why there is none
    error: str = ""  # why the matcher gave no reply: it is asked again


class AnswersDir(Folder):
    """The folder OUT/<model>."""

    benchmark, content_name = "negvqa", ANSWERS
    row_types: ClassVar = {ANSWERS: Answer, BLIND: Answer, MATCHES: Match}
    manifest_type: ClassVar = record(
        {
            **MANIFEST_FIELDS,
            **dict.fromkeys(("preset", "protocol", "reference", "matcher"), str),
            "identity": record({"prompt": str, "asking": NotRequired[str | None]}),
            "scoring": list[str],
            "limit": int,
            "data": record(
                {
                    "sha256": str,
                    "questions": int,
                    "columns": NotRequired[Row | None],
                    "revision": NotRequired[str | None],
                }
            ),
        }
    )


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
    "VILA1.5-8B": "llama-3-vila1.5-8b",
}
#: These have the same name in Table 1.
HUB_IDS |= {f"Cambrian-{n}B": f"cambrian-{n}b" for n in (8, 13, 34)}
HUB_IDS |= {f"VILA1.5-{n}B": f"vila1.5-{n}b" for n in (3, 13, 40)}


@cache
def read_table_1() -> pd.DataFrame:
    """All 200 numbers of Table 1 in its order, as shares: model, category, variant, value, low, high, n."""
    names = {"questions": "variant", "accuracy": "value", "low95": "low", "high95": "high"}
    table = pd.read_csv(Path(__file__).with_name("paper_numbers.csv")).rename(columns=names)
    shares = {name: table[name] / 100 for name in ("value", "low", "high")}
    sizes: dict[str, int] = Counter()  # category -> questions
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
    """Table 1's name of the model behind a reference (hub id, folder, openai:URL#MODEL); None if the table
    does not have it."""
    tail = re.sub(r"@.*$", "", reference.rpartition("#")[2].rstrip("/")).rpartition("/")[2].lower()
    return next((name for name, hub_id in HUB_IDS.items() if hub_id == tail), None)


def parse_size(name: str) -> tuple[str, float] | None:
    """Family and billions of parameters, ("Qwen2-VL", 7.0), from a name such as "Qwen2-VL-7B-Instruct"; None
    for a name without a size."""
    tail = name.rpartition("#")[2].rstrip("/").rpartition("/")[2]
    sized = re.match(r"(.+?)[-_](\d+(?:\.\d+)?)b(?![a-z])", tail, re.IGNORECASE)
    return (sized[1], float(sized[2])) if sized else None


def is_negvqa(data: Mapping[str, Any]) -> bool:
    """Whether the data of a run's manifest are NegVQA's own, so that Table 1 is comparable: those on the hub,
    or others with the same number of questions in every subset."""
    return data.get("name") == HUB or Counter(data.get("subsets")) == Counter(SUBSETS)
