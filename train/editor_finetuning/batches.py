"""Make the batches of an editor's fine-tuning from its image pairs and instructions.

In this order: stored features, order of examples, random numbers, tensors of a step. Order and random numbers
are functions of (seed, position), as explained in `train.features.Passes`.
"""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import send_to_device

from nein.editors.checkpoint import content_hash, quiet
from nein.engine import atomic
from nein.engine.folder import sample_seed
from nein.engine.images import ImageError
from nein.engine.machine import Processes
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.loading.weights import torch_dtype
from nein.train.editor_finetuning.data import Example, Pairs, prepare_pair
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.features import FeatureFiles, Passes

# --- stored features -------------------------------------------------------------------------------------
FORMAT = 3  # of stored features; with another number they are encoded again
TEXT_BLOCK = 512  # sentences per feature file
VAE_CHUNK = 16  # images per pass of the VAE, whose activations at full resolution outweigh the UNet's


def copy_to(module: Any, device: torch.device | str, dtype: torch.dtype) -> Any:
    """The module itself if it already has this device and dtype, else a converted copy."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.device != torch.device(device) or (tensor.is_floating_point() and tensor.dtype != dtype):
            return copy.deepcopy(module).to(device=device, dtype=dtype)
    return module


class Encoder:
    """A pipeline's frozen VAE and text encoder on a device; computes in `dtype`, returns float32."""

    def __init__(self, pipeline: Any, device: torch.device, dtype: torch.dtype) -> None:
        with quiet():
            self._vae = copy_to(pipeline.vae, device, dtype)
            self._text = copy_to(pipeline.text_encoder, device, dtype)
        self._vae.eval().requires_grad_(False)
        self._text.eval().requires_grad_(False)
        self._tokenizer = pipeline.tokenizer
        self._device, self._dtype = device, dtype
        self.scaling_factor = float(self._vae.config.scaling_factor)

    def latent_shape(self, resolution: int) -> tuple[int, int, int]:
        """Shape (C, h, w) of an image's latent. Raises UserError if the VAE cannot take the resolution."""
        factor = 2 ** (len(self._vae.config.block_out_channels) - 1)
        if resolution % factor:
            raise UserError(f"--resolution is {resolution}; the VAE needs a multiple of {factor}.")
        return int(self._vae.config.latent_channels), resolution // factor, resolution // factor

    @torch.no_grad()
    def encode_images(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, H, W, 3) uint8 -> mean and log-variance of the posterior, (N, C, h, w) float32, not scaled."""
        # (N, H, W, 3) uint8 => (N, 3, H, W) float32 in [-1, 1]
        pixels = images.to(self._device).permute(0, 3, 1, 2).float() / 127.5 - 1
        posteriors = [self._vae.encode(part).latent_dist for part in pixels.to(self._dtype).split(VAE_CHUNK)]
        mean = torch.cat([posterior.mean.float() for posterior in posteriors])
        return mean, torch.cat([posterior.logvar.float() for posterior in posteriors])

    @torch.no_grad()
    def encode_text(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width) float32; one sentence per call: batches change the last bits."""
        limit = min(self._tokenizer.model_max_length, self._text.config.max_position_embeddings)
        tokens = self._tokenizer(
            text, padding="max_length", max_length=limit, truncation=True, return_tensors="pt"
        ).to(self._device)
        has_mask = getattr(self._text.config, "use_attention_mask", False)
        mask = tokens["attention_mask"] if has_mask else None
        return self._text(tokens["input_ids"], attention_mask=mask)[0][0].float()  # (1, tokens, width)[0]


