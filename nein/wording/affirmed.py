"""The question that a negated question denies: "What is not on the table?" -> "What is on the table?"."""

from __future__ import annotations

import re

#: What denies -> what stands there without the denial; the first that fits, once.
_DENIALS: tuple[tuple[str, str], ...] = (
    (r"\bcan(?:not|'t)\b", "can"), (r"\bwon't\b", "will"), (r"\bain't\b", "is"), (r"(?<=[a-z])n't\b", ""),
    (r"\s+not\b", ""), (r"\s+never\b", ""), (r"\bno such\b", "one such"), (r"\bno\b", "a"),
    (r"\bwithout\b", "with"), (r"\banywhere but ", ""), (r"\b(?:missing|absent) from\b", "in"),
    (r"\blacks\b", "has"), (r"\black\b", "have"),
)  # fmt: skip


def affirmed(question: str) -> str | None:
    """The question without its denial; None where there is none, or more than one.

    "Where isn't the cat?" -> "Where is the cat?". What the rule does not know, "a wrong number", it does not
    notice; "not only" and "not all" deny no answer.
    """
    plain = question.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    if re.search(r"\bnot (?:only|just|all|every)\b", plain, re.IGNORECASE):
        return None
    matches = list(re.finditer("|".join(f"({pattern})" for pattern, _ in _DENIALS), plain, re.IGNORECASE))
    if len(matches) != 1:
        return None
    [match] = matches
    return plain[: match.start()] + _DENIALS[(match.lastindex or 1) - 1][1] + plain[match.end() :]
