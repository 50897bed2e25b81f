"""The command `nein-negvqa build`. Options are parsed before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence

from nein.config import options
from nein.generate.negvqa.config import parse


def main(argv: Sequence[str]) -> int:
    """Runs `nein-negvqa build argv`. Raises UserError or MetricError."""
    config, dry_run = parse(argv)
    if dry_run:
        print(options.dump(config), end="")
        return 0
    from nein.engine import environment
    from nein.generate.negvqa.run import build

    environment.keep_freed_memory()
    print(build(config), end="", flush=True)
    return 0
