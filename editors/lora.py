"""How LoRA weights are named. Importing it loads no torch; `editors.checkpoint` fuses them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from nein.editors.base import EditorError
from nein.loading.references import expanded

#: The two matrices of a module, as peft, diffusers and kohya name them.
_HALF = re.compile(r"(.*[._])(lora_A|lora_B|lora_down|lora_up|down|up)(?:\.\w+)?\.weight")
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


def modules(tensors: Iterable[str], reference: str) -> set[str]:
    """The names of the modules that tensors of these names are for. Raises EditorError for half a pair."""
    found = [match for match in map(_HALF.fullmatch, tensors) if match]
    halves: dict[str, set[str]] = {}
    for match in found:
        halves.setdefault(match[1], set()).add(match[2])
    if alone := sorted(name + half for name, (half, *more) in halves.items() if not more):
        raise EditorError(
            f"lora {reference!r} is damaged: {len(alone)} of its {len(halves)} modules have one matrix of "
            f"two, first {alone[0]!r}"
        )
    return set(halves)
