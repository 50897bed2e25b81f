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
class Published:
    """One method's pictures on one instruction track."""

    method: str
    track: str
    folder: Path

    @cached_property
    def files(self) -> dict[str, Path]:
        """Sample id -> picture. Of several files with one stem the first in sorted order counts."""
        pictures: dict[str, Path] = {}
        for path in sorted(self.folder.iterdir()):
            if path.suffix in IMAGE_SUFFIXES and path.is_file():
                pictures.setdefault(path.stem, path)
        return pictures


class PublishedEditor:
    """Answers every request with the picture published for its id; a missing one is a failed edit.

    Implements `editors.Editor`. The fingerprint covers names and contents of all files.
    """

    def __init__(self, published: Published) -> None:
        self.published = published
        self.name = published.method

    def describe(self) -> dict[str, Any]:
        """Says that the pictures were made elsewhere, and how many there are."""
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "folder": self.published.folder.name,
            "files": len(self.published.files),
            "content": self._content,
        }

    @property
    def fingerprint(self) -> str:
        """SHA-256 hex over names and contents."""
        return self._content

    @cached_property
    def _content(self) -> str:
        total = hashlib.sha256()
        for name, path in self.published.files.items():
            total.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """One result per request, in order; (H, W, 3) uint8 RGB as the file has it."""
        return [self._one(request.id) for request in requests]

    def _one(self, sample_id: str) -> EditResult:
        path = self.published.files.get(sample_id)
        if path is None:
            return EditResult(sample_id, None, f"there is no edited picture of {sample_id} in '{self.name}'")
        try:
            return EditResult(sample_id, images.decode(path))
        except images.ImageError as error:
            return EditResult(sample_id, None, str(error).replace(str(path.parent), self.name))


def find(folder: Path) -> list[Published]:
    """Every method and track below `folder`, by name. Raises UserError when there is no picture at all."""
    if not folder.is_dir():
        raise UserError(
            f"--edited is '{folder}'; it must be a folder of edited pictures, one folder per method."
        )
    if _pictures(folder):
        return [Published(folder.resolve().name, "negative", folder)]
    methods = []
    for method in sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    ):
        if _pictures(method):
            methods.append(Published(method.name, "negative", method))
        methods += [Published(method.name, t, method / t) for t in TRACKS if _pictures(method / t)]
    if not methods:
        raise UserError(
            f"'{folder}' holds no edited pictures; expected {folder.name}/<method>/<NeIn id>.jpg (or .png, "
            f".webp)."
        )
    twice = [
        f"{one.method}/{one.track}" for one in methods if sum(_same(one, other) for other in methods) > 1
    ]
    if twice:
        raise UserError(f"'{folder}' holds {twice[0]} twice: as pictures, and as a folder of that name.")
    return methods


def check_names(methods: Sequence[Published], wanted: Sequence[str]) -> list[str]:
    """Warnings about pictures that no sample asks for. Raises UserError for a method without any match."""
    ids, warnings = set(wanted), []
    for published in methods:
        strangers = [name for name in published.files if name not in ids]
        if len(strangers) == len(published.files):
            raise UserError(
                f"None of the {len(strangers)} pictures in '{published.folder}' is named after a sample; "
                f"they are "
                f"called {shortlist(strangers, 2)}, samples are called {shortlist(wanted, 2)}."
            )
        if strangers:
            warnings.append(
                f"{published.method}/{published.track}: {len(strangers)} pictures belong to no sample "
                f"({shortlist(strangers, 3)})"
            )
    return warnings


def _pictures(folder: Path) -> bool:
    return folder.is_dir() and any(path.suffix in IMAGE_SUFFIXES for path in folder.iterdir())


def _same(one: Published, other: Published) -> bool:
    return (one.method, one.track) == (other.method, other.track)
