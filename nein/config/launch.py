"""From parsed options to work done, for the commands that several processes can share."""

from __future__ import annotations

import logging
import pkgutil
import sys
from typing import Any

from nein.config import options
from nein.config.commands import Command


def launch(config: Any, dry_run: bool, command: Command) -> None:
    """Calls the command's function, imported only now, with the configuration (and this process's place among
    the launched ones), and prints the text that it returns to the main process.

    dry_run  Print the configuration and do nothing else.
    """
    if dry_run:
        print(options.dump(config), end="")
        return
    from nein.engine import environment, world

    work = pkgutil.resolve_name(command.work)
    environment.keep_freed_memory()
    own = world.from_environment()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    try:
        text = work(config, own) if command.shared else work(config)
        if text is not None:
            print(text, end="", flush=True)
            print(f"Results: {config.out_dir}", file=sys.stderr)
    finally:
        own.close()