class Features:
    """Features of all images and sentences of a run, encoded once and stored in FEATURES/<key>: means and
    log-variances, not samples, so that training still draws from the posterior."""

    def __init__(self, config: TuneConfig, pairs: Pairs, pipeline: Any) -> None:
        self._config = config
        used = sorted({example.pair for example in (*pairs.negative, *pairs.affirmative)})  # indices
        texts = pairs.sentences()
        self._rows = {pair: row for row, pair in enumerate(used)}  # index of a pair -> stored entry
        self._text_rows = {text: row for row, text in enumerate(texts)}
        self._orientations = 2 if config.flip else 1
        encoders = {"vae": pipeline.vae, "text_encoder": pipeline.text_encoder}
        facts = {
            "format": FORMAT,
            "frozen": content_hash(encoders, [pipeline.tokenizer]),
            "geometry": [config.resolution, config.target_align, config.align_resolution],
            "orientations": self._orientations,
            "dtype": config.feature_dtype,
            "records": pairs.facts["records_sha256"],
            "affirmative": pairs.facts.get("affirmative"),
            "origin": pairs.facts["origin"]["kind"],
        }
        root = Path(config.features) if config.features else atomic.cache_root() / "features"
        self.folder = root / json_digest(facts)[:16]
        self._images = FeatureFiles(
            self.folder,
            "pictures",
            len(used),
            key=lambda row: pairs.images[used[row]].key(),
            read=lambda row: prepare_pair(config, *pairs.images[used[row]].read()),
            block_size=config.feature_block,
        )
        text_at = texts.__getitem__  # row -> sentence
        self._texts = FeatureFiles(
            self.folder, "texts", len(texts), key=text_at, read=text_at, block_size=TEXT_BLOCK
        )

    def make(self, encoder: Encoder, processes: Processes) -> None:
        """Encode this process's part of the missing features, then wait for the other processes."""
        dtype = torch_dtype(self._config.feature_dtype)

        def encode_pairs(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, torch.Tensor]:
            tensors: dict[str, torch.Tensor] = {}
            for side, role in enumerate(("input", "target")):
                images = torch.from_numpy(np.stack([pair[side] for pair in pairs]))  # (N, H, W, 3) uint8
                views = [images, images.flip(2)][: self._orientations]  # the second mirrored along W
                encoded = [encoder.encode_images(view) for view in views]
                means, logvars = [mean for mean, _ in encoded], [logvar for _, logvar in encoded]
                tensors[f"{role}_mean"] = torch.stack(means, 1).to("cpu", dtype)  # (N, views, C, h, w)
                tensors[f"{role}_logvar"] = torch.stack(logvars, 1).to("cpu", dtype)
            return tensors

        def encode_texts(texts: list[str]) -> dict[str, torch.Tensor]:
            states = torch.stack([encoder.encode_text(text).cpu() for text in texts])  # (N, tokens, width)
            return {"states": states.to(dtype)}

        self._images.make(encode_pairs, processes, self._config.workers)
        self._texts.make(encode_texts, processes)

    def read_pair(self, pair: int, *, swapped: bool, flip: bool) -> dict[str, torch.Tensor]:
        """`condition`, `mean`, `logvar` of `Batch`, each (C, h, w) float32 on the CPU. Raises ImageError."""
        row, view = self._rows[pair], int(flip)
        first, second = ("target", "input") if swapped else ("input", "target")
        return {
            "condition": self._images.read_row(row, f"{first}_mean", view).float(),
            "mean": self._images.read_row(row, f"{second}_mean", view).float(),
            "logvar": self._images.read_row(row, f"{second}_logvar", view).float(),
        }

    def read_text(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width) float32 on the CPU."""
        return self._texts.read_row(self._text_rows[text], "states").float()


# --- order of examples -----------------------------------------------------------------------------------
MILLION = 1_000_000  # the fraction of affirmative examples is kept in millionths: exact at any position


class Order:
    """Decides which example is at each position: a fraction `mix` is affirmative, evenly spread. Every pass
    over the negative examples, or over the affirmative ones, takes them in a new random order."""

    def __init__(self, pairs: Pairs, mix: float, seed: int) -> None:
        self._per_million = round(mix * MILLION) if pairs.affirmative else 0  # affirmative examples
        self._examples = {"negative": pairs.negative, "affirmative": pairs.affirmative}
        self._passes = {
            name: Passes(len(examples), len(examples), f"order/{name}", seed)
            for name, examples in self._examples.items()
        }

    def count_positions(self, epochs: float) -> int:
        """Number of positions in `epochs` passes over the negative examples."""
        negatives = int(np.ceil(epochs * len(self._examples["negative"])))
        return -(-negatives * MILLION // (MILLION - self._per_million))  # rounded up

    def find(self, position: int, shift: int = 0) -> Example:
        """Example at a position, or the `shift`-th after it in the data."""
        # Affirmative examples before this position, and before the next one (as in Bresenham's line).
        before = position * self._per_million // MILLION
        until = (position + 1) * self._per_million // MILLION
        name, number = ("affirmative", before) if until > before else ("negative", position - before)
        examples = self._examples[name]
        return examples[(self._passes[name].index_at(number) + shift) % len(examples)]


# --- random numbers --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Draw:
    """Random numbers of one position."""

    flip: bool  # mirror both images
    drop_text: bool  # train without the instruction, for classifier-free guidance; likewise the image
    drop_image: bool
    timestep: int  # of the noise schedule
    posterior: torch.Tensor  # (C, h, w) standard normal float32 on the CPU
    noise: torch.Tensor  # likewise


def draw_numbers(
    seed: int, position: int, *, shape: tuple[int, ...], timesteps: int, flip: float, dropout: float
) -> Draw:
    """Random numbers of a position. shape: (C, h, w) of a latent; flip: probability of a mirror image.

    With p = `dropout` and one uniform r: no text if r < 2p, no image if p <= r < 3p, so text alone, both and
    the image alone are each dropped with probability p. Source: InstructPix2Pix, arXiv:2211.09800, section
    3.2.1, and `ddpm_edit.py` of its repository @ 0dffd1e (p = 0.05).
    """
    # The order of draws decides a run's numbers: keep it.
    generator = torch.Generator().manual_seed(sample_seed(seed, f"draw/{position}"))
    mirror, r = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
    timestep = int(torch.randint(timesteps, (), generator=generator))
    posterior = torch.randn(shape, generator=generator)  # (C, h, w)
    noise = torch.randn(shape, generator=generator)
    drop_text, drop_image = r < 2 * dropout, dropout <= r < 3 * dropout
    return Draw(mirror < flip, drop_text, drop_image, timestep, posterior, noise)


# --- tensors of a step -----------------------------------------------------------------------------------
class Batch(NamedTuple):
    """Inputs of the loss for B pairs; latents not scaled."""

    condition: torch.Tensor  # (B, C, h, w) mode of the input's posterior; zero if the image is dropped
    mean: torch.Tensor  # (B, C, h, w) of the target's posterior
    logvar: torch.Tensor  # (B, C, h, w)
    states: torch.Tensor  # (B, tokens, width); those of "" if the text is dropped
    changed: torch.Tensor  # (B, 1, h, w) bool: input and target differ, also if the image is dropped
    timestep: torch.Tensor  # (B,) int64
    posterior: torch.Tensor  # (B, C, h, w) standard normal
    noise: torch.Tensor  # (B, C, h, w) standard normal


Member = tuple[Example, dict[str, torch.Tensor], Draw]  # example, its features by name, its random numbers
TRIES = 100  # examples tried, from the first unreadable one
# Mean absolute difference of latents above which an edit changed a cell; VAE noise (nano, SD 1.5) is smaller.
CHANGED = 0.4


def find_changed(condition: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Latents of input and target, each (B, C, h, w) -> (B, 1, h, w) bool: cells in which they differ."""
    return (mean - condition).abs().mean(1, keepdim=True) > CHANGED


