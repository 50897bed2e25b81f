"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence

import tabulate

from nein.benchmarks.nein.reporting.sections import Table

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "±": r"$\pm$", "–": "--", "×": r"$\times$", "<": r"$<$", ">": r"$>$", '"': r"''",
}  # fmt: skip


def markdown(tables: Iterable[Table], title: str, notes: Sequence[str]) -> str:
    """All tables under headings; a bar in a cell cannot end the cell, a line break cannot end the row."""
    parts = [f"# {title}"]
    for table in tables:
        rows = [[_markdown_cell(cell) for cell in row] for row in table.rows]
        head = [_markdown_cell(cell) for cell in table.columns]
        text = tabulate.tabulate(rows, head, tablefmt="pipe", disable_numparse=True)
        parts += [f"## {table.title}", text, *([table.note] if table.note else [])]
    return "\n\n".join([*parts, *(f"Note: {note}" for note in notes)]) + "\n"


def to_csv(tables: Iterable[Table]) -> str:
    """Every figure on a line: the table's key, then the record's fields; empty where a field does not
    apply."""
    records = [{"table": table.key, **line} for table in tables for line in table.data]
    columns = list(dict.fromkeys(name for line in records for name in line))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", restval="")
    writer.writeheader()
    for line in records:
        writer.writerow({name: _csv_cell(value) for name, value in line.items()})
    return buffer.getvalue()


def latex(tables: Iterable[Table], title: str) -> str:
    """One `table` environment each, for \\usepackage{booktabs}; long tables go over pages with longtable."""
    parts = [f"% {_one_line(title)}", r"% Needs \usepackage{booktabs,longtable} and UTF-8."]
    for table in tables:
        columns = "l" * len(table.columns)
        head = " & ".join(latex_text(cell) for cell in table.columns) + r" \\"
        body = "\n".join(" & ".join(latex_text(cell) for cell in row) + r" \\" for row in table.rows)
        caption = latex_text(f"{table.title}. {table.note}".strip())
        label = f"tab:nein-{table.key.replace('_', '-')}"
        if len(table.rows) <= 40:
            parts.append(
                f"\\begin{{table}}\n\\caption{{{caption}}}\n\\label{{{label}}}\n"
                f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head}\n\\midrule\n{body}\n\\bottomrule\n"
                f"\\end{{tabular}}\n\\end{{table}}"
            )
        else:
            parts.append(
                f"\\begin{{longtable}}{{{columns}}}\n\\caption{{{caption}}}\\label{{{label}}}\\\\\n\\toprule\n"
                f"{head}\n\\midrule\n\\endhead\n{body}\n\\bottomrule\n\\end{{longtable}}"
            )
    return "\n\n".join(parts) + "\n"


def latex_text(text: str) -> str:
    """Plain text with everything that LaTeX would take for a command escaped."""
    return "".join(_LATEX.get(char, char) for char in _one_line(text))


def _markdown_cell(text: str) -> str:
    return (
        _one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")
    )


def _csv_cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    # A spreadsheet runs a cell that begins like a formula; a number may begin with a minus.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() or c.isspace() else "�" for c in str(text)).split())
