"""Tiny randomly initialised pipelines, one builder per class of `editors.pipelines.RECIPES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import tokenizers
import torch
import transformers
from PIL import Image

from tests.editors.tiny import write_tokenizer

BUILDERS: dict[str, Callable[[Path], Any]] = {}
CHAT = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def builder(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    BUILDERS[function.__name__] = function
    return function


def save(name: str, folder: Path) -> Path:
    """Build the pipeline of class `name` with seed 0 and save it; returns the folder."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipeline = BUILDERS[name](folder / "parts")
        pipeline.save_pretrained(folder / "pipeline")
    return folder / "pipeline"


# --- tokenizers --------------------------------------------------------------------------------------


def byte_vocabulary(extra: tuple[str, ...]) -> dict[str, int]:
    """The 256 byte symbols of byte-level BPE, then `extra`."""
    symbols = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    return {symbol: index for index, symbol in enumerate([*symbols, *extra])}


def qwen_tokenizer() -> Any:
    end = "<|endoftext|>"
    return transformers.Qwen2Tokenizer(
        vocab=byte_vocabulary((end, *CHAT)),
        merges=[],
        unk_token=end,
        eos_token=end,
        pad_token=end,
        additional_special_tokens=list(CHAT),
        chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
    )


def t5_tokenizer() -> Any:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *(chr(code) for code in range(33, 127))]
    return transformers.T5Tokenizer(vocab=[(piece, -1.0) for piece in pieces], extra_ids=0)


# --- parts shared by several ---------------------------------------------------------------------------


def clip_text(tokenizer: Any, *, projection: int | None = None, tokens: int = 77) -> Any:
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=37,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=tokens,
        projection_dim=projection or 32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    kind = transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel
    return kind(config)


def kl_vae(channels: int = 4, levels: int = 2, **values: Any) -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=(8,) * levels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=32,
        **values,
    )


def flow() -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler()


def qwen25_vl(tokenizer: Any, hidden: int = 16) -> Any:
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in CHAT}
    return transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": hidden,
                "intermediate_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
                "max_position_embeddings": 4096,
            },
            vision_config={
                "depth": 2,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": hidden,
                "fullatt_block_indexes": [1],
            },
            image_token_id=ids["<|image_pad|>"],
            video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"],
            vision_end_token_id=ids["<|vision_end|>"],
        )
    ).eval()


def qwen2_vl_processor(tokenizer: Any) -> Any:
    size = {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}
    return transformers.Qwen2VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(size=size),
        video_processor=transformers.Qwen2VLVideoProcessor(size=size),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


def qwen_vae() -> Any:
    return diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4,
    )


def qwen_transformer() -> Any:
    return diffusers.QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )


def unet_xl(in_channels: int) -> Any:
    return diffusers.UNet2DConditionModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        sample_size=32,
        in_channels=in_channels,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 2),
        projection_class_embeddings_input_dim=8 * 6 + 32,
        cross_attention_dim=64,
        norm_num_groups=4,
    )


def sdxl_parts(parts: Path, in_channels: int) -> dict[str, Any]:
    tokenizer = write_tokenizer(parts / "tokenizer")
    return {
        "vae": kl_vae(),
        "text_encoder": clip_text(tokenizer),
        "text_encoder_2": clip_text(tokenizer, projection=32),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer,
        "unet": unet_xl(in_channels),
        "scheduler": diffusers.EulerDiscreteScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="leading"
        ),
        "force_zeros_for_empty_prompt": True,
        "add_watermarker": False,
    }


# --- pipelines -----------------------------------------------------------------------------------------


@builder
def FluxKontextPipeline(parts: Path) -> Any:
    clip, t5 = write_tokenizer(parts / "clip"), t5_tokenizer()
    return diffusers.FluxKontextPipeline(
        scheduler=flow(),
        vae=kl_vae(1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=clip_text(clip),
        tokenizer=clip,
        text_encoder_2=transformers.T5EncoderModel(
            transformers.T5Config(vocab_size=len(t5), d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4)
        ),
        tokenizer_2=t5,
        transformer=diffusers.FluxTransformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=(4, 4, 8),
            guidance_embeds=True,
        ),
        image_encoder=None,
        feature_extractor=None,
    )


@builder
def QwenImageEditPipeline(parts: Path) -> Any:
    return _qwen(diffusers.QwenImageEditPipeline)


