"""The table of editors: one row per published setting, each value with its source.

Sources name the file and revision of the editor's own repository that the value was read from.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from editors.base import EditorError
from editors.modern import MODERN
from editors.recipes import RECIPES


@dataclass(frozen=True)
class EditorPreset:
    """One row.

    name                  Row name, unique; `get_editor(name)` builds it.
    editor                Name of the editor the row belongs to (`--editor`).
    preset                "paper" or "nano" (`--preset`).
    checkpoint            Hub id, or "nano:NAME" for an embedded model, which the caller turns into a folder;
                          None where there is no folder on the hub, and `obtain` says what to do.
    obtain                How to come by the checkpoint, as one clause, where `checkpoint` is None.
    revision              Hub revision; None is the main branch.
    steps                 Sampling steps, >= 2.
    guidance              Name in `editors.sampling.GUIDANCES`.
    guidance_scale        s_T, weight of the instruction.
    image_guidance_scale  s_I, weight of the source picture.
    resize, resolution    Name of the rule in `editors.resize`, and its size in pixels; None takes the size
                          the checkpoint was trained at.
    rounding              How [0, 1] becomes 0..255: "round" (diffusers) or "truncate" (the CLI scripts).
    output                "resized": the size the model works at; "input": that of the picture.
    dtype                 Precision of the published setting, for information; `get_editor` decides by its
                          own argument.
    kind                  Which class of editor the row is for; a key of `OPTIONS`.
    settings              Values of options that only this kind has, by option.
    models                Further models, by the option that takes them; each is written like `checkpoint`.
    pipeline              Class of diffusers, for the kind "pipeline".
    negative_prompt       For the kind "pipeline"; None passes none. The others' is always "".
    config                Where the configurations of a single file come from.
    cosxl                 See `editors.pipelines.DiffusersPipeline`.
    note                  What a user should know before comparing with published numbers.
    sources               Field -> where its value comes from; "*" stands for every field not named.
    """

    name: str
    editor: str
    preset: str
    checkpoint: str | None
    revision: str | None = None
    obtain: str = ""
    steps: int = 100
    guidance: str = "ip2p"
    guidance_scale: float | None = 7.5
    image_guidance_scale: float | None = 1.5
    resize: str = "r64"
    resolution: int | None = 512
    rounding: str = "round"
    output: str = "resized"
    scheduler: str = "EulerAncestralDiscreteScheduler"
    timestep_spacing: str = "linspace"
    dtype: str = "float32"
    note: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    kind: str = "instruct-pix2pix"
    pipeline: str | None = None
    negative_prompt: str | None = None
    config: str | None = None
    cosxl: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """The keyword arguments of the editor's class that this row decides."""
        common = {name: getattr(self, name) for name in OPTIONS[self.kind] if hasattr(self, name)}
        return {**common, **self.settings, **self.models}


# Where the configurations and the tokenizer of a file that holds tensors only come from.
DEFAULT_CONFIG = "timbrooks/instruct-pix2pix"
# How a model runs on the machine (`editors.machine.Machine`), for every editor that has one.
MACHINE_OPTIONS = ("channels_last", "attention", "compile", "offload")
# Options that change neither a picture nor its last bits, and so may differ when a run is continued.
WITHOUT_EFFECT = ("offload",)
# What `get_editor(..., **overrides)` accepts for editors of this kind.
PIX2PIX_OPTIONS = (
    "steps",
    "guidance",
    "guidance_scale",
    "image_guidance_scale",
    "resize",
    "resolution",
    "rounding",
    "output",
    "ema",
    "config",
    *MACHINE_OPTIONS,
)
PIPELINE_OPTIONS = (
    "pipeline",
    "steps",
    "guidance_scale",
    "image_guidance_scale",
    "negative_prompt",
    "resolution",
    "config",
    "cosxl",
    "attention",
    "compile",
    "offload",
)
# The options of ZONE that are models themselves.
ZONE_MODELS = ("magicbrush", "sam", "action")
_NOT_ZONES = ("resize", "guidance", "output", "ema", "config")
ZONE_OPTIONS = (
    *(option for option in PIX2PIX_OPTIONS if option not in _NOT_ZONES),
    *ZONE_MODELS,
    "protocol",
    "blend_beta",
    "branches",
    "map_stride",
    "against",
    "floor",
    "mask_threshold",
    "least_area",
    "points_per_side",
    "segment_quality",
    "segment_stability",
    "dilation",
    "brightness",
    "smooth_radius",
    "smooth_threshold",
    "smooth_closing",
    "edge_alpha",
    "fallback",
)
OPTIONS = {"instruct-pix2pix": PIX2PIX_OPTIONS, "pipeline": PIPELINE_OPTIONS, "zone": ZONE_OPTIONS}

