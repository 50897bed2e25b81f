"""References to models: `nano:NAME` (embedded), a hub id `owner/name[@revision]`, or a local folder; and
`NAME=REFERENCE`, a reference with a name of the user's, by which folders, tables and plots call the model.

Only this file knows the first and the last form; the leaf packages get a folder or an id. Where a table of
known models has the NAME, it stands for that row with other weights: `magicbrush=FOLDER`, `negclip=FOLDER`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from nein.engine.folder import CONTENTS
from nein.loading.digests import Json, quick_digest
from nein.loading.errors import UserError
from nein.loading.references import cached_commit, expand_user, is_local, is_served, locate, parse_reference
from nein.metrics.models import GROUP as JUDGE_PLUGINS

JUDGE = "judge:"  # before a reference: that VQA judge, asked in its own template
_NAME = re.compile(r"[^\W_]([\w .()-]*[\w)])?")  # a label: free text, as far as a folder can be called so


class Offered(str):
    """A reference to an object of a caller in Python, an editor or a model: its name, which carries it."""

    held: Any

    def __new__(cls, name: str, held: Any) -> Offered:
        reference = super().__new__(cls, name)
        reference.held = held
        return reference

    def __deepcopy__(self, memo: Any) -> Offered:  # dataclasses.asdict would copy the model
        return self


def offered(reference: str) -> Any | None:
    """The object in memory that a reference carries, or None."""
    return getattr(reference, "held", None)


def named(asked: str) -> tuple[str | None, str]:
    """("mine", "FOLDER") of "mine=FOLDER"; (None, asked) where no name is given. Raises UserError for a name
    that no folder can have."""
    name, _, reference = asked.partition("=")
    if not (name and reference) or is_local(asked) or ":" in name or name.startswith((".", "~", "/")):
        return None, asked
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' of '{asked}' cannot be a label; it begins with a letter or digit, and holds letters, "
            "digits, blanks and . _ - ( )."
        )
    return name, reference


def slug(reference: str) -> str:
    """A folder name for a model: the given name, or the last two parts of its path or id: "ft1-model" of
    "./runs/ft1/model"."""
    given, name = named(reference)
    parts = [part for part in re.split(r"[/\\]", name) if part.strip(".~")]
    return given or re.sub(r"[^\w.()-]+", "-", "-".join(parts[-2:]))[-100:].strip("-.") or "model"


def resolve(reference: str) -> str:
    """The folder, file or hub id, with its revision, of a reference. UserError for an unknown nano model."""
    where = locate(named(reference)[1])
    # Of a path that is not there, "./" tells it from a hub id.
    return str(expand_user(where)) if parse_reference(where).kind == "local" and is_local(where) else where


def contents(models: Mapping[str, str]) -> Json:
    """An entry of an identity: role -> what tells the model behind its reference from another one."""
    marks = {role: mark for role, reference in models.items() if (mark := content(reference))}
    return {CONTENTS: marks} if marks else {}


def content(reference: str) -> str:
    """Digits that change with what is behind a reference, found without loading it: the files of a folder
    (`quick_digest`), the file of a function or plug-in (what that imports does not count), the commit of a
    hub id in the cache. "" of what has no files, or none here yet."""
    reference = named(reference)[1]
    given = parse_reference(reference)
    if offered(reference) is not None or given.kind == "served":
        return ""
    if given.is_code:
        points = entry_points(group=JUDGE_PLUGINS, name=given.name) if given.kind == "plugin" else ()
        home = next((point.value for point in points), reference).rpartition(":")[0]
        spec = None if home.endswith(".py") else importlib.util.find_spec(home)
        if (file := Path(spec.origin or "") if spec else expand_user(home)).is_file():
            return quick_digest(file)
    if is_local(where := resolve(reference)):
        return quick_digest(expand_user(where))
    before, _, behind = reference.partition(":")  # "judge:REFERENCE", "sentence:FOLDER", "owner/name:FILE"
    name = before.partition("@")[0]
    commit = cached_commit(name, given.revision)[:12] if given.kind == "hub" else ""
    return commit or (content(behind) if behind else "")


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
