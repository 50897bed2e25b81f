"""What the runs cost: seconds and memory per stage, and the achieved rate against the arithmetic limit.

The limit is the device's dense peak over the operations of one sample: a bound no program can beat on that
device with that number type, known only for the devices and models below.
"""

from __future__ import annotations

from collections.abc import Sequence

from nein.benchmarks.nein.reporting.collect import Run
from nein.benchmarks.nein.reporting.sections import Table
from nein.benchmarks.nein.runs import EDIT

#: Dense peak in TFLOP/s by device name and number type, from NVIDIA's data sheets (no sparsity). float32 runs
#: without TensorFloat-32 here.
PEAKS: dict[str, dict[str, float]] = {
    "H100 PCIe": {"float32": 51.2, "bfloat16": 756.0, "float16": 756.0},
    "H100": {"float32": 66.9, "bfloat16": 989.0, "float16": 989.0},
    "H200": {"float32": 66.9, "bfloat16": 989.0, "float16": 989.0},
    "A100": {"float32": 19.5, "bfloat16": 312.0, "float16": 312.0},
    "L40S": {"float32": 91.6, "bfloat16": 362.0, "float16": 362.0},
    "A10G": {"float32": 31.2, "bfloat16": 70.0, "float16": 70.0},
    "RTX 4090": {"float32": 82.6, "bfloat16": 165.2, "float16": 165.2},
    "T4": {"float32": 8.1, "float16": 65.0},
}

#: TFLOP of one UNet evaluation of Stable Diffusion 1.5 at 512 x 512 pixels (counted, multiply-add = 2).
UNET_512 = 0.803
SD15_EDITORS = ("timbrooks/instruct-pix2pix", "magicbrush", "hq-edit", "hqedit")


def costs(loaded: Sequence[Run]) -> Table:
    """Time, rate and peak memory of every run's stages."""
    rows, data = [], []
    for run in loaded:
        for stage in ("edit", "score"):
            by_block = run.directory.costs(stage)
            blocks = list(by_block.values())
            count = sum(len(run.directory.read(EDIT, number)) for number in by_block)
            seconds = sum(float(block.get("seconds", 0)) for block in blocks)
            if not count:
                continue
            memory = {
                where: max((b.get("peak_memory", {}).get(where, 0) for b in blocks), default=0)
                for where in ("host", "device")
            }
            device, name = _device(run)
            limit = _limit(run, name) if stage == "edit" else None
            rate = count / seconds if seconds else None
            share = "–" if limit is None or rate is None else f"{limit:.2f} ({100 * rate / limit:.0f} %)"
            rows.append([run.label, stage, name or device or "–", str(count),
                         f"{seconds:.1f}",
                         "–" if rate is None else f"{rate:.2f}", share, _gib(memory["host"]),
                         _gib(memory["device"])])  # fmt: skip
            data.append({"editor": run.name, "track": run.track, "stage": stage,
                         "samples": count, "seconds": seconds, "rate": rate, "limit": limit,
                         "host_bytes": memory["host"], "device_bytes": memory["device"]})  # fmt: skip
    note = (
        "Seconds: sum over blocks of samples, as if done one after another (blocks may run side by side). "
        "Limit: peak arithmetic of "
        "the device over the operations of one edit; – where either is not known. Memory: highest of the "
        "process."
    )
    columns = [
        "run",
        "stage",
        "device",
        "samples",
        "seconds",
        "samples/s",
        "limit (share)",
        "memory",
        "GPU memory",
    ]
    return Table("costs", "Costs", columns, rows, data, note)


def _device(run: Run) -> tuple[str | None, str | None]:
    for invocation in reversed(run.manifest.get("invocations", [])):
        environment = invocation.get("environment", {})
        if environment.get("device"):
            return environment["device"], environment.get("device_name")
    return None, None


def _limit(run: Run, device_name: str | None) -> float | None:
    """Edits per second that the device's arithmetic allows, for SD 1.5 InstructPix2Pix editors."""
    about = run.model("editor")
    peak = peak_of(device_name, str(about.get("dtype")))
    reference = f"{about.get('checkpoint', '')} {about.get('reference', '')}".lower()
    if peak is None or not any(name in reference for name in SD15_EDITORS):
        return None
    areas = [e["width"] * e["height"] for e in run.edits.values() if e.get("width") and e.get("height")]
    steps = about.get("steps")
    if not areas or not isinstance(steps, int):
        return None
    # Three guidance branches per step. Attention grows faster than the area; the limit is then a little high.
    work = UNET_512 * 3 * steps * (sum(areas) / len(areas)) / 512**2
    return peak / work


def peak_of(device_name: str | None, dtype: str) -> float | None:
    """TFLOP/s of a device by the name CUDA gives it, or None when it is not in the table."""
    found = [name for name in PEAKS if device_name and name in device_name]
    return PEAKS[max(found, key=len)].get(dtype) if found else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size else "–"
