"""Memory of commands at three sizes: what a sample, a caption or a question adds to the peak of a process.

    python -m benchmarks.flat [--sizes 1000,2000,4000] [--only eval,report] [--out build/flat.json]

Every command runs in a process of its own on made-up data of that many records: samples of NeIn with pictures
of 16 pixels, captions of COCO's kind, questions of NegVQA, a quarter as many scenes of NegBench. Models that
answer are functions: what a network takes for a moment would hide the records. The peak is
the resident set as the system tells it. "KiB a record" is the slope from the smallest to the largest size:
what remains where memory is flat are the records themselves (names, sentences, scores), never pictures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from nein.benchmarks.nein.runs import RunDir
from nein.datasets.negbench import drawn
from nein.engine import atomic
from nein.engine.folder import runs_below
from nein.metrics.judges.base import Answer

ROOT = Path(__file__).resolve().parents[1]

#: Command -> what its records are, and (folder of the data, number of records) -> its words.
COMMANDS: dict[str, tuple[str, Callable[[Path, int], Sequence[object]]]] = {
    "eval": (
        "samples",
        lambda root, count: ["eval", "--data", root / "data", "--device", "cpu", "--editor", "identity",
                             "--metrics", "l1,l2", "--control", "none", "--out", root / "eval"],
    ),
    "report": (
        "samples",
        lambda root, count: ["report", root / "runs", "-o", root / "report.html", "--formats", "html,csv",
                             "--budget", 0],
    ),
    "compare": ("samples", lambda root, count: ["compare", root / "runs", "--metrics", "l1,removal_vqa"]),
    "grid": ("samples", lambda root, count: ["grid", root / "runs", "--out", root / "grid.png"]),
    "export": (
        "samples",
        lambda root, count: ["export", root / "runs", "--format", "csv", "--out", root / "exported"],
    ),
    "calibrate": (
        "samples",
        lambda root, count: ["calibrate", root / "runs", "--judges", "vqa", "--device", "cpu"],
    ),
    "check": (
        "samples", lambda root, count: ["check", "identity", "--number", count, "--device", "cpu"],
    ),
    "merge": ("samples", lambda root, count: ["merge", root / "eval", "--out", root / "merged"]),
    "data check": ("samples", lambda root, count: ["data", "check", root / "data"]),
    "stats": ("captions", lambda root, count: ["stats", root / "captions.txt"]),
    "generate": (
        "samples",
        lambda root, count: ["generate", "--scenes", count // 5, "--editor", "identity", "--device", "cpu",
                             "--out", root / "generated"],
    ),
    "negbench eval": (
        "scenes",
        lambda root, count: ["negbench", "eval", "--data", root / "negbench", "--image-root",
                             root / "negbench", "--model", "random", "--device", "cpu",
                             "--out", root / "negbench-run"],
    ),
    "negbench judge": (
        "scenes",
        lambda root, count: ["negbench", "judge", root / "negbench-run", "--judged-by", root / "runs",
                             "--queries", count, "--device", "cpu"],
    ),
    "negbench analyse": (
        "pairs of objects",
        lambda root, count: ["negbench", "analyse", "--model", "random", "--device", "cpu", "--objects",
                             ",".join(f"thing {i}/car {i}" for i in range(count)),
                             "--out", root / "templates"],
    ),
    "negvqa": (
        "questions",
        lambda root, count: ["negvqa", "--questions", count, "--model", "judge", "--judge",
                             "benchmarks.flat:Letters", "--judge-asking", "letters", "--device", "cpu",
                             "--samples", 0, "--out", root / "negvqa"],
    ),
    "negvqa report": (
        "questions", lambda root, count: ["negvqa", "report", root / "negvqa", "--out", root / "page.html"],
    ),
    "negvqa generate": (
        "questions",
        lambda root, count: ["negvqa", "generate", "--questions", count, "--out", root / "questions"],
    ),
    "negvqa check": (
        "questions", lambda root, count: ["negvqa", "check", root / "first.csv", root / "second.csv"],
    ),
    "negbench generate": (
        "scenes",
        lambda root, count: ["negbench", "generate", "--scenes", count, "--out", root / "negbench"],
    ),
}  # fmt: skip
#: Records of these cost more: so many times fewer.
FEWER = {
    "check": 4, "generate": 4, "negbench eval": 4, "negbench judge": 4, "negbench analyse": 20,
    "negvqa generate": 2, "negbench generate": 4,
}  # fmt: skip
#: Runs the command and prints the peak of this process in KiB. Linux counts what the parent held before the
#: program began in `ru_maxrss`, and not in VmHWM.
SCRIPT = """
import pathlib, resource, sys
from nein import cli
try:
    cli.main(sys.argv[1:])
