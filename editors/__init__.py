"""Editors: pictures and instructions in, pictures out.

    >>> import editors
    >>> editor = editors.get_editor("magicbrush-nano")
    >>> results = editor.edit([editors.EditRequest("1", image, "The image doesn't have any dog.", seed=7)])

`get_editor` takes names, folders, hub ids and places (`module:function`); `as_editor` takes objects.

Importing this package loads neither torch nor diffusers; `get_editor` does when the editor needs them.
"""

from __future__ import annotations

import pkgutil
from importlib import metadata
from pathlib import Path
from typing import Any

from editors.base import Editor, EditorError, EditRequest, EditResult, Origin, located
from editors.function import as_editor, at_place, is_place
from editors.presets import (
    DEFAULT_CONFIG,
    DEFAULT_ROWS,
    OPTIONS,
    PRESETS,
    ZONE_MODELS,
    EditorPreset,
    canonical,
    is_checkpoint,
    near_match,
    preset_row,
)
from editors.zone.files import find_missing

__all__ = [
    "DEFAULT_CONFIG",
    "PRESETS",
    "EditRequest",
    "EditResult",
    "Editor",
    "EditorError",
    "EditorPreset",
    "Origin",
    "as_editor",
    "available",
    "check",
    "check_models",
    "get_editor",
    "has_maps",
    "is_known",
    "is_place",
    "model_options",
    "needs_checkpoint",
    "options_of",
    "origins",
    "preset_row",
    "spelled",
    "takes",
    "takes_negative_prompt",
    "weights_attention",
]

# Kind -> class and the options it takes. Adding an editor is one class, one line here, and rows in presets.py
# if it has a checkpoint.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "identity": ("editors.basic:Identity", ()),
    "solid": ("editors.basic:Solid", ("color",)),
    "instruct-pix2pix": ("editors.instruct_pix2pix:InstructPix2Pix", OPTIONS["instruct-pix2pix"]),
    "pipeline": ("editors.pipelines:DiffusersPipeline", OPTIONS["pipeline"]),
    "zone": ("editors.zone.adapter:Zone", OPTIONS["zone"]),
}
# Kind -> the options that name a further model, as a folder, a file or a hub id ("owner/name@revision").
_MODEL_OPTIONS: dict[str, tuple[str, ...]] = {"zone": ZONE_MODELS}
# Of these, how what is on the hub is laid out; the others are files of the user's.
FURTHER_LAYOUTS = {"magicbrush": "pipeline", "sam": "transformers"}
# Kinds whose results carry intermediate pictures when a request asks for them.
_KINDS_WITH_MAPS = ("zone",)
# Kinds that can be guided away from a text of the request.
_KINDS_WITH_NEGATIVE_PROMPT = ("instruct-pix2pix", "pipeline", "zone")
# Kinds in which the attention to words of the instruction can be weighted.
_KINDS_WITH_WEIGHTS = ("instruct-pix2pix", "zone")
_BASIC = ("identity", "solid")

#: Entry points of this group are editors of other packages: name = "module:attribute", where the attribute is
#: whatever `as_editor` takes: an editor, a class or function that makes one, or a function that edits.
PLUGINS = "nein.editors"


#: Ours, which no installed package can take, and for which no package has to be looked at.
_OURS = frozenset({*_BASIC, *PRESETS, *(editor for editor, _ in DEFAULT_ROWS)})


def plugins() -> dict[str, metadata.EntryPoint]:
    """Name -> entry point of every editor that installed packages offer."""
    return {point.name: point for point in metadata.entry_points(group=PLUGINS) if point.name not in _OURS}


def available() -> list[str]:
    """Every name `get_editor` knows, sorted; local folders and hub ids work besides."""
    return sorted({*_OURS, *plugins()})


def is_known(name: str) -> bool:
    """Whether it is a name of `available`, however it is written; else it may be a place or a checkpoint."""
    return canonical(name, available()) is not None


def spelled(name: str) -> str:
    """The name as `available` has it, whatever its case, hyphens and underscores, and by the papers' names
    ("InstructPix2Pix" is "ip2p"); a place or a checkpoint as it is. Raises EditorError for an unknown name.
    """
    if is_place(name) or is_checkpoint(name):
        return name
    match = canonical(name, sorted(_OURS)) or canonical(name, plugins())
    if match is None:
        _kind(name)  # says what there is
        raise AssertionError(f"{name!r} is known, and has no name")
    return match


def is_foreign(name: str) -> bool:
    """Whether the editor is code from elsewhere: an installed package's, or named by its place."""
    return is_place(name) or (name not in _OURS and not is_checkpoint(name) and name in plugins())


def needs_checkpoint(name: str) -> bool:
    """Whether the editor has weights to load (`preset_row` then has a row for it)."""
    return name not in _BASIC and not is_foreign(name)


def model_options(name: str) -> tuple[str, ...]:
    """The options of an editor that name a model beside its checkpoint."""
    return () if is_foreign(name) else _MODEL_OPTIONS.get(_kind(name), ())


def check_models(name: str, **models: str) -> None:
    """Raise EditorError when a file that has to be on this machine is not; `models` by option, loads none."""
    if "action" in models and _kind(name) == "zone":
        missing = find_missing(models["action"])
        if missing:
            raise EditorError(missing)


def has_maps(name: str) -> bool:
    """Whether the editor's results carry intermediate pictures when a request asks for them."""
    return not is_foreign(name) and _kind(name) in _KINDS_WITH_MAPS


