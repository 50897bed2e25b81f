"""Whose weights a CLIP has: what is plain CLIP under another name, and what was trained with QuickGELU and is
not computed with it. Weights are compared by value, across the layouts of transformers and open_clip."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

#: OpenAI's own weights, by the repositories that have them.
PLAIN = re.compile(r"openai/clip-vit-[\w-]+|timm/[\w.-]*clip[\w.-]*\.openai")
#: Of these, where the commonest are looked for.
OPENAI = [f"openai/clip-vit-{size}" for size in ("base-patch32", "large-patch14")]
OPENAI += [f"timm/vit_{size}_clip_224.openai" for size in ("base_patch32", "large_patch14")]
#: The embedding of words, by the layouts' names for it.
WORDS = tuple(f"{name}token_embedding.weight" for name in ("text_model.embeddings.", "", "text."))
#: Relative distance of two word embeddings below which one was trained on from the other: two that were drawn
#: apart are at 1.4, and fine-tuning moves them by some hundredths.
NEAR = 0.5
WEIGHTS = ("model.safetensors", "open_clip_model.safetensors")
#: Counts and temperatures, which say nothing about whose weights they are.
_ASIDE = ("position_ids", "logit_scale", "attn_mask")


@dataclass(frozen=True)
class Tower:
    """A two-tower model in a file. `name` as it was asked for; `quick`: its configuration says QuickGELU."""

    name: str
    file: Path
    words: str
    quick: bool

    @property
    def plain(self) -> bool:
        return PLAIN.fullmatch(self.name.partition("@")[0]) is not None


def read(folders: Mapping[str, Path]) -> list[Tower]:
    """The CLIPs among models in folders of either layout, by name."""
    from safetensors import SafetensorError, safe_open

    found = []
    for name, folder in folders.items():
        for file in (folder / weights for weights in WEIGHTS):
            try:
                with safe_open(file, framework="numpy") as handle:
                    words = next((key for key in WORDS if key in handle.keys()), None)
            except (OSError, SafetensorError):
                continue
            if words is not None and (quick := _quick(folder)) is not None:
                found.append(Tower(name, file, words, quick))
                break
    return found


def _quick(folder: Path) -> bool | None:
    """What the configuration says; None where there is none of a CLIP."""
    for name in ("open_clip_config.json", "config.json"):
        try:
            config = json.loads((folder / name).read_bytes())
            if "model_cfg" in config:
                return bool(config["model_cfg"].get("quick_gelu", False))
            if config.get("model_type") == "clip":
                towers = [config.get("text_config") or {}, config.get("vision_config") or {}]
                return all(tower.get("hidden_act", "quick_gelu") == "quick_gelu" for tower in towers)
        except (OSError, ValueError, TypeError, AttributeError):  # not there, or of another shape
            continue
    return None


def of_cache(references: Sequence[str]) -> list[Tower]:
    """Those of repositories that the hub's cache has."""
    from huggingface_hub import try_to_load_from_cache

    cached = ((name, try_to_load_from_cache(name, file)) for name in references for file in WEIGHTS)
    return read({name: Path(path).parent for name, path in cached if isinstance(path, str)})


def notes(towers: Sequence[Tower]) -> list[str]:
    """A sentence for every model that is plain CLIP renamed, or computes OpenAI's weights with GELU."""
    found = []
    for tower in (tower for tower in towers if not tower.plain):
        apart = ((other, _distance(tower, other)) for other in towers if other.plain)
        other, distance = next(((near, d) for near, d in apart if d < NEAR), (None, 0.0))
        if other is None:
            continue
        if distance == 0 and _digests(tower) == _digests(other):
            found.append(
                f"'{tower.name}' is plain CLIP: every weight is that of '{other.name}', and so are its "
                "figures."
            )
        if other.quick and not tower.quick:
            found.append(
                f"'{tower.name}' has weights of OpenAI's CLIP, trained with QuickGELU ('{other.name}'), and "
                "its configuration says GELU: its figures are lower than the weights allow. If nobody meant "
                "that, set quick_gelu (open_clip) or hidden_act (transformers) in its configuration."
            )
    return found


def _words(tower: Tower) -> np.ndarray:
    from safetensors import safe_open

    with safe_open(tower.file, framework="pt") as file:
        return file.get_tensor(tower.words).float().numpy()


def _distance(one: Tower, other: Tower) -> float:
    """Relative distance of the embeddings of words; infinite where they differ in shape."""
    a, b = _words(one), _words(other)
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0)) if a.shape == b.shape else np.inf


def _digests(tower: Tower) -> set[str]:
    """SHA-256 of every weight as float32, whichever layout has it: projections of attention lie together or
    apart, vectors have an axis of length 1 or not, and matrices lie either way round."""
    from safetensors.torch import load_file

    found = set()
    for name, weight in load_file(tower.file).items():
        if not name.endswith(_ASIDE):
            tensor = weight.float().numpy()
            for part in map(np.squeeze, np.split(tensor, 3) if ".in_proj_" in name else [tensor]):
                ways = [part, part.T] if part.ndim == 2 else [part]
                found.add(min(hashlib.sha256(way.tobytes()).hexdigest() for way in ways))
    return found
