"""From the words of a command line to work done."""

from __future__ import annotations

import contextlib
import logging
import pkgutil
import sys
from collections.abc import Sequence

from nein.config import options
from nein.config.commands import Command


def launch(prog: str, command: Command, words: Sequence[str], others: Sequence[str] = ()) -> int:
    """Reads the options of `PROG WORDS`, does the work, prints the text it returns; the exit code.

    prog    What is typed before the options: "nein negbench eval", "python -m train.nano".
    others  Commands whose names begin with this one's, for `--help`.

    The function that works is imported only when the options are in order, and not at all for `--dry-run`.
    """
    configuration = pkgutil.resolve_name(command.configuration)
    description = command.help[0].upper() + command.help[1:] + "."
    if others:
        description += f" Also: {', '.join(f'nein {other}' for other in others)}."
    config, dry_run = options.read(configuration, words, prog=prog, description=description)
    if dry_run:
        print(options.dump(config), end="")
        return 0
    from nein.engine import environment, processes

    work = pkgutil.resolve_name(command.work)
    environment.keep_freed_memory()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if command.shared:
        with contextlib.closing(processes.from_environment()) as here:
            answer = work(config, here)
    else:
        answer = work(config)
    if isinstance(answer, str):
        print(answer, end="", flush=True)
        if command.shared:
            print(f"Results: {config.out_dir}", file=sys.stderr)
    return answer if isinstance(answer, int) else 0