class Loader:
    """Reads examples and makes batches; thread-safe. shape: (C, h, w) of a latent."""

    def __init__(
        self, config: TuneConfig, order: Order, features: Features, *, shape: tuple[int, ...], timesteps: int
    ) -> None:
        self._config, self._order, self._features = config, order, features
        self._shape, self._timesteps = shape, timesteps
        self._lock = threading.Lock()
        self.skipped: set[str] = set()

    def read(self, positions: range) -> list[Member]:
        """Example, features and random numbers of each position."""
        seed, flip, dropout = self._config.seed, self._config.flip, self._config.dropout
        members = []
        for position in positions:
            draw = draw_numbers(
                seed, position, shape=self._shape, timesteps=self._timesteps, flip=flip, dropout=dropout
            )
            example, features = self._read_example(position, draw.flip)
            members.append((example, features, draw))
        return members

    def _read_example(self, position: int, flip: bool) -> tuple[Example, dict[str, torch.Tensor]]:
        """Example at a position and its features; with --unreadable skip, of the next readable one."""
        for shift in range(TRIES):
            example = self._order.find(position, shift)
            try:
                return example, self._features.read_pair(example.pair, swapped=example.swapped, flip=flip)
            except ImageError as error:
                if self._config.unreadable == "stop":
                    raise UserError(
                        f"The pair '{example.id}' cannot be read: {error}. Fix it, or pass "
                        f"--exclude {example.id} or --unreadable skip; checkpoints are kept."
                    ) from None
                with self._lock:
                    self.skipped.add(example.id)
        raise UserError(f"{TRIES} pairs in a row cannot be read; check that '{self._config.data}' exists.")

    def collate(self, members: list[Member], device: torch.device) -> Batch:
        """Stack the members on the device; a dropped text becomes "", a dropped image zeros."""
        texts = ["" if draw.drop_text else example.instruction for example, _, draw in members]
        draws = [draw for _, _, draw in members]
        condition = torch.stack([features["condition"] for _, features, _ in members])  # (B, C, h, w)
        mean = torch.stack([features["mean"] for _, features, _ in members])
        has_image = torch.tensor([not draw.drop_image for draw in draws]).view(-1, 1, 1, 1)  # (B, 1, 1, 1)
        batch = Batch(
            condition=condition * has_image,
            mean=mean,
            logvar=torch.stack([features["logvar"] for _, features, _ in members]),
            states=torch.stack([self._features.read_text(text) for text in texts]),
            changed=find_changed(condition, mean),
            timestep=torch.tensor([draw.timestep for draw in draws]),
            posterior=torch.stack([draw.posterior for draw in draws]),
            noise=torch.stack([draw.noise for draw in draws]),
        )
        return send_to_device(batch, device, non_blocking=True)
