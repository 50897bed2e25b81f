"""Under which licence what our tables name is given out, by repository or data set.

From the cards of the repositories and the pages of the data sets, as of November 2026; what is not here says
so itself. A word on a card is no legal advice: weights that were fine-tuned carry the terms of their base.
"""

from __future__ import annotations

LICENCES: dict[str, str] = {
    "timbrooks/instruct-pix2pix": "MIT (base: CreativeML OpenRAIL-M)",
    "vinesmsuic/magicbrush-jul7": "CreativeML OpenRAIL-M",
    "vinesmsuic/magicbrush-ema": "CreativeML OpenRAIL-M",
    "vinesmsuic/magicbrush-paper": "CreativeML OpenRAIL-M",
    "stabilityai/cosxl": "Stability AI non-commercial research, gated",
    "black-forest-labs/FLUX.1-Kontext-dev": "FLUX.1 [dev] non-commercial, gated",
    "black-forest-labs/FLUX.2-dev": "FLUX [dev] non-commercial, gated",
    "Qwen/Qwen-Image-Edit": "Apache-2.0",
    "Qwen/Qwen-Image-Edit-2509": "Apache-2.0",
    "Shitao/OmniGen-v1-diffusers": "MIT",
    "meituan-longcat/LongCat-Image-Edit": "Apache-2.0",
    "nvidia/ChronoEdit-14B-Diffusers": "NVIDIA Open Model License",
    "jdopensource/JoyAI-Image-Edit-Diffusers": "Apache-2.0",
    "briaai/Fibo-Edit-1.5-base": "see its card, gated",
    "facebook/sam-vit-huge": "Apache-2.0",
    "facebook/dino-vits16": "Apache-2.0",
    "llava-hf/llava-v1.6-mistral-7b-hf": "Apache-2.0",
    "llava-hf/llava-1.5-7b-hf": "Llama 2 Community",
    "google/owlv2-large-patch14-ensemble": "Apache-2.0",
    "google/owlvit-base-patch32": "Apache-2.0",
    "google/siglip-base-patch16-224": "Apache-2.0",
    "google/siglip2-base-patch16-224": "Apache-2.0",
    "Salesforce/blip-itm-large-coco": "BSD-3-Clause",
    "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224": "MIT",
}
