"""The two losses of NegBench's fine-tuning, exact over any number of processes, and its learning rate.

L = alpha L_CLIP + (1 - alpha) L_MCQ. Source: Alhamoud et al., NegBench, section on fine-tuning.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from nein.train import loop
from nein.train.clip_finetuning.data import Corpus
from nein.train.clip_finetuning.options import ContrastConfig


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
    image: torch.Tensor,
    options: torch.Tensor,
    correct: torch.Tensor,
    scale: torch.Tensor,
    protocol: str = "fixed",
) -> torch.Tensor:
    """Cross-entropy over the options of each question.

    image    (B, D), of any length.
    options  (B, C, D): C options for each of the B pictures.
    correct  (B,) int64, the index of the right option.

    "fixed" takes cosine x `scale` as logits, as the paper says. "paper" takes dot product x `scale`, since
    the released code calls encode_image and encode_text without `normalize=True` (process_mcq_batch in
    train.py of github.com/m1k2zoo/negbench @ 2ac009b). Raises ValueError for another layout: with B = C
    nothing would show that (C, B, D) was given.
    """
    if options.ndim != 3 or image.ndim != 2 or (len(options), options.shape[2]) != tuple(image.shape):
        raise ValueError(
            f"options must be (batch, options, dim) for pictures (batch, dim); got {tuple(options.shape)} "
            f"for {tuple(image.shape)}"
        )
    image, options = image.float(), options.float()
    if protocol == "fixed":
        image, options = F.normalize(image, dim=-1), F.normalize(options, dim=-1)
    return F.cross_entropy(scale * torch.einsum("bd,bcd->bc", image, options), correct)  # logits: B, C


# ---------------------------------------------------------------------------------------------- learning rate


def steps(config: ContrastConfig, corpus: Corpus) -> int:
    """Steps of the run: as asked for, or so many that the shorter file is passed `epochs` times.

    How many a pass has, and over how many the rate falls:

                    protocol "paper"                            protocol "fixed"
    steps a pass    35 % (`--epoch-share`) of the batches of    that share of the rows of the shorter file,
                    the shorter loader that is in use           in batches
    rate falls      over all batches of the captions' file:     over the steps that are taken
    over            it ends at about three quarters of its
                    peak, after 35 % of a cosine
    warm-up         step k of N has (k + 1) / N of the peak     k / N
    next pass       goes on in the order of the last one        begins with a new order

    Source of "paper": main.py, scheduler.py and train.py of github.com/m1k2zoo/negbench @ 2ac009b.
    """
    if config.steps is not None:
        return int(config.steps)
    return max(1, round(float(config.epochs or 1) * _per_pass(config, corpus)))


def span(config: ContrastConfig, corpus: Corpus) -> int:
    """Steps over which the rate falls: those of the run, by paper the whole captions' file as often as it is
    passed."""
    taken = steps(config, corpus)
    if config.protocol == "fixed":
        return taken
    batches = len(corpus.captions) // config.batch_size
    return max(taken, round(taken / max(1, _per_pass(config, corpus)) * batches))


def make_schedule(config: ContrastConfig, optimizer: Any, corpus: Corpus) -> Any:
    """The schedule of the learning rate. By paper it is open_clip's own."""
    if config.protocol == "fixed":
        return loop.make_schedule(config.schedule, config.warmup, optimizer, steps(config, corpus))
    warmup, whole = int(config.warmup), span(config, corpus)

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if config.schedule == "constant":
            return 1.0
        return (1 + math.cos(math.pi * (step - warmup) / max(1, whole - warmup))) / 2

    return LambdaLR(optimizer, share)


def _per_pass(config: ContrastConfig, corpus: Corpus) -> int:
    share, alpha = float(config.epoch_share), config.alphas[0]
    files = ((len(corpus.captions), config.batch_size), (len(corpus.questions), config.questions_per_step))
    if config.protocol == "fixed":
        return min(int(rows * share) // size for rows, size in files)
    used = [
        rows // size for (rows, size), weight in zip(files, (alpha, 1 - alpha), strict=True) if weight > 0
    ]
    return int(min(used) * share)
