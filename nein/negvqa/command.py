"""The command `nein-negvqa`: an evaluation, or one of the parts that have a word of their own."""

from __future__ import annotations

import logging
import pkgutil
import sys
from collections.abc import Sequence

#: First word of the command line -> "module:function" that does the rest; imported when it is used.
COMMANDS = {
    "report": "nein.negvqa.report:main",
    "build": "nein.negvqa.build.command:main",
    "check": "nein.negvqa.build.check:main",
}


def main(argv: Sequence[str]) -> int:
    """Runs `nein-negvqa argv`. Raises UserError for anything the user can mend."""
    if argv and argv[0] in COMMANDS:
        return pkgutil.resolve_name(COMMANDS[argv[0]])(list(argv[1:])) or 0
    from nein import options
    from nein.negvqa import config as configuration

    config, dry_run = configuration.parse(argv)
    if dry_run:
        print(options.dump(config), end="")
        return 0
    from nein import environment, world
    from nein.negvqa import run

    environment.keep_freed_memory()
    place = world.from_environment()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        text = run.run(config, place)
        if text is not None:
            print(text, end="", flush=True)
    finally:
        place.close()
    return 0
