"""Editing speed: this project's batched loop beside diffusers' pipeline called once per image.

    python benchmarks/editing.py                              nano model, CPU, a minute
    python benchmarks/editing.py --size sd15 --device cuda    Stable Diffusion 1.5 at 512, random weights
    python benchmarks/editing.py --checkpoint owner/name --device cuda --dtype bfloat16

Both sides get the same weights, pictures, instructions, seeds, steps and guidance; each is warmed up once.
In float32 the pictures are compared as well; in other dtypes diffusers draws its step noise in that dtype, so
the pictures differ by design. The arithmetic of one edit is counted operation by operation and set against
the device's published peak, where the table below has one.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch
from diffusers import (
    AutoencoderKL,
    EulerAncestralDiscreteScheduler,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from editors import EditRequest, get_editor
from editors.checkpoint import quiet
from editors.machine import ATTENTIONS, DTYPES
from nein.benchmarks.nein.reporting.costs import peak_of
from nein.engine import memory
from nein.engine.environment import keep_freed_memory
from nein.models.references import resolve

OBJECTS = ("cat", "dog", "car", "clock", "bird", "cup", "chair")


@dataclass(frozen=True)
class Measured:
    """What one side needed for all requests; `peak` is None where the system does not tell."""

    pictures: list[np.ndarray]
    seconds: float
    peak: dict[str, Any] | None


def main() -> None:
    keep_freed_memory()
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        if options.size == "sd15" and options.checkpoint is None:
            checkpoint: str = str(build_full_size(Path(folder) / "sd15", DTYPES[options.dtype]))
        else:
            checkpoint, _ = resolve(options.checkpoint or "nano:ip2p")
        compare(checkpoint, options)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--size", choices=("nano", "sd15"), default="nano", help="sd15: random weights of that architecture"
    )
    parser.add_argument("--checkpoint", help="folder, hub id or nano:NAME in place of --size")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--resolution", type=int, help="default: that of the checkpoint")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32, with --size sd15 bfloat16")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--attention", choices=ATTENTIONS, default="sdpa")
    parser.add_argument("--compile", action="store_true", help="torch.compile, on our side only")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: 2)")
    options = parser.parse_args()
    options.dtype = options.dtype or ("bfloat16" if options.size == "sd15" else "float32")
    torch.set_num_threads(options.threads)
    return options


def compare(checkpoint: str, options: argparse.Namespace) -> None:
    ours, settings, operations = measure_ours(checkpoint, options)
    gc.collect()
    theirs = measure_stock(checkpoint, settings, options)
    for name, side in (("diffusers, one at a time", theirs), ("editors, batched", ours)):
        print(
            f"{name:<26}{options.images / side.seconds:8.2f} images/s{efficiency(operations, side, options)}"
        )
    print(f"{'ratio':<26}{theirs.seconds / ours.seconds:8.2f}")
    if operations is not None:
        print(f"{'one edit':<26}{operations / 1e12:8.3f} TFLOP")
    for name, side in (("diffusers", theirs), ("editors", ours)):
        if side.peak is not None:
            print(f"peak memory, {memory.sentence(name, side.peak)}")
    if options.dtype == "float32":
        difference = np.abs(np.stack(ours.pictures).astype(int) - np.stack(theirs.pictures).astype(int))
        print(f"{'largest difference':<26}{difference.max():8d} of 255 (mean {difference.mean():.4f})")


def measure_ours(checkpoint: str, options: argparse.Namespace) -> tuple[Measured, dict[str, Any], int | None]:
    """What our loop needs, its settings, and the operations of one edit (not counted when compiled)."""
    editor = get_editor(
        "ip2p",
        checkpoint=checkpoint,
        device=options.device,
        dtype=options.dtype,
        batch_size=options.batch_size,
        steps=options.steps,
        resolution=options.resolution,
        channels_last=options.channels_last,
        attention=options.attention,
        compile=options.compile,
    )
    settings = editor.describe()
    side = settings["resolution"]
    requests = make_requests(options.images, side)
    print(
        f"{options.images} pictures of {side} x {side}, {options.steps} steps, {options.dtype}, "
        f"{describe_device(options.device)}, batch size {options.batch_size}"
    )

    def batched(part: list[EditRequest]) -> list[Any]:
        results = editor.edit(part)
        errors = [result.error for result in results if result.error]
        if errors:
            raise RuntimeError(errors[0])
        return [result.image for result in results]

    operations = None if options.compile else count_operations(lambda: batched(requests[:1]))
    return measure(batched, requests, options.batch_size, options), settings, operations


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

    return measure(one_by_one, make_requests(options.images, settings["resolution"]), 1, options)


def make_requests(count: int, side: int) -> list[EditRequest]:
    """Pictures of noise, which cost what any picture costs."""
    rng = np.random.default_rng(0)
    return [
        EditRequest(
            id=str(i),
            image=rng.integers(0, 256, (side, side, 3), dtype=np.uint8),
            instruction=f"The image has no {OBJECTS[i % len(OBJECTS)]}.",
            seed=i,
        )
        for i in range(count)
    ]


def count_operations(edit: Callable[[], Any]) -> int:
    """Floating-point operations of one edit by torch's counter; a multiply-add is two."""
    with FlopCounterMode(display=False) as counter:
        edit()
    return counter.get_total_flops()


