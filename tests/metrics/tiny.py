"""Tiny random models of the real classes as complete checkpoint folders, or larger ones by their sizes."""

import contextlib
import json
from collections.abc import Mapping
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

#: Entries of a configuration of transformers, in place of the tiny ones.
Sizes = Mapping[str, Any]
AS_TINY = {}
GRID = ((32, 64), (64, 32), (64, 64))
SMALL = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip

SENTENCES = [
    f"[INST] \nDoes this image contain {name}? Answer only yes or no [/INST]"
    for name in ("car", "traffic light", "dog", "bench", "surfboard", "cell phone", "man", "it")
] + ["A man and his dog sit on a bench near a car.", "Yes", "No", "yes", "no", "No, there is none.", "Yes."]


@contextlib.contextmanager
def seeded(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def tokenizer(special, *, bos, eos, pad, add_eos=True, limit=64):
    """A byte-level BPE tokenizer that frames its text with `bos` (and `eos`)."""

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
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos, eos_token=eos, pad_token=pad, unk_token="<unk>",
        extra_special_tokens=special, model_max_length=limit,
    )  # fmt: skip


def picture(seed, width=40, height=32):
    """A smooth-ish random picture: coloured blocks with a little noise, (height, width, 3) uint8."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (4, 5, 3))
    rows = np.arange(height) * 4 // height
    columns = np.arange(width) * 5 // width
    noise = rng.integers(-20, 21, (height, width, 3))
    return np.clip(blocks[rows][:, columns] + noise, 0, 255).astype(np.uint8)


def compose(resize, crop, mean, std):
    from torchvision import transforms

    steps = (transforms.Resize(resize, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(crop))
    return transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(mean, std)])


def make_clip(folder, seed=0, *, text=AS_TINY, vision=AS_TINY, projection_dim=24):
    limit, side = text.get("max_position_embeddings", 24), vision.get("image_size", 32)
    words = tokenizer([], bos="<|startoftext|>", eos="<|endoftext|>", pad="<pad>", limit=limit)
    with seeded(seed):
        config = transformers.CLIPConfig(
            text_config={**SMALL, **of_words(words), "max_position_embeddings": limit, **text},
            vision_config={**SMALL, "image_size": side, "patch_size": 8, **vision},
            projection_dim=projection_dim,
        )
        transformers.CLIPModel(config).save_pretrained(folder)
    words.save_pretrained(folder)
    crop = {"height": side, "width": side}
    transformers.CLIPImageProcessor(size={"shortest_edge": side}, crop_size=crop).save_pretrained(folder)
    return folder


def make_vit(folder, seed=0, *, vision=AS_TINY):
    side = vision.get("image_size", 32)
    own = {"hidden_size": 24, "intermediate_size": 48, "image_size": side, "patch_size": 8}
    with seeded(seed):
        config = transformers.ViTConfig(**{**SMALL, **own, **vision})
        transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    numbers = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    transformers.ViTImageProcessor(size={"height": side, "width": side}, **numbers).save_pretrained(folder)
    return folder


def make_lpips(folder, seed=0, linear=True, *, net="squeeze"):
    from safetensors.torch import save_file

    from nein.metrics.encoders import build_lpips

    with seeded(seed):
        module = build_lpips(net, linear=linear, pretrained=False)
        if linear:
            for layer in module.lins:
                layer.model[-1].weight.data.abs_()
    folder.mkdir(parents=True, exist_ok=True)
    # The linear layers are registered twice (`lin0` and `lins.0`); safetensors wants every tensor once.
    save_file({k: v.clone() for k, v in module.state_dict().items()}, folder / "model.safetensors")
    config = {"net": net, "lpips": linear, "version": "0.1"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def make_llava(folder, seed=0, text="mistral", *, language=AS_TINY, vision=AS_TINY, pinpoints=GRID):
    side, grid = vision.get("image_size", 32), [list(pair) for pair in pinpoints]
    of_text = {"mistral": transformers.MistralConfig, "llama": transformers.LlamaConfig}[text]
    language = {**({"sliding_window": None} if text == "mistral" else {}), **language}
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": side}, crop_size={"height": side, "width": side}, image_grid_pinpoints=grid
    )
    return _make_llava(
        folder, seed, "LlavaNext", of_text, language, vision, images, (".",), image_grid_pinpoints=grid
    )


def make_llava_15(folder, seed=0):
    crop = {"height": 32, "width": 32}
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=crop)
    return _make_llava(folder, seed, "Llava", transformers.LlamaConfig, {}, {}, images, template=TEMPLATE)


def _make_llava(folder, seed, name, of_text, language, vision, images, more=(), template=None, **options):
    limit = 2048 if template else 4096
    words = tokenizer(["<image>"], bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=limit)
    eyes = {
        **SMALL, "num_hidden_layers": 3, "image_size": 32, "patch_size": 8, "initializer_range": 0.3,
        **vision,
    }  # fmt: skip
    with seeded(seed):
        config = getattr(transformers, f"{name}Config")(
            vision_config=transformers.CLIPVisionConfig(**eyes),
            text_config=of_text(**{**speaking(words), **language}),
            image_token_index=words.convert_tokens_to_ids("<image>"),
            **options,
        )
        model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
        model.generation_config.bos_token_id = words.bos_token_id
        # A louder projector, so that the picture matters.
        model.model.multi_modal_projector.linear_2.weight.data.mul_(20)
        loud(model, words, *more)
        model.save_pretrained(folder)
    getattr(transformers, f"{name}Processor")(
        images, words, patch_size=eyes["patch_size"], vision_feature_select_strategy="default",
        num_additional_image_tokens=1, chat_template=template,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def of_words(words):
    ids = {f"{kind}_token_id": getattr(words, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    return {"vocab_size": len(words), **ids}


def speaking(words):
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {**sizes, "num_key_value_heads": 2, **of_words(words), "initializer_range": 0.3}


def loud(model, words, *more):
    """Makes yes, no and the end likely, and yes the opposite of no, so that both are said."""
    head, place = model.lm_head.weight.data, words.convert_tokens_to_ids
    model.generation_config.eos_token_id = words.eos_token_id
    model.generation_config.pad_token_id = words.pad_token_id
    for word in ("Yes", "yes", "</s>", *more):
        head[place(word)] *= 2.5
    head[place("No")] = -head[place("Yes")]


def make_owlv2(folder, seed=0, **sizes):
    classes = transformers.Owlv2Config, transformers.Owlv2ForObjectDetection
    save_owl(folder, *classes, "owlv2", seed, **sizes).save_pretrained(folder)
    side = sizes.get("vision", {}).get("image_size", 48)
    transformers.Owlv2ImageProcessor(size={"height": side, "width": side}).save_pretrained(folder)
    return folder


def save_owl(
    folder, config_class, model_class, body, seed, *, text=AS_TINY, vision=AS_TINY, projection_dim=32
):
    """Writes a detector of OWL-ViT's family, its encoders in the attribute `body`; gives its tokenizer."""
    words = tokenizer([], bos="<|startoftext|>", eos="<|endoftext|>", pad="<pad>", limit=16)
    with seeded(seed):
        config = config_class(
            text_config={**SMALL, **of_words(words), "max_position_embeddings": 16, **text},
            vision_config={**SMALL, "image_size": 48, "patch_size": 8, **vision},
            projection_dim=projection_dim,
        )
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


