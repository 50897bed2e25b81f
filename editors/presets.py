"""The table of editors: one row per published setting, each value with its source.

Sources name the file and revision of the editor's own repository that the value was read from.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from editors.base import EditorError


@dataclass(frozen=True)
class EditorPreset:
    """One row.

    name                  Row name, unique; `get_editor(name)` builds it.
    editor                Name of the editor the row belongs to (`--editor`).
    preset                "paper" or "nano" (`--preset`).
    checkpoint            Hub id, or "nano:NAME" for an embedded model, which the caller turns into a folder.
    revision              Hub revision; None is the main branch.
    steps                 Euler-ancestral steps, >= 2.
    guidance_scale        s_T, weight of the instruction, > 1.
    image_guidance_scale  s_I, weight of the source picture, >= 1.
    resize, resolution    Name of the rule in `editors.resize`, and its size in pixels; None takes the size
                          the checkpoint was trained at.
    rounding              How [0, 1] becomes 0..255: "round" (diffusers) or "truncate" (the CLI scripts).
    dtype                 Precision of the published setting, for information; `get_editor` decides by its
                          own argument.
    note                  What a user should know before comparing with published numbers.
    sources               Field -> where its value comes from; "*" stands for every field not named.
    """

    name: str
    editor: str
    preset: str
    checkpoint: str
    revision: str | None = None
    steps: int = 100
    guidance_scale: float = 7.5
    image_guidance_scale: float = 1.5
    resize: str = "r64"
    resolution: int | None = 512
    rounding: str = "round"
    scheduler: str = "EulerAncestralDiscreteScheduler"
    timestep_spacing: str = "linspace"
    dtype: str = "float32"
    note: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    kind: str = "instruct-pix2pix"

    def options(self) -> dict[str, Any]:
        """The keyword arguments of the editor's class that this row decides."""
        return {name: getattr(self, name) for name in PIX2PIX_OPTIONS if hasattr(self, name)}


# What `get_editor(..., **overrides)` accepts for editors of this kind.
PIX2PIX_OPTIONS = (
    "steps",
    "guidance_scale",
    "image_guidance_scale",
    "resize",
    "resolution",
    "rounding",
    "channels_last",
)

_SOURCES = {
    "ip2p": "github.com/timothybrooks/instruct-pix2pix @ 0dffd1e, edit_cli.py defaults",
    "magicbrush": "github.com/OSU-NLP-Group/MagicBrush @ fcfc892, edit_cli_single_multi_turn.py defaults",
    "nein": "github.com/tanbuinhat/NeIn @ 22fafb0, generation_phase/edit_cli_generation.py",
    "hqedit": "github.com/UCSC-VLAA/HQ-Edit @ 3730500, README quick start",
    "hqedit-space": "hf.co/spaces/LAOS-Y/HQEdit, app defaults",
    "linspace": "k-diffusion's CompVisDenoiser.get_sigmas, which the CLI scripts use, spaces steps this way",
}

_MAGICBRUSH = EditorPreset(
    name="magicbrush",
    editor="magicbrush",
    preset="paper",
    checkpoint="vinesmsuic/magicbrush-jul7",
    note=(
        "NeIn's own script loads MagicBrush-epoch-52-step-4999.ckpt of osunlp/InstructPix2Pix-MagicBrush "
        "with its EMA weights. This is the diffusers port of that checkpoint that MagicBrush's README links; "
        "it is the default because its origin is certain, but it most likely holds the non-EMA weights. For "
        "the EMA weights convert the .ckpt with from_single_file(..., extract_ema=True) and give the folder "
        "as the checkpoint, or use 'magicbrush-ema'. The main branch has .bin files only, which are read as "
        "plain tensors; revision 'refs/pr/2' is a conversion to safetensors."
    ),
    sources={
        "*": _SOURCES["magicbrush"],
        "checkpoint": "linked from MagicBrush's README",
        "timestep_spacing": _SOURCES["linspace"] + "; the port's scheduler file most likely says 'leading'",
    },
)

_HQEDIT = EditorPreset(
    name="hqedit-readme",
    editor="hqedit",
    preset="paper",
    checkpoint="MudeHui/HQ-Edit",
    steps=30,
    guidance_scale=1.5,
    resize="squash",
    dtype="float16",
    note=(
        "The README sets guidance_scale = 7.0 but passes image_guidance_scale (1.5) in its place; this row "
        "does what the README's code does, which is what a user who copies it gets. The paper says 'default "
        "settings' and no more. UCSC-VLAA/HQ-Edit-ckpt lists a checkpoint of the same name."
    ),
    sources={"*": _SOURCES["hqedit"], "timestep_spacing": _SOURCES["linspace"]},
)

# The only place that holds the nano values.
_NANO = EditorPreset(
    name="ip2p-nano",
    editor="ip2p",
    preset="nano",
    checkpoint="nano:ip2p",
    steps=20,
    guidance_scale=4.0,
    image_guidance_scale=1.5,
    resize="r64",
    resolution=64,
    note="Embedded miniature model; its numbers say nothing about the real editor's.",
    sources={"*": "this project, the nano models' cards"},
)

