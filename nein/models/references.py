"""References of users: `nano:NAME` (embedded), a hub id `owner/name[@revision]`, or a local folder; and
`LABEL=REFERENCE`, whose label names the model in folders, tables and plots.

Only this file knows `nano:` and labels; the leaf packages get a folder or an id. A label that is a row of a
table of models is that row with other weights: `magicbrush=FOLDER`, `negclip=FOLDER`.
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
from nein.loading.references import (
    expand_user,
    find_cached_commit,
    is_local,
    is_served,
    locate,
    parse_reference,
)
from nein.metrics.models import GROUP as JUDGE_PLUGINS

JUDGE = "judge:"  # before a reference: that VQA judge, asked in its own template
_NAME = re.compile(r"[^\W_]([\w .()-]*[\w)])?")  # a label: free text, as far as a folder can be called so


class Offered(str):
    """A reference to an editor or model in memory, from Python: its name, which carries the object."""

    held: Any

    def __new__(cls, name: str, model: Any) -> Offered:
        reference = super().__new__(cls, name)
        reference.held = model
        return reference

    def __deepcopy__(self, memo: Any) -> Offered:  # dataclasses.asdict would copy the model
        return self


def get_object(reference: str) -> Any | None:
    """The object in memory that a reference carries, or None."""
    return getattr(reference, "held", None)


def split_label(text: str) -> tuple[str | None, str]:
    """("mine", "FOLDER") of "mine=FOLDER"; (None, text) without a label. Raises UserError for a label that no
    folder can have."""
    name, _, reference = text.partition("=")
    if not (name and reference) or is_local(text) or ":" in name or name.startswith((".", "~", "/")):
        return None, text
    if not _NAME.fullmatch(name):
        raise UserError(
            f"'{name}' of '{text}' is no label; start it with a letter or digit, and use only letters, "
            "digits, blanks and . _ - ( )."
        )
    return name, reference


def slug(reference: str) -> str:
    """A folder name for a model: its label, or the last two parts of its path or id: "ft1-model" of
    "./runs/ft1/model"."""
    label, name = split_label(reference)
    parts = [part for part in re.split(r"[/\\]", name) if part.strip(".~")]
    return label or re.sub(r"[^\w.()-]+", "-", "-".join(parts[-2:]))[-100:].strip("-.") or "model"


def resolve(reference: str) -> str:
    """The folder, file or hub id, with its revision, of a reference. UserError for an unknown nano model."""
    location = locate(split_label(reference)[1])
    # "./" of a missing path stays, since it tells a path from a hub id.
    is_path = parse_reference(location).kind == "local" and is_local(location)
    return str(expand_user(location)) if is_path else location


def contents(models: Mapping[str, str]) -> Json:
    """An entry of an identity: role -> digits of the model behind its reference (`content`)."""
    marks = {role: mark for role, reference in models.items() if (mark := content(reference))}
    return {CONTENTS: marks} if marks else {}


def content(reference: str) -> str:
    """Digits that change with the model behind a reference, without loading it: of the files of a folder
    (`quick_digest`), of the file of a function or plug-in (without its imports), of the commit of a hub id in
    the cache. "" without files, or before the download."""
    reference = split_label(reference)[1]
    parsed = parse_reference(reference)
    if get_object(reference) is not None or parsed.kind == "served":
        return ""
    if parsed.is_code:
        points = entry_points(group=JUDGE_PLUGINS, name=parsed.name) if parsed.kind == "plugin" else ()
        home = next((point.value for point in points), reference).rpartition(":")[0]
        spec = None if home.endswith(".py") else importlib.util.find_spec(home)
        if (file := Path(spec.origin or "") if spec else expand_user(home)).is_file():
            return quick_digest(file)
    if is_local(location := resolve(reference)):
        return quick_digest(expand_user(location))
    before, _, behind = reference.partition(":")  # "judge:REFERENCE", "sentence:FOLDER", "owner/name:FILE"
    name = before.partition("@")[0]
    commit = find_cached_commit(name, parsed.revision)[:12] if parsed.kind == "hub" else ""
    return commit or (content(behind) if behind else "")


def identity(reference: str) -> str:
    """The part of a reference that decides results, without its label: of an object in memory the
    fingerprint; of openai:URL#MODEL, since servers move, openai:#MODEL."""
    if (model := get_object(reference)) is not None:
        return f"in memory, {model.fingerprint}"
    return parse_reference(split_label(reference)[1]).without_address


def place(reference: str) -> str:
    return "remote" if is_served(split_label(reference)[1]) else "device"


def addressless_slug(reference: str) -> str | None:
    """The folder name of a model behind an endpoint, without its address; None for any other."""
    return slug(identity(reference).replace(":#", "-")) if is_served(reference) else None
