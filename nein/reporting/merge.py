"""`nein merge`: runs from several machines in one folder, and what to type then."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nein.config.groups import Runs
from nein.config.options import SHORT, option
from nein.engine import merging
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder


@dataclass(kw_only=True)
class MergeConfig(Runs):
    """Which folders, and into which."""

    out: Path | None = option(None, "folder they are put into; needed, and may hold a part already", "Output")

    def check(self) -> None:
        if self.out is None:
            raise UserError("nein merge needs --out FOLDER, into which the runs are put.")


def merge(config: MergeConfig) -> str:
    """The command: a line per run, and the commands that finish those that were put together."""
    assert config.out is not None
    lines, commands = [], []
    for run in merging.merge(config.runs, config.out):
        folder = Folder(config.out / run.name)
        blocks = ", ".join(f"{count} blocks of {source}" for source, count in run.taken.items())
        lines.append(f"{run.name}: {blocks or 'nothing new'}; {folder.manifest()['status']}")
        if run.differing:
            lines.append(
                f"  {len(run.differing)} blocks differ, of which the first were kept ({run.differing[0]}, "
                f"...): the "
                "machines compute differently in the last bits."
            )
        manifest = folder.manifest()
        if manifest["status"] != COMPLETE and manifest["invocations"]:
            commands.append(_finish(manifest["invocations"][-1]["command"], config.out))
    said = "".join(f"{line}\n" for line in lines)
    if commands:
        said += "To finish:\n" + "".join(f"  {command}\n" for command in dict.fromkeys(commands))
    return said


def _finish(words: Sequence[str], out: Path) -> str:
    """A command as it was given, with another --out."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("--out", SHORT["out"]):
            skip = True
        elif word.startswith(("--out=", SHORT["out"])):
            continue
        else:
            kept.append(word)
    return shlex.join(["nein", *kept, "--out", str(out)])