@builder
def QwenImageEditPlusPipeline(parts: Path) -> Any:
    return _qwen(diffusers.QwenImageEditPlusPipeline)


def _qwen(kind: Any) -> Any:
    tokenizer = qwen_tokenizer()
    return kind(
        scheduler=flow(),
        vae=qwen_vae(),
        text_encoder=qwen25_vl(tokenizer),
        tokenizer=tokenizer,
        processor=qwen2_vl_processor(tokenizer),
        transformer=qwen_transformer(),
    )


@builder
def StableDiffusionXLInstructPix2PixPipeline(parts: Path) -> Any:
    return diffusers.StableDiffusionXLInstructPix2PixPipeline(**sdxl_parts(parts, 8))


@builder
def OmniGenPipeline(parts: Path) -> Any:
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = {name: index for index, name in enumerate(["<unk>", "<s>", "</s>", "▁", *letters])}
    tokenizer = transformers.LlamaTokenizer(vocab=vocabulary, merges=[])
    return diffusers.OmniGenPipeline(
        transformer=diffusers.OmniGenTransformer2DModel(
            hidden_size=16,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=32,
            num_layers=1,
            in_channels=4,
            time_step_dim=4,
            rope_scaling={"long_factor": [1, 2], "short_factor": [1, 2]},
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True, num_train_timesteps=1),
        vae=kl_vae(levels=4),  # eight pixels a latent: the processor counts on it
        tokenizer=tokenizer,
    )


@builder
def LEditsPPPipelineStableDiffusion(parts: Path) -> Any:
    tokenizer = write_tokenizer(parts / "tokenizer")
    return diffusers.LEditsPPPipelineStableDiffusion(
        vae=kl_vae(),
        text_encoder=clip_text(tokenizer),
        tokenizer=tokenizer,
        unet=diffusers.UNet2DConditionModel(
            block_out_channels=(8, 16, 16),  # attention at a quarter of the latent, where maps are read
            layers_per_block=1,
            sample_size=32,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
            norm_num_groups=4,
        ),
        scheduler=diffusers.DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++", solver_order=2),
        safety_checker=None,
        feature_extractor=None,
    )


@builder
def LEditsPPPipelineStableDiffusionXL(parts: Path) -> Any:
    components = sdxl_parts(parts, 4)
    components["scheduler"] = diffusers.DPMSolverMultistepScheduler(
        algorithm_type="sde-dpmsolver++", solver_order=2
    )
    return diffusers.LEditsPPPipelineStableDiffusionXL(**components)


# --- how each is called ---------------------------------------------------------------------------------

#: Modules of diffusers.pipelines whose `calculate_dimensions` insists on a megapixel.
MEGAPIXEL = (
    "qwenimage.pipeline_qwenimage_edit",
    "qwenimage.pipeline_qwenimage_edit_plus",
    "longcat_image.pipeline_longcat_image_edit",
)


def cropped(picture: Image.Image) -> Image.Image:
    """The 96 x 64 picture of the tests as rule r64 at resolution 64 leaves it."""
    return picture.resize((64, 64), Image.Resampling.LANCZOS, box=(16, 0, 80, 64))


#: Class -> arguments besides generator and steps, for a picture of 96 x 64, an instruction and resolution 64.
CALLS: dict[str, Callable[[Image.Image, str], dict[str, Any]]] = {
    "FluxKontextPipeline": lambda picture, text: {
        "image": picture, "prompt": text, "guidance_scale": 3.5, "height": 48, "width": 80,
        "max_area": 48 * 80, "_auto_resize": False,
    },
    "QwenImageEditPipeline": lambda picture, text: {
        "image": picture, "prompt": text, "true_cfg_scale": 4.0, "negative_prompt": " ",
    },
    "QwenImageEditPlusPipeline": lambda picture, text: {
        "image": [picture], "prompt": text, "true_cfg_scale": 4.0, "negative_prompt": " ",
    },
    "StableDiffusionXLInstructPix2PixPipeline": lambda picture, text: {
        "image": cropped(picture), "prompt": text, "height": 64, "width": 64,
        "guidance_scale": 3.0, "image_guidance_scale": 1.5,
    },
    "OmniGenPipeline": lambda picture, text: {
        "input_images": [picture], "prompt": f"<img><|image_1|></img> {text}", "guidance_scale": 2.0,
        "img_guidance_scale": 1.6, "use_input_image_size_as_output": True, "max_input_image_size": 64,
    },
}  # fmt: skip
