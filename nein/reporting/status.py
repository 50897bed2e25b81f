"""`nein status` and `nein retry`: runs as files, whoever works on them."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Iterator
from pathlib import Path

from nein.config.groups import Runs
from nein.engine import attempts, scheduler
from nein.engine.executors import progress
from nein.engine.folder import Folder, runs_at
from nein.loading.spending import sentences, spent


def status(config: Runs) -> str:
    folders = (Folder(folder) for path in config.runs for folder in runs_at([path]))
    costs = dict.fromkeys(line for path in config.runs for line in sentences(spent(path)))
    return "\n".join([*(line for folder in folders for line in _lines(folder)), *costs]) + "\n"


def retry(config: Runs) -> str:
    """Opens again what was set aside, and names the commands that make it, which are not run: a folder may
    come from anybody."""
    lines: list[str] = []
    commands: dict[str, None] = {}
    for folder in (Folder(folder) for path in config.runs for folder in runs_at([path])):
        blocks = scheduler.try_again(folder)
        lines.append(f"{folder.path}: {blocks} block{'s' * (blocks != 1)} set aside, to be tried again.")
        for latest in folder.manifest()["invocations"][-1:] if blocks else ():
            directory = latest.get("directory", ".")
            prefix = "" if Path(directory) == Path.cwd() else f"cd {shlex.quote(directory)} && "
            typed = f"  {prefix}{shlex.join(['nein', *latest.get('command', [])])}"
            # No character of it moves the cursor.
            commands["".join(c if c.isprintable() else "?" for c in typed)] = None
    if commands:
        lines += ["They are made when the command of the run is given again:", *commands]
    return "".join(f"{line}\n" for line in lines)


def _lines(folder: Folder) -> Iterator[str]:
    yield f"{folder.path}: {folder.manifest()['status']}"
    for state in progress.states(folder):
        text = f"  {state.stage}: {state.done} of {state.wanted} blocks, {state.running} running, "
        text += f"{state.aside} failed"
        if state.open:
            text += ", nobody is at work" if state.rate is None else f", {60 * state.rate:.3g} a minute"
        if state.open and state.seconds_left is not None:
            text += f", {datetime.timedelta(seconds=round(state.seconds_left))} left"
        yield text
    for note in folder.notes(scheduler.ASIDE).values():
        yield f"  {note['stage']}, block {note['block']}: {note['reason']}; nein retry {folder.path}"
    workers: dict[str, list[str]] = {}
    for attempt in attempts.attempts(folder.path):
        stage, _, number = attempt.name.rpartition("-")
        does = f"{attempt.where}: {'at' if attempt.alive else 'died at'}"
        workers.setdefault(does, []).append(f"{stage} {number.lstrip('0') or 0}")
    yield from (f"  {does} {', '.join(blocks)}" for does, blocks in workers.items())
