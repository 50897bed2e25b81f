"""Editors: pictures and instructions in, pictures out.

    >>> import editors
    >>> editor = editors.get_editor("magicbrush", device="cuda", dtype="bfloat16")
    >>> results = editor.edit([editors.EditRequest("1", image, "The image doesn't have any dog.", seed=7)])

Importing this package loads neither torch nor diffusers; `get_editor` does when the editor needs them.
"""

from __future__ import annotations

import pkgutil
from typing import Any

from editors.base import Editor, EditorError, EditRequest, EditResult
from editors.presets import (
    DEFAULT_ROWS,
    PIX2PIX_OPTIONS,
    PRESETS,
    EditorPreset,
    is_checkpoint,
    near_match,
    preset_row,
)

__all__ = [
    "PRESETS",
    "EditRequest",
    "EditResult",
    "Editor",
    "EditorError",
    "EditorPreset",
    "available",
    "check",
    "get_editor",
    "needs_checkpoint",
    "preset_row",
]

# Kind -> class and the options it takes. Adding an editor is one class, one line here, and rows in presets.py
# if it has a checkpoint.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "identity": ("editors.basic:Identity", ()),
    "solid": ("editors.basic:Solid", ("color",)),
    "flaky": ("editors.basic:Flaky", ("fail_ids", "fail_every", "crash_after")),
    "instruct-pix2pix": ("editors.instruct_pix2pix:InstructPix2Pix", PIX2PIX_OPTIONS),
}
_BASIC = ("identity", "solid", "flaky")


def available() -> list[str]:
    """Every name `get_editor` knows, sorted; local folders and hub ids work besides."""
    return sorted({*_BASIC, *PRESETS, *(editor for editor, _ in DEFAULT_ROWS)})


def needs_checkpoint(name: str) -> bool:
    """Whether the editor has weights to load (`preset_row` then has a row for it)."""
    return name not in _BASIC


def check(name: str, **overrides: Any) -> None:
    """Raise EditorError when `get_editor(name, **overrides)` could not be built; loads no model, no torch."""
    kind = _kind(name)
    options = list(_KINDS[kind][1])
    for option in overrides:
        if option not in options:
            allowed = f"its options are: {', '.join(options)}" if options else "it has no options"
            raise EditorError(
                f"editor {name!r} has no option {option!r}{near_match(option, options)}; {allowed}"
            )


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
                "flaky", or a local folder or hub id of a StableDiffusionInstructPix2PixPipeline.
    checkpoint  Local folder or hub id ("owner/name" or "owner/name@revision") in place of the row's.
    revision    Hub branch, tag or commit in place of the row's.
    device      Anything torch.device accepts.
    dtype       "float32", "bfloat16" or "float16".
    batch_size  Samples per forward pass (of three guidance branches each).
    overrides   The row's values: steps, guidance_scale, image_guidance_scale, resize, resolution, rounding;
                or the options of the editors without a model.

    Raises EditorError for an unknown name or option and for an unusable checkpoint.
    """
    check(name, **overrides)
    factory = pkgutil.resolve_name(_KINDS[_kind(name)][0])
    if not needs_checkpoint(name):
        if checkpoint is not None:
            raise EditorError(f"editor {name!r} has no model; leave out checkpoint={checkpoint!r}")
        return factory(name=name, **overrides)
    row = _row(name)
    if checkpoint is not None:
        # A revision belongs to the checkpoint it was written for.
        row_checkpoint, row_revision = checkpoint, None
    else:
        row_checkpoint, row_revision = row.checkpoint, row.revision
    return factory(
        row_checkpoint,
        name=name,
        revision=revision or row_revision,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        **{**row.options(), **overrides},
    )


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
        f"or give a local folder or hub id (owner/name) of a StableDiffusionInstructPix2PixPipeline"
    )
