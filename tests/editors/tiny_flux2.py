"""Tiny pipelines of the FLUX.2 family; see `tests.editors.tiny_pipelines`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import transformers

from tests.editors.tiny_pipelines import CALLS, builder, flow, qwen_tokenizer

PIXTRAL = ("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")


def flux2_parts(dimension: int, guidance: bool) -> dict[str, Any]:
    return {
        "scheduler": flow(),
        "vae": diffusers.AutoencoderKLFlux2(
            block_out_channels=(8, 8, 8),
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            layers_per_block=1,
            latent_channels=1,
            norm_num_groups=4,
            sample_size=32,
        ),
        "transformer": diffusers.Flux2Transformer2DModel(
            patch_size=1,
            in_channels=4,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=dimension,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=guidance,
        ),
    }


@builder
def Flux2Pipeline(parts: Path) -> Any:
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=qwen_tokenizer()._tokenizer, pad_token="<|endoftext|>", eos_token="<|endoftext|>"
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(PIXTRAL)})
    template = (
        "{% for message in messages %}[INST]{% for part in message['content'] %}{{ part['text'] }}"
        "{% endfor %}[/INST]{% endfor %}"
    )
    processor = transformers.PixtralProcessor(
        image_processor=transformers.PixtralImageProcessor(size={"longest_edge": 32}, patch_size=8),
        tokenizer=tokenizer,
        patch_size=8,
        chat_template=template,
    )
    config = transformers.Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": len(tokenizer),
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 31,  # its layers 10, 20 and 30 are read
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 1024,
            "sliding_window": None,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 8,
            "image_size": 32,
            "patch_size": 8,
        },
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
    )
    encoder = transformers.Mistral3ForConditionalGeneration(config)
    return diffusers.Flux2Pipeline(text_encoder=encoder, tokenizer=processor, **flux2_parts(48, True))


def _klein(kind: Any) -> Any:
    tokenizer = qwen_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=28,  # its layers 9, 18 and 27 are read
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=1024,
    )
    encoder = transformers.Qwen3ForCausalLM(config)
    return kind(text_encoder=encoder, tokenizer=tokenizer, **flux2_parts(48, False))


@builder
def Flux2KleinPipeline(parts: Path) -> Any:
    return _klein(diffusers.Flux2KleinPipeline)


@builder
def Flux2KleinKVPipeline(parts: Path) -> Any:
    return _klein(diffusers.Flux2KleinKVPipeline)


_PLAIN = ("Flux2Pipeline", "Flux2KleinPipeline")
CALLS |= {n: lambda picture, text: {"image": picture, "prompt": text, "guidance_scale": 4.0} for n in _PLAIN}
CALLS |= {
    "Flux2KleinKVPipeline": lambda picture, text: {"image": picture, "prompt": text},
}  # fmt: skip
