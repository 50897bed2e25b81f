"""Edited pictures made elsewhere, read as if an editor of ours had made them: `nein eval --edited FOLDER`.

FOLDER/<method>/<NeIn id>.jpg                 the official naming: one folder per method
FOLDER/<method>/{negative,remove,add}/...     the same, where affirmative twins were made too
FOLDER/<NeIn id>.jpg                          one method, named after its folder
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from nein.datasets.nein.samples import IMAGE_SUFFIXES, TRACKS
from nein.editors import EditRequest, EditResult
from nein.engine import images
from nein.engine.errors import UserError, shortlist


@dataclass(frozen=True)
class ExternalEdits:
    """One method's pictures on one instruction track: an `editors.Editor` that answers every request with the
    picture of its id; a missing one is a failed edit. The fingerprint covers names and contents."""

    method: str
    track: str
    folder: Path

    @property
    def name(self) -> str:
        return self.method

    @cached_property
    def files(self) -> dict[str, Path]:
        """Sample id -> picture. Of several files with one stem the first in sorted order counts."""
        pictures: dict[str, Path] = {}
        for path in sorted(self.folder.iterdir()):
            if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                pictures.setdefault(path.stem, path)
        return pictures

    @cached_property
    def fingerprint(self) -> str:
        total = hashlib.sha256()
        for name, path in self.files.items():
            total.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()

    def describe(self) -> dict[str, Any]:
        facts = {"editor": self.method, "class": type(self).__name__, "folder": self.folder.name}
        return {**facts, "files": len(self.files), "content": self.fingerprint}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """One result per request, in order; (H, W, 3) uint8 RGB as the file has it."""
        results = []
        for sample_id in (request.id for request in requests):
            path = self.files.get(sample_id)
            try:
                image = None if path is None else images.decode(path)
                why = (
                    f"there is no edited picture of {sample_id} in '{self.method}'" if path is None else None
                )
                results.append(EditResult(sample_id, image, why))
            except images.ImageError as error:
                results.append(EditResult(sample_id, None, str(error).replace(str(self.folder), self.method)))
        return results


def find(folder: Path) -> list[ExternalEdits]:
    """Every method and track below `folder`, by name. Raises UserError when there is no picture at all."""
    if not folder.is_dir():
        raise UserError(
            f"--edited is '{folder}'; it must be a folder of edited pictures, one folder per method."
        )
    if _holds_pictures(folder):
        return [ExternalEdits(folder.resolve().name, "negative", folder)]
    found: dict[tuple[str, str], Path] = {}
    for method in sorted(path for path in folder.iterdir() if not path.name.startswith(".")):
        for track, place in (("negative", method), *((track, method / track) for track in TRACKS)):
            if not _holds_pictures(place):
                continue
            if (method.name, track) in found:
                raise UserError(
                    f"'{folder}' holds {method.name}/{track} twice: as pictures, and as a folder of that "
                    "name."
                )
            found[method.name, track] = place
    if not found:
        raise UserError(
            f"'{folder}' holds no edited pictures; expected {folder.name}/<method>/<NeIn id>.jpg (or .png, "
            f".webp)."
        )
    return [ExternalEdits(*key, place) for key, place in found.items()]


def check_names(methods: Sequence[ExternalEdits], wanted: Sequence[str]) -> list[str]:
    """Warnings about pictures that no sample asks for. Raises UserError for a method without any match."""
    ids, warnings = set(wanted), []
    for one in methods:
        strangers = [name for name in one.files if name not in ids]
        if len(strangers) == len(one.files):
            raise UserError(
                f"None of the {len(strangers)} pictures in '{one.folder}' is named after a sample; they are "
                f"called {shortlist(strangers, 2)}, samples are called {shortlist(wanted, 2)}."
            )
        if strangers:
            warnings.append(
                f"{one.method}/{one.track}: {len(strangers)} pictures belong to no sample "
                f"({shortlist(strangers, 3)})"
            )
    return warnings


def _holds_pictures(folder: Path) -> bool:
    return folder.is_dir() and any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir())
