"""An edit computed without any code of ours: one sample, one UNet call per branch, formulas as published."""

import numpy as np
import torch


@torch.no_grad()
def edit_by_hand(stock, request, steps, estimate):
    """(H, W, 3) float in [0, 255] by Euler-ancestral sampling with k-diffusion's noise levels.

    stock     A loaded StableDiffusionInstructPix2PixPipeline, for its modules only.
    estimate  Given predict(told, shown), the guided noise estimate: `told` says whether the UNet reads the
              instruction or "", `shown` whether it sees the picture's latent or zeros.
    """
    hidden = {}
    for told, text in ((True, request.instruction), (False, "")):
        ids = stock.tokenizer(text, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
        hidden[told] = stock.text_encoder(ids.input_ids).last_hidden_state
    pixels = torch.from_numpy(request.image / 255.0).float().permute(2, 0, 1)[None] * 2 - 1
    source = stock.vae.encode(pixels).latent_dist.mean
    sources = {True: source, False: torch.zeros_like(source)}

    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    products = np.cumprod(1 - betas)
    times = np.linspace(999, 0, steps)
    sigmas = np.append(np.interp(times, np.arange(1000), ((1 - products) / products) ** 0.5), 0)

    generator = torch.Generator().manual_seed(request.seed)
    x = torch.randn(source.shape, generator=generator) * sigmas[0]
    for time, sigma, lower in zip(times, sigmas, sigmas[1:], strict=False):

        def predict(told, shown, x=x, sigma=sigma, time=time):
            scaled = (x / (sigma**2 + 1) ** 0.5).float()
            inputs = torch.cat([scaled, sources[shown]], 1)
            return stock.unet(inputs, torch.tensor([time], dtype=torch.float32), hidden[told]).sample

        denoised = x - sigma * estimate(predict)
        up = (lower**2 * (sigma**2 - lower**2) / sigma**2) ** 0.5
        down = (lower**2 - up**2) ** 0.5
        x = x + (x - denoised) / sigma * (down - sigma)
        if lower > 0:
            x = x + torch.randn(source.shape, generator=generator) * up
    picture = stock.vae.decode((x / stock.vae.config.scaling_factor).float()).sample
    return ((picture[0] / 2 + 0.5).clamp(0, 1) * 255).permute(1, 2, 0).numpy()
