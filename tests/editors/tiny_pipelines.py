"""Tiny random pipelines of four classes of `editors.pipelines.RECIPES` that differ in kind: a transformer, a
UNet, one that takes several pictures, one that is told an object."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from tests.editors.tiny import write_tokenizer

BUILDERS: dict[str, Callable[[Path], Any]] = {}
SIDE = 64

flow = diffusers.FlowMatchEulerDiscreteScheduler
# Sizes that many parts share.
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}


def builds(name: str) -> Callable[[Any], Any]:
    """What builds a pipeline gets a folder for its parts."""
    return lambda function: BUILDERS.setdefault(name, function)


def save(name: str, folder: Path) -> Path:
    """Build the pipeline of class `name` with seed 0 and save it; returns the folder."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipeline = BUILDERS[name](folder / "parts")
        pipeline.save_pretrained(str(folder / "pipeline"))
    return folder / "pipeline"


# --- parts shared by several


def clip_text(tokenizer: Any, *, projection: bool = False) -> Any:
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=37, max_position_embeddings=77,
        projection_dim=32, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, **LAYERS,
    )  # fmt: skip
    return (transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel)(config)


def kl_vae(channels: int = 4, levels: int = 2, **values: Any) -> Any:
    down, up = ("DownEncoderBlock2D",) * levels, ("UpDecoderBlock2D",) * levels
    return diffusers.AutoencoderKL(
        block_out_channels=(8,) * levels, down_block_types=down, up_block_types=up, layers_per_block=1,
        latent_channels=channels, norm_num_groups=4, sample_size=32, **values,
    )  # fmt: skip


def unet(**values: Any) -> Any:
    return diffusers.UNet2DConditionModel(
        layers_per_block=1, sample_size=32, out_channels=4, norm_num_groups=4, **values
    )


# --- pipelines


@builds("FluxKontextPipeline")
def _(parts: Path) -> Any:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *(chr(code) for code in range(33, 127))]
    clip = write_tokenizer(parts / "clip")
    t5 = transformers.T5Tokenizer(vocab=[(piece, -1.0) for piece in pieces], extra_ids=0)
    return diffusers.FluxKontextPipeline(
        scheduler=flow(),
        vae=kl_vae(1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=clip_text(clip),
        tokenizer=clip,
        text_encoder_2=transformers.T5EncoderModel(transformers.T5Config(vocab_size=len(t5), **T5)),
        tokenizer_2=t5,
        transformer=diffusers.FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
            num_single_layers=1, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8),
            guidance_embeds=True,
        ),
        image_encoder=None,
        feature_extractor=None,
    )  # fmt: skip


@builds("StableDiffusionXLInstructPix2PixPipeline")
def _(parts: Path) -> Any:
    tokenizer = write_tokenizer(parts / "tokenizer")
    return diffusers.StableDiffusionXLInstructPix2PixPipeline(
        vae=kl_vae(),
        text_encoder=clip_text(tokenizer),
        text_encoder_2=clip_text(tokenizer, projection=True),
        tokenizer=tokenizer,
        tokenizer_2=tokenizer,
        unet=unet(
            block_out_channels=(16, 32), in_channels=8, attention_head_dim=(2, 4),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), use_linear_projection=True,
            addition_embed_type="text_time", addition_time_embed_dim=8, transformer_layers_per_block=(1, 2),
            projection_class_embeddings_input_dim=8 * 6 + 32, cross_attention_dim=64,
        ),
        scheduler=diffusers.EulerDiscreteScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="leading"
        ),
        force_zeros_for_empty_prompt=True,
        add_watermarker=False,
    )  # fmt: skip


@builds("OmniGenPipeline")
def _(parts: Path) -> Any:
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = {name: index for index, name in enumerate(["<unk>", "<s>", "</s>", "▁", *letters])}
    return diffusers.OmniGenPipeline(
        transformer=diffusers.OmniGenTransformer2DModel(
            hidden_size=16, num_attention_heads=4, num_key_value_heads=4, intermediate_size=32, num_layers=1,
            in_channels=4, time_step_dim=4, rope_scaling={"long_factor": [1, 2], "short_factor": [1, 2]},
        ),
        scheduler=flow(invert_sigmas=True, num_train_timesteps=1),
        vae=kl_vae(levels=4),  # eight pixels a latent: the processor counts on it
        tokenizer=transformers.LlamaTokenizer(vocab=vocabulary, merges=[]),
    )  # fmt: skip
