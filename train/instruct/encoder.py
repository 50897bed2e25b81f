"""The frozen half of an editor: from pictures and sentences to what the UNet learns from."""

from __future__ import annotations

import copy
import hashlib
import json
from collections import OrderedDict
from typing import Any

import numpy as np
import torch

from editors.checkpoint import public_config, quiet
from nein.engine.errors import UserError

CACHED_SENTENCES = 4096
VAE_CHUNK = 16  # pictures per pass: at full resolution its activations outweigh the UNet's


def placed(module: Any, device: torch.device | str, dtype: torch.dtype) -> Any:
    """The module itself where it is on the device in that number type, else a copy that is. It is for those
    who change neither: a pipeline's own modules stay where they are."""
    tensors = [*module.parameters(), *module.buffers()]
    as_wanted = (
        one.device == torch.device(device) and (one.dtype == dtype or not one.is_floating_point())
        for one in tensors
    )
    return module if all(as_wanted) else copy.deepcopy(module).to(device=device, dtype=dtype)


class Encoder:
    """VAE and text encoder of a pipeline on a device.

    dtype  Number type of the modules; results are float32.
    """

    def __init__(self, pipeline: Any, device: torch.device, dtype: torch.dtype) -> None:
        with quiet():
            self._vae = placed(pipeline.vae, device, dtype)
            self._text = placed(pipeline.text_encoder, device, dtype)
        self._vae.eval().requires_grad_(False)
        self._text.eval().requires_grad_(False)
        self._tokenizer = pipeline.tokenizer
        self._device, self._dtype = device, dtype
        self._sentences: OrderedDict[str, torch.Tensor] = OrderedDict()
        self.scaling_factor = float(self._vae.config.scaling_factor)
        self.factor = 2 ** (len(self._vae.config.block_out_channels) - 1)
        self.channels = int(self._vae.config.latent_channels)

    def latent_shape(self, resolution: int) -> tuple[int, int, int]:
        """(C, h, w) of a picture's latent. Raises UserError for a side the VAE cannot halve often enough."""
        if resolution % self.factor:
            raise UserError(
                f"--resolution {resolution} is not a multiple of {self.factor}, as the VAE needs it."
            )
        return self.channels, resolution // self.factor, resolution // self.factor

    @torch.no_grad()
    def pictures(self, pictures: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(N, H, W, 3) uint8 -> mean and log-variance of the posterior, (N, C, h, w) float32, not scaled."""
        # NHWC, uint8 => NCHW, float32, [-1, 1]
        pixels = pictures.to(self._device).permute(0, 3, 1, 2).float() / 127.5 - 1
        means, spreads = [], []
        for part in pixels.to(self._dtype).split(VAE_CHUNK):
            posterior = self._vae.encode(part).latent_dist
            means.append(posterior.mean.float())
            spreads.append(posterior.logvar.float())
        return torch.cat(means), torch.cat(spreads)

    @torch.no_grad()
    def sentence(self, text: str) -> torch.Tensor:
        """Hidden states (tokens, width), float32, on the device. Read alone, so the batch decides no bit."""
        if text in self._sentences:
            self._sentences.move_to_end(text)
            return self._sentences[text]
        limit = min(self._tokenizer.model_max_length, self._text.config.max_position_embeddings)
        tokens = self._tokenizer(
            text, padding="max_length", max_length=limit, truncation=True, return_tensors="pt"
        ).to(self._device)
        masked = getattr(self._text.config, "use_attention_mask", False)
        states = self._text(tokens["input_ids"], attention_mask=tokens["attention_mask"] if masked else None)[
            0
        ]
        self._sentences[text] = states[0].float()
        if len(self._sentences) > CACHED_SENTENCES:
            self._sentences.popitem(last=False)
        return self._sentences[text]


def frozen_hash(pipeline: Any) -> str:
    """SHA-256 hex over configuration and weights of VAE and text encoder and the rules of the tokenizer."""
    digest = hashlib.sha256()
    for part in ("vae", "text_encoder"):
        digest.update(module_hash(getattr(pipeline, part)).encode())
    backend = getattr(pipeline.tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else sorted(pipeline.tokenizer.get_vocab().items())
    digest.update(json.dumps([rules, pipeline.tokenizer.model_max_length]).encode())
    return digest.hexdigest()


def module_hash(module: Any) -> str:
    """SHA-256 hex over the public configuration and every tensor of a module, as float32."""
    digest = hashlib.sha256(json.dumps(public_config(module.config), sort_keys=True, default=str).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        values: np.ndarray = tensor.detach().to("cpu", torch.float32).contiguous().numpy()
        digest.update(values.data)
    return digest.hexdigest()
