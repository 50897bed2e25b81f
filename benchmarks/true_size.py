"""Every stage at true size: published architectures, random weights; ours beside the libraries' own calls.

    python -m benchmarks.true_size                                     CPU, tens of minutes
    python -m benchmarks.true_size --stages vqa,ovd --layers 2         part of it, fewer layers
    python -m benchmarks.true_size --device cuda --batch-size auto     GPU, under ten minutes
    python -m benchmarks.true_size --table build/true-size.json        the table of a finished run

Theirs is diffusers' pipeline called once per picture, one `generate` of transformers per question, one call
of its detection pipeline per label, one forward per picture and metric, on the same weights, pictures and
dtypes; another dtype than float32 is also compared with ours in float32. On a CPU seconds are CPU seconds.
What was measured, with a profile, is written to --out after each stage.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import common, editing, image_metrics, judges, published
from benchmarks.common import Measured, Pair
from nein import metrics
from nein.engine.machine import tune_process
from nein.loading.weights import DTYPES, torch_dtype
from nein.metrics.base import MemoryStore
from nein.metrics.presence import spacy_model

#: (width, height) of InstructPix2Pix's pictures where COCO's are 640 x 480, and of COCO's.
RESIZED, COCO = (512, 384), (640, 480)
#: Ours, theirs, the number of items, and what else is written of a stage.
Stage = tuple[Measured, Measured, int, dict[str, Any]]


def main() -> None:
    tune_process()
    options = parse()
    if options.table:
        print(table(json.loads(Path(options.table).read_text(encoding="utf-8"))))
        return
    common.setup(options.threads)
    tops = {dtype: common.limits(options.device, torch_dtype(dtype)) for dtype in options.dtypes}
    stages: list[dict[str, Any]] = []
    for stage in measured(options, tops):
        stages.append(stage)
        result = common.save(options.out, options.device, tops, stages)
        print(f"{stage['stage']}, {stage['dtype']}: {stage['ratio']:.2f} x, {stage['agreement']}", flush=True)
    print(table(result))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda (default auto)")
    parser.add_argument("--dtypes", default="float32,bfloat16", help="of editor and judges")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"of {', '.join(STAGES)}")
    parser.add_argument("--layers", type=int, help="at most so many of the language model and the detector")
    parser.add_argument("--steps", type=int, default=2, help="of the editor that are run")
    parser.add_argument("--images", type=int, default=2, help="pictures, or samples (default 2)")
    parser.add_argument("--batch-size", default="1", help="pictures in a pass of ours; auto: what pays")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of a CPU")
    parser.add_argument("--tiny", action="store_true", help="tiny models in place of published ones")
    common.results(parser, "true-size")
    parser.add_argument("--table", help="print the table of this file, and measure nothing")
    options = parser.parse_args(words)
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, known in (("dtypes", DTYPES), ("stages", STAGES)):
        setattr(options, name, getattr(options, name).split(","))
        for one in getattr(options, name):
            if one not in known:
                parser.error(f"--{name}: unknown {one!r}; choose of {', '.join(known)}")
    if options.steps < 2:
        parser.error(f"--steps is {options.steps}; the editor needs at least 2")
    return options


def measured(options: argparse.Namespace, top: dict[str, dict[str, float]]) -> Iterable[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for stage in options.stages:
            exact: Any = None
            for dtype in options.dtypes if stage != "encoders" else ["float32"]:
                ours, theirs, items, more = STAGES[stage](root, dtype, options)
                if dtype == "float32":
                    exact = ours.result
                elif exact is not None:
                    more["from_float32"] = apart(ours.result, exact)
                limit = max(top.setdefault(dtype, common.limits(options.device, torch_dtype(dtype))).values())
                yield common.compared(stage, dtype, ours, theirs, items, limit, **more)


def apart(values: Any, exact: Any) -> str:
    """How far ours is from ours in float32."""
    if isinstance(exact, dict):
        total, flips, _ = disagreement(values, exact)
        return f"{flips} of {total} decisions flipped"
    difference = np.abs(np.stack(values).astype(int) - np.stack(exact).astype(int))
    return f"{difference.mean():.1f} grey levels on average, {difference.max()} at most"


def best_batch(measure_with: Callable[[int], float], wanted: str) -> int:
    """The batch size that is `wanted`, or for "auto" the one from which twice as many bring less than a
    twentieth or do not fit. measure_with: batch size -> items a second."""
    if wanted != "auto":
        return int(wanted)
    size, rate = 1, measure_with(1)
    while size < 256:
        try:
            more = measure_with(2 * size)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            break
        if more < 1.05 * rate:
            break
        size, rate = 2 * size, more
    return size


# --- editing ---------------------------------------------------------------------------------------------


def edit(root: Path, dtype: str, options: argparse.Namespace) -> Stage:
    folder = root / "ip2p"
    if not folder.exists():
        published.make("ip2p", folder, tiny=options.tiny)
    width, height = (64, 64) if options.tiny else RESIZED
    words = [f"--dtype={dtype}", f"--device={options.device}", f"--threads={options.threads}"]
    words += [f"--steps={options.steps}", f"--resolution={width}", f"--height={height}"]

    def given(batch_size: int, images: int) -> argparse.Namespace:
        return editing.parse([*words, f"--batch-size={batch_size}", f"--images={images}"])

    def rate(batch_size: int) -> float:
        ours, _ = editing.measure_ours(str(folder), given(batch_size, batch_size))
        return batch_size / ours.seconds

    batch_size = best_batch(rate, options.batch_size)
    # One batch for every thread: a batch is worked on by one of them, where diffusers takes all for each.
    images = max(batch_size * (options.threads if options.device == "cpu" else 1), options.images)
    sides = editing.side_by_side(str(folder), given(batch_size, images))
    agreement = "noise drawn in another type"
    if dtype == "float32":
        agreement = f"{sides.difference().max()} of 255 grey levels at most"
    what = f"{published.describe('ip2p', tiny=options.tiny)}, {width} x {height}, {options.steps} steps"
    more = {"batch_size": batch_size, "what": what, "agreement": agreement}
    return sides.ours, sides.theirs, images, more


# --- judges ----------------------------------------------------------------------------------------------


def judge(kind: str, root: Path, dtype: str, options: argparse.Namespace) -> Stage:
    folder = root / kind
    if not folder.exists():
        published.make(kind, folder, layers=options.layers, tiny=options.tiny)
    work = common.pairs(options.images, root / "coco", (40, 32) if options.tiny else COCO)
    spacy_model()
    loaded = metrics.load_judge(kind, str(folder), device=options.device, dtype=dtype)
    models = {kind: loaded}

    def ours(batch_size: int, items: Sequence[Pair]) -> Any:
        loaded.batch_size = batch_size
        return judges.ours(items, models, MemoryStore(), batch_size)

    def rate(batch_size: int) -> float:
        items = (work * batch_size)[:batch_size]
        return (
            batch_size / common.measure(lambda: ours(batch_size, items), options.device, count=False).seconds
        )

    batch_size = best_batch(rate, options.batch_size)
    mine = common.measure(lambda: ours(batch_size, work), options.device, profile=True)
    theirs = judges.untouched(models, {kind: str(folder)})
    library = judges.detection_pipeline(str(folder), theirs[kind]) if kind == "ovd" else None
    naive = common.measure(lambda: judges.naive(work, theirs, library), options.device)
    total, flips, most = disagreement(mine.result, naive.result)
    what = published.describe(kind, layers=options.layers, tiny=options.tiny)
    return mine, naive, len(work), {
        "batch_size": batch_size, "what": what, "agreement": f"{flips} of {total} decisions differ",
        "decisions": total, "flips": flips, "difference": most,
    }  # fmt: skip


def disagreement(a: dict[str, list[Any]], b: dict[str, list[Any]]) -> tuple[int, int, float]:
    """(decisions, those that differ, largest difference of a score)."""
    total, flips, most = 0, 0, 0.0
    for name, values in b.items():
        for one, other in zip(a[name], values, strict=True):
            if name == "auc_removal":
                most = max(most, abs(one - other))
                continue
            total += 1
            flips += one != other
    return total, flips, most


# --- encoders --------------------------------------------------------------------------------------------


def encoders(root: Path, dtype: str, options: argparse.Namespace) -> Stage:
    folders = {kind: root / kind for kind in ("clip", "dino", "lpips")}
    for kind, folder in folders.items():
        published.make(kind, folder, tiny=options.tiny)
    work = common.pairs(options.images, root / "edited", (40, 32) if options.tiny else RESIZED)

    loaded: dict[str, Any] = {
        kind: metrics.load_encoder(kind, str(path), device=options.device) for kind, path in folders.items()
    }
    loaded["fid"] = published.inception(options.device)
    size = 16 if options.batch_size == "auto" else int(options.batch_size)
    ours = functools.partial(image_metrics.ours, work, loaded)
    mine = common.measure(lambda: ours(MemoryStore(), size), options.device, profile=True)
    naive = common.measure(lambda: image_metrics.naive(work, loaded), options.device)
    most = image_metrics.largest_difference(mine.result, naive.result)
    sizes = f"{RESIZED[0]} x {RESIZED[1]}"
    what = f"CLIP B/32, DINO S/16, Inception-v3, LPIPS (AlexNet), L1 and L2, all whole, {sizes}"
    return mine, naive, len(work), {
        "batch_size": size, "what": what, "agreement": f"values equal to {most:.0e}", "difference": most,
    }  # fmt: skip


STAGES: dict[str, Callable[[Path, str, argparse.Namespace], Stage]] = {
    "edit": edit,
    "vqa": functools.partial(judge, "vqa"),
    "ovd": functools.partial(judge, "ovd"),
    "encoders": encoders,
}


# --- table -----------------------------------------------------------------------------------------------


def table(result: dict[str, Any]) -> str:
    """The measured figures as Markdown."""
    tops = ", ".join(f"{dtype} {max(rates.values()) / 1e12:.2f}" for dtype, rates in result["limits"].items())
    lines = [
        f"{result['device']}, torch {result['torch']}; measured limits in TFLOP/s: {tops}.",
        "",
        "| stage | dtype | theirs, s an item | ours | ratio | TFLOP an item, theirs / ours | TFLOP/s | "
        "of the limit | peak memory, theirs / ours | agreement |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["stages"]:
        ours, theirs, items = row["ours"], row["theirs"], row["items"]
        cells = [
            f"{row['stage']}: {row['what']}, batch {row['batch_size']}",
            row["dtype"],
            f"{theirs['seconds'] / items:.2f}",
            f"{ours['seconds'] / items:.2f}",
            f"{row['ratio']:.2f}",
            " / ".join(f"{side['operations'] / items / 1e12:.2f}" for side in (theirs, ours)),
            f"{ours['operations'] / ours['seconds'] / 1e12:.3f}",
            f"{100 * ours['share']:.0f} %",
            " / ".join(f"{(side['peak'] or 0) / 2**30:.1f} GiB" for side in (theirs, ours)),
            row["agreement"] + (f"; from float32: {row['from_float32']}" if "from_float32" in row else ""),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
