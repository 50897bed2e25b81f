"""Tiny pipelines of the later classes in `editors.pipelines.RECIPES`; see `tests.editors.tiny_pipelines`."""

from __future__ import annotations

import functools
import importlib
import json
from pathlib import Path
from typing import Any

import diffusers
import transformers

from tests.editors.tiny import write_tokenizer
from tests.editors.tiny_pipelines import (
    CALLS,
    CHAT,
    CHAT_TEMPLATE,
    builder,
    clip_text,
    flow,
    kl_vae,
    qwen2_vl_processor,
    qwen25_vl,
    qwen_tokenizer,
    t5_tokenizer,
)


def shrink(monkeypatch: Any) -> None:
    """Make the pipelines that insist on a megapixel get by with 96 x 64."""
    pipelines = "diffusers.pipelines."
    buckets = importlib.import_module(pipelines + "joyimage.image_processor")
    monkeypatch.setattr(buckets, "find_best_bucket", lambda height, width, basesize: (64, 96))
    fibo = importlib.import_module(pipelines + "bria_fibo.pipeline_bria_fibo_edit")
    monkeypatch.setitem(fibo.PREFERRED_RESOLUTION, 1024 * 1024, [(96, 64)])
    kind = diffusers.Kandinsky5I2IPipeline
    original = kind.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        self.resolutions = [(96, 64)]

    monkeypatch.setattr(kind, "__init__", init)


def qwen3_vl(tokenizer: Any) -> Any:
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in CHAT}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    return transformers.Qwen3VLForConditionalGeneration(
        transformers.Qwen3VLConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "rope_parameters": rope,
                "max_position_embeddings": 4096,
                "bos_token_id": None,
                "eos_token_id": None,
            },
            vision_config={
                "depth": 2,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": 16,
                "patch_size": 16,
                "deepstack_visual_indexes": [1],
            },
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
        )
    ).eval()


def qwen3_vl_processor(tokenizer: Any) -> Any:
    size = {"shortest_edge": 32 * 32, "longest_edge": 64 * 64}
    return transformers.Qwen3VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(size=size, patch_size=16),
        video_processor=transformers.Qwen3VLVideoProcessor(size=size, patch_size=16),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


def wan_vae(**values: Any) -> Any:
    return diffusers.AutoencoderKLWan(
        **{
            "base_dim": 3,
            "z_dim": 16,
            "dim_mult": [1, 1, 1, 1],
            "num_res_blocks": 1,
            "temperal_downsample": [False, True, True],
            **values,
        }
    )


@builder
def LongCatImageEditPipeline(parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return diffusers.LongCatImageEditPipeline(
        scheduler=flow(),
        vae=kl_vae(16, shift_factor=0.1),
        text_encoder=qwen25_vl(tokenizer),
        tokenizer=tokenizer,
        text_processor=qwen2_vl_processor(tokenizer),
        transformer=diffusers.LongCatImageTransformer2DModel(
            in_channels=64,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=16,
            pooled_projection_dim=16,
            axes_dims_rope=[4, 4, 8],
        ),
    )


@builder
def ChronoEditPipeline(parts: Path) -> Any:
    tokenizer = t5_tokenizer()
    vision = transformers.CLIPVisionConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
    )
    return diffusers.ChronoEditPipeline(
        tokenizer=tokenizer,
        text_encoder=transformers.UMT5EncoderModel(
            transformers.UMT5Config(
                vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4
            )
        ),
        image_encoder=transformers.CLIPVisionModel(vision),
        image_processor=transformers.CLIPImageProcessor(
            crop_size={"height": 32, "width": 32}, size={"shortest_edge": 32}
        ),
        transformer=diffusers.ChronoEditTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=36,
            out_channels=16,
            text_dim=32,
            freq_dim=32,
            ffn_dim=32,
            num_layers=1,
            rope_max_seq_len=32,
            image_dim=8,
        ),
        vae=wan_vae(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
    )


def _joy(kind: Any, transformer: Any) -> Any:
    tokenizer = qwen_tokenizer()
    return kind(
        scheduler=flow(),
        vae=wan_vae(),
        text_encoder=qwen3_vl(tokenizer),
        tokenizer=tokenizer,
        transformer=transformer(
            in_channels=16,
            hidden_size=32,
            num_attention_heads=2,
            text_dim=16,
            num_layers=1,
            rope_dim_list=[4, 6, 6],
        ),
        processor=qwen3_vl_processor(tokenizer),
    )


@builder
def JoyImageEditPipeline(parts: Path) -> Any:
    return _joy(diffusers.JoyImageEditPipeline, diffusers.JoyImageEditTransformer3DModel)


@builder
def JoyImageEditPlusPipeline(parts: Path) -> Any:
    return _joy(diffusers.JoyImageEditPlusPipeline, diffusers.JoyImageEditPlusTransformer3DModel)


