"""How LoRA weights are named. Importing it loads no torch; `editors.checkpoint` fuses them."""

from nein.editors.base import EditorError
from nein.loading.references import expanded

#: As diffusers' `save_lora_weights` names it.
FILE = "pytorch_lora_weights.safetensors"


def split(reference: str) -> tuple[str, str]:
    """(folder or hub id, file) of a file, a folder, or owner/name[@revision][:FILE]. Raises EditorError."""
    path = expanded(reference)
    where, _, file = reference.partition(":")
    if path.is_file():
        where, file = str(path.parent), path.name
    elif path.is_dir():
        where, file = str(path), ""
    elif where.endswith(".safetensors"):
        raise EditorError(f"there is no file {reference!r}, which lora names")
    if not (file or FILE).endswith(".safetensors"):
        raise EditorError(f"lora is {reference!r}, but LoRA weights are read from .safetensors files only")
    return where, file or FILE
