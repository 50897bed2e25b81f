"""Who may import whom, and that the four packages are the ones in this repository."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Package -> the packages of ours it may import, besides itself. `editors` and `metrics` are leaves: an editor
# that knew the metrics could change a score, and neither should care where files live.
MAY_IMPORT = {
    "editors": set(),
    "metrics": set(),
    "nein": {"editors", "metrics"},
    "train": {"editors", "metrics", "nein"},
}


def imports(source: str) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import statement, also inside functions; relative ones are ours."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]


def violations(package: str, files: dict[str, str]) -> list[str]:
    """ "file:line: rule" for every forbidden import in `files` (name -> source) of `package`."""
    forbidden = {*MAY_IMPORT, "tests", "benchmarks"} - MAY_IMPORT[package] - {package}
    allowed = ", ".join(sorted(MAY_IMPORT[package])) or "nothing of ours"
    return [
        f"{name}:{line}: {package} may import {allowed}, not {target}"
        for name, source in files.items()
        for line, target in imports(source)
        if target in forbidden
    ]


def sources(package: str) -> dict[str, str]:
    paths = sorted((ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_it_may(package):
    files = sources(package)
    assert files, f"no Python files in {package}/"
    assert violations(package, files) == []


def test_the_rule_catches_every_form_of_import():
    bad = {
        "a.py": "import nein\n",
        "b.py": "x = 1\nfrom metrics.base import Score\n",
        "c.py": "def f():\n    import nein.engine.images as i\n",
        "d.py": "if True:\n    from tests import tiny\n",
    }
    assert violations("editors", bad) == [
        "a.py:1: editors may import nothing of ours, not nein",
        "b.py:2: editors may import nothing of ours, not metrics",
        "c.py:2: editors may import nothing of ours, not nein",
        "d.py:2: editors may import nothing of ours, not tests",
    ]
    assert violations("nein", {"e.py": "import train.nano\n"}) == [
        "e.py:1: nein may import editors, metrics, not train"
    ]


def test_the_rule_lets_through_what_is_allowed():
    good = {"a.py": "import torch\nimport editors.base\nfrom . import presets\nimport neinsense\n"}
    assert violations("editors", good) == []
    assert violations("train", {"b.py": "import nein, metrics\nfrom editors import get_editor\n"}) == []


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_resolves_inside_the_repository(package):
    # The names are generic enough for something else on the path to shadow them.
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).resolve() == ROOT / package / "__init__.py"


def test_configs_holds_data_only():
    assert list((ROOT / "configs").rglob("*.py")) == []
