"""Docstrings as the site shows them: lines "name  What it is." become a list, code names become code.

The project's docstrings are text that reads well in an editor; names of parameters stand in a column of their
own, two blanks or more before what is said of them, which may go on in indented lines.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

#: "name  text", "name, other  text", or a name alone whose text is in the next, indented line.
_ENTRY = re.compile(r"(?P<names>[A-Za-z_*]\w*(?:\.\w+)?(?:, [A-Za-z_*]\w*)*)(?: {2,}(?P<text>\S.*))?")


class Lists(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """A docstring as Markdown."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(_paragraph(paragraph) for paragraph in paragraphs)


def _paragraph(paragraph: str) -> str:
    lines = paragraph.split("\n")
    if all(line.startswith((" ", "    ")) for line in lines) or lines[0].lstrip().startswith(
        (">>>", "-", "```")
    ):
        return paragraph
    entries: list[list[str]] = []
    for place, line in enumerate(lines):
        found = _ENTRY.fullmatch(line)
        follows = place + 1 < len(lines) and lines[place + 1].startswith("    ")
        if found and (found["text"] or follows):
            entries.append([found["names"], found["text"] or ""])
        elif entries and line.startswith(" "):
            entries[-1][1] += " " + line.strip()
        else:
            return paragraph
    return "\n".join(f"- **`{names}`**: {text.strip()}" for names, text in entries)
