"""`nein data`: the miniature world as files, and a look at a folder in NeIn's layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nein.config.options import DrawnCount, Options, argument, option


@dataclass(kw_only=True)
class DrawConfig(Options):
    """Which part of the miniature world, and where to."""

    split: Literal["train", "dev", "val"] = option("val", "which part of the world")
    sources: DrawnCount | None = option(None, "number of source images (default: the split's own)")
    out: Path | None = option(None, "parent folder (default: the user's cache)")


@dataclass(kw_only=True)
class CheckConfig(Options):
    """Which folder is looked at."""

    folder: str = argument("FOLDER", "folder in NeIn's layout, or nano")
    split: str = option("val", "which annotation file")


def draw(options: DrawConfig) -> str:
    from nein.nano import data

    return f"{data.ensure(options.split, options.sources, options.out)}\n"


def check(options: CheckConfig) -> str:
    """Reads annotations and decodes every image of a folder; says how many. Raises UserError."""
    from nein.datasets import nein as loading
    from nein.datasets.nein import validate_images

    dataset = loading.load(options.folder, split=options.split)
    validate_images(dataset.samples, f"'{options.folder}'", full=True)
    sources = len({sample.source_id for sample in dataset.samples})
    return f"{len(dataset.samples)} samples of {sources} source images are in order in '{options.folder}'.\n"
