"""Where the shipped nano models are.

Every model is a folder in the layout of its library. The four editors share one VAE, text encoder, tokenizer
and scheduler, which are kept once, in `ip2p`; a variant keeps its own UNet only, or no more than the tensors
of it that differ from another variant's, and `path` puts the pieces together in the cache folder on
first use, so that what it returns is always a complete pipeline folder.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from nein.nano.data import cache_root

ZOO = Path(__file__).parent / "weights"
BASE = "ip2p"
VARIANTS = ("magicbrush", "hqedit", "instructdiffusion", "nein-ip2p", "nein-magicbrush")
#: A UNet given by what differs from another's, whose name stands in the file's metadata under "base".
CHANGES = Path("unet", "changes.safetensors")
UNET = Path("unet", "diffusion_pytorch_model.safetensors")
SHARED = ("model_index.json", "vae", "text_encoder", "tokenizer", "scheduler")
#: Names that stand for another model's folder.
ALIASES = {"fid": "dino"}


def available() -> tuple[str, ...]:
    """Names of the models that are there."""
    found = (
        {folder.name for folder in ZOO.iterdir() if (folder / "README.md").exists()}
        if ZOO.exists()
        else set()
    )
    return tuple(sorted(found | {a for a, name in ALIASES.items() if name in found}))


def path(name: str) -> Path:
    """The complete folder of a nano model. Raises ValueError for an unknown name."""
    real = ALIASES.get(name, name)
    if real not in available():
        raise ValueError(f"there is no nano model {name!r}; there are: {', '.join(available())}")
    return _assemble(real) if real in VARIANTS else ZOO / real


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _assemble(name: str) -> Path:
    """Base folder with the variant's own files laid over it, in the cache, written atomically."""
    pieces = {p.relative_to(ZOO / BASE): p for part in SHARED for p in _under(ZOO / BASE / part)}
    own = {p.relative_to(ZOO / name): p for p in _files(ZOO / name)}
    if CHANGES in own:
        base = ZOO / changes_base(own[CHANGES])
        pieces.update({p.relative_to(base): p for p in _files(base / "unet")})
    pieces.update(own)
    digest = hashlib.sha256()
    for relative, file in sorted(pieces.items()):
        digest.update(f"{relative}:".encode())
        digest.update(file.read_bytes())
    target = cache_root() / "zoo" / f"{name}-{digest.hexdigest()[:12]}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        draft.chmod(0o755)
        for relative, file in pieces.items():
            (draft / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, draft / relative)
        if CHANGES in pieces:
            _apply_changes(draft)
        try:
            draft.rename(target)
        except OSError:
            if not target.exists():
                raise  # not just another process that was faster
    finally:
        if draft.exists():
            shutil.rmtree(draft)
    return target


def changes_base(file: Path) -> str:
    """The model whose UNet a file of changes starts from."""
    import safetensors

    with safetensors.safe_open(file, framework="numpy") as handle:
        return str((handle.metadata() or {})["base"])


def _apply_changes(folder: Path) -> None:
    import safetensors.numpy

    changed = safetensors.numpy.load_file(folder / CHANGES)
    whole = {**safetensors.numpy.load_file(folder / UNET), **changed}
    safetensors.numpy.save_file(whole, folder / UNET, {"format": "pt"})
    (folder / CHANGES).unlink()


def _under(piece: Path) -> list[Path]:
    return _files(piece) if piece.is_dir() else [piece]
