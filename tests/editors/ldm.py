"""A pipeline's tensors written back in the original latent-diffusion format, by rules of our own.

The rules are the reverse of what the loader does, written from the original code (openaimodel.py
and model.py of github.com/CompVis/latent-diffusion), so that the two can disagree.
"""

import torch

RESNET = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0", "conv2": "out_layers.3", "conv_shortcut": "skip_connection",
}  # fmt: skip
ENDS = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2",
}  # fmt: skip
VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}


def unet_names(unet):
    """diffusers' name -> original name, counted block by block as the original constructor appends them."""
    layers, attends = unet.config.layers_per_block, ["Cross" in t for t in unet.config.down_block_types]
    places = dict(ENDS)
    index, levels = 1, len(attends)
    for level in range(levels):
        for layer in range(layers):
            places[f"down_blocks.{level}.resnets.{layer}"] = f"input_blocks.{index}.0"
            places[f"down_blocks.{level}.attentions.{layer}"] = f"input_blocks.{index}.1"
            index += 1
        if level < levels - 1:
            places[f"down_blocks.{level}.downsamplers.0.conv"] = f"input_blocks.{index}.0.op"
            index += 1
    places |= {"mid_block.resnets.0": "middle_block.0", "mid_block.attentions.0": "middle_block.1"}
    places["mid_block.resnets.1"] = "middle_block.2"
    index = 0
    for level in range(levels):
        attention = attends[::-1][level]
        for layer in range(layers + 1):
            places[f"up_blocks.{level}.resnets.{layer}"] = f"output_blocks.{index}.0"
            places[f"up_blocks.{level}.attentions.{layer}"] = f"output_blocks.{index}.1"
            if layer == layers and level < levels - 1:
                places[f"up_blocks.{level}.upsamplers.0.conv"] = f"output_blocks.{index}.{1 + attention}.conv"
            index += 1
    return {name: translate(name, places, RESNET if "resnets" in name else {}) for name in unet.state_dict()}


def vae_names(vae):
    levels, layers = len(vae.config.block_out_channels), vae.config.layers_per_block
    places = {"quant_conv": "quant_conv", "post_quant_conv": "post_quant_conv"}
    for side, letter, count in (("encoder", "down", layers), ("decoder", "up", layers + 1)):
        places |= {f"{side}.conv_in": f"{side}.conv_in", f"{side}.conv_out": f"{side}.conv_out"}
        places |= {f"{side}.conv_norm_out": f"{side}.norm_out"}
        for level in range(levels):
            theirs = level if side == "encoder" else levels - 1 - level
            for layer in range(count):
                places[f"{side}.{letter}_blocks.{level}.resnets.{layer}"] = (
                    f"{side}.{letter}.{theirs}.block.{layer}"
                )
            sampler = f"{side}.{letter}_blocks.{level}.{letter}samplers.0.conv"
            places[sampler] = f"{side}.{letter}.{theirs}.{letter}sample.conv"
        for block in (0, 1):
            places[f"{side}.mid_block.resnets.{block}"] = f"{side}.mid.block_{block + 1}"
        places[f"{side}.mid_block.attentions.0"] = f"{side}.mid.attn_1"
    short = {"conv_shortcut": "nin_shortcut"}
    return {
        name: translate(name, places, VAE_ATTENTION if "attentions" in name else short)
        for name in vae.state_dict()
    }


def translate(name, places, inside):
    place = max((p for p in places if name.startswith(p + ".")), key=len)
    rest = name.removeprefix(place + ".")
    part = max((p for p in inside if rest.startswith(p + ".")), key=len, default=None)
    return f"{places[place]}.{rest if part is None else inside[part] + rest.removeprefix(part)}"


def original_format(pipeline, *, ema=None):
    """The flat dictionary of an original checkpoint.

    ema  Number added to every averaged tensor of the UNet, None for a file without them.
    """
    tensors = {}
    for name, theirs in unet_names(pipeline.unet).items():
        tensor = pipeline.unet.state_dict()[name]
        tensors[f"model.diffusion_model.{theirs}"] = tensor.clone()
        if ema is not None:
            tensors["model_ema." + f"diffusion_model.{theirs}".replace(".", "")] = tensor + ema
    if ema is not None:
        tensors |= {"model_ema.decay": torch.tensor(0.9999), "model_ema.num_updates": torch.tensor(7)}
    for name, theirs in vae_names(pipeline.vae).items():
        tensor = pipeline.vae.state_dict()[name]
        linear = ".mid.attn_1." in theirs and theirs.endswith("weight") and tensor.ndim == 2
        tensors[f"first_stage_model.{theirs}"] = (tensor[:, :, None, None] if linear else tensor).clone()
    for name, tensor in pipeline.text_encoder.state_dict().items():
        whole = name if name.startswith("text_model.") else f"text_model.{name}"
        tensors[f"cond_stage_model.transformer.{whole}"] = tensor.clone()
    tensors["cond_stage_model.transformer.text_model.embeddings.position_ids"] = torch.arange(77)[None]
    schedule = pipeline.scheduler
    tensors |= {"betas": schedule.betas.clone(), "alphas_cumprod": schedule.alphas_cumprod.clone()}
    return tensors