def efficiency(operations: int | None, side: Measured, options: argparse.Namespace) -> str:
    """Arithmetic per second, and its share of the device's published peak where the table has one."""
    if operations is None:
        return ""
    rate = operations * options.images / side.seconds
    peak = peak_of(describe_device(options.device), options.dtype)
    share = (
        "no published peak for this device" if peak is None else f"{100 * rate / 1e12 / peak:.1f} % of {peak}"
    )
    return f", {rate / 1e12:.3f} TFLOP/s ({share})"


def measure(
    work: Callable[[list[EditRequest]], list[Any]],
    requests: list[EditRequest],
    warm_up: int,
    options: argparse.Namespace,
) -> Measured:
    """All requests, after a warm-up with the first few."""

    def synchronize() -> None:
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()

    memory.reset(options.device)
    work(requests[:warm_up])
    synchronize()
    start = time.perf_counter()
    pictures = work(requests)
    synchronize()
    return Measured(pictures, time.perf_counter() - start, memory.peak(options.device))


def load_stock(checkpoint: str, options: argparse.Namespace) -> Any:
    """diffusers' pipeline with the schedule of the paper, as one would use it from its documentation."""
    with quiet():
        pipeline: Any = StableDiffusionInstructPix2PixPipeline.from_pretrained(
            checkpoint, safety_checker=None, requires_safety_checker=False
        )
        pipeline.scheduler = EulerAncestralDiscreteScheduler.from_config(
            pipeline.scheduler.config, timestep_spacing="linspace"
        )
        pipeline.to(options.device, DTYPES[options.dtype])
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def build_full_size(folder: Path, dtype: torch.dtype) -> Path:
    """Save a pipeline of InstructPix2Pix's size (Stable Diffusion 1.5, 8 input channels), random weights."""
    folder.mkdir(parents=True)
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer.from_pretrained(folder, model_max_length=77)
    blocks = (320, 640, 1280, 1280)
    vae_blocks = (128, 256, 512, 512)
    with quiet():
        pipeline: Any = StableDiffusionInstructPix2PixPipeline(
            vae=AutoencoderKL(
                block_out_channels=vae_blocks,
                down_block_types=("DownEncoderBlock2D",) * 4,
                up_block_types=("UpDecoderBlock2D",) * 4,
                layers_per_block=2,
                sample_size=512,
            ),
            text_encoder=CLIPTextModel(
                CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_attention_heads=12)
            ),
            tokenizer=tokenizer,
            unet=UNet2DConditionModel(
                sample_size=64,
                in_channels=8,
                block_out_channels=blocks,
                cross_attention_dim=768,
                attention_head_dim=8,
            ),
            scheduler=EulerAncestralDiscreteScheduler(
                beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"
            ),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        pipeline.to(dtype=dtype)
        pipeline.save_pretrained(folder)
    return folder


def describe_device(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"CPU with {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
