"""From a step to tensors: which examples and random numbers belong to a position, and what is read of them.

A position counts as in `train.order`: order and random numbers are functions of (seed, position).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch

from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.engine.images import ImageError
from nein.train.editor_finetuning.data import Example, Pairs, prepare
from nein.train.editor_finetuning.features import Encoder, Features
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.order import Passes, generator

PARTS = 1_000_000  # the share of affirmative pairs is kept in millionths: exact at any position


class Order:
    """Which example stands at a position. The share `mix` of them is affirmative, evenly spread.

    Negative and affirmative examples each go through all of theirs, newly shuffled, before any comes again:
    shuffled are the groups of pictures that are read together (shards), and the examples within a group.
    """

    def __init__(self, pairs: Pairs, mix: float, seed: int) -> None:
        self._streams = {"negative": pairs.negative, "affirmative": pairs.affirmative}
        self._share = round(mix * PARTS) if pairs.affirmative else 0
        groups = {name: pairs.groups(examples) for name, examples in self._streams.items()}

        def shuffled(name: str, number: int) -> np.ndarray:
            rng, parts = generator(seed, f"order/{name}/{number}"), groups[name]
            return np.concatenate([rng.permutation(parts[part]) for part in rng.permutation(len(parts))])

        self._passes = {
            name: Passes(len(examples), functools.partial(shuffled, name))
            for name, examples in self._streams.items()
        }

    def length(self, epochs: float) -> int:
        """Positions that `epochs` passes over the negative examples take."""
        wanted = int(np.ceil(epochs * len(self._streams["negative"])))
        return -(-wanted * PARTS // (PARTS - self._share))

    def place(self, position: int) -> tuple[str, int]:
        """(stream, number of the example within it)."""
        before = position * self._share // PARTS
        if (position + 1) * self._share // PARTS > before:
            return "affirmative", self._passes["affirmative"].at(before)
        return "negative", self._passes["negative"].at(position - before)

    def example(self, position: int, shift: int = 0) -> Example:
        """The example at a position, or the `shift`-th after it in the data (for one that is unreadable)."""
        stream, number = self.place(position)
        examples: Sequence[Example] = self._streams[stream]
        return examples[(number + shift) % len(examples)]


@dataclass(frozen=True)
class Draw:
    """The random numbers of one position; posterior, noise: (C, h, w) standard normal float32, on the CPU."""

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


# ---------------------------------------------------------------------------------------------------- batches

TRIES = 100


@dataclass
class Batch:
    """What the objective takes; B pairs.

    condition   (B, C, h, w) mode of the input's posterior, not scaled; zero where the picture is dropped.
    mean, logvar   (B, C, h, w) posterior of the target, not scaled.
    states      (B, tokens, width) text states; those of "" where the text is dropped.
    changed     (B, 1, h, w) bool: where input and target differ, whatever is dropped.
    timestep    (B,) int64; posterior, noise (B, C, h, w) standard normal.
    """

    condition: torch.Tensor
    mean: torch.Tensor
    logvar: torch.Tensor
    states: torch.Tensor
    changed: torch.Tensor
    timestep: torch.Tensor
    posterior: torch.Tensor
    noise: torch.Tensor

    def to(self, device: torch.device) -> Batch:
        cuda = device.type == "cuda"
        moved = {}
        for item in fields(self):
            tensor = getattr(self, item.name)
            if cuda and tensor.device.type == "cpu":
                tensor = tensor.pin_memory()
            moved[item.name] = tensor.to(device, non_blocking=cuda)
        return Batch(**moved)


Member = tuple[Example, dict[str, torch.Tensor], Draw]
#: Latents differ here where an edit changed something; the VAE's own noise stays below (nano and SD 1.5).
CHANGED = 0.4


def changed(condition: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """(B, C, h, w) of input and target -> (B, 1, h, w) bool: where they differ."""
    return (mean - condition).abs().mean(1, keepdim=True) > CHANGED


class Loader:
    """Makes batches. `read` may run in threads ahead of training; `to_batch` runs on the training thread.

    features  Stored features, or None to encode pictures with `encoder` in every step.
    """

    def __init__(
        self,
        config: TuneConfig,
        pairs: Pairs,
        order: Order,
        *,
        encoder: Encoder | None,
        features: Features | None,
        shape: tuple[int, ...],
        timesteps: int,
    ) -> None:
        self._config, self._pairs, self._order = config, pairs, order
        self._encoder, self._features = encoder, features
        self._shape, self._timesteps = shape, timesteps
        self._lock = threading.Lock()
        self.skipped: set[str] = set()

    def read(self, positions: range) -> list[Member]:
        """The examples at the positions, their draws, and what is stored or pictured of them."""
        c = self._config
        members = []
        for position in positions:
            drawn = draw(
                c.seed, position, shape=self._shape, timesteps=self._timesteps, flip=c.flip, dropout=c.dropout
            )
            members.append((*self._readable(position, drawn.flip), drawn))
        return members

    def _readable(self, position: int, flip: bool) -> tuple[Example, dict[str, torch.Tensor]]:
        for shift in range(TRIES):
            example = self._order.example(position, shift)
            try:
                return example, self._fetch(example, flip)
            except ImageError as error:
                if self._config.unreadable == "stop":
                    raise UserError(
                        f"The pair '{example.id}' cannot be used: {error}. Mend it, leave it out with "
                        f"--exclude {example.id}, or say --unreadable skip; checkpoints are kept."
                    ) from None
                with self._lock:
                    self.skipped.add(example.id)
        raise UserError(f"{TRIES} pairs in a row cannot be read; is '{self._config.data}' still there?")

    def _fetch(self, example: Example, flip: bool) -> dict[str, torch.Tensor]:
        if self._features is not None:
            return self._features.pair(example.pair, swapped=example.swapped, flip=flip)
        pair = prepare(self._config, *self._pairs.pictures.read(example.pair))
        pictures = [torch.from_numpy(p.copy()) for p in (pair[::-1] if example.swapped else pair)]
        # Mirrored together, or the edit would also move the object.
        source, target = (p.flip(1) if flip else p for p in pictures)
        return {"source": source, "target": target}

    def to_batch(self, members: list[Member], device: torch.device) -> Batch:
        """The batch on the device; encodes pictures here when nothing is stored."""
        examples, contents, draws = zip(*members, strict=True)
        texts = ["" if d.drop_text else e.instruction for e, d in zip(examples, draws, strict=True)]
        if self._features is not None:
            mean, logvar, condition = (
                torch.stack([content[key] for content in contents]) for key in ("mean", "logvar", "condition")
            )
            states = torch.stack([self._features.sentence(text) for text in texts])  # B, tokens, width
        else:
            assert self._encoder is not None
            pictures = torch.stack([content[side] for side in ("source", "target") for content in contents])
            means, logvars = self._encoder.pictures(pictures)  # 2B, H, W, 3, uint8 => 2B, C, h, w, float32
            (condition, mean), (_, logvar) = means.chunk(2), logvars.chunk(2)
            states = torch.stack([self._encoder.sentence(text) for text in texts])
        keep = torch.tensor([not d.drop_picture for d in draws]).view(-1, 1, 1, 1)
        batch = Batch(
            condition=condition * keep.to(condition.device),
            mean=mean,
            logvar=logvar,
            states=states,
            changed=changed(condition, mean),
            timestep=torch.tensor([d.timestep for d in draws]),
            posterior=torch.stack([d.posterior for d in draws]),
            noise=torch.stack([d.noise for d in draws]),
        )
        return batch.to(device)
