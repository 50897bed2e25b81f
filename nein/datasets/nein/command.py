"""`nein data`: the miniature world as files, and a look at a folder in NeIn's layout."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from nein.engine.errors import Problems, UserError


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="nein data",
        description="Write the embedded miniature world, or check a folder in NeIn's layout.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    nano = commands.add_parser("nano", help="draw the miniature world into a folder")
    nano.add_argument("--split", default="val", help="train, dev or val (default: val)")
    nano.add_argument(
        "--sources", type=int, default=None, help="number of source images (default: the split's own)"
    )
    nano.add_argument("--out", type=Path, default=None, help="parent folder (default: the user's cache)")
    check = commands.add_parser("check", help="validate annotations and every image of a folder")
    check.add_argument("folder", help="folder in NeIn's layout, or nano")
    check.add_argument("--split", default="val", help="which annotation file (default: val)")
    check.add_argument("--full", action="store_true", help="decode every image instead of reading headers")
    arguments = parser.parse_args(list(argv))
    if arguments.command == "nano":
        from nein.nano import data as nano_data

        try:
            print(nano_data.ensure(arguments.split, arguments.sources, arguments.out))
        except (ValueError, OSError) as error:
            raise UserError(f"The miniature world cannot be drawn: {error}.") from None
        return
    _check(arguments.folder, arguments.split, arguments.full)


def _check(folder: str, split: str, full: bool) -> None:
    from nein.datasets.nein import loading
    from nein.datasets.nein.samples import validate_images
    from nein.engine import images

    dataset = loading.load(folder, split=split)
    validate_images(dataset.samples, f"'{folder}'")
    if full:
        problems = Problems()
        for path in dict.fromkeys(p for s in dataset.samples for p in (s.source_path, s.sample_path)):
            try:
                images.decode(path)
            except images.ImageError as error:
                problems.add("unreadable image", str(error))
        problems.raise_if_any(f"'{folder}'")
    sources = len({sample.source_id for sample in dataset.samples})
    print(f"{len(dataset.samples)} samples of {sources} source images are in order in '{folder}'.")
