"""Tiny randomly initialised models of the real classes, written as complete checkpoint folders.

Every builder takes a folder and a seed, uses its own generator state and leaves the global one as it was.
Those that also take sizes can be as large as what is published.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

#: Entries of a configuration of transformers, in place of the tiny ones.
Sizes = Mapping[str, Any]
AS_TINY: Sizes = {}

SENTENCES = [
    f"[INST] \nDoes this image contain {name}? Answer only yes or no [/INST]"
    for name in ("car", "traffic light", "dog", "bench", "surfboard", "cell phone", "man", "it")
] + ["A man and his dog sit on a bench near a car.", "Yes", "No", "yes", "no", "No, there is none.", "Yes."]


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Initialise weights from `seed` without touching anybody's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tokenizer(special: list[str], *, bos: str, eos: str, pad: str, add_eos: bool = True, limit: int = 64):
    """A byte-level BPE tokenizer that frames its text with `bos` (and `eos`)."""
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=list(dict.fromkeys([pad, "<unk>", bos, eos, *special])),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(SENTENCES, trainer)
    ids = [(token, core.token_to_id(token)) for token in dict.fromkeys([bos, eos])]
    core.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}" if add_eos else f"{bos} $A", special_tokens=ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=bos,
        eos_token=eos,
        pad_token=pad,
        unk_token="<unk>",
        extra_special_tokens=special,
        model_max_length=limit,
    )


def picture(seed: int, width: int = 40, height: int = 32) -> np.ndarray:
    """A smooth-ish random picture: coloured blocks with a little noise, (height, width, 3) uint8."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (4, 5, 3))
    rows = np.arange(height) * 4 // height
    columns = np.arange(width) * 5 // width
    noise = rng.integers(-20, 21, (height, width, 3))
    return np.clip(blocks[rows][:, columns] + noise, 0, 255).astype(np.uint8)


def make_clip(
    folder: Path, seed: int = 0, *, text: Sizes = AS_TINY, vision: Sizes = AS_TINY, projection_dim: int = 24
) -> Path:
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    limit, side = text.get("max_position_embeddings", 24), vision.get("image_size", 32)
    words = tokenizer([], bos="<|startoftext|>", eos="<|endoftext|>", pad="<pad>", limit=limit)
    with seeded(seed):
        config = CLIPConfig(
            text_config={
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "vocab_size": len(words), "max_position_embeddings": limit,
                "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id,
                "pad_token_id": words.pad_token_id, **text,
            },
            vision_config={
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": side, "patch_size": 8, **vision,
            },
            projection_dim=projection_dim,
        )  # fmt: skip
        CLIPModel(config).save_pretrained(folder)
    words.save_pretrained(folder)
    CLIPImageProcessor(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}
    ).save_pretrained(folder)
    return folder


def make_vit(folder: Path, seed: int = 0, *, vision: Sizes = AS_TINY) -> Path:
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    side = vision.get("image_size", 32)
    with seeded(seed):
        sizes = {
            "hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": side, "patch_size": 8, **vision,
        }  # fmt: skip
        ViTModel(ViTConfig(**sizes), add_pooling_layer=False).save_pretrained(folder)
    ViTImageProcessor(
        size={"height": side, "width": side}, image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    ).save_pretrained(folder)  # fmt: skip
    return folder


def make_lpips(folder: Path, seed: int = 0, linear: bool = True, *, net: str = "squeeze") -> Path:
    from safetensors.torch import save_file

    from nein.metrics.encoders.lpips_net import build

    with seeded(seed):
        module = build(net, linear=linear, version="0.1", pretrained=False)
        if linear:
            for layer in module.lins:
                layer.model[-1].weight.data.abs_()
    folder.mkdir(parents=True, exist_ok=True)
    # The linear layers are registered twice (`lin0` and `lins.0`); safetensors wants every tensor once.
    save_file({k: v.clone() for k, v in module.state_dict().items()}, folder / "model.safetensors")
    config = {"net": net, "lpips": linear, "version": "0.1"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def make_llava(
    folder: Path,
    seed: int = 0,
    text: str = "mistral",
    *,
    language: Sizes = AS_TINY,
    vision: Sizes = AS_TINY,
    pinpoints: Sequence[Sequence[int]] = ((32, 64), (64, 32), (64, 64)),
) -> Path:
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaNextConfig,
        LlavaNextForConditionalGeneration,
        LlavaNextImageProcessor,
        LlavaNextProcessor,
        MistralConfig,
    )

    words = tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=4096)
    grid, side = [list(pair) for pair in pinpoints], vision.get("image_size", 32)
    options = {
        "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": len(words), "bos_token_id": words.bos_token_id,
        "eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id, "initializer_range": 0.3,
        **language,
    }  # fmt: skip
    eyes = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2,
        "image_size": side, "patch_size": 8, "initializer_range": 0.3, **vision,
    }  # fmt: skip
    spoken = (
        MistralConfig(**{"sliding_window": None, **options}) if text == "mistral" else LlamaConfig(**options)
    )
    with seeded(seed):
        config = LlavaNextConfig(
            vision_config=CLIPVisionConfig(**eyes),
            text_config=spoken,
            image_token_index=words.convert_tokens_to_ids("<image>"),
            image_grid_pinpoints=grid,
        )
        model = LlavaNextForConditionalGeneration(config)
        model.generation_config.eos_token_id = words.eos_token_id
        model.generation_config.bos_token_id = words.bos_token_id
        model.generation_config.pad_token_id = words.pad_token_id
        # A louder projector, so that the picture matters, and "No" opposite to "Yes", so that both are said.
        model.model.multi_modal_projector.linear_2.weight.data.mul_(20)
        head = model.lm_head.weight.data
        for word in ("Yes", "yes", "</s>", "."):
            head[words.convert_tokens_to_ids(word)] *= 2.5
        head[words.convert_tokens_to_ids("No")] = -head[words.convert_tokens_to_ids("Yes")]
        model.save_pretrained(folder)
    images = LlavaNextImageProcessor(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}, image_grid_pinpoints=grid
    )
    LlavaNextProcessor(
        images, words, patch_size=eyes["patch_size"], vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def make_owlv2(folder: Path, seed: int = 0, **sizes: Any) -> Path:
    """sizes: of `save_owl`."""
    from transformers import Owlv2Config, Owlv2ForObjectDetection, Owlv2ImageProcessor

    words = save_owl(folder, Owlv2Config, Owlv2ForObjectDetection, "owlv2", seed, **sizes)
    words.save_pretrained(folder)
    side = sizes.get("vision", {}).get("image_size", 48)
    Owlv2ImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)
    return folder


