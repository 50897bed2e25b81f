"""A tiny two-tower model, both losses, and the gradients that several processes arrive at together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from nein.train.clip_finetuning.towers import choice_loss, contrastive_loss

DIM, OPTIONS, ALPHA = 5, 4, 0.3


def model() -> nn.ModuleDict:
    torch.manual_seed(1)
    parts: Any = {"image": nn.Linear(7, DIM), "text": nn.Linear(6, DIM)}
    found = nn.ModuleDict(parts)
    found.register_parameter("log_scale", nn.Parameter(torch.tensor(1.3)))
    return found.double()


def batch(rows: int = 6) -> dict[str, torch.Tensor]:
    """6 captions and 6 questions of 4 options each: batch and options differ."""
    torch.manual_seed(2)
    return {
        "images": torch.randn(rows, 7).double(),
        "texts": torch.randn(rows, 6).double(),
        "asked": torch.randn(rows, 7).double(),
        "options": torch.randn(rows, OPTIONS, 6).double(),
        "correct": torch.tensor([0, 3, 1, 2, 2, 0])[:rows],
    }


def loss_of(network: Any, part: dict[str, torch.Tensor]) -> torch.Tensor:
    scale = network["log_scale"].exp() if "log_scale" in network else network.log_scale.exp()
    contrast = contrastive_loss(network["image"](part["images"]), network["text"](part["texts"]), scale)
    choice = choice_loss(
        network["image"](part["asked"]), network["text"](part["options"]), part["correct"], scale
    )
    return ALPHA * contrast + (1 - ALPHA) * choice


def gradients(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


def work(rank: int, size: int, folder: str) -> None:
    """One process: its part of the batch, then gradients averaged as data-parallel training does."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    network, whole = model(), batch()
    own = len(whole["images"]) // size
    loss = loss_of(network, {key: value[rank * own : (rank + 1) * own] for key, value in whole.items()})
    loss.backward()
    found = {"loss": loss.detach().clone(), **gradients(network)}
    for value in found.values():
        dist.all_reduce(value)
        value /= size
    if rank == 0:
        save_file(
            {key: value.contiguous() for key, value in found.items()}, Path(folder, "found.safetensors")
        )
    dist.destroy_process_group()