def _dreamlite(kind: Any) -> Any:
    tokenizer = qwen_tokenizer()
    return kind(
        text_encoder=qwen3_vl(tokenizer),
        tokenizer=tokenizer,
        processor=qwen3_vl_processor(tokenizer),
        vae=diffusers.AutoencoderTiny(
            encoder_block_out_channels=(8, 8),
            decoder_block_out_channels=(8, 8),
            num_encoder_blocks=(1, 1),
            num_decoder_blocks=(1, 1),
            latent_channels=4,
        ),
        unet=diffusers.DreamLiteUNetModel(
            sample_size=8,
            down_block_types=("DreamLiteCrossAttnNoSelfAttnDownBlock2D", "DreamLiteCrossAttnDownBlock2D"),
            up_block_types=("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D"),
            block_out_channels=(16, 32),
            cross_attention_dim=16,
            attention_head_dim=8,
            layers_per_block=1,
            norm_num_groups=8,
        ),
        scheduler=flow(),
    )


@builder
def DreamLitePipeline(parts: Path) -> Any:
    return _dreamlite(diffusers.DreamLitePipeline)


@builder
def DreamLiteMobilePipeline(parts: Path) -> Any:
    return _dreamlite(diffusers.DreamLiteMobilePipeline)


@builder
def Kandinsky5I2IPipeline(parts: Path) -> Any:
    tokenizer, clip = qwen_tokenizer(), write_tokenizer(parts / "clip")
    return diffusers.Kandinsky5I2IPipeline(
        transformer=diffusers.Kandinsky5Transformer3DModel(
            in_visual_dim=16,
            in_text_dim=16,
            in_text_dim2=32,
            time_dim=16,
            out_visual_dim=16,
            patch_size=(1, 2, 2),
            model_dim=16,
            ff_dim=32,
            num_text_blocks=1,
            num_visual_blocks=1,
            axes_dims=(1, 1, 2),
            visual_cond=True,
            attention_type="regular",
        ),
        vae=kl_vae(16, levels=4, shift_factor=0.1),
        text_encoder=qwen25_vl(tokenizer),
        tokenizer=qwen2_vl_processor(tokenizer),
        text_encoder_2=clip_text(clip),
        tokenizer_2=clip,
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
    )


@builder
def BriaFiboEditPipeline(parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    config = transformers.SmolLM3Config(
        vocab_size=128_256,  # an empty prompt is token 128000, whatever the tokenizer
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return diffusers.BriaFiboEditPipeline(
        transformer=diffusers.BriaFiboTransformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=8,
            num_attention_heads=2,
            joint_attention_dim=64,
            text_encoder_dim=32,
            pooled_projection_dim=None,
            axes_dims_rope=[0, 4, 4],
        ),
        scheduler=flow(),
        vae=wan_vae(
            base_dim=4,
            decoder_base_dim=4,
            dim_mult=[1, 2, 4, 4],
            in_channels=12,
            out_channels=12,
            patch_size=2,
            is_residual=True,
            scale_factor_spatial=16,
            latents_mean=[0.0] * 16,
            latents_std=[1.0] * 16,
        ),
        text_encoder=transformers.SmolLM3ForCausalLM(config),
        tokenizer=tokenizer,
    )


@builder
def QwenImage21Pipeline(parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return diffusers.QwenImage21Pipeline(
        scheduler=flow(),
        vae=diffusers.AutoencoderKLQwenImage21(
            base_dim=4,
            decoder_base_dim=4,
            z_dim=4,
            dim_mult=[1, 1, 1, 1, 1],
            num_res_blocks=1,
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
        ),
        text_encoder=qwen3_vl(tokenizer),
        processor=qwen3_vl_processor(tokenizer),
        transformer=diffusers.QwenImage21Transformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            context_in_dim=16,
            axes_dims_rope=(4, 6, 6),
        ),
    )


CALLS |= {
    "LongCatImageEditPipeline": lambda picture, text: {
        "image": picture, "prompt": text, "negative_prompt": "", "guidance_scale": 4.5,
    },
    "ChronoEditPipeline": lambda picture, text: {
        "image": picture, "prompt": text, "negative_prompt": "", "guidance_scale": 5.0, "num_frames": 5,
        "width": 64, "height": 48,
    },
    "JoyImageEditPipeline": lambda picture, text: {
        "image": picture, "prompt": text, "negative_prompt": "", "guidance_scale": 4.0,
    },
    "JoyImageEditPlusPipeline": lambda picture, text: {
        "images": [[picture]], "prompt": text, "negative_prompt": "", "guidance_scale": 4.0,
    },
    "DreamLitePipeline": lambda picture, text: {
        "image": picture, "prompt": text, "negative_prompt": "", "guidance_scale": 3.5,
        "image_guidance_scale": 1.5, "width": 64, "height": 64,
    },
    "DreamLiteMobilePipeline": lambda picture, text: {
        "image": picture, "prompt": text, "width": 64, "height": 64,
    },
    "Kandinsky5I2IPipeline": lambda picture, text: {
        "image": picture, "prompt": text, "negative_prompt": "", "guidance_scale": 3.5,
    },
    "BriaFiboEditPipeline": lambda picture, text: {
        "image": picture, "prompt": json.dumps({"edit_instruction": text}), "negative_prompt": "",
        "guidance_scale": 5.0,
    },
    "QwenImage21Pipeline": lambda picture, text: {
        "image": picture, "prompt": text, "true_cfg_scale": 1.0, "output_resolution": 64,
    },
}  # fmt: skip
