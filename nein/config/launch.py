"""From the words of a command line to work done."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pkgutil
import re
import sys
from collections.abc import Sequence
from typing import Any

from nein.config import options
from nein.config.commands import Command
from nein.engine.errors import UserError


def launch(prog: str, command: Command, words: Sequence[str], others: Sequence[str] = ()) -> int:
    """Reads the options of `PROG WORDS`, does the work, prints the text it returns; the exit code.

    prog    What is typed before the options: "nein negbench eval", "python -m research.nano".
    others  Commands whose names begin with this one's, for `--help`.

    The function that works is imported only when the options are in order, and not at all for `--dry-run`.
    """
    configuration = pkgutil.resolve_name(command.configuration)
    description = command.help[0].upper() + command.help[1:] + "."
    if others:
        description += f" Also: {', '.join(f'nein {other}' for other in others)}."
    config, dry_run = options.read(configuration, words, prog=prog, description=description)
    if dry_run:
        print(options.dump(config) + "".join(f"# {line}\n" for line in config.announced()), end="")
        return 0
    from nein.engine import environment, executors

    environment.look_for_garbage_seldom()
    environment.keep_freed_memory()
    work = pkgutil.resolve_name(command.work)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if command.shared:
        with contextlib.closing(executors.start(config)) as executor:
            answer = work(config, executor)
    else:
        answer = work(config)
    if isinstance(answer, str):
        print(answer, end="", flush=True)
        if command.shared:
            print(f"Results: {config.out_dir}", file=sys.stderr)
    return answer if isinstance(answer, int) else 0


def submit(name: str, command: Command, words: Sequence[str]) -> int:
    """`nein slurm NAME WORDS`: an array of jobs, each of which is the command; they share its blocks.

    Options of the jobs stand without their "slurm."; `--dry-run` prints the batch script.
    """
    slurm_words = [
        re.sub(r"^--(partition|gres|array|time|options\.\S+?)(=|$)", r"--slurm.\1\2", w) for w in words
    ]
    configuration: Any = pkgutil.resolve_name(command.configuration)
    config, dry_run = options.read(configuration, slurm_words, prog=f"nein slurm {name}")
    if config.overwrite:
        raise UserError("--overwrite is for one command; remove the folder, or choose another --out.")
    from metrics.served import credentials
    from nein.engine import atomic, jobs

    folder = config.out_dir / "slurm"
    if dry_run:
        print(jobs.script(config.slurm, folder), end="")
        return 0
    file = (folder / "command.yaml").resolve()
    atomic.write_text(file, options.dump(dataclasses.replace(config, on=None)))
    given = tuple(credentials.without(word) for word in ("slurm", *name.split(), *words))
    job = jobs.Whole((*name.split(), "--config", str(file)), given)
    submitted = jobs.submit([job] * config.slurm.array, config.slurm, folder)
    print(jobs.described(submitted, folder))
    print(f"How far they are: nein status {config.out_dir}")
    return 0
