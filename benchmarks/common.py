"""What the metric benchmarks share: pictures of the nano world on disk, models, and a stopwatch."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from nein.nano import data

Result = TypeVar("Result")


@dataclass(frozen=True)
class Pair:
    """A sample on disk: the edited picture, the unedited one, the target, and the words about them."""

    id: str
    edited: Path
    sample: Path
    target: Path
    object: str
    caption: str


def arguments(description: str | None, limit: int) -> argparse.ArgumentParser:
    """The options both benchmarks have."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--limit", type=int, default=limit, help=f"samples (default {limit})")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="samples per call of ours (default 16, as in nein eval)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides (default 1)")
    parser.add_argument(
        "--tiny", action="store_true", help="random weights instead of the trained nano models"
    )
    return parser


@contextmanager
def model_folders(kinds: dict[str, str], tiny: bool) -> Iterator[dict[str, str]]:
    """Folder of every kind: the trained nano model named there, or a small one with random weights."""
    if not tiny:
        from nein.nano import zoo

        yield {kind: str(zoo.path(name)) for kind, name in kinds.items()}
        return
    from tests.metrics import tiny as builders

    networks = {"dino": "vit", "fid": "vit"}
    with tempfile.TemporaryDirectory() as root:
        yield {
            kind: str(getattr(builders, f"make_{networks.get(name, name)}")(Path(root) / kind))
            for kind, name in kinds.items()
        }


def pairs(limit: int, root: Path) -> list[Pair]:
    """Samples of the nano evaluation split, with an imagined edit: the sample with its lower half from the
    target.

    Half of the objects are thereby gone and half of them are not, as with an editor that works sometimes.
    """
    folder = data.ensure("val")
    rows = json.loads((folder / "val.json").read_text(encoding="utf-8"))[:limit]
    found = []
    for row in rows:
        sample = folder / "nein_val" / f"{row['NeIn']}.png"
        target = folder / "coco_for_val" / f"{row['COCO']}.png"
        edited = np.array(Image.open(sample).convert("RGB"))
        half = edited.shape[0] // 2
        edited[half:] = np.asarray(Image.open(target).convert("RGB"))[half:]
        path = root / f"{row['NeIn']}.png"
        Image.fromarray(edited).save(path)
        name = " ".join(row["T_generated"].split()[2:]).rstrip(".")
        found.append(Pair(row["NeIn"], path, sample, target, name, row["T_original"]))
    return found


def decode(path: Path) -> np.ndarray:
    """Open a picture: (H, W, 3) uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def timed(function: Callable[[], Result]) -> tuple[Result, float]:
    """(result, seconds)."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def blocks(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Consecutive parts of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def setup(threads: int) -> None:
    """Equal conditions: the given number of threads for torch, no progress bars."""
    import transformers

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def line(name: str, seconds: float, count: int, reference: float | None = None) -> str:
    """One row of the printed table."""
    ratio = f"{reference / seconds:7.1f}x" if reference is not None else f"{'1.0x':>8}"
    return f"{name:<44}{seconds:>9.2f} s{1000 * seconds / count:>10.1f} ms/sample{ratio}"
