"""The commands start at once: importing the packages loads no model library and no image library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    "torch", "torchvision", "transformers", "diffusers", "accelerate", "PIL", "spacy", "scipy", "lpips",
    "cleanfid", "open_clip",
)  # fmt: skip
#: Nothing of these is needed to say what a command takes.
NOT_FOR_HELP = (
    *HEAVY, "numpy", "pandas", "matplotlib", "inflect", "datasets", "openai", "peft", "tabulate", "jinja2",
)  # fmt: skip


def loaded_by(code):
    """The heavy modules a fresh interpreter has loaded after running `code`, separated by spaces."""
    report = f"import sys; print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    line = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return done.stderr.strip()


def ending(call):
    return f"try: {call}\nexcept SystemExit as end: assert not end.code"


#: What they may load -> what is done in one interpreter.
LIGHT = {
    "": (
        "import nein, editors, metrics, nein.cli",
        "editors.available(); editors.find_preset_row('hqedit', 'paper'); editors.check('ip2p', steps=3)",
        "import numpy as np",
        "request = editors.EditRequest('a', np.zeros((4, 4, 3), np.uint8), 'Remove it.', 0)",
        "assert (editors.get_editor('solid').edit([request])[0].image == 128).all()",
        ending("nein.cli.main(['negvqa', 'generate', '--dry-run'])"),
        "from nein.train.finetune_ip2p import main",
        ending("main(['--help'])"),
    ),
    "PIL": (
        "from nein import listing",
        "for kind in ('editors', 'metrics', 'data'): listing.run(listing.ListConfig(kind=kind))",
        "from nein.train.finetune_clip import main",
        ending("main(['--help'])"),
        "import PIL.Image",  # it is seen
    ),
}


@pytest.mark.parametrize("heavy", LIGHT)
def test_what_needs_no_model_loads_nothing_heavy(heavy):
    assert loaded_by("\n".join(LIGHT[heavy])) == heavy
