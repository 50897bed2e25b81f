"""Tiny random pipelines of four classes of `editors.pipelines.RECIPES` that differ in kind: a transformer, a
UNet, one that takes several pictures, one that is told an object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import tokenizers
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


# --- pipelines with a rewriter of their own

END = "<|endoftext|>"
VISION = ("<|vision_start|>", "<|image_pad|>", "<|video_pad|>", "<|vision_end|>")
#: A turn after the other, an image as the marks that a processor fills.
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}\n{% endfor %}"
)
TEXT = {
    "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 8192,
}  # fmt: skip
SIGHT = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16}


def byte_tokenizer() -> Any:
    symbols = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), END, *VISION]
    return transformers.Qwen2Tokenizer(
        vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[], unk_token=END,
        eos_token=END, pad_token=END, additional_special_tokens=list(VISION), model_max_length=8192,
    )  # fmt: skip


def briefly(model: Any) -> Any:
    """The model, whose texts end at every third token of its vocabulary: they would take minutes."""
    model.generation_config.eos_token_id = [*range(0, 256, 3)]
    return model


def flux_vae() -> Any:
    return diffusers.AutoencoderKLFlux2(
        block_out_channels=(8, 8, 8), down_block_types=("DownEncoderBlock2D",) * 3, layers_per_block=1,
        up_block_types=("UpDecoderBlock2D",) * 3, latent_channels=1, norm_num_groups=4, sample_size=32,
    )  # fmt: skip


@builds("Flux2Pipeline")
def _(parts: Path) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer()._tokenizer, pad_token=END, eos_token=END
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]})
    config = transformers.Mistral3Config(
        text_config={
            **TEXT, "model_type": "mistral", "vocab_size": len(tokenizer), "sliding_window": None,
            "num_hidden_layers": 31, "eos_token_id": tokenizer.eos_token_id,  # layers 10, 20, 30 are read
        },
        vision_config={
            "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "head_dim": 8, "image_size": 32, "patch_size": 8,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"), spatial_merge_size=1,
    )  # fmt: skip
    sight = transformers.PixtralImageProcessor(size={"longest_edge": 32}, patch_size=8)
    return diffusers.Flux2Pipeline(
        scheduler=flow(),
        vae=flux_vae(),
        text_encoder=briefly(transformers.Mistral3ForConditionalGeneration(config)),
        tokenizer=transformers.PixtralProcessor(
            image_processor=sight, tokenizer=tokenizer, patch_size=8,
            chat_template=CHAT.replace("IMAGE", "[IMG]"),
        ),
        transformer=diffusers.Flux2Transformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=48, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=True,
        ),
    )  # fmt: skip


def flux3(parts: Path, name: str) -> Any:
    tokenizer = byte_tokenizer()
    sight = transformers.Qwen2VLImageProcessor(
        size={"shortest_edge": 32 * 32, "longest_edge": 64 * 64}, patch_size=16
    )
    processor = transformers.Qwen3VLProcessor(
        image_processor=sight, tokenizer=tokenizer, video_processor=transformers.Qwen3VLVideoProcessor(),
        chat_template=CHAT.replace("IMAGE", "".join(VISION[:2]) + VISION[3]),
    )  # fmt: skip
    names = ("vision_start_token_id", "image_token_id", "video_token_id", "vision_end_token_id")
    marks = {key: tokenizer.convert_tokens_to_ids(mark) for key, mark in zip(names, VISION, strict=True)}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    encoder = transformers.Qwen3VLConfig(
        text_config={**text, "rope_parameters": rope, "num_hidden_layers": 33},  # layers 4, 8 to 32 are read
        vision_config={**SIGHT, "patch_size": 16, "deepstack_visual_indexes": [1]},
        **marks,
    )
    upsampler = transformers.Qwen3_5Config(
        text_config={
            **text, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": {**rope, "partial_rotary_factor": 1.0}, "linear_num_value_heads": 2,
            "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        },
        vision_config={**SIGHT, "patch_size": 16},
        **marks,
    )  # fmt: skip
    pipeline = getattr(diffusers, name)()
    pipeline.update_components(
        prompt_upsampler=briefly(transformers.Qwen3_5ForConditionalGeneration(upsampler)),
        prompt_upsampler_processor=processor,
        text_encoder=transformers.Qwen3VLForConditionalGeneration(encoder),
        tokenizer=processor,
        vae=flux_vae(),
        scheduler=flow(),
        transformer=diffusers.Flux3Transformer2DModel(
            in_channels=4, cond_in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=16 * 8, timestep_channels=16,
            axes_dims_rope=(4, 4, 4, 4), flow_map="Distilled" in name,
        ),
    )  # fmt: skip
    return pipeline


for _name in ("Flux3ModularPipeline", "Flux3DistilledModularPipeline"):
    if hasattr(diffusers, _name):
        builds(_name)(functools.partial(flux3, name=_name))
