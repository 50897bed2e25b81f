"""Who may import whom: packages, rooms of `nein`, and no circles. Imports inside functions count, and so do
places in texts ("nein.models.convert:run"), which are imported when they are used.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
# Package -> those of ours it may import, besides itself. An editor that knew metrics could change a score.
MAY_IMPORT = {
    "nein.loading": set(),
    "editors": {"nein.loading"},
    "metrics": {"nein.loading"},
    "nein": {"editors", "metrics", "nein.loading"},
    "train": {"editors", "metrics", "nein", "nein.loading"},
    # How the shipped weights and the studies were made; not in the wheel, and imported by nothing.
    "research": {"editors", "metrics", "nein", "nein.loading", "train"},
}
#: The rooms of `nein`, low to high: a room imports only rooms to its left.
ROOMS = (
    "loading", "engine", "config", "wording", "nano", "statistics", "datasets", "models", "reporting",
    "benchmarks", "generate", "judges", "fetch", "listing", "api", "cli", "__main__",
)  # fmt: skip
#: "package.module:name", as tables and entry points have it.
PLACE = re.compile(rf"((?:{'|'.join(map(re.escape, MAY_IMPORT))})(?:\.\w+)*):(\w+)")


def package_of(name: str) -> str:
    """Whose a module is: "nein.loading", "metrics", "torch"."""
    return "nein.loading" if f"{name}.".startswith("nein.loading.") else name.partition(".")[0]


def modules() -> dict[str, str]:
    """Module -> source, of the four packages."""
    found = {}
    for package in MAY_IMPORT:
        for path in sorted((ROOT / package.replace(".", "/")).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path.read_text(encoding="utf-8")
    return found


def named(source: str, *, whole: bool = False) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a file imports, anywhere in it; we have no relative imports.

    whole  Of a place in a text the name in the module, too.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif place := PLACE.fullmatch(str(node.value) if isinstance(node, ast.Constant) else ""):
            yield node.lineno, ".".join(place.groups()) if whole else place.group(1)


def defined(source: str) -> set[str]:
    """The names that a module has once it is imported, what its functions bind inside not among them."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        else:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            waiting += ast.iter_child_nodes(node)
    return names


def missing(files: Mapping[str, str]) -> list[str]:
    """ "module:line: name" for what of ours `files` import, or name in a text, and that is not there.

    The type checker is told to let imports pass that it cannot find.
    """
    has = {module: defined(source) for module, source in files.items()}

    def is_there(target: str) -> bool:
        module, _, name = target.rpartition(".")
        return target in has or name in has.get(module, ())

    return [
        f"{module}:{line}: {target}"
        for module, source in files.items()
        for line, target in named(source, whole=True)
        if target.partition(".")[0] in MAY_IMPORT and not is_there(target)
    ]


def imports(files: Mapping[str, str]) -> dict[str, dict[str, int]]:
    """Module -> the modules of `files` that it imports, each with the line."""

    def module(name: str) -> str:
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name

    graph: dict[str, dict[str, int]] = {}
    for name, source in files.items():
        targets = {module(target): line for line, target in named(source)}
        graph[name] = {target: line for target, line in targets.items() if target not in ("", name)}
    return graph


def violations(package: str, files: Mapping[str, str]) -> list[str]:
    """ "module:line: rule" for everything in `files` of `package` that names a package it may not import."""
    forbidden = {*MAY_IMPORT, "tests", "benchmarks"} - MAY_IMPORT[package] - {package}
    allowed = ", ".join(sorted(MAY_IMPORT[package])) or "nothing of ours"
    found = {
        (name, line, package_of(target)) for name, source in files.items() for line, target in named(source)
    }
    return [
        f"{name}:{line}: {package} may import {allowed}, not {target}"
        for name, line, target in sorted(found)
        if target in forbidden
    ]


def upwards(graph: Mapping[str, Mapping[str, int]]) -> list[str]:
    """ "module:line: rule" for every import of a room that is not to the left of the importing one."""
    place = {f"nein.{room}": number for number, room in enumerate(ROOMS)}

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    return [
        f"{name}:{line}: {room(name)} may not import {target}"
        for name, targets in graph.items()
        for target, line in targets.items()
        if room(name) in place and room(target) in place and place[room(target)] > place[room(name)]
    ]


def by_room(graph: Mapping[str, Mapping[str, int]]) -> dict[str, set[str]]:
    """The same graph between folders (and single modules) right below the packages."""

    def room(name: str) -> str:
        return ".".join(name.split(".")[:2])

    rooms: dict[str, set[str]] = {}
    for name, targets in graph.items():
        rooms.setdefault(room(name), set()).update({room(target) for target in targets} - {room(name)})
    return rooms


