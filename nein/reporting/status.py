"""`nein status`: how far runs are, read from their files."""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Iterator
from typing import Any

from nein.config.groups import Runs
from nein.engine.folder import MANIFEST, Blocks, Folder, costs, runs_at, spent

WINDOW = 600.0  # seconds over which the rate is measured


def status(config: Runs) -> str:
    folders = (Folder(folder) for path in config.runs for folder in runs_at([path]))
    paid = dict.fromkeys(line for path in config.runs for line in costs(spent(path)))
    lines = [*(line for folder in folders for line in _lines(folder)), *paid]
    return "".join("".join(c if c.isprintable() else "?" for c in line) + "\n" for line in lines)


def _lines(folder: Folder, now: float | None = None) -> Iterator[str]:
    manifest, now = folder.manifest(), time.time() if now is None else now
    yield f"{folder.path}: {manifest['status']}"
    for stage, outputs in itertools.groupby(
        manifest.get("selected", {}), lambda name: name.partition("/")[0]
    ):
        yield f"  {stage}: {_progress(folder, {name: manifest['selected'][name] for name in outputs}, now)}"


def _progress(folder: Folder, selected: dict[str, Any], now: float) -> str:
    wanted, times = 0, list[float]()
    for output, entry in selected.items():
        numbers = Blocks.read(entry, f"'{folder.path / MANIFEST}'").numbers
        wanted += len(numbers)
        kept = numbers if isinstance(numbers, range) else frozenset(numbers)
        times += [file.stat().st_mtime for number, file in folder.files(output) if number in kept]
    text = f"{len(times)} of {wanted} blocks"
    recent = [at for at in times if at > now - WINDOW]
    if (left := wanted - len(times)) and recent:
        rate = len(recent) / max(now - min(recent), 1.0)
        text += f", {60 * rate:.3g} a minute, {datetime.timedelta(seconds=round(left / rate))} left"
    return text
