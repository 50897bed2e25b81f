"""Tiny random pipelines, a builder per class of `editors.pipelines.RECIPES`."""

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
CHAT = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = "<|endoftext|>"
SIDE = 64

flow = diffusers.FlowMatchEulerDiscreteScheduler
# Sizes that many parts share.
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}
WORDS = {"hidden_size": 16, "intermediate_size": 16, **LAYERS, "num_key_value_heads": 2}
SIGHT = {"depth": 2, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}
DENOISER = {"num_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}


def builds(*names: str) -> Callable[[Any], Any]:
    """Of classes with the same parts; what builds them gets the name and a folder for parts."""

    def add(function: Any) -> Any:
        BUILDERS.update({name: functools.partial(function, name) for name in names})
        return function

    return add


def save(name: str, folder: Path) -> Path:
    """Build the pipeline of class `name` with seed 0 and save it; returns the folder."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipeline = BUILDERS[name](folder / "parts")
        pipeline.save_pretrained(str(folder / "pipeline"))
    return folder / "pipeline"


# --- tokenizers and processors


def qwen_tokenizer() -> Any:
    """Byte-level: the 256 byte symbols and the marks of a chat."""
    symbols = [*sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()), END, *CHAT]
    return transformers.Qwen2Tokenizer(
        vocab={symbol: index for index, symbol in enumerate(symbols)}, merges=[], unk_token=END,
        eos_token=END, pad_token=END, additional_special_tokens=list(CHAT), chat_template=CHAT_TEMPLATE,
        model_max_length=4096,
    )  # fmt: skip


def t5_tokenizer() -> Any:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *(chr(code) for code in range(33, 127))]
    return transformers.T5Tokenizer(vocab=[(piece, -1.0) for piece in pieces], extra_ids=0)


def processor(tokenizer: Any, kind: str = "Qwen2VL", patch: int = 14) -> Any:
    size = {"shortest_edge": 4 * patch**2, "longest_edge": 16 * patch**2}
    image = transformers.Qwen2VLImageProcessor(size=size, patch_size=patch)
    video = getattr(transformers, f"{kind}VideoProcessor")(size=size)
    make = getattr(transformers, f"{kind}Processor")
    return make(
        image_processor=image, video_processor=video, tokenizer=tokenizer, chat_template=CHAT_TEMPLATE
    )


# --- parts shared by several


def clip_text(tokenizer: Any, *, projection: bool = False) -> Any:
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=37, max_position_embeddings=77,
        projection_dim=32, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, **LAYERS,
    )  # fmt: skip
    return (transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel)(config)


def kl_vae(channels: int = 4, levels: int = 2, kind: str = "AutoencoderKL", **values: Any) -> Any:
    down, up = ("DownEncoderBlock2D",) * levels, ("UpDecoderBlock2D",) * levels
    return getattr(diffusers, kind)(
        block_out_channels=(8,) * levels, down_block_types=down, up_block_types=up, layers_per_block=1,
        latent_channels=channels, norm_num_groups=4, sample_size=32, **values,
    )  # fmt: skip


def wan_vae(**values: Any) -> Any:
    small = {"base_dim": 3, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    return diffusers.AutoencoderKLWan(**{**small, "temperal_downsample": [False, True, True], **values})


def vision_ids(tokenizer: Any) -> dict[str, int]:
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    return {key: tokenizer.convert_tokens_to_ids(name) for key, name in names.items()}


def qwen25_vl(tokenizer: Any) -> Any:
    text = {**WORDS, "vocab_size": len(tokenizer), "rope_parameters": ROPE, "max_position_embeddings": 4096}
    vision = {**SIGHT, "out_hidden_size": 16, "fullatt_block_indexes": [1]}
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **vision_ids(tokenizer))
    return transformers.Qwen2_5_VLForConditionalGeneration(config).eval()


def qwen3_vl(tokenizer: Any, layers: int = 2) -> Any:
    text = {
        **WORDS, "vocab_size": len(tokenizer), "head_dim": 8, "rope_parameters": ROPE,
        "num_hidden_layers": layers, "max_position_embeddings": 4096, "bos_token_id": None,
        "eos_token_id": None,
    }  # fmt: skip
    vision = {**SIGHT, "out_hidden_size": 16, "patch_size": 16, "deepstack_visual_indexes": [1]}
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **vision_ids(tokenizer))
    return transformers.Qwen3VLForConditionalGeneration(config).eval()


def unet(kind: str = "UNet2DConditionModel", **values: Any) -> Any:
    small = {"layers_per_block": 1, "sample_size": 32, "out_channels": 4, "norm_num_groups": 4}
    return getattr(diffusers, kind)(**{**small, **values})


def sdxl_parts(parts: Path, in_channels: int, scheduler: Any) -> dict[str, Any]:
    tokenizer = write_tokenizer(parts / "tokenizer")
    return {
        "vae": kl_vae(),
        "text_encoder": clip_text(tokenizer),
        "text_encoder_2": clip_text(tokenizer, projection=True),
        "tokenizer": tokenizer,
        "tokenizer_2": tokenizer,
        "unet": unet(
            block_out_channels=(16, 32), in_channels=in_channels, attention_head_dim=(2, 4),
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), use_linear_projection=True,
            addition_embed_type="text_time", addition_time_embed_dim=8, transformer_layers_per_block=(1, 2),
            projection_class_embeddings_input_dim=8 * 6 + 32, cross_attention_dim=64,
        ),
        "scheduler": scheduler,
        "force_zeros_for_empty_prompt": True,
        "add_watermarker": False,
    }  # fmt: skip


def ledits_scheduler() -> Any:
    return diffusers.DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++", solver_order=2)


# --- pipelines


@builds("FluxKontextPipeline")
def _(kind: str, parts: Path) -> Any:
    clip, t5 = write_tokenizer(parts / "clip"), t5_tokenizer()
    return diffusers.FluxKontextPipeline(
        scheduler=flow(),
        vae=kl_vae(1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.06, scaling_factor=1.5),
        text_encoder=clip_text(clip),
        tokenizer=clip,
        text_encoder_2=transformers.T5EncoderModel(transformers.T5Config(vocab_size=len(t5), **T5)),
        tokenizer_2=t5,
        transformer=diffusers.FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_single_layers=1, joint_attention_dim=32,
            pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), guidance_embeds=True, **DENOISER,
        ),
        image_encoder=None,
        feature_extractor=None,
    )  # fmt: skip


@builds("QwenImageEditPipeline", "QwenImageEditPlusPipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return getattr(diffusers, kind)(
        scheduler=flow(),
        vae=diffusers.AutoencoderKLQwenImage(
            base_dim=8, z_dim=4, dim_mult=[1, 2, 4], num_res_blocks=1, temperal_downsample=[False, True],
            latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
        ),
        text_encoder=qwen25_vl(tokenizer),
        tokenizer=tokenizer,
        processor=processor(tokenizer),
        transformer=diffusers.QwenImageTransformer2DModel(
            patch_size=2, in_channels=16, out_channels=4, joint_attention_dim=16, axes_dims_rope=(8, 4, 4),
            **DENOISER,
        ),
    )  # fmt: skip


@builds("StableDiffusionXLInstructPix2PixPipeline")
def _(kind: str, parts: Path) -> Any:
    scheduler = diffusers.EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="leading"
    )
    return diffusers.StableDiffusionXLInstructPix2PixPipeline(**sdxl_parts(parts, 8, scheduler))


@builds("OmniGenPipeline")
def _(kind: str, parts: Path) -> Any:
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


@builds("LEditsPPPipelineStableDiffusion")
def _(kind: str, parts: Path) -> Any:
    tokenizer = write_tokenizer(parts / "tokenizer")
    crossed = ("CrossAttnDownBlock2D",) * 2, ("CrossAttnUpBlock2D",) * 2
    return diffusers.LEditsPPPipelineStableDiffusion(
        vae=kl_vae(),
        text_encoder=clip_text(tokenizer),
        tokenizer=tokenizer,
        unet=unet(
            block_out_channels=(8, 16, 16),  # attention at a quarter of the latent, where maps are read
            in_channels=4, down_block_types=("DownBlock2D", *crossed[0]),
            up_block_types=(*crossed[1], "UpBlock2D"), cross_attention_dim=32,
        ),
        scheduler=ledits_scheduler(),
        safety_checker=None,
        feature_extractor=None,
    )  # fmt: skip


@builds("LEditsPPPipelineStableDiffusionXL")
def _(kind: str, parts: Path) -> Any:
    return diffusers.LEditsPPPipelineStableDiffusionXL(**sdxl_parts(parts, 4, ledits_scheduler()))


def flux2_parts(guidance: bool) -> dict[str, Any]:
    return {
        "scheduler": flow(),
        "vae": kl_vae(1, levels=3, kind="AutoencoderKLFlux2"),
        "transformer": diffusers.Flux2Transformer2DModel(
            patch_size=1, in_channels=4, num_single_layers=1, joint_attention_dim=48,
            axes_dims_rope=(4, 4, 4, 4), guidance_embeds=guidance, **DENOISER,
        ),
    }  # fmt: skip


@builds("Flux2Pipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer()._tokenizer, pad_token=END, eos_token=END
    )
    marks = ["[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    template = (
        "{% for message in messages %}[INST]{% for part in message['content'] %}{{ part['text'] }}"
        "{% endfor %}[/INST]{% endfor %}"
    )
    sight = transformers.PixtralImageProcessor(size={"longest_edge": 32}, patch_size=8)
    text = {
        **WORDS, "model_type": "mistral", "vocab_size": len(tokenizer), "head_dim": 8, "sliding_window": None,
        "num_hidden_layers": 31,  # its layers 10, 20 and 30 are read
        "max_position_embeddings": 1024,
    }  # fmt: skip
    vision = {
        "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "head_dim": 8, "image_size": 32, "patch_size": 8,
    }  # fmt: skip
    image = tokenizer.convert_tokens_to_ids("[IMG]")
    config = transformers.Mistral3Config(text_config=text, vision_config=vision, image_token_index=image)
    return diffusers.Flux2Pipeline(
        text_encoder=transformers.Mistral3ForConditionalGeneration(config),
        tokenizer=transformers.PixtralProcessor(
            image_processor=sight, tokenizer=tokenizer, patch_size=8, chat_template=template
        ),
        **flux2_parts(True),
    )


@builds("Flux2KleinPipeline", "Flux2KleinKVPipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    sizes = {**WORDS, "num_hidden_layers": 28}  # its layers 9, 18 and 27 are read
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), head_dim=8, max_position_embeddings=1024, **sizes
    )
    return getattr(diffusers, kind)(
        text_encoder=transformers.Qwen3ForCausalLM(config), tokenizer=tokenizer, **flux2_parts(False)
    )


@builds("LongCatImageEditPipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return diffusers.LongCatImageEditPipeline(
        scheduler=flow(),
        vae=kl_vae(16, shift_factor=0.1),
        text_encoder=qwen25_vl(tokenizer),
        tokenizer=tokenizer,
        text_processor=processor(tokenizer),
        transformer=diffusers.LongCatImageTransformer2DModel(
            in_channels=64, num_single_layers=1, joint_attention_dim=16, pooled_projection_dim=16,
            axes_dims_rope=[4, 4, 8], **DENOISER,
        ),
    )  # fmt: skip


@builds("ChronoEditPipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer, side = t5_tokenizer(), {"height": 32, "width": 32}
    words = transformers.UMT5Config(vocab_size=len(tokenizer), **T5)
    vision = transformers.CLIPVisionConfig(
        hidden_size=8, intermediate_size=16, image_size=32, patch_size=8, **LAYERS
    )
    return diffusers.ChronoEditPipeline(
        tokenizer=tokenizer,
        text_encoder=transformers.UMT5EncoderModel(words),
        image_encoder=transformers.CLIPVisionModel(vision),
        image_processor=transformers.CLIPImageProcessor(crop_size=side, size={"shortest_edge": 32}),
        transformer=diffusers.ChronoEditTransformer3DModel(
            num_attention_heads=2, attention_head_dim=12, in_channels=36, out_channels=16, text_dim=32,
            freq_dim=32, ffn_dim=32, num_layers=1, rope_max_seq_len=32, image_dim=8,
        ),
        vae=wan_vae(),
        scheduler=flow(shift=7.0),
    )  # fmt: skip


@builds("JoyImageEditPipeline", "JoyImageEditPlusPipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return getattr(diffusers, kind)(
        scheduler=flow(),
        vae=wan_vae(),
        text_encoder=qwen3_vl(tokenizer),
        tokenizer=tokenizer,
        transformer=getattr(diffusers, kind.replace("Pipeline", "Transformer3DModel"))(
            in_channels=16, hidden_size=32, num_attention_heads=2, text_dim=16, num_layers=1,
            rope_dim_list=[4, 6, 6],
        ),
        processor=processor(tokenizer, "Qwen3VL", 16),
    )  # fmt: skip


@builds("DreamLitePipeline", "DreamLiteMobilePipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return getattr(diffusers, kind)(
        text_encoder=qwen3_vl(tokenizer),
        tokenizer=tokenizer,
        processor=processor(tokenizer, "Qwen3VL", 16),
        vae=diffusers.AutoencoderTiny(
            encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1),
            num_decoder_blocks=(1, 1), latent_channels=4,
        ),
        unet=unet(
            "DreamLiteUNetModel", sample_size=8, block_out_channels=(16, 32), cross_attention_dim=16,
            down_block_types=("DreamLiteCrossAttnNoSelfAttnDownBlock2D", "DreamLiteCrossAttnDownBlock2D"),
            up_block_types=("DreamLiteCrossAttnUpBlock2D", "DreamLiteUpBlock2D"), attention_head_dim=8,
            norm_num_groups=8,
        ),
        scheduler=flow(),
    )  # fmt: skip


@builds("Kandinsky5I2IPipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer, clip = qwen_tokenizer(), write_tokenizer(parts / "clip")
    return diffusers.Kandinsky5I2IPipeline(
        transformer=diffusers.Kandinsky5Transformer3DModel(
            in_visual_dim=16, in_text_dim=16, in_text_dim2=32, time_dim=16, out_visual_dim=16,
            patch_size=(1, 2, 2), model_dim=16, ff_dim=32, num_text_blocks=1, num_visual_blocks=1,
            axes_dims=(1, 1, 2), visual_cond=True, attention_type="regular",
        ),
        vae=kl_vae(16, levels=4, shift_factor=0.1),
        text_encoder=qwen25_vl(tokenizer),
        tokenizer=processor(tokenizer),
        text_encoder_2=clip_text(clip),
        tokenizer_2=clip,
        scheduler=flow(shift=7.0),
    )  # fmt: skip


@builds("BriaFiboEditPipeline")
def _(kind: str, parts: Path) -> Any:
    config = transformers.SmolLM3Config(
        vocab_size=128_256,  # an empty prompt is token 128000, whatever the tokenizer
        **{**WORDS, "hidden_size": 32, "intermediate_size": 32}, pad_token_id=0, bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    return diffusers.BriaFiboEditPipeline(
        transformer=diffusers.BriaFiboTransformer2DModel(
            in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
            joint_attention_dim=64, text_encoder_dim=32, pooled_projection_dim=None, axes_dims_rope=[0, 4, 4],
        ),
        scheduler=flow(),
        vae=wan_vae(
            base_dim=4, decoder_base_dim=4, dim_mult=[1, 2, 4, 4], in_channels=12, out_channels=12,
            patch_size=2, is_residual=True, scale_factor_spatial=16, latents_mean=[0.0] * 16,
            latents_std=[1.0] * 16,
        ),
        text_encoder=transformers.SmolLM3ForCausalLM(config),
        tokenizer=qwen_tokenizer(),
    )  # fmt: skip


@builds("BriaFibo2Pipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return diffusers.BriaFibo2Pipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=kl_vae(1, levels=3, kind="AutoencoderKLFlux2"),
        text_encoder=qwen3_vl(tokenizer, layers=36),  # several of them are read
        processor=processor(tokenizer, "Qwen3VL", 16),
        transformer=diffusers.BriaFibo2Transformer2DModel(
            in_channels=1, dim=32, n_layers=5, n_refiner_layers=1, n_heads=2, cap_feat_dim=48,
            injection_layer_ids=(0, 1, 2, 3, 4), perceiver_num_layers=1, min_num_gist_tokens=4,
            max_num_gist_tokens=8, gist_step=4, axes_dims=(4, 4, 8),
        ),
    )  # fmt: skip


@builds("ZImageOmniPipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer, patches = qwen_tokenizer(), {"patch_size": 16}
    words = transformers.Qwen3Config(
        vocab_size=len(tokenizer), head_dim=8, max_position_embeddings=1024, **WORDS
    )
    sight = {"hidden_size": 16, "intermediate_size": 16, "num_patches": 16, **LAYERS}
    return diffusers.ZImageOmniPipeline(
        scheduler=flow(),
        vae=kl_vae(16, levels=4, shift_factor=0.1),
        text_encoder=transformers.Qwen3ForCausalLM(words),
        tokenizer=tokenizer,
        transformer=diffusers.ZImageTransformer2DModel(
            dim=32, n_layers=1, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=16,
            siglip_feat_dim=16, axes_dims=[4, 4, 8], axes_lens=[1024, 512, 512],
        ),
        siglip=transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**sight, **patches)),
        siglip_processor=transformers.Siglip2ImageProcessor(max_num_patches=16, **patches),
    )  # fmt: skip


@builds("QwenImage21TurboModularPipeline")
def _(kind: str, parts: Path) -> Any:
    pipeline = diffusers.QwenImage21TurboModularPipeline()
    pipeline.update_components(**BUILDERS["QwenImage21Pipeline"](parts).components)
    return pipeline


@builds("QwenImage21Pipeline")
def _(kind: str, parts: Path) -> Any:
    tokenizer = qwen_tokenizer()
    return diffusers.QwenImage21Pipeline(
        scheduler=flow(),
        vae=diffusers.AutoencoderKLQwenImage21(
            base_dim=4, decoder_base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1, 1], num_res_blocks=1,
            latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
        ),
        text_encoder=qwen3_vl(tokenizer),
        processor=processor(tokenizer, "Qwen3VL", 16),
        transformer=diffusers.QwenImage21Transformer2DModel(
            in_channels=4, out_channels=4, context_in_dim=16, axes_dims_rope=(4, 6, 6), **DENOISER
        ),
    )  # fmt: skip
