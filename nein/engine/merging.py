"""Runs from several machines in one folder: `nein merge`.

A block is a file with the same bytes whoever made it, so that the blocks of a run can be put together like
cards. What follows from blocks (tables, pages, canonical files) does not come along where several folders
hold parts of one run: the run's command writes it, and finds all blocks made.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import INCOMPLETE, MANIFEST, Folder, first_difference, runs_below
from nein.engine.scheduler import ASIDE, set_aside

_BLOCK = re.compile(r"\d{3,}/\d{6,}\.\w+$")
#: Who is at work, which is about one machine; pictures come with the block they belong to.
_ASIDE = ("attempts", "images", "maps")


@dataclass
class Merged:
    """What became of one run.

    sources  Where parts of it were. `taken`: source -> blocks that came from there. `differing`: blocks that
             two sources have with other bytes; the first counts.
    """

    name: str
    sources: list[Path]
    taken: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)


def merge(folders: Sequence[Path], out: Path) -> list[Merged]:
    """Puts the runs at or below `folders` into `out`, which may hold a part already, and leaves the folders
    as they are. A merge that was interrupted goes on when it is given again.

    Raises UserError for a folder without a run, and for two that are parts of one run by their place and were
    made with different settings: before anything is written.
    """
    runs: dict[Path, list[Path]] = {}
    for folder in folders:
        below = runs_below(folder)
        if not below:
            raise UserError(f"There is no run in '{folder}'; name the --out of a command, or a run in it.")
        for run in below:
            place = Path(folder.resolve().name) if run == folder else run.relative_to(folder)
            runs.setdefault(place, []).append(run)
    for place, parts in runs.items():
        there = [out / place] if (out / place / MANIFEST).is_file() else []
        _check([*there, *parts])
    atomic.check_writable(out)
    return [_merge(place, parts, out / place) for place, parts in runs.items()]


def _check(parts: Sequence[Path]) -> None:
    """Raises UserError where the parts of a run have different identities, and for a link in one of them,
    which may lead anywhere."""
    for part in parts:
        if (link := next((path for path in part.rglob("*") if path.is_symlink()), None)) is not None:
            raise UserError(
                f"'{link}' is a link; nein merge copies files only. Put what it names in its place."
            )
    first = atomic.read_json(parts[0] / MANIFEST, {"identity": dict})
    for other in parts[1:]:
        identity = atomic.read_json(other / MANIFEST, {"identity": dict})["identity"]
        if difference := first_difference(identity, first["identity"]):
            raise UserError(
                f"'{parts[0]}' and '{other}' are not parts of one run: the second was made with {difference}."
            )
        for file in other.rglob("identity.json"):
            mine = parts[0] / file.relative_to(other)
            difference = (
                first_difference(atomic.read_json(file, dict), atomic.read_json(mine, dict))
                if mine.exists()
                else None
            )
            if difference:
                what = file.parent.relative_to(other)
                raise UserError(
                    f"'{what}' of '{other}' and of '{parts[0]}' differ: the first has {difference}."
                )


def _merge(place: Path, parts: list[Path], target: Path) -> Merged:
    merged = Merged(str(place), parts)
    alone = len(parts) == 1 and not (target / MANIFEST).exists()
    for part in parts:
        given_up = _given_up(part, parts)
        for file in _files(part):
            name = file.relative_to(part)
            if name.with_suffix("") in given_up:
                continue
            if _BLOCK.search(name.as_posix()):
                _take(part, name, target, merged)
            elif alone or not _follows(name):
                _copy(file, target / name)
    if not (target / MANIFEST).exists():
        _copy(parts[0] / MANIFEST, target / MANIFEST)
    if not alone and merged.taken:
        Folder(target).update(status=INCOMPLETE)
    return merged


def _files(part: Path) -> list[Path]:
    """As they were written, one after the other: a block that is older than what it was made of is made
    again."""
    files = (
        file
        for file in part.rglob("*")
        if file.is_file() and file.relative_to(part).parts[0] not in _ASIDE and file.name != MANIFEST
    )
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file))


def _given_up(part: Path, parts: Sequence[Path]) -> set[Path]:
    """Blocks that are set aside in a part and made in another, and the notes about them; without suffix."""
    names: set[Path] = set()
    folder = Folder(part)
    for name, note in folder.notes(ASIDE).items():
        paths = [folder.block_path(output, note["block"]).relative_to(part) for output in note["outputs"]]
        paths = [path for path in paths if (part / path).exists()]
        others = (other for other in parts if (note["stage"], note["block"]) not in set_aside(Folder(other)))
        if any(all((other / path).exists() for path in paths) for other in others):
            names |= {Path("notes", ASIDE, name), *(path.with_suffix("") for path in paths)}
    return names


def _follows(name: Path) -> bool:
    """Whether a file is written from the blocks: what lies at the top of a run."""
    return len(name.parts) == 1


def _take(part: Path, name: Path, target: Path, merged: Merged) -> None:
    """A block, with the pictures that its rows name."""
    if (target / name).exists():
        if (target / name).read_bytes() != (part / name).read_bytes():
            merged.differing.append(name.as_posix())
        return
    if name.suffix == ".jsonl":
        for row in atomic.read_lines(part / name):
            picture = row.get("image")
            if isinstance(picture, str) and Folder(part).inside(part / picture).is_file():
                _copy(part / picture, target / picture, again=True)
                sheet = Path("maps", Path(picture).name)
                if (part / sheet).is_file():
                    _copy(part / sheet, target / sheet, again=True)
    _copy(part / name, target / name)
    merged.taken[str(part)] += name.suffix == ".jsonl"  # what lies beside is of the same block


def _copy(file: Path, target: Path, *, again: bool = False) -> None:
    """Whole or not at all; a file that is there stays, unless `again`."""
    if target.exists() and not again:
        return
    with atomic.writing(target) as stream, file.open("rb") as source:
        shutil.copyfileobj(source, stream)
