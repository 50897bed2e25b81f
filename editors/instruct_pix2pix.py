"""InstructPix2Pix and every model of its class: one adapter, many rows of the table in `editors.presets`.

The sampling loop is our own because it is short and shared work is done once: each picture is encoded once,
each distinct instruction once, and the three guidance branches of a whole batch go through the UNet together.
It gives what diffusers' StableDiffusionInstructPix2PixPipeline gives for the same noise (tested), except that
latents and guidance stay in float32 whatever the dtype of the weights, as under the autocast of the original
code. The negative prompt is always "": one derived from the instruction would give the answer away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from editors.base import EditorError, EditRequest, EditResult, digest, find_fault
from editors.checkpoint import LoadedPipeline, load_pipeline, quiet
from editors.noise import SampleNoise
from editors.resize import get_rule
from editors.sampling import ancestral_step, effective_config, euler_ancestral, guide

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROUNDINGS = ("round", "truncate")
_CACHED_TEXTS = 512
# Pictures per pass through the VAE, whose activations at full resolution outweigh the UNet's.
_VAE_CHUNK = 8
# What a bad sample can raise; a bug in this file's own names should not become a "failed sample".
_SAMPLE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, ArithmeticError)

logger = logging.getLogger(__name__)


class InstructPix2Pix:
    """Edits by InstructPix2Pix (arXiv:2211.09800) or any checkpoint of its diffusers class.

    checkpoint            Local folder in diffusers' layout, hub id, or "owner/name@revision"; or a
                          pipeline in memory, whose modules are then this editor's to move and to freeze.
    name                  What the editor is called in results.
    batch_size            Samples per pass; pictures of different sizes never share one.
    steps                 Euler-ancestral steps, >= 2.
    guidance_scale        s_T > 1, image_guidance_scale s_I >= 1. Below that diffusers drops guidance without
                          a word while the original code keeps it, so such values are refused.
    resize, resolution    Rule of `editors.resize` and its size in pixels; None is the size of the checkpoint.
    rounding              "round" (diffusers) or "truncate" (the original code) from [0, 255] to integers; on
                          average "truncate" is 0.5 grey levels darker.
    channels_last         Memory layout of the convolutions; faster on some GPUs, differs in the last bits.

    `edit` returns pictures of the resized size, not of the input's.
    """

    def __init__(
        self,
        checkpoint: str | LoadedPipeline,
        *,
        name: str = "instruct-pix2pix",
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        batch_size: int = 8,
        steps: int = 100,
        guidance_scale: float = 7.5,
        image_guidance_scale: float = 1.5,
        resize: str = "r64",
        resolution: int | None = None,
        rounding: str = "round",
        channels_last: bool = False,
    ) -> None:
        _check_settings(dtype, batch_size, steps, guidance_scale, image_guidance_scale, rounding, resolution)
        self.name = name
        self.checkpoint = "in memory" if isinstance(checkpoint, LoadedPipeline) else checkpoint
        self.revision = revision
        self.batch_size = batch_size
        self.steps = steps
        self.guidance_scale = float(guidance_scale)
        self.image_guidance_scale = float(image_guidance_scale)
        self.resize = resize
        self.rounding = rounding
        self.dtype = dtype
        self.channels_last = channels_last
        self._rule = get_rule(resize)
        self._device = _usable_device(device)

        loaded = checkpoint if isinstance(checkpoint, LoadedPipeline) else load_pipeline(checkpoint, revision)
        self._weights = {"format": loaded.weights_format, "sha256": loaded.weights_sha256}
        pipeline = loaded.pipeline
        self._tokenizer = pipeline.tokenizer
        self._text_encoder = self._place(pipeline.text_encoder)
        self._vae = self._place(pipeline.vae)
        self._unet = self._place(pipeline.unet)
        self._scheduler: Any = euler_ancestral(pipeline.scheduler.config)
        self._scheduler.set_timesteps(steps, device=self._device)
        self._vae_factor = 2 ** (len(self._vae.config.block_out_channels) - 1)
        self.resolution = resolution or int(self._unet.config.sample_size) * self._vae_factor
        self._texts: dict[str, tuple[torch.Tensor, str]] = {}
        # `edit` may run in several threads, but a fast tokenizer keeps its padding as state between calls.
        self._text_lock = threading.Lock()

    def _place(self, module: Any) -> Any:
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        with quiet():
            module = module.to(device=self._device, dtype=DTYPES[self.dtype], memory_format=layout)
        return module.eval().requires_grad_(False)

    def describe(self) -> dict[str, Any]:
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "checkpoint": self.checkpoint,
            "revision": self.revision,
            "weights": self._weights,
            "steps": self.steps,
            "guidance_scale": self.guidance_scale,
            "image_guidance_scale": self.image_guidance_scale,
            "negative_prompt": "",
            "resize": self.resize,
            "resolution": self.resolution,
            "scheduler": effective_config(self._scheduler),
            "rounding": self.rounding,
            "dtype": self.dtype,
            "channels_last": self.channels_last,
            "noise": "one CPU generator per sample, float32",
        }

    @property
    def fingerprint(self) -> str:
        facts = self.describe()
        for name in ("editor", "checkpoint", "revision"):
            del facts[name]
        facts["weights"] = facts["weights"]["sha256"]
        return digest(facts)

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        results: dict[int, EditResult] = {}
        groups: dict[tuple[int, ...], list[tuple[int, EditRequest, np.ndarray]]] = {}
        for index, request in enumerate(requests):
            fault = find_fault(request)
            if fault is None:
                resized = self._rule(request.image, self.resolution)
                fault = self._find_misfit(resized)
            if fault is not None:
                results[index] = EditResult(request.id, None, fault)
            else:
                groups.setdefault(resized.shape, []).append((index, request, resized))
        for members in groups.values():
            for start in range(0, len(members), self.batch_size):
                chunk = members[start : start + self.batch_size]
                edited = self._edit_isolated([(request, resized) for _, request, resized in chunk])
                results.update(zip((index for index, _, _ in chunk), edited, strict=True))
        return [results[index] for index in range(len(requests))]

    def _find_misfit(self, image: np.ndarray) -> str | None:
        if image.shape[0] % self._vae_factor == 0 and image.shape[1] % self._vae_factor == 0:
            return None
        return (
            f"the picture is {image.shape[1]} x {image.shape[0]} after resize rule {self.resize!r}, but the "
            f"model needs multiples of {self._vae_factor}; use resize='r64'"
        )

    def _edit_isolated(self, items: list[tuple[EditRequest, np.ndarray]]) -> list[EditResult]:
        """Edit pictures of one size; when the batch fails, one by one, so only the culprit has an error."""
        try:
            return self._edit_batch(items)
        except torch.OutOfMemoryError:
            # It is about the batch, not about a sample: smaller batches would differ in the last bits from
            # those of an undisturbed run, so the run ends here and the user chooses.
            raise
        except _SAMPLE_ERRORS as error:
            if self._device.type == "cuda":
                # A broken CUDA context fails every later call too: that is the end of the run, not a sample.
                torch.cuda.synchronize(self._device)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        if len(items) == 1:
            return [EditResult(items[0][0].id, None, reason)]
        logger.warning("a batch of %d failed (%s); trying its samples one by one", len(items), reason)
        return [result for item in items for result in self._edit_isolated([item])]

    @torch.inference_mode()
    def _edit_batch(self, items: list[tuple[EditRequest, np.ndarray]]) -> list[EditResult]:
        requests = [request for request, _ in items]
        texts = [self._encode_text(request.instruction) for request in requests]
        null = self._encode_text("")[0].expand(len(items), -1, -1)
        embeddings = torch.cat([torch.cat([embedding for embedding, _ in texts]), null, null])
        sources = self._encode_images(np.stack([image for _, image in items]))
        latents = self._sample(embeddings, sources, [request.seed for request in requests])
        pixels = self._decode(latents)
        finite = (
            torch.isfinite(latents).flatten(1).all(1) & torch.isfinite(pixels).flatten(1).all(1)
        ).tolist()
        pictures = self._to_uint8(pixels)
        results = []
        for request, picture, (_, note), good in zip(requests, pictures, texts, finite, strict=True):
            if good:
                results.append(EditResult(request.id, picture.copy(), note=note))
            else:
                reason = f"the model gave values that are not finite in {self.dtype}; try dtype float32"
                results.append(EditResult(request.id, None, reason, note))
        return results

    def _encode_text(self, text: str) -> tuple[torch.Tensor, str]:
        """((1, tokens, width) hidden states, note). Alone, so its bits do not depend on the batch."""
        with self._text_lock:
            if text not in self._texts:
                if len(self._texts) >= _CACHED_TEXTS:
                    del self._texts[next(iter(self._texts))]
                self._texts[text] = self._read_text(text)
            return self._texts[text]

    def _read_text(self, text: str) -> tuple[torch.Tensor, str]:
        limit = min(self._tokenizer.model_max_length, self._text_encoder.config.max_position_embeddings)
        encoded = self._tokenizer(
            text, padding="max_length", max_length=limit, truncation=True, return_tensors="pt"
        ).to(self._device)
        length = len(self._tokenizer(text, padding=False, truncation=False)["input_ids"])
        note = f"the instruction has {length} tokens, the text encoder read {limit}" if length > limit else ""
        masked = getattr(self._text_encoder.config, "use_attention_mask", False)
        mask = encoded["attention_mask"] if masked else None
        return self._text_encoder(encoded["input_ids"], attention_mask=mask)[0], note

    def _encode_images(self, images: np.ndarray) -> torch.Tensor:
        """(B, H, W, 3) uint8 to (B, 4, h, w): the mode of the VAE's posterior, not scaled."""
        pixels = torch.from_numpy(images).to(self._device).permute(0, 3, 1, 2).float() / 127.5 - 1
        parts = [
            self._vae.encode(part).latent_dist.mode()
            for part in pixels.to(self._weights_dtype()).split(_VAE_CHUNK)
        ]
        return torch.cat(parts)

    def _sample(self, embeddings: torch.Tensor, sources: torch.Tensor, seeds: list[int]) -> torch.Tensor:
        """(3B, tokens, width) and (B, 4, h, w) to clean latents (B, 4, h, w) float32."""
        conditions = torch.cat([sources, sources, torch.zeros_like(sources)])
        sigmas = self._scheduler.sigmas.tolist()
        prediction_type = self._scheduler.config.prediction_type
        noise = SampleNoise(seeds, tuple(sources.shape[1:]), self._device)
        x = noise.draw() * sigmas[0]
        for index, timestep in enumerate(self._scheduler.timesteps):
            sigma, sigma_next = sigmas[index], sigmas[index + 1]
            scaled = (x / (sigma**2 + 1) ** 0.5).to(conditions.dtype)
            inputs = torch.cat([torch.cat([scaled] * 3), conditions], dim=1)
            output = self._unet(inputs, timestep, encoder_hidden_states=embeddings, return_dict=False)[0]
            guided = guide(output.float(), self.guidance_scale, self.image_guidance_scale)
            fresh = noise.draw() if sigma_next > 0 else None
            x = ancestral_step(x, guided, sigma, sigma_next, fresh, prediction_type)
        return x

    def _decode(self, latents: torch.Tensor) -> torch.Tensor:
        """Latents to (B, 3, H, W) float32, nominally in [-1, 1]."""
        scaled = (latents / self._vae.config.scaling_factor).to(self._weights_dtype())
        parts = [self._vae.decode(part, return_dict=False)[0].float() for part in scaled.split(_VAE_CHUNK)]
        return torch.cat(parts)

    def _to_uint8(self, pixels: torch.Tensor) -> np.ndarray:
        levels = (pixels / 2 + 0.5).clamp(0, 1).nan_to_num() * 255
        if self.rounding == "round":
            levels = levels.round()
        return levels.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()

    def _weights_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


