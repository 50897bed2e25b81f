"""Tiny random models of further classes that NegVQA is run on, written as complete checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

from tests.metrics.tiny import loud, make_llava, seeded, speaking, tokenizer
from tests.metrics.tiny_judges import TEMPLATE

QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def make_llava_next(folder: Path, seed: int = 0) -> Path:
    """A `LlavaNextForConditionalGeneration` with a chat template."""
    make_llava(folder, seed=seed)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def make_qwen25_vl(folder: Path, seed: int = 0) -> Path:
    """A `Qwen2_5_VLForConditionalGeneration` with windows smaller than the picture."""
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    words, ids = _qwen_words()
    with seeded(seed):
        config = Qwen2_5_VLConfig(
            text_config={**speaking(words), "rope_parameters": _rope()},
            vision_config={
                "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 8,
                "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16, "out_hidden_size": 48,
                "fullatt_block_indexes": [1], "initializer_range": 0.3,
            },
            **ids,
        )  # fmt: skip
        model = Qwen2_5_VLForConditionalGeneration(config)
        loud(model, words)
        model.save_pretrained(folder)
    sizes = {"shortest_edge": 32 * 32, "longest_edge": 48 * 48}
    looks = Qwen2VLImageProcessor(patch_size=8, size=sizes)
    videos = Qwen2VLVideoProcessor(patch_size=8, size=sizes)
    template = TEMPLATE.replace("<image>", QWEN_IMAGE)
    Qwen2_5_VLProcessor(looks, words, videos, chat_template=template).save_pretrained(folder)
    return folder


def make_qwen3_vl(folder: Path, seed: int = 0) -> Path:
    """A `Qwen3VLForConditionalGeneration`; its first layers are given features of the tower's layers too."""
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    words, ids = _qwen_words()
    with seeded(seed):
        config = Qwen3VLConfig(
            text_config={
                **speaking(words), "head_dim": 12, "rope_parameters": {**_rope(), "mrope_interleaved": True},
            },
            vision_config={
                "depth": 3, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 8,
                "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 48,
                "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1], "initializer_range": 0.3,
            },
            **ids,
        )  # fmt: skip
        model = Qwen3VLForConditionalGeneration(config)
        loud(model, words)
        model.save_pretrained(folder)
    sizes = {"shortest_edge": 32 * 32, "longest_edge": 48 * 48}
    looks = Qwen2VLImageProcessor(patch_size=8, size=sizes)
    videos = Qwen3VLVideoProcessor(patch_size=8, size=sizes)
    template = TEMPLATE.replace("<image>", QWEN_IMAGE)
    Qwen3VLProcessor(looks, words, videos, chat_template=template).save_pretrained(folder)
    return folder


def make_deepseek_vl(folder: Path, seed: int = 0) -> Path:
    """A `DeepseekVLForConditionalGeneration`."""
    from transformers import (
        DeepseekVLConfig,
        DeepseekVLForConditionalGeneration,
        DeepseekVLImageProcessor,
        DeepseekVLProcessor,
    )

    words = tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    words.image_token = "<image>"
    with seeded(seed):
        config = DeepseekVLConfig(
            text_config={"model_type": "llama", **speaking(words)},
            vision_config={
                "model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 64,
                "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8,
            },
            image_token_id=words.convert_tokens_to_ids("<image>"),
            tie_word_embeddings=False,
        )  # fmt: skip
        model = DeepseekVLForConditionalGeneration(config)
        loud(model, words)
        model.model.aligner.linear2.weight.data.mul_(20)
        model.save_pretrained(folder)
    looks = DeepseekVLImageProcessor(size={"height": 32, "width": 32})
    DeepseekVLProcessor(looks, words, chat_template=TEMPLATE, num_image_tokens=16).save_pretrained(folder)
    names = folder / "tokenizer_config.json"
    named = {**json.loads(names.read_text()), "extra_special_tokens": {"image_token": "<image>"}}
    names.write_text(json.dumps(named))
    return folder


def _rope() -> dict:
    return {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}


def _qwen_words() -> tuple:
    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special, bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return words, {n: words.convert_tokens_to_ids(token) for n, token in zip(names, special, strict=True)}
