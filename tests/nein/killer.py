"""`python killer.py MARK COUNT HOW ARGS...`: the evaluation command, killed at one exact moment.

MARK   "edits" or "scores": the journal whose COUNT-th line (from 1) is the moment; "images": a PNG.
HOW    "before" the write, "torn" in the middle of it, or "after" it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from nein import cli
from nein.engine import images, journal


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    mark, count, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    seen = 0
    write = journal.Journal._write
    write_png = images.write_png

    def journaled(self: journal.Journal, data: bytes) -> None:
        nonlocal seen
        if not self.path.name.startswith(mark) or data == b"\n":
            return write(self, data)
        seen += 1
        if seen == count:
            if how != "before":
                write(self, data if how == "after" else data[: len(data) // 2])
            die()
        return write(self, data)

    def painted(path: Any, image: Any) -> None:
        nonlocal seen
        seen += mark == "images"
        if mark == "images" and seen == count:
            die()
        write_png(path, image)

    journal.Journal._write = journaled  # type: ignore[method-assign]
    images.write_png = painted
    cli.main(["eval", *sys.argv[4:]])


if __name__ == "__main__":
    main()