def make_blip(folder, seed=0):
    words = tokenizer([], bos="[CLS]", eos="[SEP]", pad="[PAD]", limit=40)
    text = {
        **SMALL, **of_words(words), "encoder_hidden_size": 32, "max_position_embeddings": 40,
        "sep_token_id": words.eos_token_id, "initializer_range": 0.3,
    }  # fmt: skip
    vision = {**SMALL, "image_size": 32, "patch_size": 8, "initializer_range": 0.3}
    with seeded(seed):
        config = transformers.BlipConfig(text_config=text, vision_config=vision, image_text_hidden_size=16)
        transformers.BlipForImageTextRetrieval(config).save_pretrained(folder)
    words.save_pretrained(folder)
    transformers.BlipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def make_medical(root):
    """A model of open_clip of BioMedCLIP's kind in small; BERT's tokenizer is in `root/bert`."""
    from open_clip.factory import CustomTextCLIP

    from nein.benchmarks.negbench.config import ConvertConfig
    from nein.benchmarks.negbench.runs import convert

    words = tokenizer([], bos="[CLS]", eos="[SEP]", pad="[PAD]", limit=32)
    transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=32, pad_token_id=words.pad_token_id,
    ).save_pretrained(root / "bert")  # fmt: skip
    words.save_pretrained(root / "bert")
    shape = {
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
    paths = [str(root / name) for name in ("shape.json", "weights.bin", "model")]
    convert(ConvertConfig.parse(["--architecture", *paths]))
    return root / "model"


TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}\nAnswer:{% endif %}"
)


def make_qwen2_5_vl(folder, seed=0):
    eyes = {
        "depth": 2, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 2, "intermediate_size": 48,
        "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 16,
        "fullatt_block_indexes": [1], "initializer_range": 0.3,
    }  # fmt: skip
    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    words = tokenizer(special, bos="<s>", eos="</s>", pad="<pad>", add_eos=False, limit=2048)
    rope = {"rope_type": "default", "mrope_section": [2, 2, 2], "rope_theta": 1e4}
    roles = dict(zip(("vision_start", "vision_end", "image", "video"), special, strict=True))
    ids = {f"{role}_token_id": words.convert_tokens_to_ids(token) for role, token in roles.items()}
    with seeded(seed):
        config = transformers.Qwen2_5_VLConfig(
            text_config={**speaking(words), "rope_parameters": rope}, vision_config=eyes,
            tie_word_embeddings=False, **ids,
        )  # fmt: skip
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
        loud(model, words)
        model.save_pretrained(folder)
    sizes = {"shortest_edge": 16 * 16, "longest_edge": 48 * 48}
    images = transformers.Qwen2VLImageProcessor(patch_size=4, size=sizes)
    videos = transformers.Qwen2VLVideoProcessor(patch_size=4, size=sizes)
    template = TEMPLATE.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    processor = transformers.Qwen2_5_VLProcessor(images, words, videos, chat_template=template)
    processor.save_pretrained(folder)
    return folder


def make_owlvit(folder, seed=0):
    classes = transformers.OwlViTConfig, transformers.OwlViTForObjectDetection
    words = save_owl(folder, *classes, "owlvit", seed)
    side = {"height": 48, "width": 48}
    images = transformers.OwlViTImageProcessor(size=side, crop_size=side)
    transformers.OwlViTProcessor(images, words).save_pretrained(folder)
    return folder


def make_grounding_dino(folder, seed=0):
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
