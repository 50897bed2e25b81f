"""Reads the table of editors, presets.yaml, and finds the row for a name, a preset or a checkpoint.
Parts: the table; references to LoRA weights and served editors; rows."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from nein.editors.base import EditorError
from nein.loading.digests import Json
from nein.loading.errors import UserError, choose, unknown
from nein.loading.references import check_hub, expand_user, hide_credentials, is_address, parse_reference

# --- the table -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EditorPreset:
    """One row; presets.yaml explains its fields, which have the same names but for `_FIELDS`."""

    name: str
    class_path: str  # "module:Class"
    editor: str
    preset: str = "paper"  # "" for an editor without a model
    can: Sequence[str] = ()
    checkpoint: str | None = None
    obtain: str = ""
    revision: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, str | None] = field(default_factory=dict)
    rewriter: str | None = None
    dtype: str = "float32"
    note: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def pipeline(self) -> str | None:
        """Class of diffusers that the editor runs, if it is an option."""
        return self.settings.get("pipeline")

    def options(self) -> Json:
        """Settings that have a value; the class has defaults for the others."""
        return {name: value for name, value in self.settings.items() if value is not None}


_TEXT = resources.files(__package__).joinpath("presets.yaml").read_text(encoding="utf-8")
_TABLE = yaml.load(_TEXT, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # C is ten times as fast
_FIELDS = {"class": "class_path", "options": "settings"}  # key of the file -> field


def _make_row(name: str, entry: Json) -> EditorPreset:
    if "class" not in entry:  # a pipeline of diffusers: the template's values, unless the entry has its own
        template = _TABLE["templates"]["pipeline"]
        merged = {key: {**template[key], **entry.get(key, {})} for key in ("options", "sources")}
        entry = {**template, **entry, **merged}
    fields = {_FIELDS.get(key, key): value for key, value in entry.items()}
    return EditorPreset(**{"name": name, "editor": name, **fields})


_ROWS = [_make_row(name, entry) for name, entry in _TABLE["editors"].items()]
#: Editors without a model, by name.
BASIC = {row.name: row for row in _ROWS if not row.preset}
#: Rows of editors with a model, by name.
PRESETS = {row.name: row for row in _ROWS if row.preset}
#: (editor, preset) -> the row that `--editor E --preset P` means: the first of several.
DEFAULT_ROWS = {(row.editor, row.preset): row.name for row in reversed(PRESETS.values())}
#: Class of diffusers -> fields of its `editors.pipelines.Recipe`.
PIPELINES: dict[str, Json] = _TABLE["pipelines"]
#: The same of classes that make an image from text alone.
TEXT_TO_IMAGE: dict[str, Json] = _TABLE["text_to_image"]

#: `--editor all`: the editors of the NeIn paper's Table 3, and baselines: no edit, and one color.
PAPER_EDITORS = ("ip2p", "magicbrush", "zone", "hqedit", "instructdiffusion")
CONTROLS = {"nano": ("identity", "solid"), "paper": ("identity",)}  # by preset
#: Source of configurations and tokenizer for `nein convert`.
DEFAULT_CONFIG = "timbrooks/instruct-pix2pix"

# --- references ------------------------------------------------------------------------------------------

#: File name of diffusers' `save_lora_weights`.
LORA = "pytorch_lora_weights.safetensors"
OPENAI = "https://api.openai.com/v1"  # of openai:MODEL without OPENAI_BASE_URL


def split_lora(reference: str) -> tuple[str, str]:
    """(folder or hub id, file name) of LoRA weights: a file, a folder, or `owner/name[@revision][:FILE]`."""
    path = expand_user(reference)
    if path.is_file():
        return str(path.parent), path.name
    if path.is_dir():
        return str(path), LORA
    folder, _, file = reference.partition(":")
    return folder, file or LORA


def split_address(reference: str) -> tuple[str, str]:
    """(URL, model) of openai:URL#MODEL, or of openai:MODEL at OPENAI_BASE_URL. Raises EditorError."""
    parsed = parse_reference(reference)
    url = (os.environ.get("OPENAI_BASE_URL") or OPENAI) if parsed.url is None else parsed.url
    if not (reference.startswith("openai:") and parsed.name and is_address(url)):
        raise EditorError(
            f"'{hide_credentials(reference)}' is not a served editor; expected openai:URL#MODEL, such as "
            "openai:http://localhost:8000/v1#Qwen/Qwen-Image-Edit-2511, or openai:MODEL"
        )
    return url, parsed.name


# --- rows ------------------------------------------------------------------------------------------------


def find_preset_row(name: str, preset: str) -> EditorPreset:
    """Row for `--editor NAME --preset PRESET`. A folder or hub id gets the settings of the row with this
    checkpoint, or else of its pipeline class, or else of InstructPix2Pix. Raises EditorError."""
    choose("preset", preset, sorted({row.preset for row in PRESETS.values()}))
    row = PRESETS.get(DEFAULT_ROWS.get((name, preset), name))
    if row is not None and row.preset == preset:
        return row
    parsed = parse_reference(name)
    if row is None and parsed.has_files:
        rows = [row for row in PRESETS.values() if row.pipeline and row.checkpoint == parsed.name]
        parent = rows[0] if rows else find_row_of_class(read_index(name), preset)
        sources = {"checkpoint": "given by the user", "*": f"row {parent.name!r}"}
        changes: Json = {"name": name, "editor": name, "checkpoint": name, "revision": None, "note": ""}
        return replace(parent, **changes, sources=sources)
    rows = [row for row in PRESETS.values() if row.preset == preset]
    choices = sorted({row.name for row in rows} | {row.editor for row in rows})
    raise unknown(f"editor of --preset {preset}", name, choices, "Or pass a local folder or hub id.")


def find_row_of_class(index: Mapping[str, Any], preset: str) -> EditorPreset:
    """Row of the class in a pipeline's index (`read_index`), or of InstructPix2Pix."""
    rows = [row for row in PRESETS.values() if row.pipeline and row.pipeline == index.get("_class_name")]
    if rows:
        # An index with this key is FLUX.2-klein's; the last of its rows is the distilled model.
        return rows[-1] if index.get("is_distilled") else rows[0]
    row = PRESETS[DEFAULT_ROWS["ip2p", preset]]
    return replace(row, settings={**row.settings, "resolution": None})  # the checkpoint's own


@functools.cache
def read_index(name: str) -> Mapping[str, Any]:
    """Index (model_index.json) of the pipeline in a folder or hub repository; {} without one."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    parsed = parse_reference(name)
    for index_name in ("model_index.json", "modular_model_index.json"):  # modular: pipelines of blocks
        try:
            file = expand_user(name) / index_name
            if parsed.kind == "hub":
                check_hub(parsed.name, parsed.revision)
                file = Path(hf_hub_download(parsed.name, index_name, revision=parsed.revision))
            index = json.loads(file.read_text(encoding="utf-8"))
        except UserError:  # a hub that does not answer: the loader will explain
            break
        except (OSError, ValueError, EntryNotFoundError):
            continue
        if isinstance(index, dict):
            return index
    return {}