def save_owl(
    folder: Path,
    config_class: Any,
    model_class: Any,
    body: str,
    seed: int,
    *,
    text: Sizes = AS_TINY,
    vision: Sizes = AS_TINY,
    projection_dim: int = 32,
) -> Any:
    """Writes a detector of OWL-ViT's family, its encoders in the attribute `body`; gives its tokenizer."""
    words = tokenizer([], bos="<|startoftext|>", eos="<|endoftext|>", pad="<pad>", limit=16)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    with seeded(seed):
        config = config_class(
            text_config={
                **size, "vocab_size": len(words), "max_position_embeddings": 16,
                "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id,
                "pad_token_id": words.pad_token_id, **text,
            },
            vision_config={**size, "image_size": 48, "patch_size": 8, **vision},
            projection_dim=projection_dim,
        )  # fmt: skip
        model = model_class(config)
        head = model.class_head
        for parameter in (head.dense0.weight, getattr(model, body).text_projection.weight):
            parameter.data.normal_()
        # Scores around the threshold, so that both verdicts occur.
        for layer, bias in ((head.logit_shift, -1.0), (head.logit_scale, 2.5)):
            layer.weight.data.mul_(0.02)
            layer.bias.data.fill_(bias)
        model.save_pretrained(folder)
    return words


def make_blip(folder: Path, seed: int = 0) -> Path:
    from transformers import BlipConfig, BlipForImageTextRetrieval, BlipImageProcessor

    words = tokenizer([], bos="[CLS]", eos="[SEP]", pad="[PAD]", limit=40)
    with seeded(seed):
        config = BlipConfig(
            text_config={
                "hidden_size": 32, "encoder_hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 2, "vocab_size": len(words), "max_position_embeddings": 40,
                "bos_token_id": words.bos_token_id, "eos_token_id": words.eos_token_id,
                "sep_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id,
                "initializer_range": 0.3,
            },
            vision_config={
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "image_size": 32, "patch_size": 8, "initializer_range": 0.3,
            },
            image_text_hidden_size=16,
        )  # fmt: skip
        BlipForImageTextRetrieval(config).save_pretrained(folder)
    words.save_pretrained(folder)
    BlipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def make_medical(root: Path) -> Path:
    """A model of open_clip of BioMedCLIP's kind in small: a ViT of timm, BERT with an MLP on its first token,
    BERT's tokenizer, which is in `root/bert`."""
    from open_clip.factory import CustomTextCLIP
    from transformers import BertConfig

    from nein.benchmarks.negbench.config import ConvertConfig
    from nein.benchmarks.negbench.run import convert

    words = tokenizer([], bos="[CLS]", eos="[SEP]", pad="[PAD]", limit=32)
    BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=32, pad_token_id=words.pad_token_id,
    ).save_pretrained(root / "bert")  # fmt: skip
    words.save_pretrained(root / "bert")
    shape: dict[str, Any] = {
        "embed_dim": 24,
        "vision_cfg": {
            "timm_model_name": "test_vit", "timm_model_pretrained": False, "timm_pool": "",
            "timm_proj": "linear", "image_size": 160,
        },
        "text_cfg": {
            "hf_model_name": str(root / "bert"), "hf_tokenizer_name": str(root / "bert"),
            "hf_proj_type": "mlp", "hf_pooler_type": "cls_last_hidden_state_pooler", "context_length": 32,
        },
    }  # fmt: skip
    (root / "shape.json").write_text(json.dumps(shape))
    with seeded(8):
        own = {**shape, "text_cfg": {**shape["text_cfg"], "hf_model_pretrained": False}}
        torch.save(CustomTextCLIP(**own).state_dict(), root / "weights.bin")
    convert(
        ConvertConfig.parse(
            ["--architecture", str(root / "shape.json"), str(root / "weights.bin"), str(root / "model")]
        )
    )
    return root / "model"
