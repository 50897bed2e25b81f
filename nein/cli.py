"""The commands: `nein-eval`, `nein-report`, `nein-convert`, ... Options are parsed before heavy imports."""

from __future__ import annotations

import argparse
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from nein.engine.errors import UserError

USER_MISTAKE, INTERRUPTED, TERMINATED = 2, 130, 143


class Terminated(BaseException):
    """SIGTERM arrived. Finished blocks are on disk already, so ending is all there is to do."""


def main_eval(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-eval`."""
    _finish(lambda: _eval(sys.argv[1:] if argv is None else argv))


def main_grid(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-grid`."""

    def command() -> int | None:
        from nein.benchmarks.nein import grid

        return grid.main(list(sys.argv[1:] if argv is None else argv))

    _finish(command)


def main_report(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-report`."""
    _run("nein.benchmarks.nein.reporting.command:main_report", argv)


def main_compare(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-compare`."""
    _run("nein.benchmarks.nein.reporting.command:main_compare", argv)


def main_calibrate(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-calibrate`."""
    _run("nein.judges.calibrate:main", argv)


def main_check(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-check`."""
    _run("nein.judges.check:main", argv)


def main_data(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-data`."""
    _finish(lambda: _data(sys.argv[1:] if argv is None else argv))


def main_convert(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-convert`."""
    _run("nein.models.convert:main", argv)


def main_build(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-build`."""
    _finish(lambda: _build(sys.argv[1:] if argv is None else argv))


def main_stats(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-stats`."""
    _run("nein.generate.nein.stats:main", argv)


def main_negvqa(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-negvqa`."""
    _run("nein.benchmarks.negvqa.command:main", argv)


def main_negbench(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of `nein-negbench`."""
    _run("nein.benchmarks.negbench.command:main", argv)


def _run(place: str, argv: Sequence[str] | None) -> NoReturn:
    """Runs the command at `place` ("module:function"), imported only now."""

    def command() -> int | None:
        return pkgutil.resolve_name(place)(list(sys.argv[1:] if argv is None else argv))

    _finish(command)


def _build(argv: Sequence[str]) -> None:
    from nein.config.launch import launch
    from nein.generate.nein.config import parse

    launch(*parse(argv), "nein.generate.nein.build:build")


def _eval(argv: Sequence[str]) -> None:
    from nein.benchmarks.nein.config import parse
    from nein.config.launch import launch

    launch(*parse(argv), "nein.benchmarks.nein.evaluate:evaluate", results=True)


def _data(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="nein-data",
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
    from nein.datasets.nein.samples import Problems, validate_images
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


def _finish(command: Callable[[], int | None]) -> NoReturn:
    """Runs a command and ends the process; a mistake of the user becomes one sentence on standard error."""
    in_main_thread = threading.current_thread() is threading.main_thread()  # only there signals can be caught
    before = signal.signal(signal.SIGTERM, _terminate) if in_main_thread else None
    try:
        code = command() or 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _say("Interrupted; run the same command again to go on.", INTERRUPTED)
    except Terminated:
        code = _say("Terminated; run the same command again to go on.", TERMINATED)
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except (RuntimeError, MemoryError, ValueError, OSError) as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        code = _say(sentence, USER_MISTAKE)
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, before)
    sys.exit(code)


def _sentence(error: BaseException) -> str | None:
    """What to tell the user, or None for a defect of ours, which deserves its traceback."""
    from editors import EditorError
    from metrics import MetricError
    from metrics.base import out_of_memory

    if isinstance(error, UserError | EditorError | MetricError):
        return str(error)
    if out_of_memory(error):
        return "Memory ran out; lower --batch-size or choose a smaller --dtype (and another --out)."
    if isinstance(error, OSError) and error.errno in (28, 122):  # no space left, quota exceeded
        return f"The disk is full ({error.filename or error.strerror}); free space and run the command again."
    return None


def _say(sentence: str, code: int) -> int:
    rank = os.environ.get("RANK", "0")
    place = "" if rank == "0" else f"process {rank}: "
    print(place + (f"error: {sentence}" if code == USER_MISTAKE else sentence), file=sys.stderr, flush=True)
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


#: For the commands of other packages: the same sentences, signals and exit codes.
finish = _finish