def takes_negative_prompt(name: str) -> bool:
    """Whether the editor reads `EditRequest.negative_prompt`. A pipeline whose class does not gives an error
    for every request that has one."""
    return not is_foreign(name) and _kind(name) in _KINDS_WITH_NEGATIVE_PROMPT


def weights_attention(name: str) -> bool:
    """Whether the editor reads `EditRequest.weights`."""
    return not is_foreign(name) and _kind(name) in _KINDS_WITH_WEIGHTS


def check(name: str, **overrides: Any) -> None:
    """Raise EditorError when `get_editor(name, **overrides)` could not be built; loads no model, no torch."""
    if is_place(name):
        at_place(name)
    if is_foreign(name):
        return  # whoever wrote it knows its options
    options = options_of(name)
    for option in overrides:
        if option not in options:
            allowed = f"its options are: {', '.join(options)}" if options else "it has no options"
            raise EditorError(
                f"editor {name!r} has no option {option!r}{near_match(option, options)}; {allowed}"
            )


def options_of(name: str) -> list[str]:
    """The options `get_editor(name, ...)` takes besides those of every editor; EditorError if unknown."""
    return list(_KINDS[_kind(name)][1])


def takes(name: str, option: str) -> bool:
    """Whether an editor has the option; one of another package is asked when it is built."""
    return is_foreign(name) or option in options_of(name)


def origins(
    name: str, checkpoint: str | None = None, revision: str | None = None, **overrides: Any
) -> list[Origin]:
    """What `get_editor` with the same arguments needs that is not on this machine until it is downloaded;
    loads nothing. Empty for editors without a model and for those of other packages.

    Raises EditorError as `get_editor` does, where no checkpoint is to be had.
    """
    name = spelled(name)
    if is_foreign(name) or not needs_checkpoint(name):
        return []
    row, place, revision = _checkpoint(name, checkpoint, revision)
    options = {**row.options(), **overrides}
    repository, colon, file = place.partition(":")
    if Path(located(place)).expanduser().is_file() or (colon and repository.count("/") == 1):
        config = options.get("config") or DEFAULT_CONFIG
        parts = [
            Origin.of(f"file:{file}", repository, revision) if file else None,
            Origin.of("settings", config, None),
        ]
    else:
        parts = [Origin.of("pipeline", place, revision)]
    for option in model_options(name):
        layout = FURTHER_LAYOUTS.get(option)
        parts.append(Origin.of(layout, options[option], None) if layout else None)
    return [part for part in parts if part is not None]


def _checkpoint(
    name: str, checkpoint: str | None, revision: str | None
) -> tuple[EditorPreset, str, str | None]:
    """The row of an editor, and its checkpoint and revision or those given in their place."""
    row = _row(name)
    if checkpoint is not None:
        return row, checkpoint, revision  # a revision belongs to the checkpoint it was written for
    if row.checkpoint is None:
        raise EditorError(f"editor {name!r} needs checkpoint=FOLDER: {row.obtain}")
    return row, row.checkpoint, revision or row.revision


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
    """Build an editor.

    name        A row of `PRESETS`, an editor ("hqedit" is its default paper row), "identity", "solid",
                an installed package's editor (`plugins`), a place ("module:attribute" or "file.py:attribute")
                with something that `as_editor` takes, or a checkpoint: a local folder or hub id of a
                diffusers pipeline, or one file in the original latent-diffusion format.
    checkpoint  Local path, installed package's model ("nano:ip2p") or hub id ("owner/name" or
                "owner/name@revision") in place of the row's.
    revision    Hub branch, tag or commit in place of the row's.
    device      Anything torch.device accepts.
    dtype       "float32", "bfloat16" or "float16".
    batch_size  Samples per forward pass (of three guidance branches each).
    overrides   What `options_of(name)` lists: the row's values, further models and settings, how the model
                runs on the machine, or the options of the editors without a model.

    Raises EditorError for an unknown name or option and for an unusable checkpoint.
    """
    name = spelled(name)
    check(name, **overrides)
    if is_foreign(name):
        thing = at_place(name) if is_place(name) else _plugin(name)
        machine: dict[str, Any] = {"device": device, "dtype": dtype, "batch_size": batch_size}
        return as_editor(thing, name=name, **machine, **overrides)
    factory = pkgutil.resolve_name(_KINDS[_kind(name)][0])
    if not needs_checkpoint(name):
        if checkpoint is not None:
            raise EditorError(f"editor {name!r} has no model; leave out checkpoint={checkpoint!r}")
        return factory(name=name, **overrides)
    row, place, revision = _checkpoint(name, checkpoint, revision)
    options = {**row.options(), **overrides}
    further = {option: located(options[option]) for option in model_options(name) if option in options}
    return factory(
        located(place),
        name=name,
        revision=revision,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        **{**options, **further},
    )


def _plugin(name: str) -> Any:
    try:
        return plugins()[name].load()
    except (ImportError, AttributeError) as error:
        raise EditorError(f"the editor plug-in {name!r} cannot be loaded: {error}") from None


def _row(name: str) -> EditorPreset:
    if name in PRESETS:
        return PRESETS[name]
    only_nano = (name, "nano") in DEFAULT_ROWS and (name, "paper") not in DEFAULT_ROWS
    return preset_row(name, "nano" if only_nano else "paper")


def _kind(name: str) -> str:
    if name in _BASIC:
        return name
    if name in PRESETS or any(name == editor for editor, _ in DEFAULT_ROWS) or is_checkpoint(name):
        return _row(name).kind
    raise EditorError(
        f"unknown editor {name!r}{near_match(name, available())}; choose one of: {', '.join(available())}, "
        f"or give a local folder or hub id (owner/name) of an editing pipeline of diffusers"
    )
