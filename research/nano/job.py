"""What the training loop needs to know of a nano model, and its run: seeded per step, averaged weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nein.nano.data import world_version
from nein.train import loop
from nein.train.checkpoints import State
from nein.train.loop import Record, Session
from nein.train.options import RunOptions


@dataclass
class Job:
    """What the loop needs to know about one model.

    modules    Named modules to optimise.
    loss       (step, generator) -> () float32 and numbers to log. The generator lives on the training device
               and is seeded by (seed, step), so that a resumed run draws the same numbers.
    deliver    Called once after the last step with averaged weights in place: writes the model folder and
               returns the measured quality for the card.
    stop       Leave before the schedule ends, after this many steps.
    autocast   Forward and loss in bfloat16 where the library deems it safe.
    ema        Decay of the averaged weights.
    after      Called after every optimiser step (used by DINO's teacher).
    followers  What changes without learning, and is saved with the rest (DINO's teacher).
    """

    name: str
    modules: Mapping[str, nn.Module]
    loss: Callable[[int, torch.Generator], tuple[torch.Tensor, dict[str, float]]]
    deliver: Callable[[], dict[str, Any]]
    steps: int
    lr: float
    batch: int
    warmup: int = 200
    weight_decay: float = 0.05
    clip: float = 1.0
    stop: int | None = None
    autocast: bool = False
    ema: float = 0.995
    after: Callable[[int], None] | None = None
    followers: dict[str, nn.Module] = field(default_factory=dict)


SAVE_EVERY, LOG_EVERY = 100, 50  # steps
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


@dataclass(kw_only=True)
class JobOptions(RunOptions):
    """The options of a job's run."""

    base: str = "nothing"
    name: str
    learning_rate: float
    seed: int

    def identity(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("name", "batch_size", "learning_rate", "clip", "seed")}


class Average:
    """Exponential moving average of parameters, decay min(ema, (1 + n) / (10 + n)) after n steps."""

    def __init__(self, parameters: Sequence[nn.Parameter], ema: float) -> None:
        self.shadow_params = [p.detach().clone() for p in parameters]
        self.optimization_step = 0
        self._ema = ema

    @torch.no_grad()
    def step(self, parameters: Sequence[nn.Parameter]) -> None:
        n = self.optimization_step
        weight = 1 - min(self._ema, (1 + n) / (10 + n))
        torch._foreach_lerp_(self.shadow_params, [p.detach() for p in parameters], weight)
        self.optimization_step += 1

    @torch.no_grad()
    def copy_to(self, parameters: Sequence[nn.Parameter]) -> None:
        for parameter, value in zip(parameters, self.shadow_params, strict=True):
            parameter.copy_(value)


def run(job: Job, *, device: torch.device, seed: int, work: Path) -> dict[str, Any]:
    """Trains `job` to its last step, going on from what lies in `work/<name>`; the record for its card."""
    # -------------------------------------------------------------------------- weights, optimiser, averaging
    for module in job.modules.values():
        module.to(device).train()
    learning = {
        f"{name}.{key}": p
        for name, module in job.modules.items()
        for key, p in module.named_parameters()
        if p.requires_grad
    }
    parameters = list(learning.values())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": job.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    # The rate of a step is what the schedule says, times 1.
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.98), fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, job.steps, job.lr, job.warmup)
    )
    average = Average(parameters, job.ema)
    state = State(list(learning), parameters, optimizer, schedule, average, job.followers)
    generator = torch.Generator(device=device)

    # --------------------------------------------------------------------------------------------------- loop
    def learn(step: int, _: None) -> loop.Loss:
        generator.manual_seed(seed * 1_000_003 + step)
        torch.manual_seed(seed * 1_000_003 + step)  # dropout inside library modules
        with torch.autocast(device.type, torch.bfloat16, enabled=job.autocast):
            loss, figures = job.loss(step, generator)
        loss.backward()
        return loss.detach(), figures

    def follow(step: int) -> None:
        average.step(parameters)
        if job.after is not None:
            job.after(step)

    options = JobOptions(
        name=job.name,
        batch_size=job.batch,
        learning_rate=job.lr,
        clip=job.clip,
        seed=seed,
        out=str(work / job.name),
        device="cpu" if device.type == "cpu" else "auto",
        save_every=SAVE_EVERY,
        log_every=LOG_EVERY,
        keep=1,
        workers=1,
    )
    with Session(options) as session:
        record = Record(
            options, session, data={"records_sha256": world_version()}, base_sha256="none", steps=job.steps
        )
        record.open()
        done = loop.run(
            record, state, read=lambda step: None, step=learn, after=follow, stop=job.stop, title=job.name
        )
        seconds = record.seconds()
    # --------------------------------------------------------------------------------------------- at the end
    average.copy_to(parameters)
    for module in job.modules.values():
        module.eval()
    with torch.inference_mode():
        quality = job.deliver()
    return {"steps": done, "batch": job.batch, "learning_rate": job.lr, "seconds": round(seconds), **quality}
