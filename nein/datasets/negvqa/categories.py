"""Which of the paper's four categories a subset belongs to."""

from __future__ import annotations

import re

AVERAGE = "Average"
OTHER = "Other"
#: Category -> its subsets. Source: NegVQA (arXiv:2505.22946), section 4 and its released notebook; the nano
#: kinds are our own.
CATEGORIES: dict[str, tuple[str, ...]] = {
    "General": (
        "A-OKVQA", "VQAv2", "SEEDBench", "OKVQA", "MMStar", "VizWiz", "MMVet", "presence", "colour",
    ),
    "Reasoning": (
        "MathVista", "MMMU", "MathVision", "GQA", "RealWorldQA", "ScienceQA", "count", "position",
    ),
    "OCR": ("OCRVQA", "TextVQA"),
    "DocChart": ("DocVQA", "ChartQA", "InfoVQA", "TableVQABench", "AI2D"),
}  # fmt: skip
#: As they are shown.
TITLES = {"DocChart": "Doc & Chart"}


def category_of(subset: str) -> str:
    """The category of a subset, whatever its case and punctuation; `OTHER` for an unknown one."""
    return _INDEX.get(_plain(subset), OTHER)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


_INDEX = {_plain(name): category for category, names in CATEGORIES.items() for name in names}
