"""The report of a full-size evaluation: 24,182 samples by 7 editors, made up, written and opened in Chromium.

    python -m benchmarks.report [--samples 24182] [--editors 7] [--side 64] [--out FOLDER]

Prints how long `nein report` takes, start of Python included, the size of the page and of the files beside
it, and (where Chromium with chromedriver is installed) the time until the page is ready, until its first
pictures are drawn, and of one search and one sort. Scores, features and pictures are random.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from nein.benchmarks.nein import estimates
from nein.benchmarks.nein.runs import EDIT, RunDir, score_output
from nein.benchmarks.runner import FIGURES_CSV, SCORES_CSV
from nein.engine import atomic
from nein.engine.images import write_png
from nein.metrics.fid import jackknife_interval
from nein.reporting import figures as frames
from nein.wording.families import NEGATIVE_TEMPLATES, write_addition, write_negative

OBJECTS = [f"thing {i}" for i in range(80)]
IMAGE = ("l1", "l2", "clip_i", "dino", "lpips")
#: Columns of the features for FID, as many as the miniature network has, and rows of a file of them.
COLUMNS, BLOCK = 96, 16
EVIDENCE: dict[str, dict[str, Any]] = {
    "removal_vqa": {"answer": "Yes", "tokens": 1, "p_yes": 0.950212, "p_no": 0.049402, "question": "Is it?"},
    "removal_ovd": {"score": 0.642282, "box": [47.06, 34.35, 60.26, 50.55], "threshold": 0.1},
    "auc_removal": {"score": 0.642282, "threshold": 0.1},
    "retention_vqa": {"before": {"man": "Yes", "car": "Yes"}, "after": {"man": "Yes", "car": "No"}},
    "retention_ovd": {"before": {"man": 0.51}, "after": {"man": 0.48}, "threshold": 0.1},
}


def make(root: Path, count: int, editors: int, side: int) -> Path:
    """Finished runs of `editors` editors on `count` samples; pictures are hard links to a stock of 64."""
    rng = np.random.default_rng(0)
    plain, edited = list[Path](), list[Path]()
    for k in range(64):
        blocks = rng.integers(0, 256, (8, 8, 3)).repeat(side // 8, 0).repeat(side // 8, 1)
        picture = np.clip(blocks + rng.integers(-12, 13, (side, side, 3)), 0, 255).astype(np.uint8)
        for stock, kind in ((plain, "data"), (edited, "edit")):
            stock.append(root / "stock" / f"{k}-{kind}.png")
            write_png(stock[-1], picture)
    records = [
        {
            "COCO": f"COCO_{i // 5:012d}",
            "T_original": f"A man and a red car near house number {i // 5}.",
            "T_negative": write_negative(i % len(NEGATIVE_TEMPLATES), OBJECTS[i % 80]),
            "T_generated": write_addition(OBJECTS[i % 80]),
            "NeIn": f"NeIn_{i // 5:012d}_{i % 5 + 1}",
        }
        for i in range(count)
    ]
    for folder, key in (("coco_for_val", "COCO"), ("nein_val", "NeIn")):
        _link(root / "data" / folder, sorted({row[key] for row in records}), plain)
    (root / "data" / "val.json").write_text(json.dumps(records))
    origin = {
        "split": "val", "annotations": str(root / "data" / "val.json"), "columns": {}, "records_sha256": "x",
        "source_images": str(root / "data" / "coco_for_val"), "nein_images": str(root / "data" / "nein_val"),
    }  # fmt: skip
    config = {"preset": "nano", "protocol": "fixed", "align": "stretch", "article": "none", "threshold": 0.1}
    for number in range(editors):
        run = RunDir(root / "runs" / f"editor-{number}" / "negative")
        whole = {"size": BLOCK, "records": [[0, count]]}
        told = {"selected": {EDIT: whole}}
        run.open({}, {"config": config, "data": origin, **told}, overwrite=False)
        run.update(status="complete")
        _link(run.path / "images", [row["NeIn"] for row in records], edited)
        values = rng.uniform(size=(count, 10))
        rows = [_edit(i, row) for i, row in enumerate(records)]
        columns = {EDIT: rows} | {
            score_output(metric): [_score(row["NeIn"], metric, k, values[i]) for i, row in enumerate(records)]
            for k, metric in enumerate([*IMAGE, *EVIDENCE])
        }
        for output, column in columns.items():
            if output != EDIT:
                run.open_output(output, {}, overwrite=False)
            for number, start in enumerate(range(0, count, BLOCK)):
                _write(run, output, number, column[start : start + BLOCK])
        atomic.write_json(run.path / "corpus.json", {"fid": _features(run, records, rng)})
        scores = run.make_scores()
        scores.write(run.path / SCORES_CSV)
        frames.write(run.path / FIGURES_CSV, estimates.make_estimates(scores, run.corpus(), run.track))
    return root / "runs"


def _write(run: RunDir, output: str, number: int, rows: Sequence[Any]) -> None:
    atomic.write_lines(run.block_path(output, number), [{"output": output, "block": number}, *rows])


def _features(run: RunDir, records: Sequence[dict[str, str]], rng: np.random.Generator) -> dict[str, Any]:
    """Writes the blocks of features of a run; returns its FID, as corpus.json has it."""
    sources = [row["COCO"] for row in records]
    names, place = np.unique(sources, return_inverse=True)
    target = np.random.default_rng(1).normal(size=(len(names), COLUMNS))[place].astype(np.float32)
    edited = (target + 0.3 + rng.normal(size=target.shape)).astype(np.float32)
    for number, start in enumerate(range(0, len(records), BLOCK)):
        rows = slice(start, start + BLOCK)
        ids = [row["NeIn"] for row in records[rows]]
        about = {"ids": ids, "targets": sources[rows]}
        texts = {"about": json.dumps(about)}
        _write(run, score_output("fid"), number, [_score(name, "", 0, [1.0]) for name in ids])
        file = safetensors.numpy.save({"edited": edited[rows], "target": target[rows]}, metadata=texts)
        run.feature_path("fid", number).write_bytes(file)
    made = jackknife_interval(edited, target, sources)
    ends = {"low": made.low, "high": made.high, "standard_error": made.standard_error}
    return {"value": made.value, **ends, "n": len(records), "n_unscored": 0, "reasons": {},
            "clusters": len(names), "reference": "per sample", "left_out": list(made.left_out),
            "columns": COLUMNS, "sources": "the same in all runs"}  # fmt: skip


def _link(folder: Path, names: list[str], stock: list[Path]) -> None:
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        (folder / f"{name}.png").hardlink_to(stock[i % len(stock)])


def _edit(index: int, row: dict[str, str]) -> dict[str, Any]:
    about = {"id": row["NeIn"], "source_id": row["COCO"], "object": OBJECTS[index % 80], "seed": index}
    about |= {"template": index % len(NEGATIVE_TEMPLATES), "instruction": row["T_negative"]}
    made = {"image": f"images/{row['NeIn']}.png", "width": 64, "height": 64, "error": None, "note": ""}
    return {**about, **made}


def _score(name: str, metric: str, column: int, values: Sequence[float]) -> dict[str, Any]:
    value = float(values[column])
    value = float(value < 0.2) if metric.startswith("removal") else round(value, 6)
    return {"id": name, "value": value, "reason": "", "detail": EVIDENCE.get(metric, {})}


def look(page: Path) -> dict[str, float]:
    """Seconds until ready and until drawn, of a search and of a sort; empty without Chromium."""
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        return {}
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(argument)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    chrome.set_page_load_timeout(600)
    found: dict[str, float] = {}

    def until(name: str, start: float, script: str) -> None:
        WebDriverWait(chrome, 600, poll_frequency=0.05).until(lambda _: chrome.execute_script(script))
        found[name] = time.perf_counter() - start

    drawn = (
        "const c = [...document.querySelectorAll('.card')]; "
        "return c.length && c.every(x => x.querySelector('.strip'))"
    )
    try:
        start = time.perf_counter()
        chrome.get(page.as_uri())
        until("ready", start, "return document.documentElement.dataset.ready === 'yes'")
        until("first pictures", start, drawn)
        for name, fragment in (("search", "#q=thing%201"), ("sort by disagreement", "#sort=editors")):
            start = time.perf_counter()
            chrome.execute_script(f"location.hash = '{fragment}'")
            until(name, start, f"return location.hash === '{fragment}' && (() => {{ {drawn} }})()")
        found["heap MiB"] = chrome.execute_script("return performance.memory.usedJSHeapSize") / 2**20
    finally:
        chrome.quit()
    return found


def main() -> None:
    """Makes the runs, writes the report, opens it, and compares it with what it was."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=24182, help="default 24182")
    parser.add_argument("--editors", type=int, default=7)
    parser.add_argument("--side", type=int, default=64, help="pixels of a picture, a multiple of 8")
    parser.add_argument("--out", type=Path, help="keep everything here (default: a temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = (options.out or Path(scratch)).resolve()
        runs = root / "runs"
        if not runs.is_dir():
            make(root, options.samples, options.editors, options.side)
        asked = ["-o", str(root / "report.html"), "--formats", "html,csv"]
        os.sync()  # the disk has written what was before
        start, before = time.perf_counter(), os.times()
        line = [sys.executable, "-m", "nein", "report", str(runs), *asked]
        subprocess.run(line, cwd=Path(__file__).parents[1], check=True, stdout=subprocess.DEVNULL)
        after, clock = os.times(), time.perf_counter() - start
        cpu = sum(after[2:4]) - sum(before[2:4])  # of child processes
        print(f"nein report: {clock:.1f} s ({cpu:.1f} CPU seconds)")
        page, beside = root / "report.html", list((root / "report-data").glob("*.js"))
        size = sum(path.stat().st_size for path in beside) / 2**20
        print(f"page: {page.stat().st_size / 2**20:.1f} MiB; beside it: {len(beside)} files, {size:.0f} MiB")
        for name, value in look(page).items():
            print(f"{name}: {value:.2f}{'' if 'MiB' in name else ' s'}")


if __name__ == "__main__":
    main()
