"""From a step to tensors: which examples and random numbers belong to a position, and what is read of them.

A position counts as in `train.features`: order and random numbers are functions of (seed, position).

The frozen half of an editor, VAE and text encoder, is encoded in every step, or once and kept: FEATURES/<key>
has means and log-variances, not samples, so that training still draws from the posterior.
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
from nein.loading.digests import json_digest, torch_dtype
from nein.loading.errors import UserError
from nein.train.editor_finetuning.data import Example, Pairs, prepare
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.features import FeatureFiles, Passes

FORMAT = 3
TEXT_BLOCK = 512
VAE_CHUNK = 16  # pictures per pass: at full resolution its activations outweigh the UNet's


def placed(module: Any, device: torch.device | str, dtype: torch.dtype) -> Any:
    """The module where it is on the device in that dtype, else a copy that is."""
    tensors = [*module.parameters(), *module.buffers()]
    as_wanted = (
        tensor.device == torch.device(device) and (tensor.dtype == dtype or not tensor.is_floating_point())
        for tensor in tensors
    )
    return module if all(as_wanted) else copy.deepcopy(module).to(device=device, dtype=dtype)


class Encoder:
    """VAE and text encoder of a pipeline on a device, in `dtype`; results are float32."""

    def __init__(self, pipeline: Any, device: torch.device, dtype: torch.dtype) -> None:
        with quiet():
            self._vae = placed(pipeline.vae, device, dtype)
            self._text = placed(pipeline.text_encoder, device, dtype)
        self._vae.eval().requires_grad_(False)
        self._text.eval().requires_grad_(False)
        self._tokenizer = pipeline.tokenizer
        self._device, self._dtype = device, dtype
        self.scaling_factor = float(self._vae.config.scaling_factor)

    def latent_shape(self, resolution: int) -> tuple[int, int, int]:
        """(C, h, w) of a picture's latent. Raises UserError."""
        factor = 2 ** (len(self._vae.config.block_out_channels) - 1)
        if resolution % factor:
            raise UserError(f"--resolution {resolution} is not a multiple of {factor}, as the VAE needs it.")
        return int(self._vae.config.latent_channels), resolution // factor, resolution // factor

    @torch.no_grad()
    def pictures(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, H, W, 3) uint8 -> mean and log-variance of the posterior, (N, C, h, w) float32, not scaled."""
        # NHWC, uint8 => NCHW, float32, [-1, 1]
        pixels = pictures.to(self._device).permute(0, 3, 1, 2).float() / 127.5 - 1
        posteriors = [self._vae.encode(part).latent_dist for part in pixels.to(self._dtype).split(VAE_CHUNK)]
        means, logvars = ([getattr(p, name).float() for p in posteriors] for name in ("mean", "logvar"))
        return torch.cat(means), torch.cat(logvars)

    @torch.no_grad()
    def sentence(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width), float32, on the device. Read alone, so the batch decides no bit."""
        limit = min(self._tokenizer.model_max_length, self._text.config.max_position_embeddings)
        tokens = self._tokenizer(
            text, padding="max_length", max_length=limit, truncation=True, return_tensors="pt"
        ).to(self._device)
        masked = getattr(self._text.config, "use_attention_mask", False)
        mask = tokens["attention_mask"] if masked else None
        return self._text(tokens["input_ids"], attention_mask=mask)[0][0].float()