def _check_settings(
    dtype: str,
    batch_size: int,
    steps: int,
    guidance_scale: float,
    image_guidance_scale: float,
    rounding: str,
    resolution: int | None,
) -> None:
    if dtype not in DTYPES:
        raise EditorError(f"unknown dtype {dtype!r}; choose one of: {', '.join(DTYPES)}")
    if batch_size < 1:
        raise EditorError(f"batch_size is {batch_size}; expected at least 1")
    if steps < 2:
        raise EditorError(f"steps is {steps}; expected at least 2")
    if rounding not in ROUNDINGS:
        raise EditorError(f"unknown rounding {rounding!r}; choose one of: {', '.join(ROUNDINGS)}")
    if resolution is not None and resolution < 1:
        raise EditorError(f"resolution is {resolution}; expected a positive number of pixels")
    if not guidance_scale > 1 or not image_guidance_scale >= 1:
        raise EditorError(
            f"guidance_scale is {guidance_scale} and image_guidance_scale is {image_guidance_scale}; they "
            f"must be > 1 and >= 1, since below that the published implementations disagree (diffusers "
            f"switches guidance off, the original code does not)"
        )


def _usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise EditorError(f"unknown device {name!r}; use for instance 'cpu', 'cuda' or 'cuda:1'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EditorError(f"device {name!r} is not available: this PyTorch sees no CUDA device; use 'cpu'")
    return device
