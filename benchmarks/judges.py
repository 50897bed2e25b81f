"""Judges: the naive protocol beside ours, on the same pictures, weights and threads.

    python -m benchmarks.judges [--limit 40] [--threads 1] [--tiny]

Naive, as in NeIn's released scripts: one `generate` per question and one pipeline call per picture and label,
files opened for each, unedited samples asked about again for every editor. Ours: a picture is looked at once
for all its questions and labels, in batches; then the same for a second editor, with the samples' answers
remembered. Every decision must be equal. Arithmetic and profile of both are printed and written to --out.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from benchmarks import common
from nein import metrics
from nein.loading.digests import pixel_digest
from nein.metrics import presence
from nein.metrics.base import MemoryStore
from nein.metrics.judges.base import find_template
from nein.metrics.presence import spacy_model

NAMES = ("removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd")
Scores = dict[str, list[float | None]]
KINDS = {"vqa": "llava", "ovd": "owlv2"}


def naive(work: Sequence[common.Pair], judges: dict[str, Any], library: Any) -> Scores:
    """Every question and every label by itself; NeIn's own reading of the answers.

    judges  Of one kind or both ("vqa", "ovd"), `untouched`; library: the pipeline of the detector, None
            without one.
    """

    def generate(path: Path, word: str) -> str:
        judge = judges["vqa"]
        ask = find_template(judge.template).ask_presence
        with Image.open(path) as image:
            inputs = judge.processor(images=image.convert("RGB"), text=ask(word), return_tensors="pt")
        inputs = inputs.to(judge.model.device, judge.model.dtype)
        with torch.inference_mode():
            output = judge.model.generate(**inputs, max_new_tokens=judge.max_new_tokens, do_sample=False)
        new = output[0, inputs["input_ids"].shape[1] :]
        return judge.processor.tokenizer.decode(new, skip_special_tokens=True).strip()

    def detect(path: Path, label: str) -> list[float]:
        with Image.open(path) as image, torch.inference_mode():
            return [box["score"] for box in library(image.convert("RGB"), candidate_labels=[label])]

    result: Scores = {name: [] for name in names(judges)}
    for pair in work:
        roots = [chunk.root.text for chunk in spacy_model()(pair.caption).noun_chunks]
        if "vqa" in judges:
            result["removal_vqa"].append(float(generate(pair.edited, pair.object) == "No"))
            kept = [word for word in roots if generate(pair.sample, word).lower() == "yes"]
            still = [word for word in kept if generate(pair.edited, word).lower() == "yes"]
            result["retention_vqa"].append(len(still) / len(kept) if kept else None)
        if "ovd" in judges:
            scores = detect(pair.edited, pair.object)
            result["removal_ovd"].append(float(not scores))
            result["auc_removal"].append(1 - max(scores, default=0.0))
            kept = [word for word in dict.fromkeys(roots) if detect(pair.sample, word)]
            still = [word for word in kept if detect(pair.edited, word)]
            result["retention_ovd"].append(len(still) / len(kept) if kept else None)
    return result


def names(judges: dict[str, Any]) -> list[str]:
    """The metrics that these judges answer for."""
    return [name for name in NAMES if ("vqa" if name.endswith("vqa") else "ovd") in judges]


def untouched(judges: dict[str, Any], folders: dict[str, str]) -> dict[str, Any]:
    """The same judges around networks as transformers itself loads them."""
    result = {}
    for kind, judge in judges.items():
        result[kind] = copy.copy(judge)
        model = type(judge.model).from_pretrained(folders[kind], dtype=judge.model.dtype)
        result[kind].model = model.to(judge.model.device).eval()
    return result


def detection_pipeline(folder: str, detector: Any) -> Any:
    """transformers' own call, around the network of `detector`."""
    from transformers import AutoImageProcessor, AutoTokenizer, pipeline

    model = detector.model
    parts = {
        "tokenizer": AutoTokenizer.from_pretrained(folder),
        "image_processor": AutoImageProcessor.from_pretrained(folder),
    }
    return pipeline("zero-shot-object-detection", model, **parts, device=model.device, dtype=model.dtype)


def ours(work: Sequence[common.Pair], judges: dict[str, Any], store: MemoryStore, batch_size: int) -> Scores:
    """The same five scores together, in blocks."""
    result: Scores = {name: [] for name in names(judges)}
    for block in common.blocks(work, batch_size):
        items = []
        for pair in block:
            sample = common.decode(pair.sample)
            facts = {"object": pair.object, "caption": pair.caption, "sample_key": pixel_digest(sample)}
            items.append(metrics.EditPair(pair.id, common.decode(pair.edited), sample=sample, **facts))
        batch = metrics.Batch(items, judges, records=store)
        for name, row in metrics.score([metrics.METRICS[name] for name in result], batch).items():
            result[name] += [score.value for score in row]
    return result


def forget(judges: dict[str, Any]) -> None:
    """Captions and labels are read anew, as in a new process."""
    presence._parse.cache_clear()
    judges["ovd"]._queries.clear()


def agree(found: Scores, expected: Scores) -> None:
    """Stop unless every decision is equal (AUC-Removal holds a score: equal to 1e-4)."""
    for name in NAMES:
        for i, (a, b) in enumerate(zip(found[name], expected[name], strict=True)):
            tolerance = 1e-4 if name == "auc_removal" else 1e-12
            if (a is None) != (b is None) or (a is not None and b is not None and abs(a - b) > tolerance):
                raise SystemExit(f"sample {i}: {name} is {a} here and {b} the naive way")


def main() -> None:
    options = common.arguments(__doc__, limit=40, out="judges").parse_args()
    common.setup(options.threads)
    top = common.limits("cpu", torch.float32)
    with tempfile.TemporaryDirectory() as root, common.model_folders(KINDS, options.tiny) as folders:
        work = common.pairs(options.limit, Path(root))
        judges = {
            kind: metrics.load_judge(kind, folders[kind], batch_size=options.batch_size) for kind in KINDS
        }
        theirs = untouched(judges, folders)
        library = detection_pipeline(folders["ovd"], theirs["ovd"])
        spacy_model()

        def one_editor(store: MemoryStore) -> Scores:
            return ours(work, judges, store, options.batch_size)

        def first_editor() -> Scores:
            forget(judges)
            return one_editor(MemoryStore())

        expected = common.measure(lambda: naive(work, theirs, library), "cpu", passes=3)
        first = common.measure(first_editor, "cpu", profile=True, passes=common.PASSES)
        store = MemoryStore()
        one_editor(store)
        again = common.measure(lambda: one_editor(store), "cpu", profile=True, passes=common.PASSES)
    for one in (first, again):
        agree(one.result, expected.result)
    scored = {name: sum(value is not None for value in expected.result[name]) for name in NAMES}
    print(f"{len(work)} samples, {options.threads} thread(s), scored: {scored}")
    sides = {
        "judges, first editor": ("ours, first editor", first),
        "judges, next editor": ("ours, next editor (samples remembered)", again),
    }
    naively = ("naive: one question or label at a time", expected)
    common.report(options.out, naively, sides, len(work), top, "every decision equal")


if __name__ == "__main__":
    main()
