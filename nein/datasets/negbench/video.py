"""Frames of a video, decoded by PyAV (FFmpeg).

NegBench takes 4 frames: [0, last] is cut into 4 equal intervals at `linspace(0, last, 5)`, truncated to whole
numbers, and the middle of each, rounded, is taken. Of a video with fewer frames as many are taken as it has.
Source: github.com/m1k2zoo/negbench @ 2ac009b, benchmarks/src/training/video_utils/frame_sampler.py.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from nein.engine.errors import UserError
from nein.engine.images import ImageError


def frame_numbers(length: int, count: int = 4) -> list[int]:
    """Which frames of a video of `length` frames are looked at: `count`, or `length` if that is fewer.

    >>> frame_numbers(100)
    [12, 36, 62, 86]
    """
    if length < 1:
        raise ValueError(f"a video needs at least one frame, not {length}")
    edges = np.linspace(0, length - 1, min(count, length) + 1).astype(int)
    return [int(np.round((a + b) / 2)) for a, b in itertools.pairwise(edges)]


def frames(path: Path, count: int = 4) -> list[np.ndarray]:
    """The frames that `frame_numbers` names, as (H, W, 3) uint8 RGB.

    Raises ImageError for a file that is missing, is no video, or ends before its last needed frame; UserError
    when PyAV is not installed.
    """
    try:
        import av
    except ImportError:
        raise UserError("Videos need one more package: pip install 'nein[negbench]'.") from None
    if not path.is_file():
        raise ImageError(f"{path}: the file is missing")
    try:
        length, promised = _length(path)
        if length == 0:
            raise ImageError(f"{path}: the video has no frame that can be decoded")
        if promised:
            raise ImageError(
                f"{path}: the video is cut short; {length} of its {promised} frames can be decoded"
            )
        wanted = frame_numbers(length, count)
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


def _length(path: Path) -> tuple[int, int]:
    """(frames that can be decoded, frames that the container promises if the file ends before them, else 0).

    Counting decodes once: containers may be wrong about their length. So may even a whole MP4 file be: a clip
    cut out of a longer video without coding it again holds frames that are not to be shown (its edit list).
    There the index says where every frame lies, and thus whether the file has them.
    """
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        promised, length = stream.frames, 0
        try:
            for _ in container.decode(stream):
                length += 1
        except av.FFmpegError:
            if promised == 0:
                raise
        if "mp4" in container.format.name.split(","):
            end = path.stat().st_size
            whole = all(entry.pos + entry.size <= end for entry in stream.index_entries)
        else:
            whole = promised <= length
        return length, 0 if whole else promised
