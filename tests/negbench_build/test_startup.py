"""Help comes at once: it loads no model library."""

from __future__ import annotations

import pytest

from tests.test_startup import loaded_by


@pytest.mark.parametrize(
    "call",
    [
        "from nein.cli import main; main(['negbench', 'generate', '--help'])",
        "from train.finetune_clip import main; main(['--help'])",
    ],
)
def test_help_loads_nothing_heavy(call: str) -> None:
    first, _, second = call.partition("; ")
    code = (
        f"import contextlib, io\n{first}\n"
        "with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):\n"
        f"    {second}\n"
        "assert 'usage' in said.getvalue()"
    )
    assert loaded_by(code) == ""
