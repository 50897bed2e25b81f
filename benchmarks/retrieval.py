"""Retrieval scoring: every rank in plain NumPy, float64, beside ours; values must be equal, ties and all.

    python -m benchmarks.retrieval [--width 512] [--sizes 4000x2000,20000x5000] [--million]

Plain: blocks of the whole matrix in float64, once for each direction, on one core. Ours: one pass over tiles
in float32 on all cores, float64 where float32 cannot tell. Features are made up: a caption is its picture's
direction and noise, and one in fifty says what another one says. Seconds are of the processor, so that other
work on the machine does not count; a million captions among 20,000 pictures are worked out from the last
size, or really run (--million: ours, 4 GiB of features in a file, minutes). The limit is that of
every benchmark, on one core (`common.limits`). Memory is what the scores take on top of the features, which
both sides are given: of retrieval, and of multiple choice with four captions to a question.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import limits
from metrics.dual.base import prepare
from nein.benchmarks.negbench import results, retrieval
from nein.benchmarks.negbench.encode import Encoded
from nein.benchmarks.negbench.retrieval import Ranks
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.records import ChoiceTask, Option, Question

MILLION = (1_000_000, 20_000)
BLOCK = 4_000_000  # scores that the plain way holds


@dataclass(frozen=True)
class World:
    """Made-up features: `texts` (N, D) and `pictures` (G, D) float32; `place` (N,) each caption's picture."""

    texts: np.ndarray
    pictures: np.ndarray
    place: np.ndarray

    def ours(self) -> tuple[Ranks, Ranks]:
        said, shown = np.arange(len(self.texts)), np.arange(len(self.pictures))
        return retrieval.ranks(self.texts, self.pictures, said, shown, self.place)


