"""Image metrics: the naive protocol beside ours, on the same pictures, weights and threads.

    python -m benchmarks.image_metrics [--limit 160] [--threads 1] [--tiny]

Naive: one pair at a time; every metric opens both files and encodes both pictures again. Ours: one decode and
one encode per picture and network, edits in batches, a target once for all samples that share it; then the
same with the targets' features cached from an earlier editor. Values must agree to 1e-4. Arithmetic and
profile of both are printed and written to --out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks import common
from benchmarks.common import Pair
from nein import metrics
from nein.loading.digests import pixel_digest
from nein.metrics.base import MemoryStore
from nein.metrics.fid import frechet_distance

NAMES = ("l1", "l2", "clip_i", "dino", "fid", "lpips")
KINDS = {"clip": "clip", "dino": "dino", "fid": "fid", "lpips": "lpips"}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def same_size(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Both pictures as floats in [0, 1], the edited one stretched to the target's size."""
    with Image.open(pair.edited) as edited, Image.open(pair.target) as target:
        fitted = edited.convert("RGB").resize(target.size)
        return np.asarray(fitted) / 255.0, np.asarray(target.convert("RGB")) / 255.0


def naive(work: list[Pair], encoders: dict[str, Any]) -> dict[str, Any]:
    """Every metric by itself, one pair at a time, as evaluation scripts of this field do it; of FID the
    features (2, N, D) of edited pictures and targets, whose distance either side would work out alike."""
    module = encoders["lpips"].module
    device = next(module.parameters()).device

    def one(kind: str, path: Path) -> np.ndarray:
        return encoders[kind].encode([common.decode(path)])[0]

    def lpips_of(pair: Pair) -> float:
        tensors = [
            torch.from_numpy(x).permute(2, 0, 1)[None].to(device, torch.float32) * 2 - 1
            for x in same_size(pair)
        ]
        with torch.inference_mode():
            return float(module(*tensors))

    per_pair: dict[str, Callable[[Pair], float]] = {
        "l1": lambda p: float(np.abs(np.subtract(*same_size(p))).mean()),
        "l2": lambda p: float((np.subtract(*same_size(p)) ** 2).mean()),
        "clip_i": lambda p: cosine(one("clip", p.edited), one("clip", p.target)),
        "dino": lambda p: cosine(one("dino", p.edited), one("dino", p.target)),
        "lpips": lpips_of,
    }
    result: dict[str, Any] = {name: [function(p) for p in work] for name, function in per_pair.items()}
    features = [np.stack([one("fid", getattr(p, side)) for p in work]) for side in ("edited", "target")]
    result["fid"] = np.stack(features)
    return result


def ours(work: list[Pair], encoders: dict[str, Any], store: MemoryStore, batch_size: int) -> dict[str, Any]:
    """The same metrics together, in blocks."""
    settings = metrics.Settings(batch_size=batch_size)
    result: dict[str, Any] = {name: [] for name in NAMES}
    edited, target = [], []
    for block in common.blocks(work, batch_size):
        targets = {path: common.decode(path) for path in dict.fromkeys(pair.target for pair in block)}
        keys = {path: pixel_digest(target) for path, target in targets.items()}
        items = []
        for pair in block:
            facts = {"caption": pair.caption, "target_key": keys[pair.target]}
            items.append(metrics.EditPair(pair.id, common.decode(pair.edited), targets[pair.target], **facts))
        batch = metrics.Batch(items, encoders, settings, features=store)
        scores = metrics.score([metrics.METRICS[name] for name in NAMES], batch)
        rows = np.stack([score.features for score in scores.pop("fid") if score.features is not None])
        edited.append(rows[:, 0])
        target.append(rows[:, 1])
        for name, row in scores.items():
            result[name] += [score.value for score in row]
    result["fid"] = np.stack([np.concatenate(edited), np.concatenate(target)])
    return result


def largest_difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Of all values; of FID's features, relative to the largest of them."""
    spread = max(float(np.abs(b["fid"]).max()), 1e-12)
    values = [float(np.abs(np.subtract(a[name], b[name])).max()) for name in NAMES if name != "fid"]
    return max(*values, float(np.abs(a["fid"] - b["fid"]).max()) / spread)


def main() -> None:
    options = common.arguments(__doc__, limit=160, out="image-metrics").parse_args()
    common.setup(options.threads)
    top = common.limits("cpu", torch.float32)
    with tempfile.TemporaryDirectory() as root, common.model_folders(KINDS, options.tiny) as folders:
        work = common.pairs(options.limit, Path(root))
        encoders = {kind: metrics.load_encoder(kind, folder) for kind, folder in folders.items()}

        def one_editor(store: MemoryStore) -> dict[str, Any]:
            return ours(work, encoders, store, options.batch_size)

        expected = common.measure(lambda: naive(work, encoders), "cpu", passes=3)
        first = common.measure(lambda: one_editor(MemoryStore()), "cpu", profile=True, passes=common.PASSES)
        store = MemoryStore()
        one_editor(store)
        again = common.measure(lambda: one_editor(store), "cpu", profile=True, passes=common.PASSES)
    assert max(largest_difference(one.result, expected.result) for one in (first, again)) < 1e-4
    ours_fid, naive_fid = (frechet_distance(*one.result["fid"]) for one in (first, expected))
    assert abs(ours_fid - naive_fid) < 1e-4
    targets = len({p.target for p in work})
    print(f"{len(work)} samples, {targets} targets, {options.threads} thread(s), metrics: {', '.join(NAMES)}")
    sides = {
        "image metrics, first editor": ("ours, first editor (no target cached)", first),
        "image metrics, next editor": ("ours, next editor (targets cached)", again),
    }
    naively = ("naive: one pair and one metric at a time", expected)
    common.report(options.out, naively, sides, len(work), top, "values equal to 1e-4")


if __name__ == "__main__":
    main()
