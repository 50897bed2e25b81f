"""Published methods that score a picture and a sentence by a CLIP with a head of their own behind it.

    nein negbench convert --architecture clipglasses best_clip_Glasses.pth glasses
    nein negbench eval --match glasses

`convert` reads the authors' file once and writes a folder: config.json, with the method and the CLIP that it
stands on, and model.safetensors, the head's tensors under the names of the released code.
"""

from __future__ import annotations

import json
import pkgutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nein.loading.digests import file_sha256
from nein.loading.errors import choose
from nein.loading.references import located
from nein.metrics.base import MetricError
from nein.metrics.encoders import clip
from nein.metrics.judges.heads import Method
from nein.metrics.loading import fill

#: Method -> its class; "model_type" of config.json.
METHODS: dict[str, str] = {
    "clipglasses": "nein.metrics.judges.clipglasses:ClipGlasses",
    "dcsm": "nein.metrics.judges.dcsm:Dcsm",
}
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def named(method: str) -> type[Method]:
    """The class of a method. Raises MetricError."""
    found: type[Method] = pkgutil.resolve_name(METHODS[choose("method", method, METHODS)])
    return found


def convert(source: Path, folder: Path, *, method: str, base: str = "") -> dict[str, Any]:
    """Writes the authors' file as a folder; returns what it was made from.

    folder  Must not exist; appears only once it is complete.
    base    Reference of the CLIP; "": the authors'. Raises MetricError.
    """
    from safetensors.torch import save_file

    if folder.exists():
        raise MetricError(f"'{folder}' exists already; give a folder that does not.")
    kind = named(method)
    where = base or kind.BASE
    encoder = clip.load(located(where), revision=None, device="cpu", dtype="float32")
    tensors, facts = kind.read(source, encoder)
    _filled(kind, tensors, source)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as temporary:
        draft = Path(temporary) / "folder"
        draft.mkdir()
        save_file({name: one.float().contiguous().clone() for name, one in tensors.items()}, draft / WEIGHTS)
        config = {"model_type": method, "base": where, **facts}
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        draft.rename(folder)
    return {"architecture": method, "base": where, "tensors": len(tensors)}


def load(path_or_id: str, *, revision: str | None, device: str, dtype: str, **options: Any) -> Method:
    """From a folder that `convert` wrote. options: those of the method's class. Raises MetricError."""
    from safetensors.torch import load_file

    folder = Path(path_or_id)
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MetricError(f"'{folder / CONFIG}' cannot be read: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("base"), str):
        raise MetricError(f"'{folder / CONFIG}' names no CLIP under 'base'; convert the method's file again.")
    config |= options
    kind, file = named(config["model_type"]), folder / WEIGHTS
    base = clip.load(located(config["base"]), revision=None, device=device, dtype=dtype)
    head = _filled(kind, load_file(file), file).to(base.model.device, torch.float32)
    return kind(base, head.eval().requires_grad_(False), config, file_sha256(file))


def _filled(kind: type[Method], tensors: Mapping[str, torch.Tensor], file: Path) -> nn.Module:
    try:
        with torch.random.fork_rng(devices=[]):
            head = kind.build(tensors)
    except (KeyError, IndexError, RuntimeError) as error:
        raise MetricError(f"'{file}' lacks weights of {kind.__name__}: {error}.") from None
    fill(head, tensors, file)
    return head
