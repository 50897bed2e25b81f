"""Edits images with InstructPix2Pix (arXiv:2211.09800) or any checkpoint of its architecture.

For the same noise the results equal those of diffusers' pipeline, except that latents and guidance stay in
float32, as under the original code's autocast. An instruction is encoded once for all its samples, and the
guidance branches of a batch share a forward pass.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nein.editors.attention import NegativePrompts, install_processors, parse_rule, weigh_tokens
from nein.editors.base import Editor, EditorError, EditRequest, EditResult, check_count, edit_in_batches
from nein.editors.checkpoint import LoadedPipeline, find_device, load_pipeline, place_module
from nein.editors.resize import RULES, fit
from nein.editors.sampling import GUIDANCES, SampleNoise, ancestral_step, effective_config, euler_ancestral
from nein.loading.digests import Json
from nein.loading.errors import choose
from nein.loading.weights import torch_dtype

OUTPUTS = ("resized", "input")
ROUNDINGS = ("round", "truncate")
CACHED_TEXTS = 512  # encoded instructions
_VAE_CHUNK = 8  # images per pass of the VAE, whose activations at full resolution outweigh the UNet's
Item = tuple[EditRequest, np.ndarray]  # request and resized image (H, W, 3) uint8


class InstructPix2Pix(Editor):
    """Editor by an instruction. In shapes, K is the number of guidance branches, B the batch size.

    checkpoint            Folder in diffusers' layout, hub id ("owner/name[@revision]"), pipeline in memory.
    batch_size            Samples per pass; images of different sizes never share one.
    steps                 Euler-ancestral steps, >= 2.
    guidance              Key of `editors.sampling.GUIDANCES`; its scales s_T and s_I are `guidance_scale` and
                          `image_guidance_scale`.
    resize, resolution    Rule of `editors.resize` and its size in pixels; None is the size of the checkpoint.
    rounding              Of pixels: "round" (diffusers), "truncate" (original code, 0.5 gray levels darker).
    lora                  LoRA weights to fuse into the checkpoint: see `presets.split_lora`.
    output                Size of the result: "resized" (as the model works) or "input" (the request's).
    """

    _SCHEDULER = staticmethod(euler_ancestral)  # makes the scheduler from the checkpoint's configuration

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
        guidance: str = "ip2p",
        guidance_scale: float = 7.5,
        image_guidance_scale: float = 1.5,
        resize: str = "r64",
        resolution: int | None = None,
        rounding: str = "round",
        output: str = "resized",
        lora: str | None = None,
    ) -> None:
        # --- settings ---
        check_count("batch_size", batch_size)
        check_count("steps", steps, least=2)
        if resolution is not None:
            check_count("resolution", resolution)
        self._guidance = GUIDANCES[choose("guidance", guidance, GUIDANCES)]
        self._guidance.check_scales(guidance_scale, image_guidance_scale)
        self._device, self._dtype = find_device(device), torch_dtype(dtype)
        self.name, self.batch_size, self.steps = name, batch_size, steps
        self._scales = float(guidance_scale), float(image_guidance_scale)  # s_T, s_I
        self.rounding = choose("rounding", rounding, ROUNDINGS)
        self.output = choose("output", output, OUTPUTS)
        self._resize = RULES[choose("resize rule", resize, RULES)]

        # --- models ---
        if not isinstance(checkpoint, LoadedPipeline):
            label, loaded = checkpoint, load_pipeline(checkpoint, revision, lora=lora)
        elif lora is None:
            label, loaded = "in memory", checkpoint
        else:
            raise EditorError("a pipeline in memory takes no lora; call its load_lora_weights")
        pipeline = loaded.pipeline
        self._tokenizer = pipeline.tokenizer
        parts = (pipeline.text_encoder, pipeline.vae, pipeline.unet)
        placed = [place_module(part, self._device, self._dtype) for part in parts]
        self._text_encoder, self._vae, self._unet = placed
        install_processors(self._unet)
        self._scheduler: Any = self._make_scheduler(pipeline.scheduler.config)
        factor = 2 ** (len(self._vae.config.block_out_channels) - 1)  # pixels per latent cell
        self.resolution = resolution or int(self._unet.config.sample_size) * factor
        if resize == "squash" and self.resolution % factor:
            raise EditorError(f"resolution is {self.resolution}; expected a multiple of {factor}")
        # `edit` may run in several threads, but a fast tokenizer keeps padding as state between calls.
        self._text_lock = threading.Lock()
        self._encode_text = functools.lru_cache(CACHED_TEXTS)(self._encode_new_text)

        # --- facts for `describe` ---
        self._facts = {
            "checkpoint": label,
            "revision": revision,
            "weights": {"sha256": loaded.weights_sha256},
            "published": loaded.published,
            "steps": steps,
            "guidance": guidance,
            "guidance_scale": self._scales[0],
            "image_guidance_scale": self._scales[1],
            "negative_prompt": "the request's",
            "resize": resize,
            "resolution": self.resolution,
            "scheduler": effective_config(self._scheduler),
            "rounding": rounding,
            "output": output,
            "dtype": dtype,
            "noise": "one CPU generator per sample, float32",
        }
        if lora:
            self._facts["lora"] = lora

    def _make_scheduler(self, config: Any) -> Any:
        scheduler = self._SCHEDULER(config)
        scheduler.set_timesteps(self.steps, device=self._device)
        return scheduler

    def describe(self) -> Json:
        return {"editor": self.name, "class": type(self).__name__, **self._facts}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        with torch.inference_mode():
            return edit_in_batches(
                requests, self._prepare, self._edit_batch, batch_size=self.batch_size, device=self._device
            )

    def _prepare(self, request: EditRequest) -> tuple[Any, Item] | str:
        resized = self._resize(request.image, self.resolution)
        return (resized.shape, request.guided), (request, resized)  # (group, item)

    def _edit_batch(self, items: list[Item]) -> list[EditResult]:
        """Edit a batch of images of one size."""
        texts, conditions, notes = self._encode_items(items)
        seeds = [request.seed for request, _ in items]
        latents = self._sample(texts, conditions, seeds, self._make_attention_arguments(items))
        images = self._decode_images(latents)
        return [
            self._make_result(request, image, note)
            for (request, _), image, note in zip(items, images, notes, strict=True)
        ]

    def _make_result(self, request: EditRequest, image: np.ndarray | None, note: str) -> EditResult:
        if image is None:
            fault = f"the model gave values that are not finite in {self._facts['dtype']}; try dtype float32"
            return EditResult(request.id, None, fault, note)
        if self.output == "input" and image.shape != request.image.shape:
            image = fit(image, (request.image.shape[1], request.image.shape[0]))
        return EditResult(request.id, image, note=note)

    def _encode_items(self, items: list[Item]) -> tuple[Tensor, Tensor, list[str]]:
        """Texts (K * B, tokens, width) and source images (K * B, 4, h, w), branch by branch; B notes."""
        encoded = [self._encode_text(request.instruction) for request, _ in items]
        instructions = torch.cat([states for states, _ in encoded])  # (B, tokens, width)
        # A negative prompt replaces the empty text, except where attention is guided by it.
        negatives = ["" if request.guided else request.negative_prompt for request, _ in items]
        unconditional = torch.cat([self._encode_text(text)[0] for text in negatives])  # (B, tokens, width)
        sources = self._encode_images(np.stack([image for _, image in items]))  # (B, H, W, 3) => (B, 4, h, w)
        blank = torch.zeros_like(sources)
        branches = self._guidance.branches  # K pairs (with instruction, with image)
        texts = torch.cat([instructions if has_text else unconditional for has_text, _ in branches])
        conditions = torch.cat([sources if has_image else blank for _, has_image in branches])
        return texts, conditions, [note for _, note in encoded]

    def _make_attention_arguments(self, items: list[Item]) -> Json:
        """Arguments of the `attention.Processor`s in a UNet call: word weights, negative prompts, if any."""
        requests = [request for request, _ in items]
        branch_has_text = [has_text for has_text, _ in self._guidance.branches]  # K bools
        arguments: Json = {}
        if any(request.weights for request in requests):
            with self._text_lock:
                per_request = [weigh_tokens(self._tokenizer, r.instruction, r.weights) for r in requests]
            weights = torch.stack(per_request)  # (B, tokens)
            per_branch = [weights if has_text else torch.ones_like(weights) for has_text in branch_has_text]
            arguments["weights"] = torch.cat(per_branch).to(self._device)  # (K * B, tokens)
        if requests[0].guided:  # all requests of a batch have one rule: see `_prepare`
            # Rows of the call with a text are guided: R = B times the number of branches with a text.
            texts = [request.negative_prompt for request in requests] * sum(branch_has_text)
            states = torch.cat([self._encode_text(text)[0] for text in texts])  # (R, tokens, width)
            in_prompt = torch.cat([self._tokenize(text)["attention_mask"] for text in texts]).bool()
            row_has_text = np.repeat(branch_has_text, len(requests))  # (K * B,) bool
            rows = np.flatnonzero(row_has_text).tolist()
            arguments["negatives"] = NegativePrompts(parse_rule(requests[0].guided), rows, states, in_prompt)
        return arguments

    def _decode_images(self, latents: Tensor) -> list[np.ndarray | None]:
        """Latents (B, 4, h, w) -> B images (H, W, 3) uint8; None where a value is not finite."""
        pixels = self._decode(latents)
        is_finite = torch.isfinite(latents).flatten(1).all(1) & torch.isfinite(pixels).flatten(1).all(1)
        levels = (pixels / 2 + 0.5).clamp(0, 1).nan_to_num() * 255  # (B, 3, H, W) float32
        levels = levels.round() if self.rounding == "round" else levels
        images = levels.to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()  # (B, H, W, 3)
        return [image.copy() if ok else None for image, ok in zip(images, is_finite.tolist(), strict=True)]

    def _decode(self, latents: Tensor) -> Tensor:
        """Latents (B, 4, h, w) -> pixels (B, 3, H, W) float32, nominally in [-1, 1]."""
        scaled = (latents / self._vae.config.scaling_factor).to(self._dtype)
        chunks = [self._vae.decode(chunk, return_dict=False)[0] for chunk in scaled.split(_VAE_CHUNK)]
        return torch.cat(chunks).float()

    def _encode_new_text(self, text: str) -> tuple[Tensor, str]:
        """(hidden states (1, tokens, width), note or ""). One text per call: batches change last bits."""
        encoded = self._tokenize(text)
        limit = encoded["input_ids"].shape[1]
        with self._text_lock:
            length = len(self._tokenizer(text, padding=False, truncation=False)["input_ids"])
        note = f"the instruction has {length} tokens, the text encoder read {limit}" if length > limit else ""
        uses_mask = getattr(self._text_encoder.config, "use_attention_mask", False)
        mask = encoded["attention_mask"] if uses_mask else None
        return self._text_encoder(encoded["input_ids"], attention_mask=mask)[0], note

    def _tokenize(self, text: str) -> Any:
        """Token ids and attention mask on the device, each (1, tokens)."""
        limit = min(self._tokenizer.model_max_length, self._text_encoder.config.max_position_embeddings)
        with self._text_lock:
            encoded = self._tokenizer(
                text, padding="max_length", max_length=limit, truncation=True, return_tensors="pt"
            )
        return encoded.to(self._device)

    def _encode_images(self, images: np.ndarray) -> Tensor:
        """Images (B, H, W, 3) uint8 -> mode of the VAE's posterior, (B, 4, h, w), not scaled."""
        # (B, 3, H, W) float32 in [-1, 1]
        pixels = torch.from_numpy(images).to(self._device).permute(0, 3, 1, 2).float() / 127.5 - 1
        chunks = pixels.to(self._dtype).split(_VAE_CHUNK)
        return torch.cat([self._vae.encode(chunk).latent_dist.mode() for chunk in chunks])

    def _sample(self, texts: Tensor, conditions: Tensor, seeds: list[int], attention: Json) -> Tensor:
        """Texts (K * B, tokens, width), images (K * B, 4, h, w) -> latents (B, 4, h, w) float32."""
        sigmas = self._scheduler.sigmas.tolist()
        prediction_type = self._scheduler.config.prediction_type
        noise = SampleNoise(seeds, tuple(conditions.shape[1:]), self._device)
        x = noise.draw() * sigmas[0]  # (B, 4, h, w)
        steps = zip(self._scheduler.timesteps, sigmas[:-1], sigmas[1:], strict=True)  # sigma: noise level
        for timestep, sigma, sigma_next in steps:
            scaled = x / (sigma**2 + 1) ** 0.5  # as EulerAncestralDiscreteScheduler.scale_model_input
            guided = self._predict(self._unet, scaled, timestep, texts, conditions, attention)
            step_noise = noise.draw() if sigma_next > 0 else None  # (B, 4, h, w); none at the last step
            x = ancestral_step(x, guided, sigma, sigma_next, step_noise, prediction_type)
        return x

    def _predict(
        self, unet: Any, scaled: Tensor, timestep: Tensor, texts: Tensor, conditions: Tensor, attention: Json
    ) -> Tensor:
        """Guided prediction (B, 4, h, w) float32 of `unet`, its K branches in one forward pass. scaled:
        latents (B, 4, h, w) as the scheduler scales them; texts, conditions: from `_encode_items`; attention:
        arguments of every `attention.Processor`."""
        latents = torch.cat([scaled.to(conditions.dtype)] * len(self._guidance.branches))  # (K * B, 4, h, w)
        inputs = torch.cat([latents, conditions], dim=1)  # (K * B, 4 + 4, h, w)
        output = unet(inputs, timestep, texts, cross_attention_kwargs=attention, return_dict=False)[0]
        return self._guidance.combine(output.float(), *self._scales)
