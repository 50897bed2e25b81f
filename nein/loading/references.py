"""References to models: what an installed package offers by name, and what must be downloaded."""

from __future__ import annotations

import functools
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from nein.loading.errors import UserError

#: Entry points of this group give models by name: `nano = "package.module:path"` makes `nano:NAME` the folder
#: that `path(NAME)` returns.
REFERENCES = "nein.references"


def expanded(path: str | Path) -> Path:
    """A path with its `~` written out; that of an unknown user stays, where `Path.expanduser` raises."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def is_local(path: str | Path) -> bool:
    """Whether a file or folder of this name exists; no for names that no file system takes."""
    return os.path.exists(expanded(path))  # noqa: PTH110


def located(reference: str) -> str:
    """The folder of an installed package's model ("nano:clip"); any other reference as it is. Raises
    UserError for a name that the package does not have."""
    scheme, colon, name = reference.partition(":")
    for point in _offered(scheme, tuple(sys.path)) if colon else ():
        try:
            return str(point.load()(name))
        except (ValueError, FileNotFoundError) as error:
            raise UserError(f"'{reference}' cannot be resolved: {error}") from None
    return reference


@functools.lru_cache(maxsize=16)
def _offered(scheme: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Looked for once, since every look reads a file of every installed package. path: `sys.path`."""
    return tuple(metadata.entry_points(group=REFERENCES, name=scheme))


class Need(NamedTuple):
    """Something that a run reads from elsewhere.

    layout     Which of its files are read: "transformers", "text" (its configuration and tokenizer alone),
               "open_clip" or "open_clip:FILE", "sentence", "pipeline" (diffusers', without the safety
               checker), "settings" (its configurations and tokenizers), "file:NAME"; or "torch", a file at an
               address; "pipeline and checker", "dataset", and "package", a module of the installation.
    reference  OWNER/NAME of a repository on the hub; of "torch" the address.
    revision   Commit, branch or tag; None is the main branch. Of "torch" how its SHA-256 begins.
    """

    layout: str
    reference: str
    revision: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.reference}@{self.revision}"
            if self.revision and self.layout != "torch"
            else self.reference
        )

    @property
    def key(self) -> str:
        """In the manifest of a folder of models."""
        return f"{self.layout} {self}"

    @classmethod
    def of(cls, layout: str, path_or_id: str, revision: str | None = None) -> Need | None:
        """Of `owner/name[@revision]`; None of an installed package's model and of what is on this machine."""
        path_or_id = located(path_or_id)
        if is_local(path_or_id):
            return None
        name, _, given = path_or_id.partition("@")
        return cls(layout, name, revision or given or None)
