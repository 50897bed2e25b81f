"""Finished runs with records of any shape, and the pictures behind them."""

import json

import numpy as np
import safetensors.numpy

from nein.benchmarks.nein.runs import EDIT, RunDir
from nein.engine import atomic
from nein.engine.images import write_png
from nein.loading.digests import pixel_digest
from nein.wording import families
from tests.helpers import runs

OBJECTS = ("cat", "traffic light", "apple", "dog", "umbrella")


def records(sources, per_source, captions=None):
    """Annotations in the official layout; `captions`: sample index -> caption in place of the usual one."""
    found = []
    for index in range(sources * per_source):
        source, k = index // per_source + 1, index % per_source + 1
        noun = OBJECTS[index % len(OBJECTS)]
        caption = (captions or {}).get(index, f"A man and a red car near house number {source}.")
        found.append({
            "COCO": f"COCO_{source:012d}", "NeIn": f"NeIn_{source:012d}_{k}", "T_original": caption,
            "T_negative": families.write_negative(index % len(families.NEGATIVE_TEMPLATES), noun),
            "T_generated": families.write_addition(noun),
        })  # fmt: skip
    return found


def write_data(root, rows, side=24):
    for number, row in enumerate(rows):
        for place, key in (("coco_for_val", "COCO"), ("nein_val", "NeIn")):
            path = root / place / f"{row[key]}.png"
            if not path.exists():
                write_png(path, picture(number, side, place == "nein_val"))
    root.mkdir(parents=True, exist_ok=True)
    (root / "val.json").write_text(json.dumps(list(rows)))
    return root


def picture(number, side, striped):
    image = np.random.default_rng(number).integers(0, 256, (side, side + 8, 3), dtype=np.uint8)
    if striped:
        image[:, number % side] = 255
    return image


def write_run(
    out, data, editor, track, rows, values, *,
    failed=(), pictures=True, features=0, models=None, sha="x", size=None, rewritten=None,
):  # fmt: skip
    """A complete run. values: metric -> function of the sample's index; failed: indices without an edit;
    rewritten: function of index and object, what a rewriter made of the instruction."""
    run = RunDir(out / editor / track)
    setting = {"preset": "nano", "protocol": "fixed", "align": "stretch", "article": "none", "threshold": 0.1}
    origin = {
        "kind": "folder", "split": "val", "annotations": str(data / "val.json"), "columns": {},
        "records_sha256": sha,
    }  # fmt: skip
    edits, scores = [], []
    for index, row in enumerate(rows):
        noun = row["T_generated"].removeprefix("Add ").partition(" ")[2].rstrip(".")
        told = row["T_negative"] if track == "negative" else families.write_removal(noun)
        good = index not in failed
        edit = {
            "id": row["NeIn"], "source_id": row["COCO"], "object": noun, "instruction": told,
            "template": families.find_template(told, noun), "seed": index,
            "image": f"images/{row['NeIn']}.png" if good else None, "width": 32, "height": 24,
            "error": None if good else "the editor <b>broke</b>", "note": "",
            "rewritten": rewritten(index, noun) if rewritten and good else None,
        }  # fmt: skip
        if good and pictures:
            image = picture(index + len(editor), 24, False)
            write_png(run.path / edit["image"], image)
            edit["sha256"] = pixel_digest(image)
        edits.append(edit)
        for metric, rule in values.items():
            value = rule(index) if good else None
            reason = "" if value is not None else f"not edited: {edit['error']}" if not good else "no answer"
            scores.append({"id": row["NeIn"], "metric": metric, "value": value, "reason": reason,
                           "detail": _detail(metric, value) if good else {}})  # fmt: skip
    runs.write(run, edits, scores, config=setting, data=origin, size=size or len(rows))
    for kind, model in (models or {}).items():
        run.note_model(kind, model["fingerprint"], model)
    call = {"started": "2026-01-01T00:00:00+00:00", "environment": {"device": "cpu", "python": "3"}}
    run.update(invocations=[call])
    cost = {"blocks": 1, "rows": len(rows), "seconds": 4.0, "peak_memory": {"host": 2**30}}
    run.write_note({"stages": {EDIT: cost}, "usage": {}})
    if features:
        runs.write_fid(run, _features(run, rows, features, failed))
        runs.finish(run)
    return run


def _features(run, rows, width, failed):
    from nein.metrics.fid import jackknife_interval

    kept = [index for index in range(len(rows)) if index not in failed]
    rng = np.random.default_rng(len(run.editor))
    sources = list(dict.fromkeys(row["COCO"] for row in rows))
    targets = np.random.default_rng(7).normal(size=(len(sources), width))
    target = np.stack([targets[sources.index(rows[index]["COCO"])] for index in kept]).astype(np.float32)
    edited = (target + 0.1 * len(run.editor) + rng.normal(size=target.shape)).astype(np.float32)
    names = {"ids": [rows[i]["NeIn"] for i in kept], "targets": [rows[i]["COCO"] for i in kept]}
    told = {"about": json.dumps({"images": run.pixels(0, names["ids"]), **names})}
    file = safetensors.numpy.save({"edited": edited, "target": target}, metadata=told)
    atomic.write_bytes(run.feature_path("fid", 0), file)
    found = jackknife_interval(edited, target, [rows[index]["COCO"] for index in kept])
    ends = {"low": found.low, "high": found.high, "standard_error": found.standard_error}
    return {"value": found.value, **ends, "n": len(kept), "n_unscored": len(rows) - len(kept), "reasons": {},
            "clusters": len(sources), "reference": "per sample", "left_out": list(found.left_out),
            "columns": width, "sources": "the same in all runs"}  # fmt: skip


def _detail(metric, value):
    if metric == "removal_vqa":
        answer = "Perhaps" if value is None else "No" if value else "Yes"
        return {"answer": answer, "p_yes": 0.25, "p_no": 0.5, "protocol": "fixed", "question": "is it?"}
    if metric == "retention_vqa":
        said = {"before": {"man": "Yes", "car": {"error": "no time"}}, "after": {"man": "No"}}
        return {**said, "protocol": "paper", "objects": ["man"]}  # asked by another protocol only
    if metric == "removal_ovd":
        return {"score": 0.05 if value else 0.75, "threshold": 0.1, "box": [0, 0, 9, 9], "protocol": "fixed"}
    return {}
