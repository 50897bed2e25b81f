"""`nein status`, `nein retry` and `nein merge`: runs as files, whoever works on them.

A block is a file with the same bytes whoever made it, so that blocks of several folders can be put together.
What follows from them (tables, pages) is not copied then: the run's command writes it.
"""

from __future__ import annotations

import datetime
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nein.config.groups import Runs
from nein.config.options import SHORT, option
from nein.engine import atomic, attempts, scheduler
from nein.engine.errors import UserError
from nein.engine.executors import progress
from nein.engine.folder import COMPLETE, INCOMPLETE, MANIFEST, Folder, first_difference, runs_below


@dataclass(kw_only=True)
class StatusConfig(Runs):
    """Which runs are looked at."""


@dataclass(kw_only=True)
class RetryConfig(Runs):
    """Which runs are tried again."""


def status(config: StatusConfig) -> str:
    """The stages of every run, who is at work, and who died."""
    folders = (Folder(folder) for path in config.runs for folder in _below(path))
    return "\n".join(line for folder in folders for line in _lines(folder)) + "\n"


def retry(config: RetryConfig) -> str:
    """Opens again what was set aside; says so, and which commands make it. They are not run: a run's folder
    may come from anybody."""
    lines: list[str] = []
    commands: dict[str, None] = {}
    for folder in (Folder(folder) for path in config.runs for folder in _below(path)):
        blocks = scheduler.try_again(folder)
        lines.append(f"{folder.path}: {blocks} block{'s' * (blocks != 1)} set aside, to be tried again.")
        for latest in folder.manifest()["invocations"][-1:] if blocks else ():
            directory = latest.get("directory", ".")
            there = "" if Path(directory) == Path.cwd() else f"cd {shlex.quote(directory)} && "
            typed = f"  {there}{shlex.join(['nein', *latest.get('command', [])])}"
            # No character of it moves the cursor.
            commands["".join(c if c.isprintable() else "?" for c in typed)] = None
    if commands:
        lines += ["They are made when the command of the run is given again:", *commands]
    return "".join(f"{line}\n" for line in lines)


def _below(path: Path) -> list[Path]:
    """The runs at or below a path. Raises UserError without any."""
    if not (below := runs_below(path)):
        raise UserError(f"There is no run in '{path}'; name the --out of a command, or a run in it.")
    return below


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


# --- merge -------------------------------------------------------------------------------------

_BLOCK = re.compile(r"\d{3,}/\d{6,}\.\w+$")
#: Who is at work, which is about one machine; pictures come with the block they belong to.
_APART = (attempts.FOLDER, "images", "maps")


@dataclass(kw_only=True)
class MergeConfig(Runs):
    """Which folders, and into which."""

    out: Path | None = option(None, "folder they are put into; needed, and may hold a part already", "Output")

    def check(self) -> None:
        if self.out is None:
            raise UserError("nein merge needs --out FOLDER, into which the runs are put.")


@dataclass
class Merged:
    """What became of one run: blocks by the source that they came from, and those that two sources have with
    other bytes, of which the first counts."""

    name: str
    taken: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)


def merge(config: MergeConfig) -> str:
    """The command: a line per run, and the commands that finish those that were put together."""
    assert config.out is not None
    lines, commands = [], []
    for run in merged(config.runs, config.out):
        manifest = Folder(config.out / run.name).manifest()
        blocks = ", ".join(f"{count} blocks of {source}" for source, count in run.taken.items())
        lines.append(f"{run.name}: {blocks or 'nothing new'}; {manifest['status']}")
        if run.differing:
            lines.append(
                f"  {len(run.differing)} blocks differ, of which the first were kept ({run.differing[0]}, "
                "...): the machines compute differently in the last bits."
            )
        if manifest["status"] != COMPLETE and manifest["invocations"]:
            commands.append(_finish(manifest["invocations"][-1]["command"], config.out))
    said = "".join(f"{line}\n" for line in lines)
    if commands:
        said += "To finish:\n" + "".join(f"  {command}\n" for command in dict.fromkeys(commands))
    return said


