"""The documentation as a site: it holds all tables, every link leads somewhere, and it can be built."""

import ast
import functools
import json
import pkgutil
import re
import sys
from pathlib import Path

import pytest

from nein import cli, editors
from nein.benchmarks.negbench.models import MODELS
from nein.config import options
from nein.config.groups import SlurmJobs
from nein.datasets.negbench import registry
from nein.metrics import JUDGES, METRICS
from nein.nano import scenes, zoo
from nein.wording.families import CONSTRUCTIONS, FAMILIES
from tests.helpers import commands, forks

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
NEGBENCH = [name for name, row in registry.ROWS.items() if row.suite == "NegBench"]
sys.path.insert(0, str(DOCS / "site"))
import pages  # noqa: E402  # what the build writes

#: Comparisons of a protocol's name that decide no number of a sample: what is shown, and in which words.
SHOWN_ONLY = ("nein/benchmarks/nein/calibrations.py", "nein/benchmarks/negbench/config.py")


@pytest.fixture(scope="module")
def markdown():
    lying = {str(path.relative_to(DOCS)): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    readme = (ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    made = {page.path: page.text for part in pages.written().values() for page in part}
    return {**lying, "index.md": readme, **made}


@functools.cache
def parser(place):
    return options.make_parser(pkgutil.resolve_name(place), "", "")


#: A command with what follows it on its line, in a page or in a message of the code.
_TYPED = re.compile(
    r"\b(?:nein(?:-eval)?|(?:python |accelerate launch )(?:-m )?train[./][\w./]+)\b[^`\n;|)]*"
)


def lines_typed(text):
    """The command lines of a text, without what is said behind "#" and "&&"."""
    joined = re.sub(r'"\n\s*f?"|\\\n', "", text)
    for found in _TYPED.finditer(joined):
        yield re.split(r" #| && |, | \(", found[0])[0]


def unknown_options(line, flags):
    words = re.sub(r"^nein-eval", "nein eval", re.sub(r"^.*?(?=train[./])", "", line)).split()
    words = [words[0], *words[2:]] if words[1:2] in (["slurm"], ["fetch"]) and len(words) > 2 else words
    typed = next((" ".join(words[:n]) for n in (3, 2, 1) if " ".join(words[:n]) in flags), None)
    given = re.findall(r"(?<![\w-])--[a-z][\w.-]*\w", line) if typed else []
    known = flags.get(typed or "", set())
    # An entry of an option that is a mapping: --editor-options.size, --models.vqa_options.detail.
    return [one for one in given if one not in known and f"{one.rpartition('.')[0]}.KEY" not in known]


@pytest.fixture(scope="module")
def flags():
    places = {f"nein {name}": command.configuration for name, command in cli.commands().items()}
    for typed, place in pages.SCRIPTS.items():
        places[re.sub(r"^python (-m )?", "", typed)] = pages._script(typed, place).configuration
    known = {}
    for typed, place in places.items():
        known[typed] = {flag for action in parser(place)._actions for flag in action.option_strings}
        known[typed] |= {f"--{item.name}" for item in options.fields(SlurmJobs)} | {
            "--options.KEY"
        }  # of `nein slurm COMMAND`
    return known


def test_every_option_that_is_given_to_a_command_in_a_text_is_one_that_it_takes(markdown, flags):
    texts = dict(markdown)
    for folder in ("nein", "editors", "metrics", "train", "configs"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.yaml")]:
            texts[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    wrong = {
        f"{name}: {line}": lost
        for name, text in texts.items()
        for line in lines_typed(text)
        if (lost := unknown_options(line, flags))
    }
    assert wrong == {}


def test_every_script_has_a_page():
    typed = {
        line.split()[-1].removesuffix(".py").replace("/", ".").removeprefix("nein.") for line in pages.SCRIPTS
    }
    started = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "train").rglob("*.py")
        if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
    }
    assert started == typed


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("reference/metrics", list(METRICS)),
        ("reference/editors", list(editors.PRESETS)),
        ("reference/judges", list(JUDGES)),
        ("reference/models", [*MODELS, *NEGBENCH, *scenes.WORLDS]),
        ("explanation/nano", list(zoo.available())),
        ("reference/wording", list(FAMILIES)),
        ("benchmarks/other-tests", [*CONSTRUCTIONS, *sorted(registry.ROWS.keys() - NEGBENCH)]),
    ],
)
def test_every_name_of_the_tables_is_on_its_page(page, names, markdown):
    text = markdown[f"{page}.md"]
    lacking = [name for name in names if not re.search(rf"(`|## |### ){re.escape(name)}(?!\w)", text)]
    assert names
    assert lacking == []


