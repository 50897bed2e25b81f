"""Pictures and videos behind the references of a task: files found by name, or scenes drawn on demand.

A reference to a region is that of the picture and a box, `region("a.jpg", (0, 0, 20, 30.5))`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from nein.datasets.negbench.official import file_name
from nein.engine.errors import UserError
from nein.engine.images import ImageError, decode

Box = tuple[float, float, float, float]
_BOX = "#box="
VIDEO_SUFFIXES = frozenset((".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v"))
PICTURE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp"))
FRAMES = 4


def region(reference: str, box: Box) -> str:
    """A reference to a part of a picture; `box`: x, y, width and height in pixels, as COCO has it."""
    return f"{reference}{_BOX}{','.join(f'{number:.10g}' for number in box)}"


def whole(reference: str) -> tuple[str, Box | None]:
    """The picture that a reference is about, and the box where it is about a region."""
    name, mark, numbers = reference.partition(_BOX)
    if not mark:
        return reference, None
    x, y, width, height = map(float, numbers.split(","))
    return name, (x, y, width, height)


def crop(picture: np.ndarray, box: Box) -> np.ndarray:
    """The region of (H, W, 3) uint8, its borders rounded to pixels; outside the picture it is black."""
    x, y, width, height = box
    return np.asarray(Image.fromarray(picture).crop((x, y, x + width, y + height)))


class Files:
    """Pictures and videos on disk.

    root  Where to look (`--image-root`). A reference is tried below it as it stands, then shorter and shorter
          tails of it, then by its file name alone anywhere below. None: references are paths that exist as
          they are, relative ones from `beside` (the folder of the file that names them).
    """

    def __init__(self, root: Path | None = None, beside: Path | None = None) -> None:
        if root is not None and not root.is_dir():
            raise UserError(f"There is no folder '{root}'; --image-root names the folder of the pictures.")
        self.root = root
        self.beside = beside or Path()

    def path(self, reference: str) -> Path:
        """The file behind a reference. Raises ImageError when it is missing or its name is not unique."""
        if self.root is None:
            file = Path(reference)
            return file if file.is_absolute() or file.exists() else self.beside / file
        parts = PurePosixPath(reference.replace("\\", "/")).parts
        parts = tuple(part for part in parts if part not in ("/", "..", "."))
        for start in range(len(parts)):
            candidate = self.root.joinpath(*parts[start:])
            if candidate.is_file():
                return candidate
        named = self._by_name.get(file_name(reference), [])
        if len(named) == 1:
            return named[0]
        if not named:
            raise ImageError(f"{reference}: there is no file of this name below '{self.root}'")
        raise ImageError(
            f"{reference}: {len(named)} files below '{self.root}' have this name; "
            "give the folder of the right one as --image-root"
        )

    def listing(self) -> list[str]:
        """References of all pictures below the root, or beside the file that was read, by name. Raises
        UserError where there are none."""
        top = self.root or self.beside
        files = [file for file in top.rglob("*") if file.suffix.lower() in PICTURE_SUFFIXES]
        if not files:
            raise UserError(f"There are no pictures below '{top}'; give their folder as --image-root.")
        return sorted(file.relative_to(top).as_posix() for file in files)

    def exists(self, reference: str) -> bool:
        """Whether there is such a file."""
        try:
            return self.path(whole(reference)[0]).is_file()
        except ImageError:
            return False

    def frames(self, reference: str) -> list[np.ndarray]:
        """One picture or region, or four frames of a video. Raises ImageError."""
        reference, box = whole(reference)
        path = self.path(reference)
        if path.suffix.lower() in VIDEO_SUFFIXES:
            from nein.datasets.negbench import video

            return video.frames(path, FRAMES)
        picture = decode(path)
        return [picture if box is None else crop(picture, box)]

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        assert self.root is not None
        files: dict[str, list[Path]] = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                files.setdefault(name, []).append(Path(folder, name))
        return files


class Drawn:
    """Pictures that are made when asked for: `draw(reference)` gives one (H, W, 3) uint8 array or several."""

    def __init__(self, draw: Callable[[str], np.ndarray | list[np.ndarray]]) -> None:
        self._draw = draw

    def frames(self, reference: str) -> list[np.ndarray]:
        pictures = self._draw(reference)
        return pictures if isinstance(pictures, list) else [pictures]
