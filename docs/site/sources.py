"""build/sources: the packages as they lie when installed, by links, for tools that only read sources.

In a checkout `editors`, `metrics` and `train` lie beside `nein`, and not in it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def link() -> Path:
    """Makes the folder; what is there stays."""
    folder = ROOT / "build" / "sources"
    (folder / "nein").mkdir(parents=True, exist_ok=True)
    beside = [ROOT / name for name in ("editors", "metrics", "train")]
    places = {folder / "nein" / path.name: path for path in (*(ROOT / "nein").iterdir(), *beside)}
    places |= {folder / name: ROOT / name for name in ("research", "benchmarks")}
    for place, path in places.items():
        with contextlib.suppress(FileExistsError):
            place.symlink_to(path)
    return folder


if __name__ == "__main__":
    link()