class Features:
    """The stored features of a configuration by the VAE and the text encoder of a pipeline."""

    def __init__(self, config: TuneConfig, pairs: Pairs, pipeline: Any) -> None:
        self._config, self._pairs = config, pairs
        chosen = sorted({example.pair for example in (*pairs.negative, *pairs.affirmative)})
        texts = pairs.sentences()
        text = texts.__getitem__
        self._rows = {pair: row for row, pair in enumerate(chosen)}
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
        self._pictures = FeatureFiles(
            self.folder,
            "pictures",
            len(chosen),
            lambda row: pairs.pictures[chosen[row]].key(),
            lambda row: prepare(config, *pairs.pictures[chosen[row]].read()),
            config.feature_block,
        )
        self._texts = FeatureFiles(self.folder, "texts", len(texts), text, text, TEXT_BLOCK)

    def make(self, encoder: Encoder, processes: Processes) -> None:
        """Makes this process's share of what is missing, and waits for the others."""
        dtype = torch_dtype(self._config.feature_dtype)

        def pictures(pairs: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, torch.Tensor]:
            tensors: dict[str, torch.Tensor] = {}
            for role, side in zip(("input", "target"), zip(*pairs, strict=True), strict=True):
                upright = torch.from_numpy(np.stack(side))  # N, H, W, 3, uint8
                views = [upright, upright.flip(2)][: self._orientations]
                means, logvars = zip(*(encoder.pictures(view) for view in views), strict=True)
                tensors[f"{role}_mean"] = torch.stack(means, 1).to("cpu", dtype)  # N, views, C, h, w
                tensors[f"{role}_logvar"] = torch.stack(logvars, 1).to("cpu", dtype)
            return tensors

        def sentences(texts: list[str]) -> dict[str, torch.Tensor]:
            return {"states": torch.stack([encoder.sentence(text).cpu() for text in texts]).to(dtype)}

        self._pictures.make(pictures, processes, self._config.workers)
        self._texts.make(sentences, processes)

    def pair(self, pair: int, *, swapped: bool, flip: bool) -> dict[str, torch.Tensor]:
        """`condition`, `mean`, `logvar`, each (C, h, w) float32 on the CPU. Raises ImageError."""
        row, view = self._rows[pair], int(flip)
        first, second = ("target", "input") if swapped else ("input", "target")
        return {
            "condition": self._pictures.row(row, f"{first}_mean", view).float(),
            "mean": self._pictures.row(row, f"{second}_mean", view).float(),
            "logvar": self._pictures.row(row, f"{second}_logvar", view).float(),
        }

    def sentence(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width) float32 on the CPU."""
        return self._texts.row(self._text_rows[text], "states").float()


PARTS = 1_000_000  # the share of affirmative pairs is kept in millionths: exact at any position


class Order:
    """Which example stands at a position. The share `mix` of them is affirmative, evenly spread. Every pass
    over negative or affirmative examples shuffles them anew."""

    def __init__(self, pairs: Pairs, mix: float, seed: int) -> None:
        self._share = round(mix * PARTS) if pairs.affirmative else 0
        self._examples = {"negative": pairs.negative, "affirmative": pairs.affirmative}
        self._passes = {
            name: Passes(len(examples), len(examples), f"order/{name}", seed)
            for name, examples in self._examples.items()
        }

    def length(self, epochs: float) -> int:
        """Positions that `epochs` passes over the negative examples take."""
        wanted = int(np.ceil(epochs * len(self._examples["negative"])))
        return -(-wanted * PARTS // (PARTS - self._share))

    def example(self, position: int, shift: int = 0) -> Example:
        """The example at a position, or the `shift`-th after it in the data."""
        before = position * self._share // PARTS  # affirmative examples
        affirmative = (position + 1) * self._share // PARTS > before
        name, number = ("affirmative", before) if affirmative else ("negative", position - before)
        examples = self._examples[name]
        return examples[(self._passes[name].at(number) + shift) % len(examples)]


@dataclass(frozen=True)
class Draw:
    """The random numbers of one position; posterior, noise: (C, h, w) standard normal float32 on the CPU."""

    flip: bool
    drop_text: bool
    drop_picture: bool
    timestep: int
    posterior: torch.Tensor
    noise: torch.Tensor


def draw(
    seed: int, position: int, *, shape: tuple[int, ...], timesteps: int, flip: float, dropout: float
) -> Draw:
    """With p = `dropout` and one uniform r per pair: no text if r < 2p, no picture if p <= r < 3p, so that
    text alone, both and the picture alone are each withheld in p of the pairs. Source: InstructPix2Pix,
    arXiv:2211.09800, section 3.2.1, and `ddpm_edit.py` of its repository @ 0dffd1e (p = 0.05).
    """
    numbers = torch.Generator().manual_seed(sample_seed(seed, f"draw/{position}"))
    mirrored, r = torch.rand(2, generator=numbers, dtype=torch.float64).tolist()
    timestep = int(torch.randint(timesteps, (), generator=numbers))
    posterior = torch.randn(shape, generator=numbers)
    noise = torch.randn(shape, generator=numbers)
    return Draw(mirrored < flip, r < 2 * dropout, dropout <= r < 3 * dropout, timestep, posterior, noise)


TRIES = 100


class Batch(NamedTuple):
    """What the objective takes; B pairs, latents not scaled."""

    condition: torch.Tensor  # (B, C, h, w) mode of the input's posterior; zero where the picture is dropped
    mean: torch.Tensor  # (B, C, h, w) of the target's posterior
    logvar: torch.Tensor
    states: torch.Tensor  # (B, tokens, width); those of "" where the text is dropped
    changed: torch.Tensor  # (B, 1, h, w) bool: where input and target differ, whatever is dropped
    timestep: torch.Tensor  # (B,) int64
    posterior: torch.Tensor  # (B, C, h, w) standard normal
    noise: torch.Tensor


Member = tuple[Example, dict[str, torch.Tensor], Draw]
#: Latents differ here where an edit changed something; the VAE's own noise stays below (nano and SD 1.5).
CHANGED = 0.4


def changed(condition: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """(B, C, h, w) of input and target -> (B, 1, h, w) bool: where they differ."""
    return (mean - condition).abs().mean(1, keepdim=True) > CHANGED


class Loader:
    """Makes batches. shape: (C, h, w) of a latent; timesteps: of the noise schedule."""

    def __init__(
        self, config: TuneConfig, order: Order, features: Features, shape: tuple[int, ...], timesteps: int
    ) -> None:
        self._config, self._order, self._features = config, order, features
        self._shape, self._timesteps = shape, timesteps
        self._lock = threading.Lock()
        self.skipped: set[str] = set()

    def read(self, positions: range) -> list[Member]:
        """The examples at the positions, their features and draws."""
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
                return example, self._features.pair(example.pair, swapped=example.swapped, flip=flip)
            except ImageError as error:
                if self._config.unreadable == "stop":
                    raise UserError(
                        f"The pair '{example.id}' cannot be used: {error}. Mend it, leave it out with "
                        f"--exclude {example.id}, or say --unreadable skip; checkpoints are kept."
                    ) from None
                with self._lock:
                    self.skipped.add(example.id)
        raise UserError(f"{TRIES} pairs in a row cannot be read; is '{self._config.data}' still there?")

    def to_batch(self, members: list[Member], device: torch.device) -> Batch:
        examples, contents, draws = zip(*members, strict=True)
        texts = ["" if d.drop_text else e.instruction for e, d in zip(examples, draws, strict=True)]
        mean, logvar, condition = (
            torch.stack([content[key] for content in contents]) for key in ("mean", "logvar", "condition")
        )
        keep = torch.tensor([not d.drop_picture for d in draws]).view(-1, 1, 1, 1)
        batch = Batch(
            condition=condition * keep,
            mean=mean,
            logvar=logvar,
            states=torch.stack([self._features.sentence(text) for text in texts]),
            changed=changed(condition, mean),
            timestep=torch.tensor([d.timestep for d in draws]),
            posterior=torch.stack([d.posterior for d in draws]),
            noise=torch.stack([d.noise for d in draws]),
        )
        return send_to_device(batch, device, non_blocking=True)
