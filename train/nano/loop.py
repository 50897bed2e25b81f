"""One training loop for every model of the nano zoo: seeded per step, resumable, EMA, atomic state."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

SAVE_EVERY_SECONDS = 60.0


@dataclass
class Job:
    """What the loop needs to know about one model.

    modules    Named modules to optimise; those in `export` are what is saved in the end (EMA weights).
    loss       (step, generator) -> scalar loss and a dictionary of numbers to log. The generator lives on the
               training device and is seeded from (seed, step), so that a resumed run draws the same numbers.
    finish     Called once after the last step with EMA weights in place: writes the model folder and returns
               the measured quality for the card.
    after      Called after every optimiser step (used by DINO's teacher).
    """

    name: str
    modules: dict[str, nn.Module]
    loss: Callable[[int, torch.Generator], tuple[torch.Tensor, dict[str, float]]]
    finish: Callable[[], dict[str, Any]]
    steps: int
    lr: float
    batch: int
    warmup: int = 200
    weight_decay: float = 0.01
    clip: float = 1.0
    stop: int | None = None  # leave before the schedule ends, after this many steps
    autocast: bool = False  # forward and loss in bfloat16 where the library deems it safe
    ema: float = 0.999
    ema_modules: tuple[str, ...] | None = None
    after: Callable[[int], None] | None = None
    extra_state: dict[str, nn.Module] = field(default_factory=dict)


#: Below this scale a run is a smoke test: tiny batches, few held-out scenes, quality figures without meaning.
SMOKE = 0.01


def sized(count: int, scale: float, least: int = 2) -> int:
    """`count`, or `least` in a smoke test (scale < `SMOKE`): batch sizes and held-out counts."""
    return count if scale >= SMOKE else min(count, least)


def step_count(steps: int, scale: float) -> int:
    return max(2, int(steps * scale))


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Linear warm-up, then cosine down to 2 % of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return peak * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def _save_state(path: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    save_file(
        {k: v.detach().contiguous().cpu() for k, v in tensors.items()}, draft, {"meta": json.dumps(meta)}
    )
    draft.replace(path)


def _load_meta(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, "pt") as handle:
        return json.loads((handle.metadata() or {})["meta"])


def run(job: Job, *, device: torch.device, seed: int, work: Path, log_every: int = 50) -> dict[str, Any]:
    """Train `job` to its last step, resuming from `work/<name>.safetensors` when that exists."""
    for module in job.modules.values():
        module.to(device).train()
    params = [
        (f"{m}.{n}", p)
        for m, mod in job.modules.items()
        for n, p in mod.named_parameters()
        if p.requires_grad
    ]
    decay = [p for _, p in params if p.ndim >= 2]
    plain = [p for _, p in params if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": job.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=job.lr, betas=(0.9, 0.98), fused=device.type == "cuda")
    averaged = {n: p.detach().clone() for n, p in params}
    state_path = work / f"{job.name}.safetensors"
    start, spent = 0, 0.0
    if state_path.exists():
        meta = _load_meta(state_path)
        if meta["steps"] != job.steps or meta["seed"] != seed or meta["batch"] != job.batch:
            raise SystemExit(
                f"{state_path} holds a run with steps={meta['steps']}, batch={meta['batch']}, "
                f"seed={meta['seed']}; use the same settings or another --work folder"
            )
        tensors = load_file(state_path, device=str(device))
        start, spent = meta["step"], meta["seconds"]
        with torch.no_grad():
            for name, p in params:
                p.copy_(tensors[f"model/{name}"])
                averaged[name].copy_(tensors[f"ema/{name}"])
                if f"opt/m/{name}" in tensors:
                    optimiser.state[p] = {
                        "step": tensors[f"opt/step/{name}"],
                        "exp_avg": tensors[f"opt/m/{name}"],
                        "exp_avg_sq": tensors[f"opt/v/{name}"],
                    }
        for key, module in job.extra_state.items():
            module.load_state_dict(
                {k[len(f"x/{key}/") :]: v for k, v in tensors.items() if k.startswith(f"x/{key}/")}
            )
        print(f"[{job.name}] resumed at step {start}", flush=True)

    def state() -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        for name, p in params:
            tensors[f"model/{name}"] = p
            tensors[f"ema/{name}"] = averaged[name]
            if p in optimiser.state:
                tensors[f"opt/step/{name}"] = torch.as_tensor(optimiser.state[p]["step"], dtype=torch.float32)
                tensors[f"opt/m/{name}"] = optimiser.state[p]["exp_avg"]
                tensors[f"opt/v/{name}"] = optimiser.state[p]["exp_avg_sq"]
        for key, module in job.extra_state.items():
            tensors.update({f"x/{key}/{k}": v for k, v in module.state_dict().items()})
        return tensors

    # One step between the rulers.
    generator = torch.Generator(device=device)
    began = last_save = last_log = time.perf_counter()
    logged_step = start
    values = list(averaged.values())
    sources = [p for _, p in params]
    last = min(job.steps, job.stop or job.steps)
    for step in range(start, last):
        # ----------------------------------------------------------------------------------------------------
        generator.manual_seed(seed * 1_000_003 + step)
        torch.manual_seed(seed * 1_000_003 + step)  # dropout inside library modules
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, job.steps, job.lr, job.warmup)
        with torch.autocast(device.type, torch.bfloat16, enabled=job.autocast):
            loss, extra = job.loss(step, generator)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(sources, job.clip)
        optimiser.step()
        with torch.no_grad():
            rate = 1 - min(job.ema, (1 + step) / (10 + step))
            torch._foreach_lerp_(values, [p.detach() for p in sources], rate)
        if job.after is not None:
            job.after(step)
        # ----------------------------------------------------------------------------------------------------
        now = time.perf_counter()
        if (step + 1) % log_every == 0 or step + 1 == last:
            value = float(loss.detach())
            if not math.isfinite(value):
                raise SystemExit(
                    f"[{job.name}] loss is {value} between steps {logged_step} and {step + 1}; "
                    "lower the learning rate and start again"
                )
            rate_now = (step + 1 - logged_step) / (now - last_log)
            details = " ".join(f"{k} {float(v):.4f}" for k, v in extra.items())
            eta = (last - step - 1) / max(rate_now, 1e-9)
            print(
                f"[{job.name}] step {step + 1}/{job.steps} loss {value:.4f} {details} |g| {float(norm):.2f} "
                f"{rate_now:.1f} it/s, {eta:.0f} s left",
                flush=True,
            )
            last_log, logged_step = now, step + 1
        if now - last_save > SAVE_EVERY_SECONDS and step + 1 < last and math.isfinite(float(loss.detach())):
            meta = {"step": step + 1, "steps": job.steps, "batch": job.batch, "seed": seed}
            _save_state(state_path, state(), {**meta, "seconds": spent + now - began})
            last_save = now
    seconds = spent + time.perf_counter() - began
    if start < last:
        meta = {"step": last, "steps": job.steps, "batch": job.batch, "seed": seed, "seconds": seconds}
        _save_state(state_path, state(), meta)
    with torch.no_grad():
        for name, p in params:
            p.copy_(averaged[name])
    for module in job.modules.values():
        module.eval()
    with torch.inference_mode():
        quality = job.finish()
    return {
        "steps": last,
        "batch": job.batch,
        "learning_rate": job.lr,
        "seconds": round(seconds),
        **quality,
    }
