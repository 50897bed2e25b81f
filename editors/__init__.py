"""Finds image editors by name and loads them (`get_editor`); tells their options and downloads.

A row is an entry of the table of presets: an editor with a preset has a class, a checkpoint and settings.
Importing the package loads neither torch nor diffusers.

>>> from nein import editors
>>> editor = editors.get_editor("magicbrush-nano")
>>> results = editor.edit([editors.EditRequest("1", image, "The image doesn't have any dog.", seed=7)])
"""

from __future__ import annotations

import functools
import pkgutil
from importlib import metadata
from typing import Any

from nein.editors.base import Editor, EditorError
from nein.editors.base import EditRequest as EditRequest
from nein.editors.base import EditResult as EditResult
from nein.editors.base import Refused as Refused
from nein.editors.function import make_editor
from nein.editors.presets import (
    BASIC,
    DEFAULT_ROWS,
    PIPELINES,
    PRESETS,
    EditorPreset,
    find_preset_row,
    split_address,
    split_lora,
)
from nein.loading import references
from nein.loading.errors import unknown
from nein.loading.references import Need

#: Entry-point group of other packages' editors: "module:attribute" of an object that `make_editor` takes.
PLUGINS = "nein.editors"
# --- names -----------------------------------------------------------------------------------------------
#: Names of our editors and rows, which plug-ins cannot take.
_OURS = frozenset({*BASIC, *PRESETS, *(editor for editor, _ in DEFAULT_ROWS)})


@functools.cache  # the search through all installed packages takes a tenth of a small command's time
def find_plugins() -> dict[str, metadata.EntryPoint]:
    """Editors of other packages, by name."""
    return {point.name: point for point in metadata.entry_points(group=PLUGINS) if point.name not in _OURS}


def available() -> list[str]:
    """Names of all editors, sorted."""
    return sorted({*_OURS, *find_plugins()})


def find_row(name: str) -> EditorPreset | None:
    """Row of an editor; None for a served model, user code or a plug-in. Raises EditorError for any other."""
    if row := BASIC.get(name) or PRESETS.get(name):
        return row
    parsed = references.parse_reference(name)
    if name not in _OURS and not parsed.has_files:
        if parsed.kind in ("served", "attribute") or name in find_plugins():
            return None
        hint = "Or pass a local folder or hub id (owner/name) of an editing pipeline."
        raise unknown("editor", name, available(), hint)
    # An editor or a checkpoint: its row of preset paper, or of nano if it has no other.
    has_only_nano = (name, "nano") in DEFAULT_ROWS and (name, "paper") not in DEFAULT_ROWS
    return find_preset_row(name, "nano" if has_only_nano else "paper")


def supports(name: str, feature: str) -> bool:
    """Whether an editor's requests may have `feature`: "negative_prompt", "guided" or "weights"."""
    if references.is_served(name):
        from nein.loading.service import find_host

        # Servers of the user may take a negative prompt; known hosting services have no feature.
        return feature == "negative_prompt" and not find_host(split_address(name)[0])
    row = find_row(name)
    if row is None or feature not in row.can:
        return False
    recipe = PIPELINES.get(row.pipeline or "", {})
    takes_none = recipe.get("negative_guidance", {}) is None  # null in the table; a missing key: it takes one
    return not (feature == "negative_prompt" and takes_none)


def check(name: str, **overrides: Any) -> None:
    """Raise EditorError for an unknown name or option; load no model."""
    kind = references.parse_reference(name).kind
    if kind == "attribute":
        references.load_attribute(name)
    if kind == "served":
        split_address(name)
    row = find_row(name)
    for option in overrides:
        if row is not None and option not in row.settings:  # without a row, the options are not known here
            raise unknown("option", option, [*row.settings], f"It was passed to editor '{name}'.")


# --- loading ---------------------------------------------------------------------------------------------
def get_editor(
    name: str,
    *,
    checkpoint: str | None = None,
    revision: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int = 8,
    **overrides: Any,
) -> Editor:
    """Build an editor. Raises EditorError.

    name        A row, an editor ("hqedit" is its default paper row), a plug-in, "module:attribute" or
                "file.py:attribute" of an object that `make_editor` takes, a served model
                ("openai:URL#MODEL"), or a checkpoint: a diffusers folder or hub id.
    checkpoint  Local path, "nano:ip2p" or hub id ("owner/name[@revision]") that replaces the row's.
    device      Anything torch.device accepts; dtype: "float32", "bfloat16" or "float16".
    batch_size  Samples per forward pass.
    overrides   Options of the row.
    """
    check(name, **overrides)
    if references.is_served(name):
        from nein.editors.served import ServedEditor

        return ServedEditor(name, **overrides)
    row = find_row(name)
    runtime: dict[str, Any] = {"device": device, "dtype": dtype, "batch_size": batch_size}
    if row is None:
        return make_editor(load_plugin(name), name=name, **runtime, **overrides)
    cls = pkgutil.resolve_name(row.class_path)
    if not row.preset:  # "": no model
        if checkpoint is not None:
            raise EditorError(f"editor {name!r} has no model; omit checkpoint={checkpoint!r}")
        return cls(name=name, **overrides)
    reference, revision = _choose_model(row, checkpoint, revision)
    options = {**row.options(), **overrides}
    for option in row.models.keys() & options.keys():  # options that name other models
        options[option] = references.locate_embedded(options[option])
    return cls(references.locate_embedded(reference), name=name, revision=revision, **runtime, **options)


def load_plugin(name: str) -> Any:
    """Object behind a plug-in's name or module:attribute; None for an editor of ours. Raises EditorError."""
    if references.parse_reference(name).kind == "attribute":
        return references.load_attribute(name)
    try:
        plugin = find_plugins().get(name)
        return plugin.load() if plugin else None
    except (ImportError, AttributeError) as error:
        raise EditorError(f"the editor plug-in {name!r} cannot be loaded: {error}") from None


def _choose_model(row: EditorPreset, checkpoint: str | None, revision: str | None) -> tuple[str, str | None]:
    """(checkpoint, revision) that were passed, or those of the row. Raises EditorError."""
    if checkpoint is not None:
        return checkpoint, revision  # the row's revision is of the row's checkpoint
    if row.checkpoint is None:
        raise EditorError(f"editor {row.name!r} needs checkpoint=FOLDER: {row.obtain}")
    return row.checkpoint, revision or row.revision


# --- downloads -------------------------------------------------------------------------------------------
def find_needs(
    name: str, checkpoint: str | None = None, revision: str | None = None, **overrides: Any
) -> list[Need]:
    """Downloads that `get_editor` needs for the same arguments; no model is loaded. Raises EditorError."""
    row = find_row(name)
    if row is None or not row.preset:  # "": no model
        return []
    reference, revision = _choose_model(row, checkpoint, revision)
    options = {**row.options(), **overrides}
    repository, _, file = reference.partition(":")
    is_hub_file = bool(file) and repository.count("/") == 1  # owner/name:FILE
    needs = [Need.parse(repository, revision, (file,)) if is_hub_file else Need.parse(reference, revision)]
    if options.get("config") and (is_hub_file or references.expand_user(reference).is_file()):
        needs.append(Need.parse(options["config"], files=references.TEXTS))  # a single file has none
    needs += [Need.parse(options[model]) for model, source in row.models.items() if source == "hub"]
    if row.rewriter and options.get("rewriter"):
        needs.append(Need.parse(row.rewriter))
    if options.get("lora"):
        folder, file = split_lora(options["lora"])
        needs.append(Need.parse(folder, files=(file,)))
    return [need for need in needs if need is not None]  # None: nothing to download
