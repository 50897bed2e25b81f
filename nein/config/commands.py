"""One row of the table of commands, for `nein.cli` and for packages that add commands of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """What a command does. Both places are "module:name" and imported only when the command is called.

    help   What `nein --help` says about it.
    work   Function of the parsed options (and of the process's place among the launched ones), or of the
           remaining words where `parse` is None.
    parse  Function of the remaining words: the checked options, and whether `--dry-run` was given.
    shared Several processes may share the work: `work` takes this process's place among them as well.
    """

    help: str
    work: str
    parse: str | None = None
    shared: bool = True