def merged(folders: Sequence[Path], out: Path) -> list[Merged]:
    """Puts the runs at or below `folders` into `out`, which may hold a part already. A merge that was
    interrupted goes on when it is given again.

    Raises UserError, before anything is written, for a folder without a run, parts that were made with
    different settings, and a link, which may lead anywhere.
    """
    runs: dict[Path, list[Path]] = {}
    for folder in folders:
        for run in _below(folder):
            place = Path(folder.resolve().name) if run == folder else run.relative_to(folder)
            runs.setdefault(place, []).append(run)
    for place, parts in runs.items():
        there = [out / place] if (out / place / MANIFEST).is_file() else []
        _check([*there, *parts])
    atomic.check_writable(out)
    return [_merged(place, parts, out / place) for place, parts in runs.items()]


def _check(parts: Sequence[Path]) -> None:
    identity = atomic.read_json(parts[0] / MANIFEST, {"identity": dict})["identity"]
    for part in parts:
        if (link := next((path for path in part.rglob("*") if path.is_symlink()), None)) is not None:
            raise UserError(
                f"'{link}' is a link; nein merge copies files only. Put what it names in its place."
            )
        other = atomic.read_json(part / MANIFEST, {"identity": dict})["identity"]
        if difference := first_difference(other, identity):
            raise UserError(
                f"'{parts[0]}' and '{part}' are not parts of one run: the second was made with {difference}."
            )
        for file in part.rglob("identity.json"):
            mine = parts[0] / file.relative_to(part)
            theirs = atomic.read_json(file, dict)
            if mine.exists() and (difference := first_difference(theirs, atomic.read_json(mine, dict))):
                what = file.parent.relative_to(part)
                raise UserError(
                    f"'{what}' of '{part}' and of '{parts[0]}' differ: the first has {difference}."
                )


def _merged(place: Path, parts: list[Path], target: Path) -> Merged:
    made = Merged(str(place))
    alone = len(parts) == 1 and not (target / MANIFEST).exists()
    for part in parts:
        for name in _files(part, whole=alone):
            if not _BLOCK.search(name.as_posix()):
                _copy(part / name, target / name)
            elif not (target / name).exists():
                _take(part, name, target)
                made.taken[str(part)] += name.suffix == ".jsonl"  # what lies beside is of the same block
            elif (target / name).read_bytes() != (part / name).read_bytes():
                made.differing.append(name.as_posix())
    if not (target / MANIFEST).exists():
        _copy(parts[0] / MANIFEST, target / MANIFEST)
    if not alone and made.taken:
        Folder(target).update(status=INCOMPLETE)
    return made


def _files(part: Path, *, whole: bool) -> Iterator[Path]:
    """Those to copy, in the order in which they were written (a block that is older than what it was made of
    is made again). whole: with what is written from the blocks, and what was set aside."""
    folder = Folder(part)
    skipped = {
        folder.block_path(output, note["block"]).relative_to(part).with_suffix("")
        for note in folder.notes(scheduler.ASIDE).values()
        for output in note["outputs"]
    }
    files = (path for path in part.rglob("*") if path.is_file())
    for path in sorted(files, key=lambda path: (path.stat().st_mtime_ns, path)):
        name = path.relative_to(part)
        follows = len(name.parts) == 1 or name.parts[0] == "samples"
        aside = name.with_suffix("") in skipped or name.parts[:2] == ("notes", scheduler.ASIDE)
        if name.parts[0] not in _APART and path.name != MANIFEST and (whole or not (follows or aside)):
            yield name


def _take(part: Path, name: Path, target: Path) -> None:
    """A block, with the pictures that its rows name."""
    if name.suffix == ".jsonl":
        for row in atomic.read_lines(part / name):
            picture = row.get("image")
            if isinstance(picture, str) and Folder(part).inside(part / picture).is_file():
                for file in (Path(picture), Path("maps", Path(picture).name)):
                    if (part / file).is_file():
                        _copy(part / file, target / file, again=True)
    _copy(part / name, target / name)


def _copy(file: Path, target: Path, *, again: bool = False) -> None:
    """Whole or not at all; a file that is there stays, unless `again`."""
    if target.exists() and not again:
        return
    with atomic.writing(target) as stream, file.open("rb") as source:
        shutil.copyfileobj(source, stream)


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
