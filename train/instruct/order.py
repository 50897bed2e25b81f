"""The order of the data and every random number of training, as functions of (seed, position).

A position counts the pairs seen by all processes since the beginning. Nothing here depends on what was asked
before, so a resumed run, or one on another number of processes, sees the same pairs with the same noise.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nein.engine.seeds import sample_seed
from train.instruct.pairs import Example, Pairs
from train.order import Passes, generator

PARTS = 1_000_000  # the share of affirmative pairs is kept in millionths: exact at any position


class Order:
    """Which example stands at a position.

    Of any run of positions the share `mix` is affirmative, evenly spread. Negative and affirmative examples
    each go through all of theirs, newly shuffled, before any comes again. Shuffled are the groups of pictures
    that are read together (shards; files are one group), and the examples within a group.
    """

    def __init__(self, pairs: Pairs, mix: float, seed: int) -> None:
        self._streams = {"negative": pairs.negative, "affirmative": pairs.affirmative}
        self._groups = {name: pairs.groups(examples) for name, examples in self._streams.items()}
        self._share = round(mix * PARTS) if pairs.affirmative else 0
        self._seed = seed
        self._passes = {
            name: Passes(len(examples), functools.partial(self._shuffled, name))
            for name, examples in self._streams.items()
        }

    def _affirmative_before(self, position: int) -> int:
        return position * self._share // PARTS

    def length(self, epochs: float) -> int:
        """Positions that `epochs` passes over the negative examples take."""
        wanted = int(np.ceil(epochs * len(self._streams["negative"])))
        return -(-wanted * PARTS // (PARTS - self._share))

    def place(self, position: int) -> tuple[str, int]:
        """(stream, number of the example within it)."""
        before = self._affirmative_before(position)
        if self._affirmative_before(position + 1) > before:
            return "affirmative", self._passes["affirmative"].at(before)
        return "negative", self._passes["negative"].at(position - before)

    def example(self, position: int, shift: int = 0) -> Example:
        """The example at a position, or the `shift`-th after it in the data (for one that is unreadable)."""
        stream, number = self.place(position)
        examples: Sequence[Example] = self._streams[stream]
        return examples[(number + shift) % len(examples)]

    def _shuffled(self, stream: str, number: int) -> np.ndarray:
        rng = generator(self._seed, f"order/{stream}/{number}")
        groups = self._groups[stream]
        return np.concatenate([rng.permutation(groups[group]) for group in rng.permutation(len(groups))])


@dataclass(frozen=True)
class Draw:
    """The random numbers of one position.

    flip       Whether input and target are mirrored.
    drop_text, drop_picture   Which condition is withheld.
    timestep   0 <= t < number of training timesteps.
    posterior, noise   Standard normal, of the latent's shape (C, h, w), float32, on the CPU.
    """

    flip: bool
    drop_text: bool
    drop_picture: bool
    timestep: int
    posterior: torch.Tensor
    noise: torch.Tensor


def draw(
    seed: int, position: int, *, shape: tuple[int, ...], timesteps: int, flip: float, dropout: float
) -> Draw:
    """The draws of a position, from a generator of its own, on the CPU whatever the device.

    With p = `dropout` and one uniform r per pair: no text if r < 2p, no picture if p <= r < 3p, so that text
    alone, both and the picture alone are each withheld in p of the pairs. Source: InstructPix2Pix,
    arXiv:2211.09800, section 3.2.1, and `ddpm_edit.py` of its repository @ 0dffd1e (p = 0.05).
    """
    numbers = torch.Generator().manual_seed(sample_seed(seed, f"draw/{position}"))
    mirrored, r = torch.rand(2, generator=numbers, dtype=torch.float64).tolist()
    timestep = int(torch.randint(timesteps, (), generator=numbers))
    posterior = torch.randn(shape, generator=numbers)
    noise = torch.randn(shape, generator=numbers)
    return Draw(mirrored < flip, r < 2 * dropout, dropout <= r < 3 * dropout, timestep, posterior, noise)