_SOURCES = {
    "ip2p": "github.com/timothybrooks/instruct-pix2pix @ 0dffd1e, edit_cli.py defaults",
    "magicbrush": "github.com/OSU-NLP-Group/MagicBrush @ fcfc892, edit_cli_single_multi_turn.py defaults",
    "nein": "github.com/tanbuinhat/NeIn @ 22fafb0, generation_phase/edit_cli_generation.py",
    "hqedit": "github.com/UCSC-VLAA/HQ-Edit @ 3730500, README quick start",
    "hqedit-space": "hf.co/spaces/LAOS-Y/HQEdit, app defaults",
    "instructdiffusion": "github.com/cientgu/InstructDiffusion @ 435f0c3, edit_cli.py defaults",
    "zone": "github.com/lsl001006/ZONE @ 9788584, inference.py defaults",
    "zone-masks": "github.com/lsl001006/ZONE @ 9788584, utils/mask_utils.py and msk_from_attn.py",
    "round": "diffusers; the CLI scripts cut off, which is half a grey level darker",
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
        "the EMA weights write `nein convert MagicBrush-epoch-52-step-4999.ckpt FOLDER --ema` and give "
        "magicbrush=FOLDER, or use 'magicbrush-ema'. The main branch has .bin files only, which are read as "
        "plain tensors; revision 'refs/pr/2' is a conversion to safetensors."
    ),
    sources={
        "*": _SOURCES["magicbrush"],
        "checkpoint": "linked from MagicBrush's README",
        "rounding": _SOURCES["round"],
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

_INSTRUCTDIFFUSION = EditorPreset(
    name="instructdiffusion",
    editor="instructdiffusion",
    preset="paper",
    checkpoint=None,
    obtain=(
        "its checkpoint is on no hub in a form that can be loaded: download the six parts of release 0924 of "
        "github.com/TiankaiHang/storage-2023, join them with `cat` to "
        "v1-5-pruned-emaonly-adaption-task.ckpt, write `nein convert v1-5-pruned-emaonly-adaption-task.ckpt "
        "FOLDER` and give instructdiffusion=FOLDER"
    ),
    guidance="instructdiffusion",
    guidance_scale=5.0,
    image_guidance_scale=1.25,
    output="input",
    note=(
        "Guided without a fully unconditional branch. The file holds averaged (EMA) weights only. Its CLI "
        "loads ...-adaption-task.ckpt, its demo and its README's example ...-adaption-task-humanalign.ckpt; "
        "which of them the NeIn paper used is not stated."
    ),
    sources={
        "*": _SOURCES["instructdiffusion"],
        "checkpoint": "README of the same repository",
        "rounding": _SOURCES["round"],
        "timestep_spacing": _SOURCES["linspace"],
    },
)

# The only place that holds the nano values.
_NANO = EditorPreset(
    name="ip2p-nano",
    editor="ip2p",
    preset="nano",
    checkpoint="nano:ip2p",
    steps=10,
    guidance_scale=3.0,
    image_guidance_scale=1.3,
    resize="r64",
    resolution=64,
    note="Embedded miniature model; its numbers say nothing about the real editor's.",
    sources={"*": "this project, the nano models' cards", "steps": "docs/explanation/nano.md"},
)

_ZONE = EditorPreset(
    name="zone",
    editor="zone",
    preset="paper",
    kind="zone",
    checkpoint="timbrooks/instruct-pix2pix",
    models={
        "magicbrush": "vinesmsuic/magicbrush-jul7",
        "sam": "facebook/sam-vit-huge",
        "action": "ckpts/action_classifier.pth",
    },
    steps=20,
    resize="zone",
    scheduler="DPMSolverMultistepScheduler",
    settings={
        "protocol": "paper",
        "blend_beta": 0.2,
        "map_stride": 32,
        "against": "last",
        "floor": "zero",
        "mask_threshold": 108,
        "least_area": 64,
        "points_per_side": 32,
        "segment_quality": 0.88,
        "segment_stability": 0.95,
        "dilation": 4,
        "smooth_radius": 200.0,
        "smooth_threshold": 30,
        "smooth_closing": 21,
        "edge_alpha": 0.6,
    },
    note=(
        "The action classifier is on no hub: fetch ckpts/action_classifier.pth (396,767 bytes) of "
        "github.com/lsl001006/ZONE; the path here is relative to the working folder, or give the option "
        "'action'. "
        "facebook/sam-vit-huge holds the weights of sam_vit_h_4b8939.pth. The result is the released code's "
        "composite/<name>_fft.png; which of its files NeIn scored is not known. Where that code ends with an "
        "exception (no segment, no overlap) the sample has an error; protocol 'fixed' goes on. The released "
        "code runs everything in float32."
    ),
    sources={
        "*": _SOURCES["zone"],
        "guidance_scale": _SOURCES["zone"]
        + " (its --image_guidance_scale, which it passes as text guidance)",
        "image_guidance_scale": (
            "github.com/lsl001006/ZONE @ 9788584, default of text2image_instructpix2pix_blend"
        ),
        "models": _SOURCES["zone"] + "; SAM's published conversion in place of its .pth file",
        "settings": _SOURCES["zone-masks"] + "; SAM: defaults of SamAutomaticMaskGenerator",
        "timestep_spacing": "diffusers 0.18, to which ZONE is pinned: default of DPMSolverMultistepScheduler",
    },
)

# The paper's lengths are for 512 pixels; an eighth of them here.
_ZONE_NANO = replace(
    _ZONE,
    name="zone-nano",
    preset="nano",
    checkpoint="nano:ip2p",
    models={"magicbrush": "nano:magicbrush", "sam": "nano:sam", "action": "nano:zone-action"},
    guidance_scale=4.0,
    resolution=64,
    settings={
        **_ZONE.settings,
        "protocol": "fixed",
        "map_stride": 8,
        "against": "words",
        "floor": "least",
        "least_area": 4,
        "points_per_side": 16,
        "segment_quality": 0.6,
        "segment_stability": 0.6,
        "dilation": 1,
        "smooth_radius": 25.0,
        "smooth_closing": 3,
    },
    note="Embedded miniature models; the numbers say nothing about the real editor's.",
    sources={
        "*": "this project, the nano models' cards",
        "settings": (
            "lengths in pixels: an eighth of the paper's, rounded up, since a picture has 64 and not 512; "
            "the smallest area and SAM's grid and thresholds by what the nano SAM can tell apart. against, "
            "floor: the nano text encoder has some twenty marks after the end of a sentence, between which "
            "attention is spread evenly, so that the last token's map is flat and the words' are not; chosen "
            "on affirmative instructions of the dev split. All else is the paper's."
        ),
    },
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
        sources={
            "*": _SOURCES["ip2p"],
            "rounding": _SOURCES["round"],
            "timestep_spacing": _SOURCES["linspace"],
        },
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
    _INSTRUCTDIFFUSION,
    _NANO,
    _ZONE,
    _ZONE_NANO,
    replace(_NANO, name="magicbrush-nano", editor="magicbrush", checkpoint="nano:magicbrush"),
    replace(_NANO, name="hqedit-nano", editor="hqedit", checkpoint="nano:hqedit", guidance_scale=4.0),
    replace(
        _NANO,
        name="instructdiffusion-nano",
        editor="instructdiffusion",
        checkpoint="nano:instructdiffusion",
        guidance="instructdiffusion",
        guidance_scale=3.0,
        image_guidance_scale=1.25,
        output="input",
    ),
    replace(_NANO, name="nein-ip2p-nano", editor="nein-ip2p", checkpoint="nano:nein-ip2p", note=_TUNED),
    replace(
        _NANO,
        name="nein-magicbrush-nano",
        editor="nein-magicbrush",
        checkpoint="nano:nein-magicbrush",
        note=_TUNED,
    ),
    *(EditorPreset(**row) for row in MODERN),
)

PRESETS: dict[str, EditorPreset] = {row.name: row for row in _ROWS}

# Which row `--editor E --preset P` means where an editor has several.
DEFAULT_ROWS: dict[tuple[str, str], str] = {
    ("ip2p", "paper"): "ip2p",
    ("magicbrush", "paper"): "magicbrush",
    ("hqedit", "paper"): "hqedit-readme",
    ("instructdiffusion", "paper"): "instructdiffusion",
    ("ip2p", "nano"): "ip2p-nano",
    ("magicbrush", "nano"): "magicbrush-nano",
    ("hqedit", "nano"): "hqedit-nano",
    ("nein-ip2p", "nano"): "nein-ip2p-nano",
    ("nein-magicbrush", "nano"): "nein-magicbrush-nano",
    ("instructdiffusion", "nano"): "instructdiffusion-nano",
    ("zone", "paper"): "zone",
    ("zone", "nano"): "zone-nano",
    **{(row["editor"], "paper"): row["name"] for row in MODERN},
}


# The editors of the NeIn paper's Table 3, which `--editor all` stands for, and what is printed beside them:
# doing nothing, and painting everything over.
PAPER_EDITORS = ("ip2p", "magicbrush", "zone", "hqedit", "instructdiffusion")
CONTROLS = {"nano": ("identity", "solid"), "paper": ("identity",)}


def is_checkpoint(name: str) -> bool:
    """Whether `name` is a model reference (local path, hub id, "nano:NAME") and not a row of a table."""
    return name.startswith(("nano:", ".", "~")) or "/" in name or "\\" in name or Path(name).exists()


def preset_row(name: str, preset: str) -> EditorPreset:
    """The row for `--editor name --preset preset`.

    `name` is an editor ("magicbrush"), a row ("magicbrush-ema") or any model reference. The latter gets the
    values of the row of the pipeline class it declares, where that is one of `editors.recipes`, else of
    InstructPix2Pix in the same preset with the resolution of its own checkpoint. EditorError when there is no
    such row; editors without a model have none.
    """
    presets = sorted({row.preset for row in _ROWS})
    if preset not in presets:
        raise EditorError(f"unknown preset {preset!r}; choose one of: {', '.join(presets)}")
    if (name, preset) in DEFAULT_ROWS:
        return PRESETS[DEFAULT_ROWS[name, preset]]
    if name in PRESETS and PRESETS[name].preset == preset:
        return PRESETS[name]
    if name not in PRESETS and is_checkpoint(name):
        parent = _parent(name, preset)
        return replace(
            parent,
            name=name,
            editor=name,
            checkpoint=name,
            revision=None,
            resolution=parent.resolution if parent.kind == "pipeline" else None,
            note=f"Values of the row {parent.name!r}.",
            sources={"checkpoint": "given by the user", "*": f"row {parent.name!r}"},
        )
    choices = sorted({editor for editor, p in DEFAULT_ROWS if p == preset} | _names_of(preset))
    raise EditorError(
        f"editor {name!r} has no {preset!r} preset{near_match(name, choices)}; with --preset {preset} choose "
        f"one of: {', '.join(choices)}, or give a local folder or hub id"
    )


def _parent(name: str, preset: str) -> EditorPreset:
    """The row whose values a checkpoint gets."""
    rows = [row for row in _ROWS if row.pipeline and row.checkpoint == name.partition("@")[0]]
    if rows:
        return rows[0]
    return _of_class(declared_class(name), preset)


def _of_class(declared: str | None, preset: str) -> EditorPreset:
    """The row of a pipeline class, or InstructPix2Pix's."""
    if declared in RECIPES:
        return next(row for row in _ROWS if row.pipeline == declared)
    return PRESETS[DEFAULT_ROWS["ip2p", preset]]


def class_options(declared: str, preset: str) -> dict[str, Any]:
    """The values that a checkpoint of the user's gets in a preset, by its pipeline class."""
    row = _of_class(declared, preset)
    return (row if row.kind == "pipeline" else replace(row, resolution=None)).options()


def declared_class(name: str) -> str | None:
    """The pipeline class that a local folder or a repository on the hub declares; None if it tells none.

    Looks at model_index.json only, on the hub after what is cached; without a network that is all it knows.
    """
    folder = Path(name).expanduser()
    if folder.exists() or name.startswith(("nano:", ".", "~", "/")):
        file = folder / "model_index.json"
    else:
        cached = _index_on_hub(name)
        if cached is None:
            return None
        file = cached
    try:
        return json.loads(file.read_text(encoding="utf-8")).get("_class_name") if file.is_file() else None
    except (ValueError, AttributeError):
        return None


@functools.cache
def _index_on_hub(name: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError

    repository, _, revision = name.partition("@")
    try:
        return Path(hf_hub_download(repository, "model_index.json", revision=revision or None))
    except (OSError, EntryNotFoundError, HFValidationError):  # the loader says more about what is wrong
        return None


#: What papers call an editor, in letters and digits alone -> its name here.
ALIASES = {"instructpix2pix": "ip2p"}


def canonical(name: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that `name` means: case, hyphens and underscores aside, or by `ALIASES`."""
    names = list(choices)
    if name in names:
        return name
    short = _plain(name)
    short = ALIASES.get(short, short)
    return next((other for other in names if _plain(other) == short), None)


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


def near_match(name: str, choices: list[str]) -> str:
    """A hint "did you mean" with the closest choice, in brackets, or the empty string."""
    close = difflib.get_close_matches(name.lower(), choices, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _names_of(preset: str) -> set[str]:
    return {row.name for row in _ROWS if row.preset == preset}
