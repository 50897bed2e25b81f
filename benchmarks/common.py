"""What the benchmarks share: pictures of the nano world on disk, models, a stopwatch, limits and profiles."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from nein.engine import machine
from nein.nano import data

#: Sizes of the probes: a square matrix and a 3 x 3 convolution (channels, side) of the kind a UNet has.
PROBES = {"cpu": (1536, 320, 64), "other": (8192, 1280, 64)}
#: Of what takes less than a second.
PASSES = 7


@dataclass(frozen=True)
class Pair:
    """A sample on disk: the edited picture, the unedited one, the target, and the words about them."""

    id: str
    edited: Path
    sample: Path
    target: Path
    object: str
    caption: str


def count_operations(work: Callable[[], Any]) -> float:
    """Floating-point operations of models in `work`, in this thread; a multiply-add is two. torch's counter,
    and attention on a CPU, which that leaves out."""
    from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

    def attention(query: Any, key: Any, value: Any, *more: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with FlopCounterMode(display=False, custom_mapping={on_cpu: attention}) as counter:
        work()
    return float(counter.get_total_flops())


def arguments(description: str | None, limit: int, out: str) -> argparse.ArgumentParser:
    """The options both benchmarks have. out: the name of the file that is written."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    results(parser, out)
    parser.add_argument("--limit", type=int, default=limit, help=f"samples (default {limit})")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="samples per call of ours (default 16, as in nein eval)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides (default 1)")
    parser.add_argument(
        "--tiny", action="store_true", help="random weights instead of the trained nano models"
    )
    return parser


def results(parser: argparse.ArgumentParser, name: str) -> None:
    """The option that says where `save` writes."""
    parser.add_argument("--out", default=f"build/{name}.json", help=f"file (default build/{name}.json)")


@contextmanager
def model_folders(kinds: dict[str, str], tiny: bool) -> Iterator[dict[str, str]]:
    """Folder of every kind: the trained nano model named there, or a small one with random weights."""
    if not tiny:
        from nein.nano import zoo

        yield {kind: str(zoo.path(name)) for kind, name in kinds.items()}
        return
    from tests.metrics import tiny as builders

    networks = {"dino": "vit", "fid": "vit"}
    with tempfile.TemporaryDirectory() as root:
        yield {
            kind: str(getattr(builders, f"make_{networks.get(name, name)}")(Path(root) / kind))
            for kind, name in kinds.items()
        }


def pairs(limit: int, root: Path, size: tuple[int, int] | None = None) -> list[Pair]:
    """Samples of the nano evaluation split, with an imagined edit: the sample with its lower half from the
    target, so that half of the objects are gone. size: (width, height) that all pictures are enlarged to."""
    root.mkdir(exist_ok=True)
    folder = data.ensure_data_set("val")
    rows = json.loads((folder / "val.json").read_text(encoding="utf-8"))[:limit]
    found = []
    for row in rows:
        sample = folder / "nein_val" / f"{row['NeIn']}.png"
        target = folder / "coco_for_val" / f"{row['COCO']}.png"
        if size is not None:
            sample, target = (_enlarged(path, root, size) for path in (sample, target))
        edited = np.array(Image.open(sample).convert("RGB"))
        half = edited.shape[0] // 2
        edited[half:] = np.asarray(Image.open(target).convert("RGB"))[half:]
        path = root / f"{row['NeIn']}.png"
        Image.fromarray(edited).save(path)
        name = " ".join(row["T_generated"].split()[2:]).rstrip(".")
        found.append(Pair(row["NeIn"], path, sample, target, name, row["T_original"]))
    return found


def _enlarged(path: Path, root: Path, size: tuple[int, int]) -> Path:
    with Image.open(path) as image:
        copy = root / f"{path.parent.name}-{path.name}"
        image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(copy)
    return copy