except SystemExit as ended:
    if ended.code:
        raise
status = pathlib.Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else []
peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
print("PEAK", *peaks or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss], flush=True)
"""


class Letters:
    """A judge that says A or B by how bright a picture is."""

    fingerprint, template = "letters", "question"
    words: tuple[str, str] = ("A", "B")

    def __init__(self, **machine: Any) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"judge": self.fingerprint}

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        return [
            [Answer(self.words[int(image.sum()) % 2], 1)] * len(q)
            for image, q in zip(images, questions, strict=True)
        ]


class YesNo(Letters):
    """The same one, which says yes or no."""

    fingerprint = "yes-no"
    words = ("No", "Yes")


def peak(words: Sequence[object]) -> float:
    """MiB of `nein WORDS` in a process of its own."""
    line = [sys.executable, "-c", SCRIPT, *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"nein {' '.join(map(str, words))}\n{done.stderr[-2000:]}")
    return int(done.stdout.rsplit("PEAK", 1)[1]) / 1024


def prepare(root: Path, name: str, count: int) -> None:
    """The data of a command."""
    kind = COMMANDS[name][0]
    if kind == "captions":
        lines = (f"A man with no hat and a red car near house number {i}." for i in range(count))
        (root / "captions.txt").write_text("\n".join(lines))
    elif name == "negbench eval":
        drawn.write(root / "negbench", "val", count)
    elif name == "negbench judge":
        prepare(root, "calibrate", 40)
        peak(COMMANDS["calibrate"][1](root, 40))
        drawn.write(root / "negbench", "val", count)
        peak(COMMANDS["negbench eval"][1](root, count))
    elif name == "negvqa report":
        peak(COMMANDS["negvqa"][1](root, count))
    elif name == "negvqa check":
        _tick(root, count)
    elif kind == "samples" and name not in ("generate", "check"):
        report.make(root, count, editors=2, side=16)
    if name == "calibrate":
        _annotate(root)
        for run in map(RunDir, runs_below(root / "runs")):
            run.update(config={**run.manifest()["config"], "models": {"vqa": "benchmarks.flat:YesNo"}})
    elif name == "merge":
        peak(COMMANDS["eval"][1](root, count))


def _annotate(root: Path) -> None:
    """COCO instances beside the data: two objects in every source picture."""
    files = sorted((root / "data" / "coco_for_val").iterdir())
    images = [{"id": i, "file_name": f"coco_for_val/{file.name}"} for i, file in enumerate(files)]
    boxes = [
        {"id": 2 * i + k, "image_id": i, "category_id": (i + 3 * k) % 8, "bbox": [8 * k, 4, 6, 6],
         "iscrowd": 0}
        for i in range(len(files))
        for k in range(2)
    ]  # fmt: skip
    categories = [{"id": i, "name": f"object {i}"} for i in range(8)]
    atomic.write_json(
        root / "data" / "instances.json", {"images": images, "annotations": boxes, "categories": categories}
    )


def _tick(root: Path, count: int) -> None:
    """What two people save from a sheet of so many questions."""
    for k, name in enumerate(("first", "second")):
        lines = ["sheet,items,rater,item,verdict,seconds,note"]
        lines += [f"s,{count},{name},{i},{'other' if i % (7 + k) else 'right'},1," for i in range(count)]
        (root / f"{name}.csv").write_text("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", default="1000,2000,4000", help="numbers of records")
    parser.add_argument("--only", default=",".join(COMMANDS), help=f"of {', '.join(COMMANDS)}")
    parser.add_argument("--out", default="build/flat.json", help="file of the results")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    results = {}
    print(f"| command | records | peak in MiB | KiB a record |\n|{'---|' * 4}")
    for name in options.only.split(","):
        kind, words = COMMANDS[name]
        counts = [size // FEWER.get(name, 1) for size in sizes]
        peaks = []
        for count in counts:
            with tempfile.TemporaryDirectory() as folder:
                prepare(Path(folder), name, count)
                peaks.append(peak(words(Path(folder), count)))
        slope = 1024 * (peaks[-1] - peaks[0]) / (counts[-1] - counts[0])
        results[name] = {"records": counts, "peak_mib": peaks, "kib_a_record": slope}
        shown = [" / ".join(f"{value:.0f}" for value in row) for row in (counts, peaks)]
        print(f"| `nein {name}` | {shown[0]} {kind} | {shown[1]} | {slope:.1f} |", flush=True)
        out = Path(options.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
