"""`nein generate` in a forked process, killed at one exact moment. Forking keeps the libraries that are
loaded."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from typing import Any

from nein import cli
from nein.engine import atomic, images
from nein.engine.folder import Folder
from nein.generate.nein import dataset


def run(arguments: list[str], mark: str = "", count: int = 0, how: str = "before") -> int:
    """Exit code of `nein generate ARGUMENTS`; -9 where it was killed.

    mark  The stage whose COUNT-th shard (from 1) is the moment; "images": a picture; "layout": a file of the
          finished data set; "" for never.
    how   "before" the write, "torn" in the middle of it, or "after" it.
    """
    process = multiprocessing.get_context("fork").Process(target=_child, args=(arguments, mark, count, how))
    process.start()
    process.join(240)
    assert process.exitcode is not None
    return process.exitcode


def start(arguments: list[str]) -> Any:
    """The same without waiting: a process to join."""
    process = multiprocessing.get_context("fork").Process(target=_child, args=(arguments, "", 0, "before"))
    process.start()
    return process


def _child(arguments: list[str], mark: str, count: int, how: str) -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123
    seen = 0
    write, write_png, put = Folder.write, images.write_png, dataset._put

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def written(self: Folder, output: str, number: int, rows: Any) -> None:
        nonlocal seen
        seen += output == f"work/{mark}"
        moment = output == f"work/{mark}" and seen == count
        if moment and how == "torn":
            with atomic.writing(self.block_path(output, number)) as file:
                file.write(b'{"id": "half a li')
                file.flush()
                die()
        if moment and how == "before":
            die()
        write(self, output, number, rows)
        if moment:
            die()

    def painted(path: Any, image: Any) -> None:
        nonlocal seen
        if mark == "images" and path.name.startswith("NeIn"):
            seen += 1
            if seen == count:
                die()
        write_png(path, image)

    def placed(source: Any, target: Any, drafts: Any, *, link: bool) -> None:
        nonlocal seen
        seen += mark == "layout"
        if mark == "layout" and seen == count:
            die()
        put(source, target, drafts, link=link)

    Folder.write = written  # type: ignore[method-assign]
    images.write_png = painted
    dataset._put = placed
    cli.main(["generate", *arguments])
