"""The frozen half of an editor, VAE and text encoder: encoded in every step, or once and kept.

FEATURES/<key> has means and log-variances, not samples, so that training still draws from the posterior.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nein.benchmarks.nein.runs import identity_hash
from nein.editors.checkpoint import content_hash, quiet
from nein.engine import atomic
from nein.engine.errors import Problems, UserError
from nein.engine.processes import Processes
from nein.train.editor_finetuning.data import Pairs, prepare
from nein.train.editor_finetuning.options import TuneConfig
from nein.train.features import FeatureFiles

FORMAT = 3
TEXT_BLOCK = 512
CACHED_SENTENCES = 4096
VAE_CHUNK = 16  # pictures per pass: at full resolution its activations outweigh the UNet's
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def placed(module: Any, device: torch.device | str, dtype: torch.dtype) -> Any:
    """The module itself where it is on the device in that number type, else a copy that is: a pipeline's own
    modules stay where they are."""
    tensors = [*module.parameters(), *module.buffers()]
    as_wanted = (
        one.device == torch.device(device) and (one.dtype == dtype or not one.is_floating_point())
        for one in tensors
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
        self.sentence = functools.lru_cache(CACHED_SENTENCES)(self._read)
        self.scaling_factor = float(self._vae.config.scaling_factor)

    def latent_shape(self, resolution: int) -> tuple[int, int, int]:
        """(C, h, w) of a picture's latent. Raises UserError for a side the VAE cannot halve often enough."""
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
    def _read(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width), float32, on the device. Read alone, so the batch decides no bit."""
        limit = min(self._tokenizer.model_max_length, self._text.config.max_position_embeddings)
        tokens = self._tokenizer(
            text, padding="max_length", max_length=limit, truncation=True, return_tensors="pt"
        ).to(self._device)
        masked = getattr(self._text.config, "use_attention_mask", False)
        mask = tokens["attention_mask"] if masked else None
        return self._text(tokens["input_ids"], attention_mask=mask)[0][0].float()


def frozen_hash(pipeline: Any) -> str:
    """SHA-256 hex over configuration and weights of VAE and text encoder and the rules of the tokenizer."""
    parts = {"vae": pipeline.vae, "text_encoder": pipeline.text_encoder}
    return content_hash(parts, [pipeline.tokenizer])


# ----------------------------------------------------------------------------------------------- kept on disk


class Features:
    """The stored features of a configuration: makes what is missing, reads what is there.

    frozen  Hash of VAE, text encoder and tokenizer (`frozen_hash`).
    """

    def __init__(self, config: TuneConfig, pairs: Pairs, frozen: str) -> None:
        self._config, self._pairs = config, pairs
        chosen = sorted({example.pair for example in (*pairs.negative, *pairs.affirmative)})
        texts = pairs.sentences()
        text = texts.__getitem__
        self._rows = {pair: row for row, pair in enumerate(chosen)}
        self._text_rows = {text: row for row, text in enumerate(texts)}
        self._orientations = 2 if config.flip else 1
        facts = {
            "format": FORMAT,
            "frozen": frozen,
            "geometry": [config.resolution, config.target_align, config.align_resolution],
            "orientations": self._orientations,
            "dtype": config.feature_dtype,
            "records": pairs.facts["records_sha256"],
            "affirmative": pairs.facts.get("affirmative"),
            "origin": pairs.facts["origin"]["kind"],
        }
        root = Path(config.features) if config.features else atomic.cache_root() / "features"
        self.folder = root / identity_hash(facts)
        read, key = pairs.pictures.read, pairs.pictures.key
        self._pictures = FeatureFiles(
            self.folder,
            "pictures",
            len(chosen),
            lambda row: key(chosen[row]),
            lambda row: prepare(config, *read(chosen[row])),
            config.feature_block,
        )
        self._texts = FeatureFiles(self.folder, "texts", len(texts), text, text, TEXT_BLOCK)

    def make(self, encoder: Encoder, processes: Processes) -> None:
        """Makes this process's share of what is missing, and waits for the others."""
        dtype = DTYPES[self._config.feature_dtype]

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

        self._pictures.make(pictures, processes, ahead=self._config.workers)
        self._texts.make(sentences, processes)

    def check(self, where: str) -> None:
        """Raises a UserError that names every pair without features."""
        pairs, problems = list(self._rows), Problems()
        for row, reason in self._pictures.unreadable.items():
            problems.add("unreadable pair", f"{self._pairs.pictures.name(pairs[row])}: {reason}")
        try:
            problems.raise_if_any(where)
        except UserError as error:
            raise UserError(
                f"{error}\nLeave them out with --exclude ID,ID, or say --unreadable skip."
            ) from None

    def pair(self, pair: int, *, swapped: bool, flip: bool) -> dict[str, torch.Tensor]:
        """`condition`, `mean`, `logvar` of one example, each (C, h, w) float32 on the CPU.

        Raises ImageError for a pair that had no readable pictures.
        """
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
