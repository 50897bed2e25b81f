"""References to models: `nano:NAME` (embedded), a hub id `owner/name[@revision]`, or a local folder.

Only this file knows the first form; the leaf packages get a folder or an id.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import metrics
from nein.engine.errors import UserError

_OFFERED: dict[str, Any] = {}


@contextmanager
def offering(objects: Mapping[str, Any]) -> Iterator[None]:
    """Within it, the names are references to these objects: editors and models of a caller in Python."""
    before = dict(_OFFERED)
    _OFFERED.update(objects)
    try:
        yield
    finally:
        _OFFERED.clear()
        _OFFERED.update(before)


def offered(reference: str) -> Any | None:
    """The object in memory that a reference names, or None."""
    return _OFFERED.get(reference)


def slug(name: str) -> str:
    """A folder name for an editor: a plain name as it is, a reference by its end and a hash."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) and not Path(name).exists():
        return name
    whole = str(Path(name).expanduser().resolve()) if Path(name).expanduser().exists() else name
    tail = re.sub(r"[^A-Za-z0-9._-]+", "-", whole.rstrip("/").rpartition("/")[2]).strip("-.") or "editor"
    return f"{tail}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def resolve(reference: str) -> tuple[str, str | None]:
    """(folder, file or hub id, revision or None) of a reference. UserError for an unknown nano model."""
    if reference.startswith("nano:"):
        from nein.nano import zoo

        try:
            return str(zoo.path(reference.removeprefix("nano:"))), None
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise UserError(f"There is no embedded model '{reference}': {error}.") from None
    if metrics.special_reference(reference):
        return reference, None
    if Path(reference).expanduser().exists():
        return str(Path(reference).expanduser()), None
    name, _, revision = reference.partition("@")
    return name, revision or None


def without_address(reference: str) -> str:
    """openai:URL#MODEL -> openai:#MODEL, which stays the same when the server moves; others as they are."""
    return f"openai:#{reference.partition('#')[2]}" if reference.startswith("openai:") else reference


def folder_of(reference: str) -> str:
    """The reference with an embedded model's name turned into its folder, and `~` into the home folder."""
    where, revision = resolve(reference)
    return f"{where}@{revision}" if revision else where
