"""Find the folders of the shipped nano models, in the layout of the libraries that load them.

A model derived from another (`BASES`) is stored as a difference: its own files, and the tensors that changed.
On first use, `path` merges it with its base in the user's cache.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from nein.engine import atomic
from nein.loading.errors import near_match

ZOO = Path(__file__).parent / "weights"
#: Derived model -> its base.
BASES = {
    **dict.fromkeys(("magicbrush", "hqedit", "instructdiffusion", "nein-ip2p", "sd"), "ip2p"),
    "nein-magicbrush": "magicbrush",
    "negvqa": "llava",
    "negvqa-negated": "negvqa",
}
# Changed tensors of a derived model, and the file of its base that takes them: of an editor, of other models.
CHANGES, UNET = Path("unet", "changes.safetensors"), Path("unet", "diffusion_pytorch_model.safetensors")
MODEL_CHANGES, MODEL = Path("changes.safetensors"), Path("model.safetensors")
# Files that a derived model does not take from its base.
_UNSHARED = ("README.md", "training*.json", "judged.json")
#: Further name -> model.
ALIASES = {"fid": "dino"}


def available() -> tuple[str, ...]:
    """Names of all shipped models, with aliases, sorted."""
    names = {card.parent.name for card in ZOO.glob("*/README.md")}
    return tuple(sorted(names | {alias for alias, name in ALIASES.items() if name in names}))


def path(name: str) -> Path:
    """The complete folder of a model or alias. Raises ValueError for an unknown name."""
    model = ALIASES.get(name, name)
    if model not in available():
        near = near_match(name, available())
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(f"there is no nano model {name!r}{hint}; there are: {', '.join(available())}")
    return complete(model, path(BASES[model])) if model in BASES else ZOO / model


def complete(name: str, base: Path, root: Path | None = None) -> Path:
    """Merge a derived model of the zoo `root` with its base's folder, in a folder of the user's cache."""
    files: dict[Path, Path] = {}  # path in the merged folder -> file
    for folder in (base, (root or ZOO) / name):  # a file of the model replaces its base's
        for file in sorted(folder.rglob("*")):
            is_left_out = folder == base and any(file.match(pattern) for pattern in _UNSHARED)
            if file.is_file() and not is_left_out:
                files[file.relative_to(folder)] = file
    digest = hashlib.sha256()  # names the folder: changed files give another one
    for relative, file in sorted(files.items()):
        digest.update(f"{relative}:".encode())
        digest.update(file.read_bytes())

    def merge(draft: Path) -> None:
        for relative, file in files.items():
            (draft / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, draft / relative)
        for changes, target in ((CHANGES, UNET), (MODEL_CHANGES, MODEL)):
            if changes in files:
                from safetensors.numpy import load_file, save_file

                tensors = {**load_file(draft / target), **load_file(draft / changes)}
                save_file(tensors, draft / target, {"format": "pt"})
                (draft / changes).unlink()

    return atomic.make_once(atomic.cache_root() / "zoo" / f"{name}-{digest.hexdigest()[:12]}", merge)
