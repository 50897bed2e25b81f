"""The training code has no circle of imports: not by file, not by room, functions included."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / "train").rglob("*.py")
}


def imported(path: Path) -> set[str]:
    """The modules of `train` that a file names, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names & set(FILES)


def room(module: str) -> str:
    """A package of `train`; a module in none, or an entry point, which may run a script, stands alone."""
    if f'"{module}:' in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        return module
    return ".".join(module.split(".")[:2])


def test_no_two_files_import_each_other_however_far_around() -> None:
    TopologicalSorter({name: imported(path) - {name} for name, path in FILES.items()}).prepare()


def test_no_two_rooms_import_each_other_however_far_around() -> None:
    graph: dict[str, set[str]] = {}
    for name, path in FILES.items():
        graph.setdefault(room(name), set()).update({room(other) for other in imported(path)} - {room(name)})
    TopologicalSorter(graph).prepare()


def test_a_circle_would_be_seen() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
