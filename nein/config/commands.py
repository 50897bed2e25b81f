"""One row of the table of commands (`nein.cli`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """What a command takes and does. The places are "module:name", imported only when the command is called.

    help           One sentence, without a full stop, for `nein --help`.
    configuration  The dataclass of its options, a `nein.config.options.Options`, in a module that imports
                   nothing heavy.
    work           Function of the options; returns text to print, an exit code, or None.
    shared         Blocks of a folder, which any executor computes: `work` is given that of `--on` as well.
    announces      Function of the options; lines that `--dry-run` prints behind these, as comments.
    """

    help: str
    configuration: str
    work: str
    shared: bool = False
    announces: str = ""
