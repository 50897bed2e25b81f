"""`nein status`: runs as files, whoever works on them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from nein.config.groups import Runs
from nein.engine import attempts
from nein.engine.executors import progress
from nein.engine.folder import Folder, runs_at
from nein.loading.spending import sentences, spent


def status(config: Runs) -> str:
    folders = (Folder(folder) for path in config.runs for folder in runs_at([path]))
    costs = dict.fromkeys(line for path in config.runs for line in sentences(spent(path)))
    return "\n".join([*(line for folder in folders for line in _lines(folder)), *costs]) + "\n"


def _lines(folder: Folder) -> Iterator[str]:
    yield f"{folder.path}: {folder.manifest()['status']}"
    for state in progress.states(folder):
        text = f"  {state.stage}: {state.done} of {state.wanted} blocks, {state.running} running"
        if state.open:
            text += ", nobody is at work" if state.rate is None else f", {60 * state.rate:.3g} a minute"
        if state.open and state.seconds_left is not None:
            text += f", {datetime.timedelta(seconds=round(state.seconds_left))} left"
        yield text
    workers: dict[str, list[str]] = {}
    for attempt in attempts.attempts(folder.path):
        stage, _, number = attempt.name.rpartition("-")
        does = f"{attempt.where}: {'at' if attempt.alive else 'died at'}"
        workers.setdefault(does, []).append(f"{stage} {number.lstrip('0') or 0}")
    yield from (f"  {does} {', '.join(blocks)}" for does, blocks in workers.items())
