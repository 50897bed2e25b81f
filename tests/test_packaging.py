"""What is installed: versions by name, the wheel alone in a new environment, the recipes of containers."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.commands import ROOT, exit_code

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WHEEL_MB = 46
NAMES = ("editors", "metrics", "train", "configs", "research")
SCRIPT = """
import gc
import metrics, train, editors
import nein.metrics, nein.editors, nein.train.options
from nein.metrics.base import MetricError
from nein import cli
assert metrics.MINE and train.MINE and editors.MINE
assert nein.metrics.MetricError is MetricError
print(nein.metrics.__file__, nein.editors.__file__, nein.train.__file__)
try:
    cli.main(["list", "editors"])
finally:
    print(gc.get_threshold()[0])
"""
#: Not in the list of tested versions: they need a GPU, or an interpreter that is not the one of the list.
UNTESTED = {"bitsandbytes", "tomli"}


def requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    return [
        Requirement(line) for line in (*project["dependencies"], *(one for extra in extras for one in extra))
    ]


def constraints():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.!]*", line)] == []
    return dict(line.split("==") for line in pins)


def test_every_requirement_has_one_lowest_version_and_a_tested_one_that_it_allows():
    tools = {"types-pyyaml", "types-tabulate", "types-tqdm", "pandas-stubs"}  # of mypy; none is imported
    pins, bounds = constraints(), dict[str, str]()
    for one in requirements():
        name = canonicalize_name(one.name)
        if name == "nein":  # `dev` is made of the other extras
            continue
        assert bounds.setdefault(name, str(one.specifier)) == str(one.specifier)
        assert name in tools or any(bound.operator in (">=", "==", "~=") for bound in one.specifier)
        assert name in UNTESTED or pins[name] in one.specifier


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    line = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(line, cwd=ROOT, capture_output=True, timeout=300, check=True)
    [file] = folder.glob("nein-*.whl")
    return file


@pytest.fixture(scope="module")
def unpacked(wheel):
    zipfile.ZipFile(wheel).extractall(wheel.parent / "site")
    return wheel.parent / "site"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel in it, beside the libraries of this one; its folder of scripts."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False)
    [site] = (root / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    line = [sys.executable, "-m", "pip", "--python", str(root / "bin" / "python"), "install", "--no-deps"]
    subprocess.run([*line, "--no-index", "--quiet", str(wheel)], timeout=300, check=True)
    return root / "bin"


def run(*line, cwd):
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in line],
        cwd=cwd, env={**kept, "HF_HUB_OFFLINE": "1", "NEIN_CACHE": str(cwd / "cache")},
        capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_wheel_holds_code_presets_and_weights_and_is_small(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size <= WHEEL_MB * 10**6
    assert {
        "nein/py.typed",
        "nein/configs/nein/eval-nano.yaml",
        "nein/nano/weights/ip2p/model_index.json",
    } <= {*names}
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/", "research/"))]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_the_wheel_alone_evaluates_measures_and_fine_tunes_outside_the_checkout(installed, tmp_path):
    code = "import nein, nein.train as train; print(nein.__file__, train.__file__)"
    where = run(installed / "python", "-c", code, cwd=tmp_path)
    assert [str(installed.parent) in place for place in where.split()] == [True, True]
    words = "eval --editor ip2p --limit 8 --editor-options.steps 2 --metrics l1,removal_vqa --control none"
    words = [*words.split(), "--device", "cpu", "--out", "eval"]
    assert "Removal (VQA)" in run(installed / "nein", *words, cwd=tmp_path)
    words = "negbench eval --scenes 16 --device cpu --out neg".split()
    run(installed / "nein", *words, cwd=tmp_path)
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", 1)
    tune = ("-m", "nein.train.finetune_ip2p", "--nano-sources", 30, "--affirmative-pairs", 40, "--steps", 2)
    options = ("--batch-size", 4, "--device", "cpu", "--trackers", "none", "--out", "tuned")
    run(installed / "python", *launch, *tune, *options, cwd=tmp_path)
    assert (tmp_path / "tuned" / "model" / "model_index.json").is_file()


@pytest.mark.parametrize("installed", [False, True], ids=["checkout", "wheel"])
def test_a_users_files_beside_a_script_shadow_nothing(installed, unpacked, tmp_path, monkeypatch):
    home = unpacked if installed else ROOT
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(home))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    places = done.stdout.splitlines()[0].split()
    parent = home / "nein" if installed else ROOT
    assert places == [str(parent / name / "__init__.py") for name in ("metrics", "editors", "train")]
    assert "magicbrush" in done.stdout
    assert done.stdout.splitlines()[-1] == "10000"  # a command looks for garbage seldom


RECIPES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("Dockerfile", "nein.def")}


def test_containers_hold_all_that_the_wheel_is_built_from():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    wheel = build["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"]}
    needed |= {"pyproject.toml", "README.md", "LICENSE", "constraints.txt"}
    copied = re.findall(r"^COPY (.+) \S+$", RECIPES["Dockerfile"], flags=re.MULTILINE)
    assert {word for words in copied for word in words.split()} == needed
    assert {*re.findall(r"^    (\S+) /opt/nein/\1$", RECIPES["nein.def"], flags=re.MULTILINE)} == needed
    assert {*re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE)} == needed
    assert [name for name in needed if not (ROOT / name).exists()] == []
    source = {*build["targets"]["sdist"]["include"], "pyproject.toml"}
    assert needed | {"CITATION.cff", ".dockerignore", "tests", *RECIPES} <= source  # the tests read them


def test_the_container_has_two_variants_and_its_commands_are_not_those_of_root():
    text = RECIPES["Dockerfile"]
    names = re.findall(r"^([A-Z]+) ", text, flags=re.MULTILINE)
    assert int(re.search(r"^USER (\d+)$", text, flags=re.MULTILINE)[1]) >= 1000
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert "RUN" not in names[names.index("USER") :]
    for recipe in RECIPES.values():
        assert re.search(r"(^ARG |^ +)VARIANT=cuda$", recipe, flags=re.MULTILINE)
        assert "VARIANT=cpu needs CPU_INDEX" in recipe
        assert "://" not in recipe  # which host has the wheels is for who builds to say


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_health_check_of_a_container_is_a_command_that_this_version_takes(recipe, capsys):
    [line] = re.findall(r"nein (eval --limit [^\"\n]*)", RECIPES[recipe])
    assert exit_code(*shlex.split(line), "--dry-run") == 0
    assert "device: cpu" in capsys.readouterr().out


def test_the_citation_file_is_valid():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= set(cited)
    assert f'version = "{cited["version"]}"' in (ROOT / "pyproject.toml").read_text()
