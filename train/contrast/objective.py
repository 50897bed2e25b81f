"""The two losses of NegBench's fine-tuning, exact over any number of processes.

L = alpha L_CLIP + (1 - alpha) L_MCQ. Source: Alhamoud et al., NegBench, section on fine-tuning.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F


class _Gather(torch.autograd.Function):
    """Concatenation over processes whose gradient is summed over processes.

    Every process's loss depends on every process's features; averaging parameter gradients afterwards, as
    data-parallel training does, then gives the gradient of the mean of the losses.
    """

    @staticmethod
    def forward(ctx: Any, features: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, features.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def gather(features: torch.Tensor) -> torch.Tensor:
    """(B, D) of this process -> (B x processes, D) of all, in order of rank. All must have the same B."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return features
    return _Gather.apply(features)


def contrastive_loss(image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Symmetric cross-entropy over cosine x `scale` of all pictures and captions (CLIP, arXiv:2103.00020).

    image, text  (B, D) of this process, of any length: normalised here. Row i of one belongs to row i of the
                 other; everything else in the joint batch is a wrong partner.
    scale        The logit scale itself, not its logarithm.

    The scalar is the mean over this process's rows; its mean over processes is the loss of the joint batch,
    and so are the gradients once they are averaged. A process holds B x (B x processes) similarities.
    """
    image, text = F.normalize(image.float(), dim=-1), F.normalize(text.float(), dim=-1)
    all_images, all_texts = gather(image), gather(text)  # B, D => B x processes, D
    first = dist.get_rank() * len(image) if len(all_images) > len(image) else 0
    target = torch.arange(first, first + len(image), device=image.device)
    by_image = F.cross_entropy(scale * image @ all_texts.T, target)
    by_text = F.cross_entropy(scale * text @ all_images.T, target)
    return (by_image + by_text) / 2


def choice_loss(
    image: torch.Tensor, options: torch.Tensor, correct: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Cross-entropy over the options of each question, logits cosine x `scale`.

    image    (B, D), of any length.
    options  (B, C, D): C options for each of the B pictures.
    correct  (B,) int64, the index of the right option.

    Raises ValueError for any other layout: the released training code takes (B, C, D) where its evaluation
    makes (C, B, D), and with B = C nothing would show it.
    """
    if options.ndim != 3 or image.ndim != 2 or (len(options), options.shape[2]) != tuple(image.shape):
        raise ValueError(
            f"options must be (batch, options, dim) for pictures (batch, dim); got {tuple(options.shape)} "
            f"for {tuple(image.shape)}"
        )
    cosine = torch.einsum(
        "bd,bcd->bc", F.normalize(image.float(), dim=-1), F.normalize(options.float(), dim=-1)
    )  # B, C
    return F.cross_entropy(scale * cosine, correct)
