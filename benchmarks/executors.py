"""What the engine costs: starting a command, a block of it, and the file operations of a sample.

    python -m benchmarks.executors [--samples 32] [--on debug,threads,ray]

`nein eval` with an editor that does nothing, L1 and blocks of one sample, of N and of 2 N samples: the
difference is what N samples cost, the rest of the first is the start. Files have to be equal, byte by byte,
on every executor. File operations are Python's audit events below the folder of results, and its calls of
fsync and stat. Seconds are of the clock: on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORDS = ("eval", "--editor", "identity", "--metrics", "l1", "--control", "none", "--stages", "edit,score")
EXECUTORS = {
    "debug": ("--on", "debug"),
    "threads": ("--on", "threads"),
    "ray": ("--on", "ray", "--executor.workers", "2"),
}


def evaluate(samples: int, out: Path, *more: str) -> float:
    """Seconds of an evaluation in a process of its own. Raises CalledProcessError."""
    line = [sys.executable, "-m", "nein", *WORDS, "--device", "cpu", "--batch-size", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    subprocess.run(
        [*line, "--limit", str(samples), "--out", str(out), *more],
        cwd=ROOT, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    return time.perf_counter() - start


def blocks_of(out: Path) -> dict[str, bytes]:
    """Blocks of edits and scores, and images."""
    patterns = ("*/*/edit/*/*.jsonl", "*/*/scores/*/*/*.jsonl", "*/*/images/*/*.png")
    files = [path for pattern in patterns for path in out.glob(pattern)]
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def compare_executors(samples: int, names: list[str], root: Path) -> None:
    evaluate(1, root / "warm")  # draws the data
    print(f"{'executor':12}{'start, s':>10}{'a sample, ms':>14}")
    reference: dict[str, bytes] = {}
    for name in names:
        few = evaluate(samples, root / f"{name}-few", *EXECUTORS[name])
        many = evaluate(2 * samples, root / f"{name}-many", *EXECUTORS[name])
        print(f"{name:12}{2 * few - many:>10.2f}{1000 * (many - few) / samples:>14.1f}", flush=True)
        made = blocks_of(root / f"{name}-many")
        assert len(made) >= 3 * 2 * samples, "blocks or images are missing"
        reference = reference or made
        assert made == reference, f"the files of {name} differ from those of {names[0]}"
    print("files equal byte by byte: yes")


def count_operations(samples: int, out: str) -> None:
    """In a process of its own: an evaluation, and what it asks of the file system, printed as JSON."""
    from nein import cli

    counts: Counter[str] = Counter()

    def audit(event: str, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], str | os.PathLike) and str(given[0]).startswith(out):
            if event == "open" or event.startswith(("os.", "shutil.")):
                counts[event.removeprefix("os.")] += 1

    def count_calls(name: str) -> None:
        original = getattr(os, name)

        def call(place: Any, *given: Any, **options: Any) -> Any:
            counts[name] += isinstance(place, int) or str(place).startswith(out)
            return original(place, *given, **options)

        setattr(os, name, call)

    sys.addaudithook(audit)
    for name in ("fsync", "stat", "lstat"):
        count_calls(name)
    try:
        cli.main([*WORDS, "--device", "cpu", "--limit", str(samples), "--out", out])
    finally:
        print(json.dumps(counts))


def show_operations(samples: int, root: Path) -> None:
    counted = []
    for count in (samples, 2 * samples):
        line = [sys.executable, "-m", "benchmarks.executors", "--count", str(count), str(root / str(count))]
        done = subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True)
        counted.append(Counter(json.loads(done.stdout.splitlines()[-1])))
    more = counted[1] - counted[0]
    print("file operations of one sample more, in blocks of 16")
    for name, count in more.most_common():
        print(f"{name:12}{count / samples:>8.2f}")
    print(f"{'in all':12}{more.total() / samples:>8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--samples", type=int, default=32, help="N, a multiple of 16 (default 32)")
    parser.add_argument("--on", default=",".join(EXECUTORS), help=f"of {', '.join(EXECUTORS)}")
    parser.add_argument("--count", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count:
        count_operations(int(options.count[0]), options.count[1])
        return
    with tempfile.TemporaryDirectory() as scratch:
        compare_executors(options.samples, options.on.split(","), Path(scratch))
        show_operations(options.samples, Path(scratch))


if __name__ == "__main__":
    main()
