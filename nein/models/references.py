"""Reads the references by which users name models: labels, folder names, locations, digests and identities.

A reference is `nano:NAME` (embedded), a hub id `owner/name[@revision]`, a local folder, `openai:URL#MODEL` or
user code. `LABEL=REFERENCE` gives the model a name in folders, tables and plots.

`editors` and `metrics` know no labels. A label that names a row in a table of models means that row with
other weights: `magicbrush=FOLDER`, `negclip=FOLDER`.
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
    locate_embedded,
    parse_reference,
)
from nein.metrics.models import GROUP as JUDGE_PLUGINS

JUDGE = "judge:"  # prefix of a reference to a VQA judge: it is asked in its own template


class InMemory(str):
    """The name of an editor or model in memory, given from Python; it carries the object."""

    model: Any

    def __new__(cls, name: str, model: Any) -> InMemory:
        reference = super().__new__(cls, name)
        reference.model = model
        return reference

    def __deepcopy__(self, memo: Any) -> InMemory:  # dataclasses.asdict would copy the model
        return self


def get_object(reference: str) -> Any | None:
    """The object in memory that a reference carries, or None."""
    return reference.model if isinstance(reference, InMemory) else None


_LABEL = re.compile(r"[^\W_]([\w .()-]*[\w)])?")  # what a label may be, since it names a folder


def split_label(text: str) -> tuple[str | None, str]:
    """("mine", "FOLDER") of "mine=FOLDER"; (None, text) without a label. Raises UserError for a label that no
    folder can have."""
    name, _, reference = text.partition("=")
    if not (name and reference) or is_local(text) or ":" in name or name.startswith((".", "~", "/")):
        return None, text
    if not _LABEL.fullmatch(name):
        raise UserError(
            f"'{name}' of '{text}' is no label; start it with a letter or digit, and use only letters, "
            "digits, blanks and . _ - ( )."
        )
    return name, reference


def slugify(reference: str) -> str:
    """A folder name for a model: its label, or the last two parts of its path or id ("./runs/ft1/model" gives
    "ft1-model")."""
    label, path = split_label(reference)
    if label:
        return label
    parts = [part for part in re.split(r"[/\\]", path) if part.strip(".~")]
    return re.sub(r"[^\w.()-]+", "-", "-".join(parts[-2:]))[-100:].strip("-.") or "model"


def resolve(reference: str) -> str:
    """Folder, file or hub id (with revision) of a reference. Raises UserError for an unknown nano model."""
    location = locate_embedded(split_label(reference)[1])
    # A missing path keeps its "./", which tells it from a hub id.
    is_path = parse_reference(location).kind == "local" and is_local(location)
    return str(expand_user(location)) if is_path else location


def digest_models(models: Mapping[str, str]) -> Json:
    """Entry of an identity for models, role -> reference: their digests by role; {} if none has one."""
    digests = {role: digest for role, reference in models.items() if (digest := digest_model(reference))}
    return {CONTENTS: digests} if digests else {}


def digest_model(reference: str) -> str:
    """A digest that changes with the model, which is not loaded. "" without files or before the download.

    folder, file       `quick_digest` of the files.
    function, plug-in  `quick_digest` of its file, without imports.
    hub id             The commit in the cache.
    """
    reference = split_label(reference)[1]
    parsed = parse_reference(reference)
    if get_object(reference) is not None or parsed.kind == "served":
        return ""

    if parsed.is_code:
        attribute = reference  # module:NAME or FILE.py:NAME
        if parsed.kind == "plugin":
            for point in entry_points(group=JUDGE_PLUGINS, name=parsed.name):
                attribute = point.value
        module = attribute.rpartition(":")[0]
        spec = None if module.endswith(".py") else importlib.util.find_spec(module)
        file = Path(spec.origin or "") if spec else expand_user(module)
        if file.is_file():
            return quick_digest(file)

    location = resolve(reference)
    if is_local(location):
        return quick_digest(expand_user(location))

    head, _, tail = reference.partition(":")  # "owner/name:FILE"; "judge:REFERENCE", "sentence:FOLDER"
    if parsed.kind == "hub":
        commit = find_cached_commit(head.partition("@")[0], parsed.revision)
        if commit:
            return commit[:12]
    return digest_model(tail) if tail else ""


def identify(reference: str) -> str:
    """The part of a reference that decides results, without its label: the fingerprint of an object in
    memory, and openai:#MODEL of openai:URL#MODEL, since servers move."""
    if (model := get_object(reference)) is not None:
        return f"in memory, {model.fingerprint}"
    return parse_reference(split_label(reference)[1]).without_address


def find_place(reference: str) -> str:
    """ "remote" for a model behind an endpoint, else "device" (`engine.stages.Model.place`)."""
    return "remote" if is_served(split_label(reference)[1]) else "device"


def slugify_served(reference: str) -> str | None:
    """The folder name of a model behind an endpoint, without its address; None for any other."""
    return slugify(identify(reference).replace(":#", "-")) if is_served(reference) else None
