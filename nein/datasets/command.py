"""The command `nein data`: writes the miniature world to files, and checks a folder in NeIn's layout."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nein.config.options import DrawnCount, Options, argument, option


@dataclass(kw_only=True)
class DrawConfig(Options):
    """Which part of the miniature world to write, and where."""

    split: Literal["train", "dev", "val"] = option("val", "which part of the world")
    sources: DrawnCount | None = option(None, "number of source images (default: the split's own)")
    out: Path | None = option(None, "parent folder (default: the user's cache)")


@dataclass(kw_only=True)
class CheckConfig(Options):
    """Which folder to check."""

    folder: str = argument("FOLDER", "folder in NeIn's layout, or nano")
    split: str = option("val", "which annotation file")


def draw(options: DrawConfig) -> str:
    """Writes the images and annotations, unless they exist; the line to print is their folder."""
    from nein.nano import data

    return f"{data.ensure(options.split, options.sources, options.out)}\n"


def check(options: CheckConfig) -> str:
    """Reads the annotations and decodes every image of a folder; the line to print is their number. Raises
    UserError."""
    from nein.datasets.nein import load, validate_images

    dataset = load(options.folder, split=options.split)
    validate_images(dataset.samples, f"'{options.folder}'", full=True)
    sources = len({sample.source_id for sample in dataset.samples})
    return f"{len(dataset.samples)} samples of {sources} source images are in order in '{options.folder}'.\n"
