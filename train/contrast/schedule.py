"""How many steps a run takes, and over how many its learning rate falls.

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

from __future__ import annotations

import math
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from nein.train import loop
from nein.train.contrast.data import Corpus
from nein.train.contrast.options import ContrastConfig


def steps(config: ContrastConfig, corpus: Corpus) -> int:
    """Steps of the run: as asked for, or so many that the shorter file is passed `epochs` times."""
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


def make(config: ContrastConfig, optimizer: Any, corpus: Corpus) -> Any:
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