_TUNED = (
    "The embedded editor of that name, fine-tuned on the miniature NeIn by train/finetune_ip2p.py. There "
    "is no published checkpoint of the paper's fine-tuned editors to put beside it."
)

_ROWS = (
    EditorPreset(
        name="ip2p",
        editor="ip2p",
        preset="paper",
        checkpoint="timbrooks/instruct-pix2pix",
        note="UNet as published on the hub. The CLI script runs under fp16 autocast.",
        sources={"*": _SOURCES["ip2p"], "timestep_spacing": _SOURCES["linspace"]},
    ),
    _MAGICBRUSH,
    replace(
        _MAGICBRUSH,
        name="magicbrush-ema",
        checkpoint="vinesmsuic/magicbrush-ema",
        note=(
            "EMA weights, as NeIn's own script uses, but it is not stated which of MagicBrush's two "
            "checkpoints they belong to; that is why it is not the default."
        ),
        sources={**_MAGICBRUSH.sources, "checkpoint": "hub, uploaded by the author of the linked port"},
    ),
    replace(
        _MAGICBRUSH,
        name="magicbrush-paper",
        checkpoint="vinesmsuic/magicbrush-paper",
        note="Port of MagicBrush-epoch-000168.ckpt, the MagicBrush paper's checkpoint; not what NeIn uses.",
        sources={**_MAGICBRUSH.sources, "checkpoint": "hub, uploaded by the author of the linked port"},
    ),
    _HQEDIT,
    replace(
        _HQEDIT,
        name="hqedit-readme-intended",
        guidance_scale=7.0,
        note="The README's quick start with the guidance scale it defines but does not pass.",
    ),
    replace(
        _HQEDIT,
        name="hqedit-space",
        checkpoint="MudeHui/ip2p-warp-gpt4v",
        steps=20,
        guidance_scale=7.0,
        resize="r64",
        note="What the demo space runs.",
        sources={"*": _SOURCES["hqedit-space"], "timestep_spacing": _SOURCES["linspace"]},
    ),
    _NANO,
    replace(_NANO, name="magicbrush-nano", editor="magicbrush", checkpoint="nano:magicbrush"),
    replace(_NANO, name="hqedit-nano", editor="hqedit", checkpoint="nano:hqedit"),
    replace(_NANO, name="nein-ip2p-nano", editor="nein-ip2p", checkpoint="nano:nein-ip2p", note=_TUNED),
    replace(
        _NANO,
        name="nein-magicbrush-nano",
        editor="nein-magicbrush",
        checkpoint="nano:nein-magicbrush",
        note=_TUNED,
    ),
)

PRESETS: dict[str, EditorPreset] = {row.name: row for row in _ROWS}

# Which row `--editor E --preset P` means where an editor has several.
DEFAULT_ROWS: dict[tuple[str, str], str] = {
    ("ip2p", "paper"): "ip2p",
    ("magicbrush", "paper"): "magicbrush",
    ("hqedit", "paper"): "hqedit-readme",
    ("ip2p", "nano"): "ip2p-nano",
    ("magicbrush", "nano"): "magicbrush-nano",
    ("hqedit", "nano"): "hqedit-nano",
    ("nein-ip2p", "nano"): "nein-ip2p-nano",
    ("nein-magicbrush", "nano"): "nein-magicbrush-nano",
}


def is_checkpoint(name: str) -> bool:
    """Whether `name` is a model reference (local folder, hub id, "nano:NAME") and not a row of a table."""
    return name.startswith(("nano:", ".", "~")) or "/" in name or "\\" in name or Path(name).is_dir()


def preset_row(name: str, preset: str) -> EditorPreset:
    """The row for `--editor name --preset preset`.

    `name` is an editor ("magicbrush"), a row ("magicbrush-ema") or any model reference, which gets the values
    of InstructPix2Pix in the same preset and the resolution of its own checkpoint. EditorError when there is
    no such row; editors without a model have none.
    """
    presets = sorted({row.preset for row in _ROWS})
    if preset not in presets:
        raise EditorError(f"unknown preset {preset!r}; choose one of: {', '.join(presets)}")
    if (name, preset) in DEFAULT_ROWS:
        return PRESETS[DEFAULT_ROWS[name, preset]]
    if name in PRESETS and PRESETS[name].preset == preset:
        return PRESETS[name]
    if name not in PRESETS and is_checkpoint(name):
        parent = PRESETS[DEFAULT_ROWS["ip2p", preset]]
        return replace(
            parent,
            name=name,
            editor=name,
            checkpoint=name,
            resolution=None,
            note=f"Values of the row {parent.name!r}.",
            sources={"checkpoint": "given by the user", "*": f"row {parent.name!r}"},
        )
    choices = sorted({editor for editor, p in DEFAULT_ROWS if p == preset} | _names_of(preset))
    raise EditorError(
        f"editor {name!r} has no {preset!r} preset{near_match(name, choices)}; with --preset {preset} choose "
        f"one of: {', '.join(choices)}, or give a local folder or hub id"
    )


def near_match(name: str, choices: list[str]) -> str:
    """A hint "did you mean" with the closest choice, in brackets, or the empty string."""
    close = difflib.get_close_matches(name.lower(), choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _names_of(preset: str) -> set[str]:
    return {row.name for row in _ROWS if row.preset == preset}