def test_the_tables_of_the_pages_are_those_of_the_code(markdown):
    """`python docs/site/pages.py` writes them."""
    stale = [name for name, text in markdown.items() if pages.filled(text) != text]
    assert stale == []
    asked = set(re.findall(r"<!-- table: (\S+) -->", "".join(markdown.values())))
    assert asked == set(pages.TABLES)


def test_every_quirk_that_the_code_knows_is_on_the_page_of_quirks():
    """Each module that asks which protocol is meant is named where its quirk is explained."""
    text = (DOCS / "reference" / "quirks.md").read_text(encoding="utf-8")
    asking = {
        str(path.relative_to(ROOT))
        for package in ("nein", "metrics", "editors", "train")
        for path in (ROOT / package).rglob("*.py")
        if _asks_for_a_protocol(path)
    } - set(SHOWN_ONLY)
    named = set(re.findall(r"`((?:nein|metrics|editors|train)/[\w/]+\.py)`", text))
    assert sorted(asking - named) == []
    assert sorted(path for path in named if not (ROOT / path).is_file()) == []


def test_every_quirk_has_an_id_and_a_test_in_which_the_protocols_differ():
    text = (DOCS / "reference" / "quirks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([NZDBEQC]\d+) .*?\| ([^|]+) \|$", text, flags=re.MULTILINE)
    ids = [name for name, _ in rows]
    assert len(ids) == len(set(ids)) >= 40
    for name, last in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", last)
        assert files, name
        for file in files:
            assert "paper" in (ROOT / file).read_text(encoding="utf-8"), (name, file)


def _asks_for_a_protocol(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            texts = {side.value for side in sides if isinstance(side, ast.Constant)}
            names = {getattr(side, "attr", getattr(side, "id", "")) for side in sides}
            if texts & {"paper", "fixed"} and "protocol" in names:
                return True
    return False


def test_every_table_has_a_head_and_no_page_names_a_place_of_this_machine(markdown):
    """A row behind an empty line is no row of the table above it."""
    for name, text in markdown.items():
        assert str(ROOT) not in text, name
        assert "default ``" not in text, name
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for table in re.findall(r"(?:^\|.*\n?)+", prose, flags=re.MULTILINE):
            assert re.match(r".*\n\|[-:| ]+\|\n", table), f"{name}: {table[:80]}"


def test_the_readme_is_short_and_the_tutorial_holds_nothing_of_the_machine_it_ran_on():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= 150
    assert all(f"`make {name}`" in readme for name in ("test", "test-slow", "test-device"))
    file = DOCS / "tutorial.ipynb"
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    said = json.dumps([cell.get("outputs") for cell in cells])
    assert not re.search(r"/(home|root|tmp|work|Users)/", said)
    assert file.stat().st_size < 400_000


def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(commands.PLUGINS)])
    monkeypatch.chdir(ROOT)
    words = ["build", "--strict", "--site-dir", str(tmp_path / "site")]
    process = forks.start(_mkdocs, words, tmp_path / "said")
    process.join(600)
    assert process.exitcode == 0, (tmp_path / "said.err").read_text()
    site = list(tmp_path.rglob("*.html"))
    assert len(site) > 60
    loading = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\s\">]+")
    assert [(page.name, found) for page in site for found in loading.findall(page.read_text())] == []


def _mkdocs(words):
    from mkdocs.__main__ import cli

    cli(words)
