"""The command `nein-negvqa`: an evaluation, or one of the parts that have a word of their own."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence

#: First word of the command line -> "module:function" that does the rest; imported when it is used.
COMMANDS = {
    "report": "nein.benchmarks.negvqa.report:main",
    "build": "nein.generate.negvqa.command:main",
    "check": "nein.generate.negvqa.check:main",
}


def main(argv: Sequence[str]) -> int:
    """Runs `nein-negvqa argv`. Raises UserError for anything the user can mend."""
    if argv and argv[0] in COMMANDS:
        return pkgutil.resolve_name(COMMANDS[argv[0]])(list(argv[1:])) or 0
    from nein.benchmarks.negvqa.config import parse
    from nein.config.launch import launch

    launch(*parse(argv), "nein.benchmarks.negvqa.run:evaluate")
    return 0
