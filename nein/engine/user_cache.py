"""The user's cache: folders and files that are made on first use, once, and never half-written."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from nein.engine import atomic


def root() -> Path:
    """`$NEIN_CACHE`, else the user's cache folder."""
    return Path(os.environ.get("NEIN_CACHE") or platformdirs.user_cache_dir("nein"))


def made_once(target: Path, make: Callable[[Path], None], proof: str = "") -> Path:
    """`target`, which `make(draft)` fills on first use; what it cannot finish leaves nothing.

    The name of the folder must tell everything that decides its content. Of processes that make it at the
    same time one wins.

    proof  A file in it without which it is not what it should be. Raises OSError where such a folder is in
           the way.
    """
    if (target / proof).exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        draft.chmod(0o755)  # mkdtemp makes folders only the owner can read
        make(draft)
        try:
            draft.rename(target)
        except OSError:
            if not (target / proof).exists():
                raise  # not just another process that was faster
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def file_of(data: bytes) -> Path:
    """A file with these bytes, named by their SHA-256: what records hold in place of pictures, which are read
    where they are needed."""
    digest = hashlib.sha256(data).hexdigest()
    path = root() / "files" / digest[:2] / digest
    if not path.is_file():
        atomic.write_bytes(path, data)
    return path
