"""Reads the images and videos of a NegBench task: from a reference to pixels, on disk or drawn on request."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from PIL import Image

from nein.engine.images import ImageError, decode, find_file
from nein.loading.errors import UserError
from nein.loading.references import is_local

VIDEO_SUFFIXES = frozenset((".mp4", ".webm", ".mkv", ".avi", ".mov", ".m4v"))
PICTURE_SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp"))


class Media:
    """The source of a task's images, by reference."""

    def frames(self, reference: str) -> list[np.ndarray]:
        """(H, W, 3) uint8 RGB arrays: one of an image, several of a video. Raises ImageError."""
        raise NotImplementedError

    def files(self, references: Iterable[str]) -> list[Path]:
        """The file of each reference, or a path that does not exist; [] for images that are not files."""
        return []


# --- references ------------------------------------------------------------------------------------
Box = tuple[float, float, float, float]  # x, y, width, height in pixels
_BOX = "#box="  # in a reference: what follows is a box, the part of the image that is meant


def make_region(reference: str, box: Box) -> str:
    """A reference to a part of an image."""
    return f"{reference}{_BOX}{','.join(f'{number:.10g}' for number in box)}"


def split_region(reference: str) -> tuple[str, Box | None]:
    """(the image of a reference, the box if it is a region)."""
    name, mark, numbers = reference.partition(_BOX)
    if not mark:
        return reference, None
    x, y, width, height = map(float, numbers.split(","))
    return name, (x, y, width, height)


def split_path(reference: str) -> tuple[str, ...]:
    """The parts of a path of Windows or POSIX, without drive and root."""
    path = PureWindowsPath(reference) if "\\" in reference else PurePosixPath(reference)
    return path.parts[1:] if path.anchor else path.parts


def file_name(reference: str) -> str:
    return (split_path(reference) or (reference,))[-1]


# --- images on disk, and drawn ---------------------------------------------------------------------
class Files(Media):
    """Images and videos on disk.

    root        (`--image-root`) A reference is tried below it, then shorter and shorter tails of it, then its
                file name anywhere below. None: references are paths.
    csv_folder  The folder of the CSV file: relative paths begin there."""

    def __init__(self, root: Path | None = None, csv_folder: Path | None = None) -> None:
        if root is not None and not root.is_dir():
            raise UserError(f"There is no folder '{root}'; pass the folder of the images as --image-root.")
        self.root = root
        self.csv_folder = csv_folder or Path()

    def path(self, reference: str) -> Path:
        """Raises ImageError when the file is missing or its name is not unique."""
        if self.root is None:
            file = Path(reference)
            return find_file(file if file.is_absolute() or file.exists() else self.csv_folder / file)
        parts = [part for part in split_path(reference) if part not in ("..", ".")]
        for start in range(len(parts)):
            candidate = find_file(self.root.joinpath(*parts[start:]))
            if is_local(candidate):
                return candidate
        named = self._files_by_name.get(unicodedata.normalize("NFC", file_name(reference)), [])
        if len(named) == 1:
            return named[0]
        advice = "; give the folder of the right one as --image-root" if named else ""
        raise ImageError(f"{reference}: {len(named)} files below '{self.root}' have this name{advice}")

    def list_images(self) -> list[str]:
        """References of all images below the root or the CSV file's folder. Raises UserError without any."""
        top = self.root or self.csv_folder
        files = [file for file in top.rglob("*") if file.suffix.lower() in PICTURE_SUFFIXES]
        if not files:
            raise UserError(f"There are no images below '{top}'; pass their folder as --image-root.")
        return sorted(file.relative_to(top).as_posix() for file in files)

    def find_path(self, reference: str) -> Path | None:
        """The file of a reference, also of a region; None without one."""
        try:
            path = self.path(split_region(reference)[0])
        except ImageError:
            return None
        return path if path.is_file() else None

    def files(self, references: Iterable[str]) -> list[Path]:
        return [self.find_path(reference) or self.csv_folder / "missing" for reference in references]

    def frames(self, reference: str) -> list[np.ndarray]:
        """A region is rounded to pixels, and black outside the image."""
        reference, box = split_region(reference)
        path = self.path(reference)
        if path.suffix.lower() in VIDEO_SUFFIXES:
            return read_video(path)
        pixels = decode(path)  # (H, W, 3) uint8
        if box is not None:
            x, y, width, height = box
            pixels = np.asarray(Image.fromarray(pixels).crop((x, y, x + width, y + height)))
        return [pixels]

    @cached_property
    def _files_by_name(self) -> dict[str, list[Path]]:
        assert self.root is not None
        files: dict[str, list[Path]] = {}
        for file in self.root.rglob("*"):
            files.setdefault(unicodedata.normalize("NFC", file.name), []).append(file)
        return files


@dataclass(frozen=True)
class Drawn(Media):
    """Images drawn on request: `draw(reference)` returns one (H, W, 3) uint8 array or several."""

    draw: Callable[[str], np.ndarray | list[np.ndarray]]

    def frames(self, reference: str) -> list[np.ndarray]:
        frames = self.draw(reference)
        return frames if isinstance(frames, list) else [frames]


# --- videos ----------------------------------------------------------------------------------------
def choose_frames(length: int) -> list[int]:
    """The indices of the frames taken of a video with `length` frames: the middles of four equal parts.

    >>> choose_frames(100)
    [12, 36, 62, 86]"""
    edges = np.linspace(0, length - 1, min(4, length) + 1).astype(int)
    return [int(np.round((a + b) / 2)) for a, b in itertools.pairwise(edges)]


def read_video(path: Path) -> list[np.ndarray]:
    """The frames of `choose_frames`, (H, W, 3) uint8 RGB. Raises ImageError, and UserError without PyAV."""
    try:
        import av
    except ImportError:
        raise UserError("Videos need one more package: pip install -e '.[negbench]'.") from None
    if not path.is_file():
        raise ImageError(f"{path}: the file is missing")
    try:
        indices = choose_frames(_count_frames(path))
        arrays = {}  # index -> (H, W, 3) uint8
        with av.open(str(path)) as container:
            for index, frame in enumerate(itertools.islice(container.decode(video=0), indices[-1] + 1)):
                if index in indices:
                    arrays[index] = frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, IndexError, EOFError) as error:
        detail = getattr(error, "strerror", None) or "there is no video in it"
        raise ImageError(f"{path}: the video cannot be decoded ({detail})") from None
    return [arrays[index] for index in indices]


def _count_frames(path: Path) -> int:
    """Counts the frames that can be decoded, since a container's count may be wrong. Raises ImageError for
    none, and for a file that ends before its index does."""
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        is_whole = all(entry.pos + entry.size <= path.stat().st_size for entry in stream.index_entries)
        length = 0
        try:
            for _ in container.decode(stream):
                length += 1
        except av.FFmpegError:
            if is_whole:
                raise
        if not is_whole:
            extent = f"{length} of its {stream.frames} frames can be decoded"
            raise ImageError(f"{path}: the video is cut short; {extent}")
    if length == 0:
        raise ImageError(f"{path}: the video has no frame that can be decoded")
    return length
