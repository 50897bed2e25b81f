"""What the runs cost: seconds and memory per stage, and the achieved rate against the arithmetic limit.

The limit is the device's dense peak over the operations of one sample, for the devices and models below.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from nein.benchmarks.nein.records import Records
from nein.benchmarks.nein.runs import EDIT
from nein.reporting.figures import number

#: Dense peak in TFLOP/s by device name and number type, from NVIDIA's data sheets (no sparsity). float32 runs
#: without TensorFloat-32 here.
PEAKS: dict[str, dict[str, float]] = {
    "H100 PCIe": {"float32": 51.2, "bfloat16": 756.0, "float16": 756.0},
    "H100": {"float32": 66.9, "bfloat16": 989.0, "float16": 989.0},
    "H200": {"float32": 66.9, "bfloat16": 989.0, "float16": 989.0},
    "A100": {"float32": 19.5, "bfloat16": 312.0, "float16": 312.0},
    "L40S": {"float32": 91.6, "bfloat16": 362.0, "float16": 362.0},
    "L4": {"float32": 30.3, "bfloat16": 121.0, "float16": 121.0},
    "A10G": {"float32": 31.2, "bfloat16": 70.0, "float16": 70.0},
    "RTX 4090": {"float32": 82.6, "bfloat16": 165.2, "float16": 165.2},
    "V100": {"float32": 15.7, "float16": 125.0},
    "T4": {"float32": 8.1, "float16": 65.0},
}

#: TFLOP of one UNet evaluation of Stable Diffusion 1.5 at 512 x 512 pixels (counted, multiply-add = 2).
UNET_512 = 0.803
SD15_EDITORS = ("timbrooks/instruct-pix2pix", "magicbrush", "hq-edit", "hqedit")


def costs(loaded: Sequence[Records]) -> Iterator[dict[str, Any]]:
    """Rows of the frame (task "costs"): samples, seconds, rate and peak memory of every run's stages, and the
    rate's limit."""
    for run in loaded:
        samples = functools.cache(lambda number, run=run: len(run.run.read(EDIT, number)))
        places = [one.get("environment", {}) for one in reversed(run.manifest.get("invocations", []))]
        place: dict[str, Any] = next((one for one in places if one.get("device")), {})
        for stage in ("edit", "score"):
            by_block = run.run.costs(stage)
            count = sum(map(samples, by_block))
            if not count:
                continue
            seconds = sum(float(block.get("seconds", 0)) for block in by_block.values())
            peaks = [block.get("peak_memory", {}) for block in by_block.values()]
            values = {
                "samples": count, "seconds": seconds, "rate": count / seconds if seconds else None,
                "limit": _limit(run, place.get("device_name")) if stage == "edit" else None,
                "host_bytes": max(peak.get("host", 0) for peak in peaks),
                "device_bytes": max(peak.get("device", 0) for peak in peaks),
            }  # fmt: skip
            what = {"task": "costs", "model": run.name, "variant": run.track, "stage": stage}
            what["device"] = place.get("device_name") or place.get("device") or "–"
            for metric, value in values.items():
                unit = "count" if metric in ("samples", "host_bytes", "device_bytes") else ""
                yield {**number(value, unit=unit), **what, "metric": metric}


def _limit(run: Records, device_name: str | None) -> float | None:
    """Edits per second that the device's arithmetic allows, for SD 1.5 InstructPix2Pix editors."""
    editor = run.model("editor")
    peak = peak_of(device_name, str(editor.get("dtype")))
    reference = f"{editor.get('checkpoint', '')} {editor.get('reference', '')}".lower()
    if peak is None or not any(name in reference for name in SD15_EDITORS):
        return None
    areas = [e["width"] * e["height"] for e in run.edits if e.get("width") and e.get("height")]
    steps = editor.get("steps")
    if not areas or not isinstance(steps, int):
        return None
    # Three guidance branches per step. Attention grows faster than the area; the limit is then a little high.
    work = UNET_512 * 3 * steps * (sum(areas) / len(areas)) / 512**2
    return peak / work


def peak_of(device_name: str | None, dtype: str) -> float | None:
    """TFLOP/s of a device by the name CUDA gives it, or None when it is not in the table."""
    matching = [name for name in PEAKS if device_name and name in device_name]
    return PEAKS[max(matching, key=len)].get(dtype) if matching else None
