"""References to models: `nano:NAME` (embedded), a hub id `owner/name[@revision]`, or a local folder; and
`NAME=REFERENCE`, a reference with a name of the user's, by which folders, tables and plots call the model.

Only this file knows the first and the last form; the leaf packages get a folder or an id. Where a table of
known models has the NAME, it stands for that row with other weights: `magicbrush=FOLDER`, `negclip=FOLDER`.
"""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nein.engine.errors import UserError
from nein.loading.references import expanded, is_local, is_served, parse_reference

log = logging.getLogger(__name__)

JUDGE = "judge:"  # before a reference: that VQA judge, asked in its own template
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
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


def named(asked: str) -> tuple[str | None, str]:
    """("mine", "FOLDER") of "mine=FOLDER"; (None, asked) where no name is given."""
    name, equals, reference = asked.partition("=")
    if equals and reference and _NAME.fullmatch(name) and not is_local(asked):
        return name, reference
    return None, asked


def check_name(name: str, names: Iterable[str]) -> None:
    """Warns of a name of the user's that is nearly one of the known models', whose row it does not get."""
    near = difflib.get_close_matches(name.lower(), table := list(names), n=1, cutoff=0.8)
    if near and name not in table:
        log.warning(
            "'%s' is taken for a name of yours; if '%s' is meant, write %s=...", name, near[0], near[0]
        )


def slug(reference: str) -> str:
    """A folder name for a model: the given or a plain name; else the reference's end and a hash."""
    given, name = named(reference)
    if given is not None:
        return given
    if _NAME.fullmatch(name) and not is_local(name):
        return name
    whole = str(expanded(name).resolve()) if is_local(name) else name
    tail = re.sub(r"[^A-Za-z0-9._-]+", "-", whole.rstrip("/").rpartition("/")[2]).strip("-.") or "editor"
    return f"{tail[-100:]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def resolve(reference: str) -> str:
    """The folder, file or hub id, with its revision, of a reference. UserError for an unknown nano model."""
    _, reference = named(reference)
    given = parse_reference(reference)
    if given.kind == "embedded":
        from nein.nano import zoo

        try:
            return str(zoo.path(reference.removeprefix("nano:")))
        except (ValueError, KeyError, FileNotFoundError) as error:
            raise UserError(f"There is no embedded model '{reference}': {error}.") from None
    # Of a path that is not there, "./" tells it from a hub id.
    return str(expanded(reference)) if given.kind == "local" and is_local(reference) else reference


def identity(reference: str) -> str:
    """What a reference says about results: not its name; of an object in memory its fingerprint; of
    openai:URL#MODEL not where it is, for servers move: openai:#MODEL."""
    if (found := offered(reference)) is not None:
        return f"in memory, {found.fingerprint}"
    return parse_reference(named(reference)[1]).without_address


def place(reference: str) -> str:
    """Where the model works: see `nein.engine.stages.Model.place`."""
    return "remote" if is_served(named(reference)[1]) else "device"


def moved(reference: str) -> str | None:
    """A folder's name for a model behind an endpoint, which may move; None for any other."""
    return slug(identity(reference).replace(":#", "-")) if is_served(reference) else None
