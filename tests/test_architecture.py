"""Who may import whom, also inside functions and by places in texts ("nein.models.convert:run")."""

import ast
import functools
import importlib
import re
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
#: The rooms of `nein`, low to high: a room imports only rooms to its left.
ROOMS = (
    "loading", "editors", "metrics", "engine", "config", "wording", "nano", "statistics", "datasets",
    "models", "reporting", "benchmarks", "generate", "judges", "fetch", "reproduce", "listing", "api", "cli",
    "__main__", "train",
)  # fmt: skip
#: Those that lie beside `nein/` in a checkout.
BESIDE = ("editors", "metrics", "train")
#: Leaf -> all that it may import of ours. An editor that knew metrics could change a score.
LEAVES = {"loading": set(), "editors": {"loading"}, "metrics": {"loading"}}
#: On the top level of a checkout, and imported by nothing that ships.
NOT_SHIPPED = {"tests", "benchmarks", "research", *BESIDE}
#: "package.module:name", as tables and entry points have it.
PLACE = re.compile(r"(nein(?:\.\w+)*):(\w+)")


parsed = functools.cache(ast.parse)


@functools.cache
def modules():
    found = {}
    for folder in ("nein", *BESIDE, "research"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[f"nein.{name}" if folder in BESIDE else name] = path.read_text(encoding="utf-8")
    return found


def named(source, *, whole=False):
    """(line, dotted name) of everything that a file imports; whole: with the name of a place in a text."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif place := PLACE.fullmatch(str(node.value) if isinstance(node, ast.Constant) else ""):
            yield node.lineno, ".".join(place.groups()) if whole else place.group(1)


def is_there(target):
    """Whether a dotted name of ours can be imported."""
    module, _, name = target.rpartition(".")
    try:
        return name == "*" or hasattr(importlib.import_module(module), name) or bool(find_spec(target))
    except ModuleNotFoundError:
        return False


def imports(files):
    def module(name):
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name

    graph = {}
    for name, source in files.items():
        targets = {module(target): line for line, target in named(source)}
        graph[name] = {target: line for target, line in targets.items() if target not in ("", name)}
    return graph


def room(name):
    parts = name.split(".")
    return parts[1] if parts[0] == "nein" and len(parts) > 1 else parts[0]


def violations(files):
    """ "module:line: rule" for every import that the rules forbid."""
    place = {name: number for number, name in enumerate(ROOMS)}
    found = []
    for name, source in files.items():
        if not name.startswith("nein."):
            continue
        mine = room(name)
        for line, target in sorted(named(source)):
            theirs = room(target)
            ours = target.startswith("nein.") and theirs in place
            outside = not target.startswith("nein") and theirs in NOT_SHIPPED
            leaf = ours and mine in LEAVES and theirs not in LEAVES[mine] | {mine}
            if outside or leaf or target == "nein" or (ours and place[theirs] > place[mine]):
                found.append(f"{name}:{line}: {mine} may not import {target}")
    return found


def by_room(graph):
    rooms = {}
    for name, targets in graph.items():
        rooms.setdefault(room(name), set()).update({room(target) for target in targets} - {room(name)})
    return rooms


def circle(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


@pytest.fixture(scope="module")
def graph():
    return imports(modules())


def test_rooms_and_leaves_import_only_what_they_may():
    assert violations(modules()) == []


def test_everything_of_ours_that_is_imported_or_named_in_a_text_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["scripts"], *project.get("entry-points", {}).values()]
    entries = {place.replace(":", ".") for group in groups for place in group.values()}
    assert "nein.cli.main" in entries
    targets = {target for source in modules().values() for _, target in named(source, whole=True)}
    ours = {target for target in targets if target.partition(".")[0] in ("nein", "research")}
    assert [target for target in sorted(ours | entries) if not is_there(target)] == []
    assert not any(map(is_there, ("nein.engine.crew", "nein.cli.mane", "nein.crew.engine")))


def test_no_files_and_no_rooms_import_each_other_however_far_around(graph):
    assert circle(graph) == []
    assert circle(by_room(graph)) == []


def test_the_order_names_all_rooms():
    inside = (path for path in (ROOT / "nein").iterdir() if path.suffix == ".py" or path.is_dir())
    entries = {path.stem for path in inside if not path.name.startswith("__")}
    assert {*entries, *BESIDE} == {name for name in ROOMS if not name.startswith("__")}
    assert sum((ROOT / "nein" / entry).is_dir() for entry in entries) <= 12


def test_the_page_about_the_layout_lists_the_rooms_in_their_order():
    page = (ROOT / "docs" / "explanation" / "design.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE)
    assert tuple(listed) == tuple(name for name in ROOMS if not name.startswith("__"))


def test_the_rules_see_every_form_of_import():
    files = {
        "nein.editors.a": "import nein\n",
        "nein.editors.b": "x = 1\nfrom nein.metrics.base import Score\nfrom nein import loading\n",
        "nein.metrics.c": "def f():\n    import nein.engine.images as i\n",
        "nein.engine.d": "if True:\n    from tests import tiny\n",
        "nein.engine.e": 'TABLE = {"x": "nein.train.loop:run"}\n"""See nein.models.convert: not this."""\n',
        "nein.loading.f": "import metrics\n",
        "nein.train.g": "import torch, nein.api\nfrom nein.editors import get_editor\n",
        "research.h": "from nein.train import loop\n",
    }
    assert violations(files) == [
        "nein.editors.a:1: editors may not import nein",
        "nein.editors.b:2: editors may not import nein.metrics.base.Score",
        "nein.metrics.c:2: metrics may not import nein.engine.images",
        "nein.engine.d:2: engine may not import tests.tiny",
        "nein.engine.e:1: engine may not import nein.train.loop",
        "nein.loading.f:1: loading may not import metrics",
    ]


def test_circles_are_seen():
    files = {
        "nein.engine.folder": "def f():\n    from nein.datasets import nein\n    import nein.engine.crew\n",
        "nein.datasets.nein": 'WORK = "nein.models.convert:run"\n',
        "nein.models.convert": "from nein.engine import folder\nrun = 1\n",
    }
    graph = imports(files)
    assert set(circle(graph)) == set(files)
    assert set(circle(by_room(graph))) == {"engine", "datasets", "models"}
    assert circle(imports({**files, "nein.models.convert": "import nein.models\n"})) == []


def test_configs_holds_data_only():
    assert list((ROOT / "configs").rglob("*.py")) == []
