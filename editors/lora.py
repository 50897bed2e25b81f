"""LoRA weights for an editing pipeline of diffusers, fused into its own. Importing it loads no torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from nein.editors.base import EditorError
from nein.loading.references import Origin, expanded, is_local

#: As diffusers' `save_lora_weights` names it.
FILE = "pytorch_lora_weights.safetensors"


def split(reference: str) -> tuple[str, str]:
    """(folder or hub id, file) of a file, a folder, or owner/name[@revision][:FILE]. Raises EditorError."""
    path = expanded(reference)
    place, _, file = reference.partition(":")
    if path.is_file():
        place, file = str(path.parent), path.name
    elif path.is_dir():
        place, file = str(path), ""
    elif place.endswith(".safetensors"):
        raise EditorError(f"there is no file {reference!r}, which lora names")
    if not (file or FILE).endswith(".safetensors"):
        raise EditorError(f"lora is {reference!r}, but LoRA weights are read from .safetensors files only")
    return place, file or FILE


def origin(reference: str) -> Origin | None:
    place, file = split(reference)
    return Origin.of(f"file:{file}", place)


def add_lora(pipeline: Any, reference: str) -> None:
    """Raises EditorError."""
    from huggingface_hub import hf_hub_download

    from nein.editors.checkpoint import explained, locate

    kind = type(pipeline).__name__
    if not hasattr(pipeline, "load_lora_weights"):
        raise EditorError(f"{kind} takes no LoRA weights; leave out lora={reference!r}")
    if importlib.util.find_spec("peft") is None:
        raise EditorError("LoRA weights need the package peft; pip install 'nein[train]'")
    place, file = split(reference)
    source, revision = locate(place)
    with explained(reference):
        local = is_local(source)
        path = Path(source, file) if local else Path(hf_hub_download(source, file, revision=revision))
        pipeline.load_lora_weights(str(path.parent), weight_name=path.name, use_safetensors=True)
        if not any(pipeline.get_list_adapters().values()):
            raise EditorError(f"nothing in {file} of {reference!r} belongs to a part of {kind}")
        pipeline.fuse_lora(safe_fusing=True)
        pipeline.unload_lora_weights()
