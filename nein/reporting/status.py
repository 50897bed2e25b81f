"""`nein status` and `nein retry`: how far runs are, from their files alone, whoever works on them; and
`nein merge`: runs from several machines in one folder, and what to type then."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nein.config.groups import Runs
from nein.config.options import SHORT, option
from nein.engine import attempts, merging, progress, scheduler
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder, runs_below


@dataclass(kw_only=True)
class StatusConfig(Runs):
    """Which runs are looked at."""


@dataclass(kw_only=True)
class RetryConfig(Runs):
    """Which runs are tried again."""


def status(config: StatusConfig) -> str:
    """The stages of every run, who is at work, and who died."""
    return "\n".join(line for folder in _folders(config.runs) for line in _lines(folder)) + "\n"


def retry(config: RetryConfig) -> str:
    """Opens again what was set aside; says so, and which commands make it. They are not run: a run's folder
    may come from anybody."""
    lines: list[str] = []
    commands: dict[str, None] = {}
    for folder in _folders(config.runs):
        blocks = scheduler.try_again(folder)
        lines.append(f"{folder.path}: {blocks} block{'s' * (blocks != 1)} set aside, to be tried again.")
        for latest in folder.manifest()["invocations"][-1:] if blocks else ():
            commands[_typed(latest.get("command", []), latest.get("directory", "."))] = None
    if commands:
        lines += ["They are made when the command of the run is given again:", *commands]
    return "".join(f"{line}\n" for line in lines)


def _typed(words: list[str], directory: str) -> str:
    """A command to copy, with the folder that it was given in; no character of it moves the cursor."""
    there = "" if Path(directory) == Path.cwd() else f"cd {shlex.quote(directory)} && "
    return "".join(c if c.isprintable() else "?" for c in f"  {there}{shlex.join(['nein', *words])}")


def _folders(paths: list[Path]) -> Iterator[Folder]:
    for path in paths:
        below = runs_below(path)
        if not below:
            raise UserError(f"There is no run in '{path}'; name the --out of a command, or a run in it.")
        yield from map(Folder, below)


def _lines(folder: Folder) -> Iterator[str]:
    yield f"{folder.path}: {folder.manifest()['status']}"
    for state in progress.states(folder):
        parts = [
            f"{state.done} of {state.wanted} blocks",
            f"{state.running} running",
            f"{state.aside} failed",
        ]
        if state.open:
            parts.append("nobody is at work" if state.rate is None else f"{60 * state.rate:.3g} a minute")
        if state.open and state.seconds_left is not None:
            parts.append(f"{datetime.timedelta(seconds=round(state.seconds_left))} left")
        yield f"  {state.stage}: {', '.join(parts)}"
    for note in folder.notes(scheduler.ASIDE).values():
        yield f"  {note['stage']}, block {note['block']}: {note['reason']}; nein retry {folder.path}"
    at: dict[str, list[str]] = {}
    for attempt in attempts.attempts(folder.path):
        stage, _, number = attempt.name.rpartition("-")
        does = f"{attempt.where}: {'at' if attempt.alive else 'died at'}"
        at.setdefault(does, []).append(f"{stage} {number.lstrip('0') or 0}")
    yield from (f"  {does} {', '.join(blocks)}" for does, blocks in at.items())


# --- nein merge ------------------------------------------------------------------------------


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
