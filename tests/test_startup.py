"""The commands start at once: importing the packages loads no model library and no image library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = tuple("torch torchvision transformers diffusers accelerate PIL spacy scipy lpips cleanfid".split())
REPORT = f"import sys; print(*(name for name in {HEAVY} if name in sys.modules))"


def loaded_by(code: str) -> str:
    """The heavy modules a fresh interpreter has loaded after running `code`, separated by spaces."""
    line = [sys.executable, "-c", f"{code}\n{REPORT}"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


@pytest.mark.parametrize(
    "module",
    [
        "nein.cli",
        "nein.benchmarks.nein.config",
        "editors",
        "metrics",
        "nein.benchmarks.negvqa.config",
        "nein",
    ],
)
def test_importing_loads_nothing_heavy(module):
    assert loaded_by(f"import {module}") == ""


def test_the_probe_sees_a_heavy_import():
    assert loaded_by("import PIL.Image") == "PIL"


def test_naming_and_checking_editors_loads_nothing_heavy():
    code = (
        "from nein import editors; editors.available(); "
        "editors.preset_row('hqedit', 'paper'); editors.check('ip2p', steps=3)"
    )
    assert loaded_by(code) == ""


def test_editors_without_a_model_work_without_torch():
    code = (
        "import numpy as np, editors\n"
        "image = np.zeros((4, 4, 3), np.uint8)\n"
        "results = editors.get_editor('solid').edit([editors.EditRequest('a', image, 'Remove it.', 0)])\n"
        "assert (results[0].image == 128).all()"
    )
    assert loaded_by(code) == ""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("nein.cli", "negbench generate --help"),
        ("nein.cli", "negvqa generate --dry-run"),
        ("nein.train.finetune_clip", "--help"),
        ("nein.train.finetune_ip2p", "--help"),
    ],
)
def test_help_and_a_dry_run_load_nothing_heavy(module, arguments):
    code = (
        f"import contextlib, io, sys\nfrom {module} import main\n"
        "with contextlib.redirect_stdout(io.StringIO()) as printed:\n"
        f"    try: main({arguments.split()})\n"
        "    except SystemExit as end: assert not end.code\n"
        "assert printed.getvalue()\n"
        f"assert {module.startswith('nein.train')} or not {{'numpy', 'inflect'}} & set(sys.modules)"
    )
    assert loaded_by(code) == ""


def test_the_options_of_a_command_need_no_numpy():
    code = """
import importlib, sys
from nein import cli
for command in cli.COMMANDS.values():
    importlib.import_module(command.configuration.partition(":")[0])
assert "numpy" not in sys.modules
"""
    assert loaded_by(code) == ""


def test_a_command_looks_for_garbage_seldom_and_not_at_its_end():
    code = (
        "import gc\n"
        "from nein.cli import main\n"
        "class Cycle:\n"
        "    def __init__(self): self.itself = self\n"
        "    def __del__(self): print('looked for')\n"
        "try: main(['list', 'data'])\n"
        "except SystemExit: pass\n"
        "print(gc.get_threshold()[0])\n"
        "Cycle()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "10000"
