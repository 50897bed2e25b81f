"""Tiny random models of further judge classes, written as complete checkpoint folders."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.metrics.tiny import save_owl, seeded, tokenizer

TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}\nAnswer:{% endif %}"
)


def make_llava_15(folder: Path, seed: int = 0) -> Path:
    """A `LlavaForConditionalGeneration` (LLaVA 1.5) with a chat template."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    words = tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    with seeded(seed):
        config = LlavaConfig(
            vision_config=CLIPVisionConfig(
                hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2,
                image_size=32,
                patch_size=8, initializer_range=0.3,
            ),
            text_config=LlamaConfig(**_text(words)),
            image_token_index=words.convert_tokens_to_ids("<image>"),
        )  # fmt: skip
        model = LlavaForConditionalGeneration(config)
        _loud(model, model.lm_head.weight.data, words)
        model.model.multi_modal_projector.linear_2.weight.data.mul_(20)
        model.save_pretrained(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    LlavaProcessor(
        images, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def make_qwen2_vl(folder: Path, seed: int = 0) -> Path:
    """A `Qwen2VLForConditionalGeneration` with a chat template."""
    from transformers import (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessor,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special, bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    ids = {name: words.convert_tokens_to_ids(name) for name in special}
    text = {
        **_text(words),
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4},
    }
    with seeded(seed):
        config = Qwen2VLConfig(
            text_config=text,
            vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "mlp_ratio": 2,
            "patch_size": 8,
                           "spatial_merge_size": 2, "temporal_patch_size": 2},
            image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
        )  # fmt: skip
        model = Qwen2VLForConditionalGeneration(config)
        _loud(model, model.lm_head.weight.data, words)
        model.save_pretrained(folder)
    sizes = {"shortest_edge": 32 * 32, "longest_edge": 48 * 48}
    images = Qwen2VLImageProcessor(patch_size=8, size=sizes)
    videos = Qwen2VLVideoProcessor(patch_size=8, size=sizes)
    template = TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    Qwen2VLProcessor(images, words, videos, chat_template=template).save_pretrained(folder)
    return folder


def make_qwen2_5_vl(folder: Path, seed: int = 0) -> Path:
    """A `Qwen2_5_VLForConditionalGeneration` with a chat template that keeps pictures and words in order."""
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special, bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    ids = {name: words.convert_tokens_to_ids(name) for name in special}
    text = {
        **_text(words),
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4},
    }
    with seeded(seed):
        config = Qwen2_5_VLConfig(
            text_config=text,
            vision_config={"depth": 2, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 2,
                           "intermediate_size": 48, "patch_size": 4, "spatial_merge_size": 2,
                           "temporal_patch_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
                           "initializer_range": 0.3},
            image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
            vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"],
            tie_word_embeddings=False,
        )  # fmt: skip
        model = Qwen2_5_VLForConditionalGeneration(config)
        _loud(model, model.lm_head.weight.data, words)
        model.save_pretrained(folder)
    sizes = {"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
    images = Qwen2VLImageProcessor(patch_size=4, size=sizes)
    videos = Qwen2VLVideoProcessor(patch_size=4, size=sizes)
    template = TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    Qwen2_5_VLProcessor(images, words, videos, chat_template=template).save_pretrained(folder)
    return folder


def make_owlvit(folder: Path, seed: int = 0) -> Path:
    """An `OwlViTForObjectDetection`."""
    from transformers import OwlViTConfig, OwlViTForObjectDetection, OwlViTImageProcessor, OwlViTProcessor

    words = save_owl(folder, OwlViTConfig, OwlViTForObjectDetection, "owlvit", seed)
    images = OwlViTImageProcessor(size={"height": 48, "width": 48}, crop_size={"height": 48, "width": 48})
    OwlViTProcessor(images, words).save_pretrained(folder)
    return folder


def make_grounding_dino(folder: Path, seed: int = 0) -> Path:
    """A `GroundingDinoForObjectDetection` on a tiny Swin."""
    from transformers import (
        BertConfig,
        BertTokenizerFast,
        GroundingDinoConfig,
        GroundingDinoForObjectDetection,
        GroundingDinoImageProcessor,
        GroundingDinoProcessor,
        SwinConfig,
    )

    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"##{char}" for char in "abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    words = BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)
    with seeded(seed):
        config = GroundingDinoConfig(
            backbone_config=SwinConfig(
                embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4, image_size=128,
                out_features=["stage2", "stage3", "stage4"],
            ),
            text_config=BertConfig(
                hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                vocab_size=len(words)
            ),
            d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
            encoder_attention_heads=2, decoder_attention_heads=2, num_queries=10, max_text_len=64,
            num_feature_levels=4,
            encoder_n_points=2, decoder_n_points=2,
        )  # fmt: skip
        model = GroundingDinoForObjectDetection(config)
        for parameter in model.model.text_projection.parameters():
            parameter.data.mul_(0.2)
        model.save_pretrained(folder)
    images = GroundingDinoImageProcessor(size={"height": 128, "width": 128})
    GroundingDinoProcessor(images, words).save_pretrained(folder)
    return folder


def _text(words) -> dict:
    return {
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": len(words), "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id, "initializer_range": 0.3,
    }  # fmt: skip


def _loud(model, head: torch.Tensor, words) -> None:
    """Makes yes, no and the end likely, and yes the opposite of no."""
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    for word in ("Yes", "yes", "</s>"):
        head[words.convert_tokens_to_ids(word)] *= 2.5
    head[words.convert_tokens_to_ids("No")] = -head[words.convert_tokens_to_ids("Yes")]
