"""Training speed: `train/finetune_ip2p.py` beside the recipe of diffusers' train_instruct_pix2pix.py.

    python -m benchmarks.finetune                                 nano model, CPU, a minute or two
    python -m benchmarks.finetune --size sd15 --device cuda       size of Stable Diffusion 1.5, bf16, 256 px

Both get the same model, pictures, sentences, batch and precision. The recipe as a plain loop runs the VAE on
input and target and the text encoder on the sentences and on "" in every step; its pictures lie decoded in
memory, which favours it. Ours is the real command; making its features once is timed apart. On a CPU seconds
are CPU seconds divided by the threads; several threads need an idle machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import numpy as np
import torch

from benchmarks import common, published
from benchmarks.common import Measured
from nein.editors.checkpoint import load_pipeline
from nein.engine import machine
from nein.models.references import resolve
from nein.train import finetune_ip2p, loop
from nein.train.editor_finetuning.batches import Encoder, Features
from nein.train.editor_finetuning.data import load, prepare_pair
from nein.train.editor_finetuning.model import make_noise_scheduler
from nein.train.editor_finetuning.options import TuneConfig

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
SKIPPED = 0.25  # share of the first steps that is not timed: allocation and warm-up


def main() -> None:
    options = _parse()
    machine.tune_process()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        base = published.make("ip2p", root / "sd15") if options.size == "sd15" else resolve("nano:ip2p")
        print(
            f"{options.size}, {options.resolution} x {options.resolution}, batch {options.batch_size}, "
            f"{options.precision}, {common.describe_device(options.device)}"
        )
        operations = count_operations(base, options)
        tops = common.limits(options.device, PRECISIONS[options.precision])
        peak = max(tops.values())
        plain, plain_memory = plain_loop(base, options)
        ours, ours_memory, preparation = command(base, options, root / "timed")
        work = functools.partial(command, base, options, root / "profiled")
        profile = common.profiled(work, options.device)
    print(f"arithmetic of the UNet: {operations / 1e12:.3f} TFLOP a step, limit {peak / 1e12:.2f} TFLOP/s")
    for name, seconds, memory in (("diffusers' recipe", plain, plain_memory), ("ours", ours, ours_memory)):
        share = operations / seconds / peak
        shown = f", most memory {memory:5.2f} GiB" if memory is not None else ""
        speed = f"{1000 * seconds:10.1f} ms/step{plain / seconds:7.2f} x  {100 * share:5.1f} % of the limit"
        print(f"{name:<26}{speed}{shown}")
    print(f"making the features once  {1000 * preparation:10.1f} ms/pair")
    theirs = Measured(None, plain, plain, operations)
    side = Measured(None, ours, ours, operations, profile=profile)
    stage = common.compared("fine-tuning", options.precision, side, theirs, options.batch_size, peak)
    print(common.operators("ours", side))
    common.save(options.out, options.device, {options.precision: tops}, [stage])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=("nano", "sd15"), default="nano")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--resolution", type=int, help="default: 64, or 256 with --size sd15")
    parser.add_argument("--precision", choices=PRECISIONS, help="default: fp32, or bf16 on CUDA")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    common.results(parser, "finetune")
    options = parser.parse_args()
    options.resolution = options.resolution or (256 if options.size == "sd15" else 64)
    options.precision = options.precision or ("bf16" if options.device == "cuda" else "fp32")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    return options


def command(base: str, options: Any, out: Path) -> tuple[float, float | None, float]:
    """(seconds per step, most memory, seconds per pair of making the features) of the real command."""
    line = [f"--base={base}", "--data=nano", "--nano-sources=60", "--trackers=none", "--flip=0", "--ema=0"]
    line += [f"--steps={options.steps}", f"--batch-size={options.batch_size}", "--learning-rate=1e-5"]
    line += [
        f"--resolution={options.resolution}",
        f"--precision={options.precision}",
        "--align-resolution=64",
    ]
    line += ["--log-every=1", "--save-every=100000", f"--out={out}", f"--features={out.parent / 'features'}"]
    line += ["--device=cpu"] if options.device == "cpu" else []
    timer = _timer(options)
    stopwatch = mock.patch.object(loop, "time", SimpleNamespace(perf_counter=timer))
    with contextlib.redirect_stderr(io.StringIO()), stopwatch:
        config, _ = TuneConfig.parse_line(line)
        pairs, pipeline = load(config), load_pipeline(base).pipeline
        start = timer()
        encoder = Encoder(pipeline, torch.device(options.device), PRECISIONS[options.precision])
        Features(config, pairs, pipeline).make(encoder, machine.Processes())
        preparation = (timer() - start) / len(pairs.images)
        common.reset_peak(options.device)
        finetune_ip2p.main(line)
    rows = [json.loads(row) for row in (out / "log.jsonl").read_text().splitlines()]
    first = rows[int(SKIPPED * len(rows))]
    seconds = (rows[-1]["seconds"] - first["seconds"]) / (rows[-1]["step"] - first["step"])
    return seconds, _memory(), preparation


def plain_loop(base: str, options: Any) -> tuple[float, float | None]:
    """(seconds per step, most memory in GiB) of the recipe of diffusers' script.

    Facts: examples/instruct_pix2pix/train_instruct_pix2pix.py @ 58eb52c. Frozen parts in the half type, UNet
    in float32 under autocast; target sampled from the posterior and scaled, input its mode; text encoder on
    the sentences and on "" in every step; masks of the conditioning dropout; AdamW, gradient norm 1.
    """
    device, half = torch.device(options.device), PRECISIONS[options.precision]
    words = ["--data=nano", "--nano-sources=60", "--steps=1", "--target-align=none"]
    plain, _ = TuneConfig.parse_line([*words, f"--resolution={options.resolution}"])
    pairs = load(plain)
    pictures = [prepare_pair(plain, *pairs.images[e.pair].read()) for e in pairs.negative]
    pixels = torch.from_numpy(np.stack([np.stack(pair) for pair in pictures])).permute(0, 1, 4, 2, 3)
    pixels = pixels.float() / 127.5 - 1
    pipeline: Any = load_pipeline(base).pipeline
    vae = pipeline.vae.to(device, half).requires_grad_(False)
    text = pipeline.text_encoder.to(device, half).requires_grad_(False)
    unet = pipeline.unet.to(device).train()
    scheduler = make_noise_scheduler(pipeline)
    limit = min(pipeline.tokenizer.model_max_length, text.config.max_position_embeddings)

    def tokens(sentences: list[str]) -> torch.Tensor:
        lengths = {"padding": "max_length", "max_length": limit, "truncation": True}
        return pipeline.tokenizer(sentences, **lengths, return_tensors="pt").input_ids

    ids = tokens([e.instruction for e in pairs.negative])
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5)
    generator = torch.Generator(device).manual_seed(0)
    autocast = torch.autocast(device.type, half, enabled=half != torch.float32)
    common.reset_peak(options.device)
    timings, timer = [], _timer(options)
    for step in range(options.steps):
        start = timer()
        pick = torch.arange(step * options.batch_size, (step + 1) * options.batch_size) % len(ids)
        source, target = (pixels[pick, i].to(device, half) for i in (0, 1))
        with torch.no_grad():
            latents = vae.encode(target).latent_dist.sample() * vae.config.scaling_factor
            states = text(ids[pick].to(device))[0]
            null = text(tokens([""]).to(device))[0]
            condition = vae.encode(source).latent_dist.mode()
        latents = latents.float()
        noise = torch.randn_like(latents)
        timesteps = torch.randint(0, 1000, (len(pick),), device=device)
        noisy = scheduler.add_noise(latents, noise, timesteps)
        r = torch.rand(len(pick), device=device, generator=generator)
        states = torch.where((r < 0.1).reshape(-1, 1, 1), null, states)
        condition = condition * (1 - ((r >= 0.05) & (r < 0.15)).to(condition.dtype)).reshape(-1, 1, 1, 1)
        kind = scheduler.config.prediction_type
        wanted = noise if kind == "epsilon" else scheduler.get_velocity(latents, noise, timesteps)
        with autocast:
            predicted = unet(torch.cat([noisy, condition.float()], 1), timesteps, states.float()).sample
        loss = torch.nn.functional.mse_loss(predicted.float(), wanted.float())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # as the script logs it
        timings.append(timer() - start)
    kept = timings[int(SKIPPED * len(timings)) :]
    return sum(kept) / len(kept), _memory()


def count_operations(base: str, options: Any) -> float:
    """Floating-point operations of the UNet in one step, forward and backward, as PyTorch counts them."""
    pipeline: Any = load_pipeline(base).pipeline
    unet, side = pipeline.unet, options.resolution // 2 ** (len(pipeline.vae.config.block_out_channels) - 1)
    limit = min(pipeline.tokenizer.model_max_length, pipeline.text_encoder.config.max_position_embeddings)
    unet.to(options.device).train()
    inputs = torch.randn(1, 8, side, side, device=options.device)
    states = torch.randn(1, limit, unet.config.cross_attention_dim, device=options.device)
    step = torch.tensor([1], device=options.device)
    counted = common.count_operations(lambda: unet(inputs, step, states).sample.sum().backward())
    return counted * options.batch_size


def _timer(options: Any) -> Callable[[], float]:
    """Seconds of the clock, or of a CPU by the thread."""
    if options.device != "cpu":
        return time.perf_counter
    return lambda: time.process_time() / options.threads


def _memory() -> float | None:
    """GiB of the GPU since the last reset. A process on a CPU only knows its peak since it began: None."""
    peak = machine.peak_memory().get("device")
    return peak / 2**30 if peak is not None else None


if __name__ == "__main__":
    main()
