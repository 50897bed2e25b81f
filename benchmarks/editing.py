"""Editing speed: this project's batched loop beside diffusers' pipeline called once per image.

    python -m benchmarks.editing                              nano model, CPU, a minute
    python -m benchmarks.editing --size sd15 --device cuda    Stable Diffusion 1.5 at 512, random weights
    python -m benchmarks.editing --checkpoint owner/name --device cuda --dtype bfloat16

Both sides get the same weights, pictures, instructions, seeds, steps and guidance; each is warmed up once.
In float32 the pictures are compared as well; in other dtypes diffusers draws its step noise in that dtype, so
the pictures differ by design. On a CPU ours works on as many batches side by side as there are threads, each
on one thread, as `nein eval` does; diffusers' pipeline has all threads for each operation.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch
from diffusers import EulerAncestralDiscreteScheduler, StableDiffusionInstructPix2PixPipeline
from PIL import Image

from benchmarks import common, published
from benchmarks.common import Measured
from nein.editors import EditRequest, get_editor
from nein.editors.checkpoint import quiet
from nein.engine.machine import set_threads, tune_process
from nein.loading.weights import DTYPES, torch_dtype
from nein.models.references import resolve

OBJECTS = ("cat", "dog", "car", "clock", "bird", "cup", "chair")


@dataclass(frozen=True)
class Sides:
    """Ours and diffusers' pipeline on the same requests.

    settings  Of the editor, as it describes itself.
    """

    ours: Measured
    theirs: Measured
    settings: dict[str, Any]

    def difference(self) -> np.ndarray:
        """Of every value of every picture, in grey levels."""
        ours, theirs = (np.stack(side.result).astype(int) for side in (self.ours, self.theirs))
        return np.abs(ours - theirs)


def main() -> None:
    tune_process()
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        if options.size == "sd15" and options.checkpoint is None:
            checkpoint: str = published.make("ip2p", Path(folder) / "sd15")
        else:
            checkpoint = resolve(options.checkpoint or "nano:ip2p")
        show(side_by_side(checkpoint, options), options)
        # A block has one thread of a CPU; diffusers' pipeline has all of them for its one picture.
        options.images = options.batch_size = 1
        single = side_by_side(checkpoint, options)
        theirs, ours = single.theirs.clock, single.ours.clock
        times = f"diffusers {theirs:.2f} s, ours {ours:.2f} s, {theirs / ours:.2f} x"
        print(f"one picture alone, by the clock: {times}")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--size", choices=("nano", "sd15"), default="nano", help="sd15: random weights of that architecture"
    )
    parser.add_argument("--checkpoint", help="folder, hub id or nano:NAME in place of --size")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--resolution", type=int, help="default: that of the checkpoint")
    parser.add_argument("--height", type=int, help="of the pictures, in pixels; default: they are square")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32, with --size sd15 bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    common.results(parser, "editing")
    options = parser.parse_args(words)
    options.dtype = options.dtype or ("bfloat16" if options.size == "sd15" else "float32")
    torch.set_num_threads(options.threads)
    return options


def side_by_side(checkpoint: str, options: argparse.Namespace) -> Sides:
    ours, settings = measure_ours(checkpoint, options)
    gc.collect()
    return Sides(ours, measure_stock(checkpoint, settings, options), settings)


def show(sides: Sides, options: argparse.Namespace) -> None:
    top = common.limits(options.device, torch_dtype(options.dtype))
    limit = max(top.values())
    side = sides.settings["resolution"]
    print(
        f"{options.images} pictures of {side} x {options.height or side}, {options.steps} steps, "
        f"{options.dtype}, {common.describe_device(options.device)}, batch size {options.batch_size}, limit "
        f"{limit / 1e12:.2f} TFLOP/s"
    )
    for name, one in (("diffusers, one at a time", sides.theirs), ("editors, batched", sides.ours)):
        print(f"{name:<26}{options.images / one.seconds:8.2f} images/s{common.arithmetic(one, limit)}")
        if one.peak is not None:
            print(f"{'':<26}peak memory {one.peak / 2**30:.1f} GiB")
    print(f"{'ratio':<26}{sides.theirs.seconds / sides.ours.seconds:8.2f}")
    print(common.operators("editors, batched", sides.ours))
    agreement = "noise drawn in another type"
    if options.dtype == "float32":
        difference = sides.difference()
        print(f"{'largest difference':<26}{difference.max():8d} of 255 (mean {difference.mean():.4f})")
        agreement = f"{difference.max()} of 255 grey levels at most"
    both = sides.ours, sides.theirs
    stage = common.compared("edit", options.dtype, *both, options.images, limit, agreement=agreement)
    common.save(options.out, options.device, {options.dtype: top}, [stage])


def measure_ours(checkpoint: str, options: argparse.Namespace) -> tuple[Measured, dict[str, Any]]:
    """What our loop needs, and its settings."""
    where = {
        name: getattr(options, name) for name in ("device", "dtype", "batch_size", "steps", "resolution")
    }
    editor: Any = get_editor("ip2p", checkpoint=checkpoint, **where)
    settings = editor.describe()

    def batched(part: list[EditRequest]) -> list[Any]:
        results = editor.edit(part)
        errors = [result.error for result in results if result.error]
        if errors:
            raise RuntimeError(errors[0])
        return [result.image for result in results]

    at_once = 1
    if options.device == "cpu":
        at_once = min(options.threads, math.ceil(options.images / options.batch_size))
    requests = make_requests(options.images, settings["resolution"], options.height)
    first = requests[: options.batch_size]

    def work() -> list[Any]:
        start = set_threads if options.device == "cpu" else None
        batches = [requests[i : i + options.batch_size] for i in range(0, len(requests), options.batch_size)]
        with ThreadPoolExecutor(at_once, initializer=start) as pool:
            return [image for images in pool.map(batched, batches) for image in images]

    measured = common.measure(
        work, options.device, warm=lambda: batched(first), scale=len(requests) / len(first),
        profile=True, threads=at_once,
    )  # fmt: skip
    return measured, settings


def measure_stock(checkpoint: str, settings: dict[str, Any], options: argparse.Namespace) -> Measured:
    """What diffusers' pipeline needs, called once per picture."""
    stock = load_stock(checkpoint, options)

    def one_by_one(part: list[EditRequest]) -> list[np.ndarray]:
        pictures = []
        for request in part:
            output = stock(
                prompt=request.instruction,
                image=Image.fromarray(request.image),
                num_inference_steps=settings["steps"],
                guidance_scale=settings["guidance_scale"],
                image_guidance_scale=settings["image_guidance_scale"],
                generator=torch.Generator().manual_seed(request.seed),
            )
            pictures.append(np.asarray(output.images[0]))
        return pictures

    requests = make_requests(options.images, settings["resolution"], options.height)
    return common.measure(
        lambda: one_by_one(requests), options.device, warm=lambda: one_by_one(requests[:1]),
        scale=len(requests),
    )  # fmt: skip


def make_requests(count: int, width: int, height: int | None = None) -> list[EditRequest]:
    """Pictures of noise, which cost what any picture costs."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (count, height or width, width, 3), dtype=np.uint8)
    told = [f"The image has no {OBJECTS[i % len(OBJECTS)]}." for i in range(count)]
    return [EditRequest(str(i), noise[i], told[i], seed=i) for i in range(count)]


def load_stock(checkpoint: str, options: argparse.Namespace) -> Any:
    """diffusers' pipeline with the schedule of the paper, as one would use it from its documentation."""
    with quiet():
        pipeline: Any = StableDiffusionInstructPix2PixPipeline.from_pretrained(
            checkpoint, safety_checker=None, requires_safety_checker=False
        )
        pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(
            pipeline.scheduler.config, timestep_spacing="linspace"
        )
        pipeline.to(options.device, torch_dtype(options.dtype))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


if __name__ == "__main__":
    main()
