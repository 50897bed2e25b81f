"""Thumbnails: pictures as a page shows them; those of many files are made in processes beside this one.

Threads would wait for each other and for the one that makes the page, since they are hardly ever outside
Python for long: half of the time was lost so. A process reads its files from a list, says what it makes of
them line by line, and waits while nobody reads; it imports from where this process does, and nothing of the
script that asked for a page.
"""

from __future__ import annotations

import binascii
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic_core import from_json, to_json

from nein.engine import cores, images

#: A picture as base64 JPEG, or why there is none.
Thumbnail = str | dict[str, str]
#: A file; or why there is none, which stays as it is.
Place = str | dict[str, str]
#: Samples whose pictures are made together; from how many samples on other processes make them, of which
#: there are at most so many.
TOGETHER, MANY, MOST = 8, 100, 16
_START = "import sys; sys.path[:] = {}; from nein.reporting import thumbnails; thumbnails.main(sys.argv[1:])"


def of_picture(picture: np.ndarray, side: int) -> Thumbnail:
    """A picture, (H, W, 3) uint8, shrunk until its longer side is at most `side` pixels."""
    return _text(images.thumbnail(picture, side))


def of_file(path: Path, side: int) -> Thumbnail:
    """The picture of a file, shrunk in the same way; or why there is none."""
    try:
        return _text(images.thumbnail_of(path, side))
    except images.ImageError as error:
        return {"none": str(error).rpartition(": ")[2]}


@contextlib.contextmanager
def of_samples(samples: Iterable[Sequence[Place]], side: int) -> Iterator[Iterator[list[Thumbnail]]]:
    """The pictures of every sample, in order; side 0: none. Processes begin at once, and end with the block.

    The iterator raises CalledProcessError where one of them ended before it was done.
    """
    if not side:
        yield ([] for _ in samples)
        return
    coming = iter(samples)
    few = [*itertools.islice(coming, MANY)]
    every = _together(itertools.chain(few, coming))
    if len(few) < MANY:
        yield itertools.chain.from_iterable(_of_part(part, side) for part in every)
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        listed = Path(folder) / "files.jsonl"
        with listed.open("w", encoding="utf-8") as file:
            parts = sum(1 for part in every if file.write(json.dumps(part) + "\n"))
        count = min(cores.count(), MOST, parts)
        words = [[str(listed), str(side), str(first), str(count)] for first in range(count)]
        makers = [running.enter_context(_maker(line)) for line in words]
        yield _said(itertools.islice(itertools.cycle(makers), parts))


def _said(makers: Iterable[subprocess.Popen[bytes]]) -> Iterator[list[Thumbnail]]:
    """A line of each."""
    for maker in makers:
        assert maker.stdout is not None
        line = maker.stdout.readline()
        if not line.endswith(b"\n"):
            raise subprocess.CalledProcessError(maker.wait(), "nein.reporting.thumbnails")
        yield from from_json(line)


def main(words: Sequence[str]) -> None:
    """Prints a line for every COUNTth line of a list, from the FIRST on. words: list, side, FIRST, COUNT."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads is gone: there is nothing to say
    side, first, count = map(int, words[1:])
    with Path(words[0]).open(encoding="utf-8") as lines:
        for line in itertools.islice(lines, first, None, count):
            sys.stdout.buffer.write(to_json(_of_part(json.loads(line), side)) + b"\n")
            sys.stdout.flush()


@contextlib.contextmanager
def _maker(words: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs `main`; it ends with the block. Ctrl-C and SIGTERM are for this process alone."""
    line = [sys.executable, "-c", _START.format(sys.path), *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, bufsize=2**17, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _together(samples: Iterable[Sequence[Place]]) -> Iterator[list[Sequence[Place]]]:
    coming = iter(samples)
    while part := [*itertools.islice(coming, TOGETHER)]:
        yield part


def _of_part(samples: Sequence[Sequence[Place]], side: int) -> list[list[Thumbnail]]:
    """The pictures of samples, each file read once."""
    files = dict.fromkeys(place for sample in samples for place in sample if isinstance(place, str))
    made: dict[str, Any] = {path: of_file(Path(path), side) for path in files}
    return [[made[p] if isinstance(p, str) else p for p in sample] for sample in samples]


def _text(jpeg: bytes) -> str:
    return binascii.b2a_base64(jpeg, newline=False).decode("ascii")
