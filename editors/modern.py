"""Rows of the table in `editors.presets` for editors published as pipelines of diffusers.

Values without a source of their own are the defaults of the class's `__call__` in diffusers 0.42.1. Sizes are
of the weights in bfloat16; activations come on top.
"""

from __future__ import annotations

from typing import Any

_DEFAULTS = "defaults of the class's __call__ in diffusers 0.42.1"
_IMAGENHUB = "github.com/TIGER-AI-Lab/ImagenHub, preset of its wrapper"


def _row(name: str, pipeline: str, checkpoint: str, steps: int, **values: Any) -> dict[str, Any]:
    sources = {"*": _DEFAULTS, "checkpoint": "documentation of diffusers 0.42.1", **values.pop("sources", {})}
    row = {"guidance_scale": None, "image_guidance_scale": None, "resolution": None, **values}
    row |= {"name": name, "editor": name, "preset": "paper", "kind": "pipeline", "pipeline": pipeline}
    row |= {"checkpoint": checkpoint, "steps": steps, "dtype": "bfloat16", "sources": sources}
    return {"scheduler": "the checkpoint's own", "timestep_spacing": "the checkpoint's own", **row}


MODERN: tuple[dict[str, Any], ...] = (
    _row(
        "flux-kontext",
        "FluxKontextPipeline",
        "black-forest-labs/FLUX.1-Kontext-dev",
        28,
        guidance_scale=3.5,
        resolution=1024,
        note="12 B and T5-XXL, about 33 GB. Guidance is distilled. FLUX.1 [dev] non-commercial, gated.",
    ),
    _row(
        "qwen-image-edit",
        "QwenImageEditPipeline",
        "Qwen/Qwen-Image-Edit",
        50,
        guidance_scale=4.0,
        negative_prompt=" ",
        note="20 B and Qwen2.5-VL-7B, about 58 GB. Apache-2.0. Guidance is off without a negative prompt.",
        sources={"negative_prompt": "documentation of diffusers 0.42.1"},
    ),
    _row(
        "qwen-image-edit-plus",
        "QwenImageEditPlusPipeline",
        "Qwen/Qwen-Image-Edit-2509",
        50,
        guidance_scale=4.0,
        negative_prompt=" ",
        note="20 B and Qwen2.5-VL-7B, about 58 GB. Apache-2.0. Guidance is off without a negative prompt.",
        sources={"negative_prompt": "documentation of diffusers 0.42.1"},
    ),
    _row(
        "qwen-image-2.1",
        "QwenImage21Pipeline",
        "Qwen/Qwen-Image-2.1",
        40,
        guidance_scale=1.0,
        resolution=1024,
        note="Size and licence not checked.",
    ),
    _row(
        "sdxl-ip2p",
        "StableDiffusionXLInstructPix2PixPipeline",
        "diffusers/sdxl-instructpix2pix-768",
        30,
        guidance_scale=3.0,
        image_guidance_scale=1.5,
        resolution=768,
        note="About 7 GB. Trained on a small data set, to show that the script works.",
        sources={"*": "example of the class in diffusers 0.42.1"},
    ),
    _row(
        "cosxl-edit",
        "StableDiffusionXLInstructPix2PixPipeline",
        "stabilityai/cosxl:cosxl_edit.safetensors",
        20,
        guidance_scale=7.0,
        image_guidance_scale=1.5,
        negative_prompt="",
        resolution=1024,
        config="diffusers/sdxl-instructpix2pix-768",
        cosxl=True,
        note="About 7 GB. Stability non-commercial research licence, gated.",
        sources={"*": _IMAGENHUB, "scheduler": "hf.co/spaces/multimodalart/cosxl, app.py"},
    ),
    _row(
        "omnigen",
        "OmniGenPipeline",
        "Shitao/OmniGen-v1-diffusers",
        50,
        guidance_scale=2.0,
        image_guidance_scale=1.6,
        resolution=1024,
        note="3.8 B, 8 to 16 GB. MIT.",
        sources={"guidance_scale": "documentation of diffusers 0.42.1, image editing"},
    ),
    _row(
        "ledits++",
        "LEditsPPPipelineStableDiffusion",
        "stable-diffusion-v1-5/stable-diffusion-v1-5",
        30,
        guidance_scale=5.0,
        resolution=512,
        note=(
            "Takes no instruction: it is told the object to remove and always removes it, inverting the "
            "picture first. Its figures are those of an editor that understands every sentence. OpenRAIL-M."
        ),
    ),
    _row(
        "ledits++-xl",
        "LEditsPPPipelineStableDiffusionXL",
        "stabilityai/stable-diffusion-xl-base-1.0",
        50,
        guidance_scale=5.0,
        resolution=1024,
        note="As ledits++, with Stable Diffusion XL. OpenRAIL++-M.",
    ),
    _row(
        "flux2",
        "Flux2Pipeline",
        "black-forest-labs/FLUX.2-dev",
        50,
        guidance_scale=4.0,
        note="32 B and Mistral-24B: 80 GB and more, or offloading. FLUX [dev] non-commercial, gated.",
    ),
    _row(
        "flux2-klein",
        "Flux2KleinPipeline",
        "black-forest-labs/FLUX.2-klein-base-9B",
        50,
        guidance_scale=4.0,
        note="9 B. Licence not checked.",
    ),
    _row(
        "flux2-klein-kv",
        "Flux2KleinKVPipeline",
        "black-forest-labs/FLUX.2-klein-9b-kv",
        4,
        note="9 B, distilled: no guidance. Licence not checked.",
    ),
    _row(
        "longcat-image-edit",
        "LongCatImageEditPipeline",
        "meituan-longcat/LongCat-Image-Edit",
        50,
        guidance_scale=4.5,
        negative_prompt="",
        note="6 B and Qwen2.5-VL. Apache-2.0.",
    ),
    _row(
        "chronoedit",
        "ChronoEditPipeline",
        "nvidia/ChronoEdit-14B-Diffusers",
        50,
        guidance_scale=5.0,
        negative_prompt="",
        resolution=960,
        note=(
            "A video model: five frames, the last is the edit. The checkpoint declares "
            "WanImageToVideoPipeline. 14 to 16 B and UMT5, about 60 GB. NVIDIA Open Model License."
        ),
        sources={"resolution": "example of the class in diffusers 0.42.1: area of 720 x 1280"},
    ),
    _row(
        "joyimage-edit",
        "JoyImageEditPipeline",
        "jdopensource/JoyAI-Image-Edit-Diffusers",
        40,
        guidance_scale=4.0,
        negative_prompt="",
        note="16 B and an 8 B language model. What the crop to the bucket takes away stays away.",
    ),
    _row(
        "joyimage-edit-plus",
        "JoyImageEditPlusPipeline",
        "jdopensource/JoyAI-Image-Edit-Plus-Diffusers",
        30,
        guidance_scale=4.0,
        negative_prompt="",
        note="As joyimage-edit. Licence not checked.",
    ),
    _row(
        "dreamlite",
        "DreamLitePipeline",
        "carlofkl/DreamLite-base",
        30,
        revision="diffusers",
        guidance_scale=3.5,
        image_guidance_scale=1.5,
        negative_prompt="",
        resolution=1024,
        note="Small. Guided by three branches, as InstructPix2Pix. Licence not checked.",
    ),
    _row(
        "dreamlite-mobile",
        "DreamLiteMobilePipeline",
        "carlofkl/DreamLite-mobile",
        4,
        revision="diffusers",
        resolution=1024,
        note="Small, distilled: no guidance. Licence not checked.",
    ),
    _row(
        "kandinsky5-i2i",
        "Kandinsky5I2IPipeline",
        "kandinskylab/Kandinsky-5.0-I2I-Lite-sft-Diffusers",
        50,
        guidance_scale=3.5,
        negative_prompt="",
        note="Licence not checked.",
    ),
    _row(
        "fibo-edit",
        "BriaFiboEditPipeline",
        "briaai/Fibo-Edit-1.5-base",
        30,
        guidance_scale=5.0,
        negative_prompt="",
        note=(
            "8 B, gated. Wants JSON: the instruction goes verbatim into edit_instruction; the official "
            "rewriting by another model would resolve the negation and is left out."
        ),
    ),
)