def make(captions: int, pictures: int, width: int, folder: Path | None = None) -> World:
    rng = np.random.default_rng(captions)
    shown = rng.standard_normal((pictures, width), dtype=np.float32)
    place = rng.integers(0, pictures, captions)
    said = np.empty((captions, width), np.float32) if folder is None else np.memmap(
        folder / "texts", np.float32, "w+", shape=(captions, width)
    )  # fmt: skip
    for start in range(0, captions, 10_000):
        part = slice(start, min(start + 10_000, captions))
        said[part] = 0.15 * shown[place[part]] + rng.standard_normal(said[part].shape, dtype=np.float32)
    said[rng.integers(0, captions, captions // 50)] = said[rng.integers(0, captions, captions // 50)]
    return World(said, shown, place)


def plain(world: World) -> tuple[Ranks, Ranks]:
    """Both directions, a block of queries against everything."""
    texts, pictures = prepare(world.texts), prepare(world.pictures)
    by_picture: list[list[int]] = [[] for _ in pictures]
    for caption, entry in enumerate(world.place):
        by_picture[entry].append(caption)
    return _plain(texts, pictures, [[entry] for entry in world.place]), _plain(pictures, texts, by_picture)


def _plain(queries: np.ndarray, gallery: np.ndarray, relevant: list[list[int]]) -> Ranks:
    values = np.zeros((5, len(queries)))
    step = max(1, BLOCK // len(gallery))
    for start in range(0, len(queries), step):
        scores = (queries[start : start + step] @ gallery.T).astype(np.float32)
        for row, own in zip(range(start, start + len(scores)), relevant[start : start + step], strict=True):
            line = scores[row - start]
            best = line[own].max() if own else np.float32(np.inf)
            equal = np.flatnonzero(line == best)
            mine = np.isin(equal, own)
            before = int(mine.argmax()) if own else 0
            values[:, row] = best, (line > best).sum(), (~mine).sum(), mine.sum(), before
    return Ranks(values[0].astype(np.float32), *values[1:].astype(np.int64))


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """(result, seconds of the processor, seconds on the clock)."""
    clock, start = time.perf_counter(), time.process_time()
    result = function()
    return result, time.process_time() - start, time.perf_counter() - clock


def grown(function: Callable[[], Any]) -> float:
    """MiB held at once by `function`, of what Python and NumPy know."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def choices(captions: int, world: World) -> Callable[[], Any]:
    """Multiple choice over the same features, four captions to a question; its rows are dropped."""
    options = tuple(Option(f"{k}") for k in range(captions))
    questions = tuple(
        Question(f"{k}", f"{k % len(world.pictures)}", options[4 * k : 4 * k + 4], 0)
        for k in range(captions // 4)
    )
    task = ChoiceTask("made-up/mcq", questions, Drawn(lambda name: np.zeros((1, 1, 3), np.uint8)))
    pictures = Encoded(world.pictures, {f"{k}": k for k in range(len(world.pictures))}, {})
    texts = Encoded(world.texts, {option.text: k for k, option in enumerate(options)}, {})
    return lambda: sum(row["credit"] for row in results.choice_rows(task, pictures, texts))


def compare(sizes: list[tuple[int, int]], width: int) -> None:
    torch.set_num_threads(1)
    top, cores = max(limits("cpu", torch.float32).values()), len(os.sched_getaffinity(0))
    print(f"limit: {top / 1e9:.0f} GFLOP/s on a core in float32; {cores} cores\n")
    print(f"{'captions x pictures':<22}{'plain':>10}{'ours':>10}{'ratio':>8}{'of the limit':>14}{'ties':>8}")
    seconds = (0.0, 0.0)
    for captions, pictures in sizes:
        world = make(captions, pictures, width)
        found, ours, _ = timed(world.ours)
        expected, theirs, _ = timed(functools.partial(plain, world))
        for one, other in zip(found, expected, strict=True):
            for field in dataclasses.fields(Ranks):
                assert (getattr(one, field.name) == getattr(other, field.name)).all(), field.name
        share = 2 * captions * pictures * width / ours / top
        tied = sum(int((ranks.tied > 0).sum()) for ranks in found)
        print(f"{f'{captions} x {pictures}':<22}{theirs:>8.1f} s{ours:>8.1f} s{theirs / ours:>8.1f}"
              f"{100 * share:>12.0f} %{tied:>8}")  # fmt: skip
        more = MILLION[0] * MILLION[1] / (captions * pictures)
        seconds = theirs * more, ours * more
    slow, fast = (value / 60 for value in seconds)
    print("every value equal\n")
    print(
        f"a million captions x 20,000 pictures, from the last: plain {slow:.0f} minutes on one core, "
        f"ours {fast:.1f} minutes of the processor, {fast / cores:.1f} on {cores} cores"
    )


def memory(width: int, sizes: tuple[int, ...]) -> None:
    print(f"\n{'captions':<12}{'retrieval among 2000':>22}{'multiple choice':>18}{'features':>12}")
    for captions in sizes:
        world = make(captions, 2000, width)
        ask = choices(captions, world)
        print(f"{captions:<12}{grown(world.ours):>18.0f} MiB{grown(ask):>14.0f} MiB"
              f"{world.texts.nbytes / 2**20:>8.0f} MiB")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--width", type=int, default=512, help="of the features (default 512)")
    parser.add_argument("--sizes", default="4000x2000,10000x5000,40000x10000", help="captions x pictures")
    parser.add_argument("--memory", default="25000,50000,100000", help="captions whose memory is measured")
    parser.add_argument("--million", action="store_true", help="run ours on a million captions")
    options = parser.parse_args()
    sizes = [tuple(int(part) for part in size.split("x")) for size in options.sizes.split(",")]
    compare([(captions, pictures) for captions, pictures in sizes], options.width)
    memory(options.width, tuple(int(size) for size in options.memory.split(",")))
    if options.million:
        with tempfile.TemporaryDirectory() as folder:
            world = make(*MILLION, options.width, Path(folder))
            _, processor, clock = timed(world.ours)
        print(f"\na million captions x 20,000 pictures, run: {processor / 60:.1f} minutes of the processor, "
              f"{clock / 60:.1f} on the clock")  # fmt: skip


if __name__ == "__main__":
    main()
