"""The nano editors: VAE, text encoder and 8-channel UNet, in diffusers' InstructPix2Pix classes.

Recipes mirror the originals: InstructPix2Pix (https://arxiv.org/abs/2211.09800) learns from generated pairs
that drift; MagicBrush continues on clean local edits; HQ-Edit continues on re-rendered scenes;
InstructDiffusion continues as a multi-task model and never drops both conditions together.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nein.nano import scenes
from nein.nano.scenes import BACKGROUNDS, CATEGORIES, Scene, render, rng_for
from nein.nano.sentences import write_captions
from research.nano.data import ALL_MIXTURES, clip_tokenizer, pair_pool, patch_labels, scene_pool, to_float
from research.nano.job import Job, sized, step_count

TEXT_LENGTH = 32
TEXT_WIDTH = 128
NOISE: dict[str, Any] = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
}


@dataclass(frozen=True)
class Recipe:
    """One row per editor: what it starts from, how much it sees, how long (what it sees: `ALL_MIXTURES`)."""

    start: str | None
    pairs: int
    steps: int
    batch: int
    lr: float
    #: "joint": 5 % text, 5 % both, 5 % image (IP2P); "separate": 7.5 % text, 7.5 % image (InstructDiffusion)
    drop: str
    #: how often what the edit changes counts in the loss, beside once like everything
    emphasis: float = 1.0
    #: what is added has its category's usual look: a small model draws one look well, and mixes several
    usual: bool = False


RECIPES: dict[str, Recipe] = {
    # What Stable Diffusion is to the originals: the start of all, whose text encoder they share.
    "base": Recipe(None, 36_000, 5_600, 48, 2e-3, "joint"),
    "ip2p-first": Recipe("base", 40_000, 5_000, 48, 1.2e-3, "joint", 5.0),
    "ip2p": Recipe("ip2p-first", 24_000, 1_200, 48, 8e-4, "joint", 5.0, True),
    "magicbrush-first": Recipe("base", 40_000, 4_800, 48, 1.2e-3, "joint", 5.0),
    "magicbrush": Recipe("magicbrush-first", 24_000, 2_000, 48, 8e-4, "joint", 5.0, True),
    "hqedit": Recipe("ip2p", 16_000, 800, 48, 8e-4, "joint", 5.0, True),
    "instructdiffusion": Recipe("ip2p", 16_000, 900, 48, 8e-4, "separate", 5.0, True),
}


class Grounding(nn.Module):
    """Training aid, thrown away afterwards: the UNet is asked what it sees and what of it is named.

    A big editor brings this along from Stable Diffusion; a small one that starts from nothing takes very long
    to learn it from the denoising loss alone. Two questions, each put to the features on the 8x8 grid:
    "what": a patch of the source is compared with the token embeddings of the names of things (before the
    first cross-attention and after the middle); "which": does this patch show what the instruction names
    (after the first cross-attention and after the middle).
    """

    spread: torch.Tensor

    def __init__(self, unet: Any, embedding: nn.Embedding, tokenizer: Any) -> None:
        super().__init__()
        words = [tokenizer(n, add_special_tokens=False)["input_ids"] for n in (*CATEGORIES, *BACKGROUNDS)]
        spread = torch.zeros(len(words), embedding.num_embeddings)
        for row, tokens in enumerate(words):
            spread[row, tokens] = 1 / len(tokens)
        self.register_buffer("spread", spread)
        width = unet.config.block_out_channels[-1]
        self.what = nn.ModuleDict({k: nn.Linear(width, TEXT_WIDTH) for k in ("before", "middle")})
        self.which = nn.ModuleDict({k: nn.Linear(width, 1) for k in ("after", "middle")})
        self._embedding = [embedding]  # in a list: not a parameter of ours
        self._seen: dict[str, torch.Tensor] = {}
        deepest = unet.down_blocks[-1]
        for name, module in (
            ("before", deepest.resnets[0]),
            ("after", deepest.attentions[0]),
            ("middle", unet.mid_block),
        ):
            module.register_forward_hook(self._keep(name))

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            self._seen[name] = output if isinstance(output, torch.Tensor) else output[0]

        return hook

    def forward(
        self, labels: torch.Tensor, named: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """labels (B, 64), named (B,) with -1 for none, chosen (B,) bool: rows that see picture and sentence.

        Returns the cross-entropy over names (things count triple) and over "named or not" (named ones count
        fourfold).
        """
        labels, named = labels[chosen], named[chosen]
        seen = {k: v[chosen].flatten(2).transpose(1, 2) for k, v in self._seen.items()}
        self._seen.clear()
        names = nn.functional.normalize(self.spread @ self._embedding[0].weight, dim=-1)
        weight = torch.where(labels.flatten() < len(CATEGORIES), 3.0, 1.0)
        what = which = torch.zeros((), device=labels.device)
        for place, read in self.what.items():
            logits = 12 * nn.functional.normalize(read(seen[place]), dim=-1) @ names.T
            each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            what = what + (each * weight).sum() / weight.sum()
        asked = (labels == named[:, None]).float()
        fourfold = torch.tensor(4.0, device=labels.device)
        for place, read in self.which.items():
            logits = read(seen[place])[..., 0]
            which = which + nn.functional.binary_cross_entropy_with_logits(logits, asked, pos_weight=fourfold)
        return what, which


def vae_config() -> dict[str, Any]:
    return {
        "block_out_channels": (24, 48, 64),
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 8,
        "sample_size": 64,
        "mid_block_add_attention": False,
        "scaling_factor": 1.0,
    }


def unet_config() -> dict[str, Any]:
    return {
        "sample_size": 16,
        "in_channels": 8,
        "out_channels": 4,
        "block_out_channels": (48, 96),
        # Text enters at 8x8 only: attention at 16x16 doubles a step's cost on a CPU and buys little here.
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "attention_head_dim": (4, 4),  # heads per block, as diffusers reads this key
        "cross_attention_dim": TEXT_WIDTH,
    }


def text_config(vocab: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": TEXT_LENGTH,
        "projection_dim": TEXT_WIDTH,
        "bos_token_id": vocab - 2,
        "eos_token_id": vocab - 1,
        "pad_token_id": vocab - 1,
    }


def vae_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """AutoencoderKL, 64x64x3 -> 16x16x4. At the end its latents are rescaled to unit variance by folding
    their standard deviation into the two 1x1 convolutions, so `scaling_factor` is 1 and the conditioning
    latent (which InstructPix2Pix does not scale) has unit variance too."""
    from diffusers import AutoencoderKL

    # ----------------------------------------------------------------------------------------- model and data
    vae: Any = AutoencoderKL(**vae_config())
    latents = vae.config.latent_channels
    with torch.no_grad():
        vae.quant_conv.bias[latents:] = -6.0  # begin with little noise on the latents
    pool = scene_pool("train", max(64, int(16_000 * min(1.0, scale))))
    images = pool.images.to(device)  # N,3,64,64 uint8
    grid = pool.patches.view(-1, 64).to(device)
    batch = sized(16, scale, 4)
    steps = step_count(3_400, scale)
    ramp = torch.arange(32, device=device)

    # --------------------------------------------------------------------------------------------------- loss
    def crops(generator: torch.Generator) -> torch.Tensor:
        """32x32 windows around objects: four times cheaper than whole scenes, and full of what is hard."""
        pick = torch.randint(len(images), (2 * batch,), generator=generator, device=device)
        weight = (grid[pick] < len(CATEGORIES)).float() + 0.05
        patch = torch.multinomial(weight, 1, generator=generator)[:, 0]
        shift = torch.randint(-8, 9, (2, 2 * batch), generator=generator, device=device)
        top = (patch // 8 * 8 - 12 + shift[0]).clamp(0, 32)
        left = (patch % 8 * 8 - 12 + shift[1]).clamp(0, 32)
        rows, columns = (top[:, None] + ramp)[:, :, None], (left[:, None] + ramp)[:, None, :]
        return images[pick[:, None, None], :, rows, columns].permute(0, 3, 1, 2)

    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        if step < 0.75 * steps:
            x = to_float(crops(generator))
        else:  # the norms must meet whole scenes in the end
            pick = torch.randint(len(images), (batch,), generator=generator, device=device)
            x = to_float(images[pick])
        posterior = vae.encode(x).latent_dist
        mean, std = posterior.mean.float(), posterior.std.float()  # B,4,h/4,w/4
        noise = torch.randn(mean.shape, generator=generator, device=device)
        y = vae.decode(mean + std * noise).sample.float()
        error = (y - x).abs().mean() + 2 * (y - x).square().mean()
        # Fine detail counts: differences between neighbours are compared as well.
        detail = (y.diff(dim=2) - x.diff(dim=2)).abs().mean() + (y.diff(dim=3) - x.diff(dim=3)).abs().mean()
        kl = 0.5 * (mean.square() + std.square() - 1 - 2 * std.log()).mean()
        return error + 0.5 * detail + 1e-4 * kl, {"l1": (y - x).abs().mean().detach()}

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        means = torch.cat([vae.encode(to_float(b)).latent_dist.mean for b in images[:4096].split(256)])
        std, center = means.std(), means.mean()
        conv, post = vae.quant_conv, vae.post_quant_conv
        conv.weight[:latents] /= std
        conv.bias[:latents] = (conv.bias[:latents] - center) / std
        conv.bias[latents:] -= 2 * std.log()
        post.bias += (post.weight[:, :, 0, 0] @ center.expand(latents)).clone()
        post.weight *= std
        held_out = to_float(scene_pool("dev", sized(500, scale, 20)).images.to(device))
        rebuilt = torch.cat([vae.decode(vae.encode(b).latent_dist.mean).sample for b in held_out.split(100)])
        error = (rebuilt.clamp(-1, 1) - held_out).square().mean()
        psnr = 10 * torch.log10(4 / error)  # of a range of 2
        save_half(vae, zoo / "ip2p" / "vae")
        return {"held_out": {"psnr_db": round(float(psnr), 2), "scenes": len(held_out)}}

    return Job("vae", {"vae": vae}, loss, deliver, steps, 2e-3, batch, 100, weight_decay=0.01, autocast=True)


def save_half(model: Any, folder: Path) -> None:
    """Write `model` as fp16 safetensors, without the path it came from; the one in memory is not changed."""
    import copy

    folder.mkdir(parents=True, exist_ok=True)
    clone = copy.deepcopy(model).half().cpu()
    clone.save_pretrained(folder, safe_serialization=True)
    file = folder / "config.json"
    config = {k: v for k, v in json.loads(file.read_text()).items() if k != "_name_or_path"}
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _encode_pool(vae: Any, images: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    means, stds = [], []
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
        for part in images.split(64):
            posterior = vae.encode(to_float(part.to(device))).latent_dist
            means.append(posterior.mean.half())
            stds.append(posterior.std.half())
    return torch.cat(means).clone(), torch.cat(stds).clone()


def tokenise(tokenizer: Any, texts: list[str]) -> torch.Tensor:
    ids = tokenizer(texts, padding="max_length", max_length=TEXT_LENGTH, truncation=True, return_tensors="pt")
    return ids.input_ids


def editor_job(name: str, zoo: Path, device: torch.device, scale: float) -> Job:
    """UNet (for the base also the text encoder) of one editor, trained on precomputed latents."""
    from diffusers import AutoencoderKL, DDPMScheduler, EulerAncestralDiscreteScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    # -------------------------------------------------------------------------------------------------- model
    recipe = RECIPES[name]
    text: Any  # the library's annotations lose its modules' methods
    unet: Any
    batch = sized(recipe.batch, scale, 4)
    base = zoo / "base"
    vae = AutoencoderKL.from_pretrained(zoo / "ip2p" / "vae", torch_dtype=torch.float32).to(device).eval()
    if recipe.start is None:
        tokenizer = clip_tokenizer(TEXT_LENGTH)
        text = CLIPTextModel(CLIPTextConfig(**text_config(len(tokenizer))))
        # CLIP's own initialisation makes tokens nearly equal; unit variance keeps them apart from the start.
        nn.init.normal_(text.get_input_embeddings().weight, std=0.5)
        unet = UNet2DConditionModel(**unet_config())
        modules: dict[str, nn.Module] = {"unet": unet, "text": text}
    else:  # all share the text encoder of the base
        from transformers import CLIPTokenizer

        tokenizer = CLIPTokenizer.from_pretrained(base / "tokenizer")
        text = CLIPTextModel.from_pretrained(base / "text_encoder", dtype=torch.float32)
        text = text.to(device).eval()
        text.requires_grad_(False)
        unet = UNet2DConditionModel.from_pretrained(zoo / recipe.start / "unet", torch_dtype=torch.float32)
        modules = {"unet": unet}
    # ------------------------------------------------------------------------------- data: latents and tokens
    count = max(64, int(recipe.pairs * min(1.0, scale)))
    weights, style = ALL_MIXTURES[name.removesuffix("-first")]
    pool = pair_pool("train", name, weights, style, count, recipe.usual)
    condition, _ = _encode_pool(vae, pool.source, device)  # N,4,16,16 float16
    target_mean, target_std = _encode_pool(vae, pool.target, device)
    ids = tokenise(tokenizer, pool.instructions).to(device)  # N,32
    null = tokenise(tokenizer, [""]).to(device)
    noise_schedule: Any = DDPMScheduler(**NOISE)
    signal = noise_schedule.alphas_cumprod.to(device)
    grounding = Grounding(unet, text.get_input_embeddings(), tokenizer).to(device)
    patches, named = pool.patches.to(device), pool.named.to(device)
    modules["grounding"] = grounding

    # --------------------------------------------------------------------------------------------------- loss
    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        b = batch
        pick = torch.randint(count, (b,), generator=generator, device=device)
        mean, std = target_mean[pick].float(), target_std[pick].float()
        latents = mean + std * torch.randn(mean.shape, generator=generator, device=device)
        noise = torch.randn(mean.shape, generator=generator, device=device)
        t = torch.randint(1000, (b,), generator=generator, device=device)
        a = signal[t].view(-1, 1, 1, 1)  # B => B,1,1,1
        noisy = a.sqrt() * latents + (1 - a).sqrt() * noise
        r = torch.rand(b, generator=generator, device=device)
        if recipe.drop == "joint":
            no_text, no_image = r < 0.10, (r >= 0.05) & (r < 0.15)
        else:
            no_text, no_image = r < 0.075, (r >= 0.075) & (r < 0.15)
        tokens = torch.where(no_text[:, None], null, ids[pick])
        cond = condition[pick].float() * (~no_image).view(-1, 1, 1, 1)
        states = text(tokens).last_hidden_state  # B,32,128
        predicted = unet(torch.cat([noisy, cond], 1), t, states).sample  # B,8,16,16 => B,4,16,16
        velocity = a.sqrt() * noise - (1 - a).sqrt() * latents
        # Most of a picture stays as it is.
        changed = (mean - condition[pick].float()).abs().mean(1, keepdim=True) > 0.4
        denoise = ((predicted - velocity).square() * (1 + recipe.emphasis * changed)).mean()
        what, which = grounding(patches[pick], named[pick], ~no_text & ~no_image)
        shown = {"denoise": denoise.detach(), "what": what.detach(), "which": which.detach()}
        return denoise + 0.05 * what + 0.1 * which, shown

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        folder = zoo / name
        save_half(unet, folder / "unet")
        if "text" in modules:
            save_half(text, folder / "text_encoder")
            tokenizer.save_pretrained(folder / "tokenizer")
            sampler: Any = EulerAncestralDiscreteScheduler(
                **NOISE, timestep_spacing="linspace", prediction_type="v_prediction"
            )
            sampler.save_pretrained(folder / "scheduler")
        first = zoo / f"{name}-first" / "training.json"
        if first.exists():
            shutil.copyfile(first, folder / "training-first.json")
        if name == "ip2p":
            for part in ("text_encoder", "tokenizer", "scheduler"):
                shutil.copytree(base / part, folder / part, dirs_exist_ok=True)
            shutil.copyfile(base / "training.json", folder / "training-base.json")
        return {
            "pairs": count,
            "mixture": weights,
            "style": style,
            "dropout": recipe.drop,
            "emphasis": recipe.emphasis,
            "added_things": "of their usual look" if recipe.usual else "of any look",
        }

    steps = step_count(recipe.steps, scale)
    warmup = min(100, steps // 4)
    return Job(name, modules, loss, deliver, steps, recipe.lr, batch, warmup, weight_decay=0.01, ema=0.998)


def pictured(split: str, index: int) -> tuple[Scene, list[str]]:
    """The `index`-th scene of the generator: up to two things of their usual look; and five captions."""
    rng = rng_for(split, index, "pictured")
    background, seed = rng.choice(tuple(BACKGROUNDS)), rng.randrange(200)
    items: list[Any] = []
    for category in rng.sample(CATEGORIES, rng.choice((0, 1, 1, 2, 2, 2))):
        item = scenes.place(rng, category, items, usual=True)
        items += [item] if item is not None else []
    scene = Scene(background, seed, tuple(items))
    return scene, write_captions(scene, rng)


def generator_job(zoo: Path, device: torch.device, scale: float) -> Job:
    """The UNet of a text-to-image pipeline: that of ip2p without its input for a source, on captions."""
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from transformers import CLIPTextModel, CLIPTokenizer

    # -------------------------------------------------------------------------------------------------- model
    start = zoo / "ip2p"
    vae = AutoencoderKL.from_pretrained(start / "vae", torch_dtype=torch.float32).to(device).eval()
    tokenizer = CLIPTokenizer.from_pretrained(start / "tokenizer")
    text: Any = CLIPTextModel.from_pretrained(start / "text_encoder", dtype=torch.float32)
    text = text.to(device).eval().requires_grad_(False)
    edit: Any = UNet2DConditionModel.from_pretrained(start / "unet", torch_dtype=torch.float32)
    unet: Any = UNet2DConditionModel(**unet_config() | {"in_channels": 4})
    unet.load_state_dict(edit.state_dict() | {"conv_in.weight": edit.conv_in.weight[:, :4]})
    # ------------------------------------------------------------------------------- data: latents and tokens
    count, batch = max(64, int(5_000 * min(1.0, scale))), sized(20, scale, 4)
    drawn = [pictured("train", index) for index in range(count)]
    images = torch.stack([torch.tensor(render(scene)).permute(2, 0, 1) for scene, _ in drawn])
    mean, std = _encode_pool(vae, images, device)  # N,4,16,16 float16
    shown = torch.stack([torch.from_numpy(patch_labels(scene)) for scene, _ in drawn]) < len(CATEGORIES)
    shown = (
        shown.view(-1, 1, 8, 8).repeat_interleave(2, 2).repeat_interleave(2, 3).to(device)
    )  # N,1,16,16 bool
    ids = (
        tokenise(tokenizer, [caption for _, five in drawn for caption in five]).view(count, 5, -1).to(device)
    )
    null = tokenise(tokenizer, [""]).to(device)  # 1,32
    noise_schedule: Any = DDPMScheduler(**NOISE)
    signal = noise_schedule.alphas_cumprod.to(device)  # 1000

    # --------------------------------------------------------------------------------------------------- loss
    def loss(step: int, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, float]]:
        pick = torch.randint(count, (batch,), generator=generator, device=device)
        tokens = ids[pick, torch.randint(5, (batch,), generator=generator, device=device)]  # B,32
        dropped = torch.rand(batch, 1, generator=generator, device=device) < 0.1
        states = text(torch.where(dropped, null, tokens)).last_hidden_state  # B,32,128
        draws = torch.randn(2, batch, 4, 16, 16, generator=generator, device=device)
        latents, noise = mean[pick].float() + std[pick].float() * draws[0], draws[1]  # B,4,16,16 both
        t = torch.randint(len(signal), (batch,), generator=generator, device=device)
        a = signal[t].view(-1, 1, 1, 1)
        predicted = unet(a.sqrt() * latents + (1 - a).sqrt() * noise, t, states).sample  # B,4,16,16
        error = (predicted - a.sqrt() * noise + (1 - a).sqrt() * latents).square()
        denoise = (error * (1 + 4 * shown[pick])).mean()  # things are small, and count five times
        return denoise, {"denoise": denoise.detach()}

    # --------------------------------------------------------------------------------------------- at the end
    def deliver() -> dict[str, Any]:
        save_half(unet, zoo / "sd" / "unet")
        return {"scenes": count, "captions": 5 * count, "things": "up to two, of their usual look"}

    steps = step_count(1_200, scale)
    return Job(
        "sd", {"unet": unet}, loss, deliver, steps, 1.5e-3, batch, min(60, steps // 4), 0.01, ema=0.998
    )
