"""Run `nein data`: write the nano world to files (`draw`), or check a folder in NeIn's layout (`check`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nein.config.options import DrawnCount, Options, argument, option


@dataclass(kw_only=True)
class DrawConfig(Options):
    """Options of `nein data draw`: which part of the nano world to write, and where."""

    split: Literal["train", "dev", "val"] = option("val", "which part of the world")
    sources: DrawnCount | None = option(None, "number of source images (default: the split's own)")
    out: Path | None = option(None, "parent folder (default: the user's cache)")


@dataclass(kw_only=True)
class CheckConfig(Options):
    """Options of `nein data check`: the folder to check."""

    folder: str = argument("FOLDER", "folder in NeIn's layout, or nano")
    split: str = option("val", "which annotation file")


def draw(options: DrawConfig) -> str:
    """Write images and annotations, unless they exist; returns the line to print, their folder."""
    from nein.nano import data

    return f"{data.ensure_data_set(options.split, options.sources, options.out)}\n"


def check(options: CheckConfig) -> str:
    """Decode every image of a folder; returns the line to print. Raises UserError for what is wrong."""
    from nein.datasets.nein import load, validate_images

    dataset = load(options.folder, split=options.split)
    validate_images(dataset.samples, f"'{options.folder}'", full=True)
    sources = len({sample.source_id for sample in dataset.samples})
    return f"{len(dataset.samples)} samples of {sources} source images are in order in '{options.folder}'.\n"