def decode(path: Path) -> np.ndarray:
    """Open a picture: (H, W, 3) uint8."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@dataclass(frozen=True)
class Measured:
    """What one side of a comparison took.

    seconds     On a GPU of the clock; on a CPU CPU seconds divided by the threads. clock: of the clock.
    operations  Floating-point operations; a multiply-add is two. None: not counted.
    peak        Bytes, of this side alone where the system can begin anew.
    profile     The operators that took longest: name, share of the time in operators, calls.
    """

    result: Any
    seconds: float
    clock: float
    operations: float | None = None
    peak: int | None = None
    profile: tuple[tuple[str, float, int], ...] = ()

    def share(self, limit: float) -> float | None:
        """Of `limit`, in operations per second."""
        return None if self.operations is None else self.operations / self.seconds / limit


def measure(
    work: Callable[[], Any],
    device: str,
    *,
    warm: Callable[[], Any] | None = None,
    scale: float = 1.0,
    count: bool = True,
    profile: bool = False,
    threads: int | None = None,
    passes: int = 1,
) -> Measured:
    """`work` after a warm-up, whose operations are counted.

    warm     The warm-up, if not `work` itself; scale: how many times its operations those of `work` are.
    count    False for what is compiled: the counter sees no operators there.
    threads  Of a CPU, that `work` keeps busy; None: PyTorch's.
    passes   Of `work`, whose median counts.
    """
    warm = warm or work
    operations = scale * count_operations(warm) if count else None
    if not count:
        warm()
    longest = profiled(warm, device) if profile else ()
    synchronize(device)
    reset_peak(device)
    taken = []
    for _ in range(passes):
        clock, start = time.perf_counter(), time.process_time()
        result = work()
        synchronize(device)
        taken.append((time.perf_counter() - clock, time.process_time() - start))
    seconds, processor = (statistics.median(column) for column in zip(*taken, strict=True))
    own = processor / (threads or torch.get_num_threads()) if device == "cpu" else seconds
    peaks = machine.peak_memory(device)
    peak = peaks.get("device", peaks.get("host"))
    return Measured(result, own, seconds, operations, peak, longest)


def profiled(work: Callable[[], Any], device: str, most: int = 8) -> tuple[tuple[str, float, int], ...]:
    """(operator, share of the time in operators, calls) of the longest."""
    from torch.profiler import ProfilerActivity, profile

    cuda = device.startswith("cuda")
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    with profile(activities=kinds) as profiler:
        work()
        synchronize(device)
    rows = profiler.key_averages()
    own = {row.key: row.self_device_time_total if cuda else row.self_cpu_time_total for row in rows}
    calls, total = {row.key: row.count for row in rows}, sum(own.values()) or 1
    longest = sorted(own, key=lambda key: -own[key])[:most]
    return tuple((key, round(own[key] / total, 3), calls[key]) for key in longest)


def limits(device: str, dtype: torch.dtype) -> dict[str, float]:
    """Operations per second of a large matrix product and of a 3 x 3 convolution, the best of a few: what
    this device reaches in this dtype. Of a CPU what one thread reaches, times PyTorch's threads, which wait
    for each other within an operation wherever the machine has other work."""
    size, channels, side = PROBES["cpu" if device == "cpu" else "other"]
    matrix = torch.randn(size, size, device=device).to(dtype)
    shapes = (2, channels, side, side), (channels, channels, 3, 3)
    pictures, kernels = (
        torch.randn(shape, device=device).to(dtype, memory_format=torch.channels_last) for shape in shapes
    )
    convolution = 2 * 2 * side**2 * channels**2 * 9
    work = {
        "matmul": (lambda: matrix @ matrix, 2 * size**3),
        "conv": (lambda: torch.nn.functional.conv2d(pictures, kernels, padding=1), convolution),
    }
    rates, threads = {}, torch.get_num_threads()
    torch.set_num_threads(1 if device == "cpu" else threads)
    with torch.inference_mode():
        for name, (function, operations) in work.items():
            # A single pass would count the memory that `measure` has made the system forget.
            fastest = min(measure(function, device, count=False, passes=5).seconds for _ in range(3))
            rates[name] = operations / max(fastest, 1e-9) * (threads if device == "cpu" else 1)
    torch.set_num_threads(threads)
    return rates


def compared(
    stage: str, dtype: str, ours: Measured, theirs: Measured, items: int, limit: float, **more: Any
) -> dict[str, Any]:
    """What is written of a stage. limit: operations per second, as the largest of `limits`."""
    sides = {
        name: {key: value for key, value in asdict(one).items() if key != "result"}
        | {"share": one.share(limit)}
        for name, one in (("ours", ours), ("theirs", theirs))
    }
    ratio = theirs.seconds / ours.seconds
    return {"stage": stage, "dtype": dtype, "items": items, "ratio": ratio, **more, **sides}


def save(path: str, device: str, tops: dict[str, dict[str, float]], stages: Sequence[dict[str, Any]]) -> Any:
    """Writes what was measured. tops: `limits` by dtype; stages: of `compared`."""
    about = {"device": describe_device(device), "torch": torch.__version__}
    result = {**about, "limits": tops, "stages": [*stages]}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def synchronize(device: str) -> None:
    """Waits for what a GPU is still at."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def reset_peak(device: str) -> None:
    """Peak memory counts from here on; on a CPU where the system can forget it (Linux with glibc)."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    if device == "cpu" and sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def describe_device(device: str) -> str:
    """ "AMD EPYC, 2 threads, AVX512"."""
    facts = machine.describe_environment(device)
    if device.startswith("cuda"):
        return str(facts["device_name"])
    return f"{facts['device_name']}, {torch.get_num_threads()} threads, {facts['arithmetic']}"


def blocks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Consecutive parts of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def setup(threads: int) -> None:
    """The given number of threads for torch, freed memory kept as commands keep it, no progress bars."""
    import transformers

    machine.tune_process()
    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def line(name: str, one: Measured, count: int, limit: float, reference: Measured | None = None) -> str:
    """One row of the printed table. limit: operations per second that the device reaches."""
    ratio = "1.0x" if reference is None else f"{reference.seconds / one.seconds:.1f}x"
    row = f"{name:<44}{one.seconds:>9.2f} s{1000 * one.seconds / count:>10.1f} ms/sample{ratio:>8}"
    return row + arithmetic(one, limit)


def arithmetic(one: Measured, limit: float) -> str:
    """ ", 9.1 GFLOP, 0.041 TFLOP/s (24 % of the limit)"; nothing where it was not counted."""
    share = one.share(limit)
    if one.operations is None or share is None:
        return ""
    work, rate = one.operations / 1e9, share * limit / 1e12
    return f", {work:.1f} GFLOP, {rate:.3f} TFLOP/s ({100 * share:.0f} % of the limit)"


def operators(name: str, one: Measured) -> str:
    """The profile in lines."""
    rows = [f"{100 * part:6.1f} %{calls:8} x {operator}" for operator, part, calls in one.profile]
    return "\n".join([f"{name}, longest operators:", *rows])


def report(
    out: str, theirs: tuple[str, Measured], ours: dict[str, tuple[str, Measured]], items: int,
    top: dict[str, float], agreement: str,
) -> None:  # fmt: skip
    """Prints both sides with the longest operators of ours, and writes them.

    theirs   What it is, and what it took. ours: stage -> the same. top: `limits` in float32 on a CPU.
    """
    limit = max(top.values())
    print(line(*theirs, items, limit))
    for words, one in ours.values():
        print(line(words, one, items, limit, theirs[1]))
    for words, one in ours.values():
        print(operators(words, one))
    stages = [
        compared(stage, "float32", one, theirs[1], items, limit, agreement=agreement)
        for stage, (_, one) in ours.items()
    ]
    save(out, "cpu", {"float32": top}, stages)
    print(f"{agreement}: yes")
