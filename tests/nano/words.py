"""What counts as a negated word."""

from __future__ import annotations

import re

NEGATED = re.compile(
    r"\b(?:no|not|cannot|without|never|none|nothing|nobody|neither|nor|nowhere|missing|absent|absence|devoid"
    r"|empty|lack\w*|minus|except|exclud\w*)\b|n['’]t\b|\bfree of\b|\binstead of\b",
    re.IGNORECASE,
)


def negated(lines: list[str]) -> list[str]:
    """The lines that hold a negated word."""
    return [line for line in lines if NEGATED.search(line)]
