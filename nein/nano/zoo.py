"""Where the shipped nano models are: folders in the layout of their libraries.

A model that goes on from another (`BASES`) keeps what it does not share with it: files, or the tensors that
differ. `path` puts the pieces together in the cache folder on first use.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from nein.engine import atomic
from nein.loading.errors import near_match

ZOO = Path(__file__).parent / "weights"
#: Models that go on from another: its files with their own laid over, its weights with their changes.
BASES = {
    **dict.fromkeys(("magicbrush", "hqedit", "instructdiffusion", "nein-ip2p", "sd"), "ip2p"),
    "nein-magicbrush": "magicbrush",
    "negvqa": "llava",
    "negvqa-negated": "negvqa",
}
CHANGES = Path("unet", "changes.safetensors")
UNET = Path("unet", "diffusion_pytorch_model.safetensors")
MODEL_CHANGES = Path("changes.safetensors")
MODEL = Path("model.safetensors")
#: Files that tell of one model only.
ABOUT = ("README.md", "training*.json", "judged.json")
#: Names that stand for another model's folder.
ALIASES = {"fid": "dino"}


def available() -> tuple[str, ...]:
    names = {card.parent.name for card in ZOO.glob("*/README.md")}
    return tuple(sorted(names | {a for a, name in ALIASES.items() if name in names}))


def path(name: str) -> Path:
    """Raises ValueError for an unknown name."""
    real = ALIASES.get(name, name)
    if real not in available():
        near = near_match(name, available())
        guess = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(f"there is no nano model {name!r}{guess}; there are: {', '.join(available())}")
    return complete(real, path(BASES[real])) if real in BASES else ZOO / real


def complete(name: str, base: Path, root: Path | None = None) -> Path:
    """The complete folder of a model of `BASES` in the zoo `root`, on its base's folder."""
    pieces = {p.relative_to(base): p for p in _files(base) if not any(p.match(name) for name in ABOUT)}
    folder = (root or ZOO) / name
    return _assemble(name, {**pieces, **{p.relative_to(folder): p for p in _files(folder)}})


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _assemble(name: str, pieces: dict[Path, Path]) -> Path:
    """The files (place in the folder -> file) in a folder of the user's cache."""
    digest = hashlib.sha256()
    for relative, file in sorted(pieces.items()):
        digest.update(f"{relative}:".encode())
        digest.update(file.read_bytes())

    def lay_out(draft: Path) -> None:
        for relative, file in pieces.items():
            (draft / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, draft / relative)
        for changes, target in ((CHANGES, UNET), (MODEL_CHANGES, MODEL)):
            if changes in pieces:
                import safetensors.numpy

                load = safetensors.numpy.load_file
                merged = {**load(draft / target), **load(draft / changes)}
                safetensors.numpy.save_file(merged, draft / target, {"format": "pt"})
                (draft / changes).unlink()

    return atomic.make_once(atomic.cache_root() / "zoo" / f"{name}-{digest.hexdigest()[:12]}", lay_out)
