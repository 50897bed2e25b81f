"""Tiny random models of further classes that NegVQA is run on, written as complete checkpoint folders."""

import json

from tests.metrics.tiny import TEMPLATE, loud, make_llava, seeded, speaking, tokenizer

_ROPE = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}


def make_llava_next(folder, seed=0):
    """A `LlavaNextForConditionalGeneration` with a chat template."""
    make_llava(folder, seed=seed)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def make_qwen25_vl(folder, seed=0):
    """A `Qwen2_5_VLForConditionalGeneration` with windows smaller than the picture."""
    vision = {"depth": 2, "window_size": 16, "fullatt_block_indexes": [1]}
    return _make_qwen(folder, seed, ("Qwen2_5_VL", "Qwen2VL"), vision, {"rope_parameters": _ROPE})


def make_qwen3_vl(folder, seed=0):
    """A `Qwen3VLForConditionalGeneration`; its first layers are given features of the tower's layers too."""
    vision = {"depth": 3, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
    text = {"head_dim": 12, "rope_parameters": {**_ROPE, "mrope_interleaved": True}}
    return _make_qwen(folder, seed, ("Qwen3VL", "Qwen3VL"), vision, text)


def _make_qwen(folder, seed, names, vision, text):
    """names: beginnings of the classes of the model, and of its processor of videos."""
    import transformers

    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special, bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    keys = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = {key: words.convert_tokens_to_ids(token) for key, token in zip(keys, special, strict=True)}
    tower = {
        "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "out_hidden_size": 48, "initializer_range": 0.3,
    }  # fmt: skip
    with seeded(seed):
        config = getattr(transformers, f"{names[0]}Config")(
            text_config={**speaking(words), **text}, vision_config={**tower, **vision}, **ids
        )
        model = getattr(transformers, f"{names[0]}ForConditionalGeneration")(config)
        loud(model, words)
        model.save_pretrained(folder)
    sizes = {"shortest_edge": 32 * 32, "longest_edge": 48 * 48}
    looks = transformers.Qwen2VLImageProcessor(patch_size=8, size=sizes)
    videos = getattr(transformers, f"{names[1]}VideoProcessor")(patch_size=8, size=sizes)
    processor = getattr(transformers, f"{names[0]}Processor")
    template = TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    processor(looks, words, videos, chat_template=template).save_pretrained(folder)
    return folder


def make_deepseek_vl(folder, seed=0):
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
