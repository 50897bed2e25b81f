"""Pictures and videos behind the references of a task: files found by name, or scenes drawn on demand.

`region("a.jpg", (0, 0, 20, 30.5))` refers to a picture and a box. Of a video 4 frames are taken as by
github.com/m1k2zoo/negbench @ 2ac009b, video_utils/frame_sampler.py: the middle, rounded, of each of 4 equal
intervals; of one with fewer frames all. PyAV (FFmpeg) decodes them.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import unicodedata
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from nein.datasets.negbench.official import file_name
from nein.datasets.negbench.records import Media
from nein.engine.errors import UserError
from nein.engine.images import ImageError, decode, find_file, orientation
from nein.loading.references import is_local

Box = tuple[float, float, float, float]
_BOX = "#box="
VIDEO_SUFFIXES = frozenset((".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v"))
PICTURE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp"))
FRAMES = 4


def region(reference: str, box: Box) -> str:
    """A reference to a part of a picture; box: x, y, width and height in pixels."""
    return f"{reference}{_BOX}{','.join(f'{number:.10g}' for number in box)}"


def whole(reference: str) -> tuple[str, Box | None]:
    """The picture of a reference, and the box of a region."""
    name, mark, numbers = reference.partition(_BOX)
    if not mark:
        return reference, None
    x, y, width, height = map(float, numbers.split(","))
    return name, (x, y, width, height)


def crop(picture: np.ndarray, box: Box) -> np.ndarray:
    """The region of (H, W, 3) uint8, rounded to pixels; black outside the picture."""
    x, y, width, height = box
    return np.asarray(Image.fromarray(picture).crop((x, y, x + width, y + height)))


class Files(Media):
    """Pictures and videos on disk.

    root  (`--image-root`) A reference is tried below it, then shorter and shorter tails of it, then its file
          name anywhere below. None: references are paths, relative ones from `beside`, the file's folder.
    """

    def __init__(self, root: Path | None = None, beside: Path | None = None) -> None:
        if root is not None and not root.is_dir():
            raise UserError(f"There is no folder '{root}'; --image-root names the folder of the pictures.")
        self.root = root
        self.beside = beside or Path()

    def path(self, reference: str) -> Path:
        """Raises ImageError when the file is missing or its name is not unique."""
        if self.root is None:
            file = Path(reference)
            return find_file(file if file.is_absolute() or file.exists() else self.beside / file)
        parts = PurePosixPath(reference.replace("\\", "/")).parts
        parts = tuple(part for part in parts if part not in ("/", "..", "."))
        for start in range(len(parts)):
            candidate = find_file(self.root.joinpath(*parts[start:]))
            if is_local(candidate):
                return candidate
        named = self._by_name.get(unicodedata.normalize("NFC", file_name(reference)), [])
        if not named:
            raise ImageError(f"{reference}: there is no file of this name below '{self.root}'")
        if len(named) > 1:
            raise ImageError(
                f"{reference}: {len(named)} files below '{self.root}' have this name; "
                "give the folder of the right one as --image-root"
            )
        return named[0]

    def listing(self) -> list[str]:
        """All pictures below the root, or beside the file, by name. Raises UserError without any."""
        top = self.root or self.beside
        files = [file for file in top.rglob("*") if file.suffix.lower() in PICTURE_SUFFIXES]
        if not files:
            raise UserError(f"There are no pictures below '{top}'; give their folder as --image-root.")
        return sorted(file.relative_to(top).as_posix() for file in files)

    def found(self, reference: str) -> Path | None:
        """The file of a reference, also of a region; None without one."""
        with contextlib.suppress(ImageError):
            if (path := self.path(whole(reference)[0])).is_file():
                return path
        return None

    def files(self, references: Iterable[str]) -> list[Path]:
        return [self.found(reference) or self.beside / "missing" for reference in references]

    def turned(self, references: Iterable[str]) -> int:
        count = 0
        for path in filter(None, map(self.found, references)):
            with contextlib.suppress(ImageError):
                count += path.suffix.lower() not in VIDEO_SUFFIXES and orientation(path) != 1
        return count

    def frames(self, reference: str) -> list[np.ndarray]:
        """One picture or region, or the frames of a video. Raises ImageError."""
        reference, box = whole(reference)
        path = self.path(reference)
        if path.suffix.lower() in VIDEO_SUFFIXES:
            return video_frames(path)
        picture = decode(path)
        return [picture if box is None else crop(picture, box)]

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        assert self.root is not None
        files: dict[str, list[Path]] = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                files.setdefault(unicodedata.normalize("NFC", name), []).append(Path(folder, name))
        return files


class Drawn(Media):
    """Pictures that are made when asked for: `draw(reference)` gives one (H, W, 3) uint8 array or several."""

    def __init__(self, draw: Callable[[str], np.ndarray | list[np.ndarray]]) -> None:
        self._draw = draw

    def frames(self, reference: str) -> list[np.ndarray]:
        pictures = self._draw(reference)
        return pictures if isinstance(pictures, list) else [pictures]


def frame_numbers(length: int) -> list[int]:
    """Which frames of a video of `length` frames are taken.

    >>> frame_numbers(100)
    [12, 36, 62, 86]
    """
    if length < 1:
        raise ValueError(f"a video needs at least one frame, not {length}")
    edges = np.linspace(0, length - 1, min(FRAMES, length) + 1).astype(int)
    return [int(np.round((a + b) / 2)) for a, b in itertools.pairwise(edges)]


def video_frames(path: Path) -> list[np.ndarray]:
    """The frames of `frame_numbers`, (H, W, 3) uint8 RGB. Raises ImageError, and UserError without PyAV."""
    try:
        import av
    except ImportError:
        raise UserError("Videos need one more package: pip install 'nein[negbench]'.") from None
    if not path.is_file():
        raise ImageError(f"{path}: the file is missing")
    try:
        wanted = frame_numbers(_length(path))
        pictures: dict[int, np.ndarray] = {}
        with av.open(str(path)) as container:
            for number, frame in enumerate(container.decode(video=0)):
                if number in wanted:
                    pictures[number] = frame.to_ndarray(format="rgb24")
                if number >= wanted[-1]:
                    break
    except (av.FFmpegError, IndexError, EOFError) as error:
        detail = getattr(error, "strerror", None) or "there is no video in it"
        raise ImageError(f"{path}: the video cannot be decoded ({detail})") from None
    return [pictures[number] for number in wanted]


def _length(path: Path) -> int:
    """How many frames can be decoded: containers may be wrong about it. Raises ImageError for none, and for a
    file that ends before what its index names (a clip cut out of a video holds frames that are not shown)."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        is_whole = all(each.pos + each.size <= path.stat().st_size for each in stream.index_entries)
        length = 0
        with contextlib.suppress(*([] if is_whole else [av.FFmpegError])):
            for _ in container.decode(stream):
                length += 1
        if not is_whole:
            what = f"{length} of its {stream.frames} frames can be decoded"
            raise ImageError(f"{path}: the video is cut short; {what}")
    if length == 0:
        raise ImageError(f"{path}: the video has no frame that can be decoded")
    return length
