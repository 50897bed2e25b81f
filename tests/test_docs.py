"""The code of the documentation works: docs/howto/adding.md, docs/howto/python.md and the tutorial."""

import copy
import re
import shlex
import sys
from dataclasses import dataclass

import pytest

from tests.helpers import commands, forks, packages

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = commands.ROOT / "docs" / "howto" / "adding.md"


@dataclass(frozen=True)
class Section:
    files: dict[str, str]
    lines: tuple[str, ...]


def sections():
    parts = re.split(r"^## (.+)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        blocks = re.findall(r'^```(\w+)(?: title="(\S+)")?\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL)
        files = {name: content for _, name, content in blocks if name}
        console = "".join(content for language, _, content in blocks if language == "console")
        found[title] = Section(files, tuple(re.findall(r"^\$ (.+)$", console, flags=re.MULTILINE)))
    return found


def install(section, folder):
    """Writes the files; the entry points of pyproject.toml become those of a package on the path."""
    for name, content in section.files.items():
        (folder / name).write_text(content)
    packages.install(folder, tomllib.loads(section.files["pyproject.toml"])["project"]["entry-points"])


def run(line, folder):
    words = shlex.split(line)
    assert words[0] == "nein"
    return commands.in_a_fork(*words[1:], cwd=folder, path=(folder,))


#: Heading -> what the commands below it print.
PRINTED = {
    "An editor": ("my_editors:Blur: all checks passed", "\nblur "),
    "A judge": ("my_judges:Bright: all checks passed", "\nidentity ", "vqa: sensitivity"),
    "A metric": ("Equal pixels", "Colour shift"),
    "A benchmark": ("nano:negvqa", " 12 ", " 24 "),
}


@pytest.mark.parametrize("title", sections())
def test_the_examples_of_the_page_work(title, tmp_path):
    section = sections()[title]
    install(section, tmp_path)
    printed = ""
    for line in section.lines:
        done = run(line, tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    for text in PRINTED[title]:
        assert text in printed


def test_the_benchmark_of_the_page_is_the_one_that_is_tested():
    for name, content in sections()["A benchmark"].files.items():
        if name != "pyproject.toml":
            assert content == (commands.ROOT / "tests" / "benchmarks" / name).read_text()


def test_the_page_about_python_is_a_program_that_runs(tmp_path, monkeypatch):
    page = (commands.ROOT / "docs" / "howto" / "python.md").read_text(encoding="utf-8")
    page = page.replace("limit=16", "limit=4")  # the same calls on fewer samples
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    assert (len(blocks), page.count("limit=4")) == (7, 4)
    (tmp_path / "page.py").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    process = forks.start(forks.script, ["page.py"], tmp_path / "said")
    process.join(600)
    assert process.exitcode == 0, (tmp_path / "said.err").read_text()
    assert (tmp_path / "page.html").is_file()


@pytest.mark.slow
def test_the_tutorial_runs_from_an_edit_function_to_a_report(tmp_path, monkeypatch):
    import nbclient
    import nbformat

    shipped = nbformat.read(commands.ROOT / "docs" / "tutorial.ipynb", as_version=4)
    for name, value in commands.environment().items():
        monkeypatch.setenv(name, value)
    client = nbclient.NotebookClient(
        copy.deepcopy(shipped),
        timeout=1800,
        kernel_name="python3",
        resources={"metadata": {"path": tmp_path}},
    )
    run = client.execute()
    for cell, before in zip(run.cells, shipped.cells, strict=True):
        kinds = [output.output_type for output in cell.get("outputs", ()) if output.output_type != "stream"]
        assert kinds == [output.output_type for output in before.get("outputs", ())], cell.source
    said = "".join(output.get("text", "") for cell in run.cells for output in cell.get("outputs", ()))
    assert "edit wipe" in said  # a bar of progress
    assert (tmp_path / "runs" / "tutorial" / "report.html").is_file()