def circle(graph: Mapping[str, object]) -> list[str]:
    """A circle of the graph, first and last the same; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()  # type: ignore[arg-type]
    except CycleError as error:
        return error.args[1]
    return []


@pytest.fixture(scope="module")
def graph() -> dict[str, dict[str, int]]:
    return imports(modules())


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_it_may(package):
    files = {name: source for name, source in modules().items() if package_of(name) == package}
    assert files, f"no Python files in {package}/"
    assert violations(package, files) == []


def test_a_room_imports_only_rooms_to_its_left(graph):
    assert upwards(graph) == []


def test_everything_of_ours_that_is_imported_or_named_in_a_text_is_there():
    assert missing(modules()) == []


def test_entry_points_name_what_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["scripts"], *project.get("entry-points", {}).values()]
    places = {name: f'"{place}"' for group in groups for name, place in group.items()}
    assert places
    assert missing({**modules(), **places}) == []


def test_no_files_import_each_other_however_far_around(graph):
    assert circle(graph) == []


def test_no_rooms_import_each_other_however_far_around(graph):
    assert circle(by_room(graph)) == []


def test_nein_has_at_most_a_dozen_rooms_and_the_order_names_them_all():
    entries = {path.stem for path in (ROOT / "nein").iterdir() if not path.name.startswith("__")}
    assert sum((ROOT / "nein" / entry).is_dir() for entry in entries) <= 12
    assert entries == {room for room in ROOMS if not room.startswith("__")}


def test_the_page_about_the_layout_lists_the_rooms_in_their_order():
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE)
    assert tuple(listed) == tuple(room for room in ROOMS if not room.startswith("__"))


def test_the_rule_catches_every_form_of_import():
    bad = {
        "a": "import nein\n",
        "b": "x = 1\nfrom metrics.base import Score\n",
        "c": "def f():\n    import nein.engine.images as i\n",
        "d": "if True:\n    from tests import tiny\n",
        "e": 'TABLE = {"x": "train.loop:run"}\n',
    }
    assert violations("editors", bad) == [
        "a:1: editors may import nein.loading, not nein",
        "b:2: editors may import nein.loading, not metrics",
        "c:2: editors may import nein.loading, not nein",
        "d:2: editors may import nein.loading, not tests",
        "e:1: editors may import nein.loading, not train",
    ]
    assert violations("nein.loading", {"a": "import metrics\nfrom nein import engine\n"}) == [
        "a:1: nein.loading may import nothing of ours, not metrics",
        "a:2: nein.loading may import nothing of ours, not nein",
    ]
    assert violations("nein", {"e": "import train.loop\n"}) == [
        "e:1: nein may import editors, metrics, nein.loading, not train"
    ]


def test_the_rule_lets_through_what_is_allowed():
    good = {"a": "import torch\nimport editors.base\nfrom . import presets\nimport neinsense, nein.loading\n"}
    assert violations("editors", good) == []
    assert violations("train", {"b": "import nein, metrics\nfrom editors import get_editor\n"}) == []
    assert violations("editors", {"c": '"""See nein.engine.images: the one decoder."""\n'}) == []


def test_the_order_of_rooms_and_circles_are_seen():
    files = {
        "nein.engine.blocks": "def f():\n    from nein.datasets import nein\n",
        "nein.datasets.nein": 'WORK = "nein.models.convert:run"\n',
        "nein.models.convert": "from nein.engine import blocks\n",
    }
    graph = imports(files)
    assert upwards(graph) == [
        "nein.engine.blocks:2: nein.engine may not import nein.datasets.nein",
        "nein.datasets.nein:1: nein.datasets may not import nein.models.convert",
    ]
    assert set(circle(graph)) == set(files)
    assert set(circle(by_room(graph))) == {"nein.engine", "nein.datasets", "nein.models"}
    assert circle(imports({**files, "nein.models.convert": "import nein.models\n"})) == []


def test_what_is_not_there_is_seen():
    command = """
def f():
    from nein.engine import blocks, journal
    from nein.engine.blocks import SIZE, Slot
    import nein.engine.crew
    import torch.never
"""
    files = {
        "nein": "",
        "nein.engine": "",
        "nein.engine.blocks": "try:\n    from os import fork\nexcept ImportError:\n    SIZE = 8\n",
        "nein.cli": command,
        "train": 'WORK = ["nein.engine.blocks:fork", "nein.engine.blocks:join", "nein.engine.crew:Crew"]\n',
    }
    assert missing(files) == [
        "nein.cli:3: nein.engine.journal",
        "nein.cli:4: nein.engine.blocks.Slot",
        "nein.cli:5: nein.engine.crew",
        "train:1: nein.engine.blocks.join",
        "train:1: nein.engine.crew.Crew",
    ]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_resolves_inside_the_repository(package):
    # The names are generic enough for something else on the path to shadow them.
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).resolve() == ROOT / package.replace(".", "/") / "__init__.py"


def test_configs_holds_data_only():
    assert list((ROOT / "configs").rglob("*.py")) == []
