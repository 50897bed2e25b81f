"""Tiny random models of further judge classes, written as complete checkpoint folders."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import transformers

from tests.metrics.tiny import SMALL, loud, save_owl, seeded, speaking, tokenizer

TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}\nAnswer:{% endif %}"
)


def make_llava_15(folder: Path, seed: int = 0) -> Path:
    """A `LlavaForConditionalGeneration` (LLaVA 1.5) with a chat template."""
    words = tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    eyes = {**SMALL, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8, "initializer_range": 0.3}
    with seeded(seed):
        config = transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**eyes),
            text_config=transformers.LlamaConfig(**speaking(words)),
            image_token_index=words.convert_tokens_to_ids("<image>"),
        )
        model = transformers.LlavaForConditionalGeneration(config)
        loud(model, words)
        model.model.multi_modal_projector.linear_2.weight.data.mul_(20)
        model.save_pretrained(folder)
    crop = {"height": 32, "width": 32}
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=crop)
    transformers.LlavaProcessor(
        images, words, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def make_qwen2_vl(folder: Path, seed: int = 0) -> Path:
    """A `Qwen2VLForConditionalGeneration` with a chat template."""
    eyes = {
        "depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 2, "mlp_ratio": 2, "patch_size": 8,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    return _make_qwen(folder, seed, "Qwen2VL", eyes, 32)


def _make_qwen(folder: Path, seed: int, name: str, eyes: dict, least: int, **more: Any) -> Path:
    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special, bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    rope = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}
    roles = {"vision_start": special[0], "image": special[2], "video": special[3]}
    ids = {f"{role}_token_id": words.convert_tokens_to_ids(token) for role, token in roles.items()}
    with seeded(seed):
        text = {**speaking(words), "rope_parameters": rope}
        ids |= {"vision_end_token_id": words.convert_tokens_to_ids(special[1])}
        config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=eyes, **ids, **more)
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        loud(model, words)
        model.save_pretrained(folder)
    sizes = {"shortest_edge": least * least, "longest_edge": 48 * 48}
    images = transformers.Qwen2VLImageProcessor(patch_size=eyes["patch_size"], size=sizes)
    videos = transformers.Qwen2VLVideoProcessor(patch_size=eyes["patch_size"], size=sizes)
    template = TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = getattr(transformers, f"{name}Processor")
    processor(images, words, videos, chat_template=template).save_pretrained(folder)
    return folder


def make_qwen2_5_vl(folder: Path, seed: int = 0) -> Path:
    """A `Qwen2_5_VLForConditionalGeneration` with a chat template that keeps pictures and words in order."""
    eyes = {
        "depth": 2, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 2, "intermediate_size": 48,
        "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16,
        "fullatt_block_indexes": [1], "initializer_range": 0.3,
    }  # fmt: skip
    return _make_qwen(folder, seed, "Qwen2_5_VL", eyes, 16, tie_word_embeddings=False)


def make_owlvit(folder: Path, seed: int = 0) -> Path:
    """An `OwlViTForObjectDetection`."""
    classes = transformers.OwlViTConfig, transformers.OwlViTForObjectDetection
    words = save_owl(folder, *classes, "owlvit", seed)
    side = {"height": 48, "width": 48}
    images = transformers.OwlViTImageProcessor(size=side, crop_size=side)
    transformers.OwlViTProcessor(images, words).save_pretrained(folder)
    return folder


def make_grounding_dino(folder: Path, seed: int = 0) -> Path:
    """A `GroundingDinoForObjectDetection` on a tiny Swin."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", *ascii_lowercase]
    (folder / "vocab.txt").write_text("\n".join([*pieces, *(f"##{char}" for char in ascii_lowercase)]))
    words = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)
    swin = transformers.SwinConfig(
        embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=4, image_size=128,
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    with seeded(seed):
        config = transformers.GroundingDinoConfig(
            backbone_config=swin, text_config=transformers.BertConfig(**SMALL, vocab_size=len(words)),
            d_model=32, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=64, decoder_ffn_dim=64,
            encoder_attention_heads=2, decoder_attention_heads=2, num_queries=10, max_text_len=64,
            num_feature_levels=4, encoder_n_points=2, decoder_n_points=2,
        )  # fmt: skip
        model = transformers.GroundingDinoForObjectDetection(config)
        for parameter in model.model.text_projection.parameters():
            parameter.data.mul_(0.2)
        model.save_pretrained(folder)
    images = transformers.GroundingDinoImageProcessor(size={"height": 128, "width": 128})
    transformers.GroundingDinoProcessor(images, words).save_pretrained(folder)
    return folder
