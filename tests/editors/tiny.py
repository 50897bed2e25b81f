"""Tiny randomly initialised checkpoints of the real classes, in diffusers' layout."""

import json

import torch
import transformers
from diffusers import AutoencoderKL, EulerAncestralDiscreteScheduler, UNet2DConditionModel
from diffusers import StableDiffusionInstructPix2PixPipeline as Pipeline
from safetensors.torch import save_file

from nein.editors.zone import ActionClassifier

TOKENS = 77
TINY_UNET = {
    "sample_size": 16, "block_out_channels": (8, 16), "layers_per_block": 1,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "cross_attention_dim": 32,
    "attention_head_dim": 2, "norm_num_groups": 4,
}  # fmt: skip
TINY_VAE = {
    "block_out_channels": (8, 8, 8), "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3, "layers_per_block": 1, "norm_num_groups": 4,
    "sample_size": 64,
}  # fmt: skip
TINY_TEXT = {"intermediate_size": 37, "num_hidden_layers": 1, "num_attention_heads": 2}


def write_tokenizer(folder):
    """A CLIP tokenizer that knows single letters and the two special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return transformers.CLIPTokenizer.from_pretrained(folder, model_max_length=TOKENS)


def build_pipeline(
    folder,
    *,
    seed=0,
    in_channels=8,
    hidden=32,
    unet_sizes=TINY_UNET,
    vae_sizes=TINY_VAE,
    text_sizes=TINY_TEXT,
):
    """Save a pipeline of random weights; returns its folder. With the tiny sizes it is one for 64 x 64
    pictures (latents 16 x 16 x 4)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        tokenizer = write_tokenizer(folder / "tokenizer")
        unet = UNet2DConditionModel(in_channels=in_channels, out_channels=4, **unet_sizes)
        vae = AutoencoderKL(latent_channels=4, **vae_sizes)
        text_encoder = transformers.CLIPTextModel(
            transformers.CLIPTextConfig(
                vocab_size=len(tokenizer),
                max_position_embeddings=TOKENS,
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                **{**text_sizes, "hidden_size": text_sizes.get("hidden_size", hidden)},
            )
        )
        pipeline = Pipeline(
            vae=vae,
            text_encoder=text_encoder,
            tokenizer=tokenizer,
            unet=unet,
            scheduler=EulerAncestralDiscreteScheduler(
                beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"
            ),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
        pipeline.save_pretrained(folder)
    return folder


def build_sam(folder, *, seed=0):
    """Save a transformers.SamModel of random weights for pictures of 32 pixels; returns its folder."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        vision = transformers.SamVisionConfig(
            hidden_size=16, output_channels=16, num_hidden_layers=1, num_attention_heads=2, image_size=32,
            patch_size=8, mlp_dim=16, num_pos_feats=8, window_size=0, initializer_range=0.5,
        )  # fmt: skip
        prompt = transformers.SamPromptEncoderConfig(hidden_size=16, image_size=32, patch_size=8)
        decoder = transformers.SamMaskDecoderConfig(
            hidden_size=16, mlp_dim=16, num_attention_heads=2, iou_head_hidden_dim=16
        )
        config = transformers.SamConfig(
            vision_config=vision.to_dict(), prompt_encoder_config=prompt.to_dict(),
            mask_decoder_config=decoder.to_dict(), initializer_range=0.5,  # masks with clear signs
        )  # fmt: skip
        transformers.SamModel(config).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    transformers.SamImageProcessor(
        size={"longest_edge": 32}, pad_size=size, mask_size={"longest_edge": 32}, mask_pad_size=size
    ).save_pretrained(folder)
    return folder


def build_action(folder, *, width=32, seed=0):
    """Save an action classifier of random weights; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        save_file(ActionClassifier(width, 8).state_dict(), folder / "model.safetensors", {"format": "pt"})
    return folder
