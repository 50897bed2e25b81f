"""How each of diffusers' editing pipelines is called: a table, no model and no library in it.

The pipelines differ in what they call the picture and the guidance scale, in whether they take a list, and in
who decides about the size. Everything else is the same for all and stands in `editors.pipelines`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from editors.base import EditorError

Size = tuple[int, int]


@dataclass(frozen=True)
class Recipe:
    """One class of diffusers.

    image            Argument that takes the picture; `nested`: how many lists it has to be in.
    prompt           The instruction as the class wants it; always verbatim within.
    guidance         Argument that takes `guidance_scale`; "" if the class has none.
    image_guidance   Argument that takes `image_guidance_scale`; "" if the class has none.
    size             (width, height) of the picture and the resolution to the size of the result, which is
                     passed as width and height; None leaves it to the pipeline.
    fit              The picture is cropped and resized to that size beforehand, as InstructPix2Pix does.
    batched          Several pictures of one size in one call give what one call each gives.
    resolution       Argument that takes the resolution; "" if there is none.
    fixed            Further arguments of every call.
    follow           Further arguments that follow from the size and the resolution.
    denoiser         Component that torch.compile is for.
    float32          Components that stay in float32 whatever the dtype.
    result           Field of the output that holds the pictures; of "frames" the last is the edit.
    needs            Package that the class calls without checking that it is there.
    reads            "instruction", or "object" for an editor that is told what to remove.
    output           What a reader should know about the size of the results.
    """

    image: str = "image"
    nested: int = 0
    prompt: Callable[[str], str] = str
    guidance: str = "guidance_scale"
    image_guidance: str = ""
    size: Callable[[Size, int], Size] | None = None
    fit: bool = False
    batched: bool = False
    resolution: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    follow: Callable[[Size, int], Mapping[str, Any]] | None = None
    denoiser: str = "transformer"
    float32: tuple[str, ...] = ()
    result: str = "images"
    needs: str = ""
    reads: str = "instruction"
    output: str = ""


def r64(size: Size, resolution: int) -> Size:
    """Rule "r64" of `editors.resize`."""
    from editors.resize import r64_size

    return r64_size(*size, resolution)


def area(multiple: int) -> Callable[[Size, int], Size]:
    """The size with the picture's aspect ratio and an area near resolution x resolution."""

    def rule(size: Size, resolution: int) -> Size:
        ratio = math.sqrt(size[0] / size[1])
        return tuple(max(multiple, round(resolution * r / multiple) * multiple) for r in (ratio, 1 / ratio))  # type: ignore[return-value]

    return rule


def kontext(size: Size, resolution: int) -> Size:
    """The size FLUX.1 Kontext was trained at whose aspect ratio is closest, scaled to `resolution`.

    Without it the pipeline answers every picture with a square. Sizes: diffusers 0.42.1,
    PREFERRED_KONTEXT_RESOLUTIONS in pipelines/flux/pipeline_flux_kontext.py (for 1024).
    """
    widths = (672, 688, 720, 752, 800, 832, 880, 944, 1024, 1104, 1184, 1248, 1328, 1392, 1456, 1504, 1568)
    pairs = zip(widths, reversed(widths), strict=True)
    width, height = min(pairs, key=lambda pair: abs(size[0] / size[1] - pair[0] / pair[1]))
    scale = resolution / 1024
    return max(16, round(width * scale / 16) * 16), max(16, round(height * scale / 16) * 16)


def kontext_area(size: Size, resolution: int) -> dict[str, Any]:
    """The pipeline recomputes both sides from an area, and resizes the picture to a size of one megapixel."""
    return {"max_area": size[0] * size[1], "_auto_resize": resolution == 1024}


def chronoedit(size: Size, resolution: int) -> Size:
    """Area of 720 x 1280 at resolution 960, sides floored to multiples of 16.

    Source: example in diffusers 0.42.1, pipelines/chronoedit/pipeline_chronoedit.py.
    """
    ratio = math.sqrt(size[1] / size[0])
    width, height = round(resolution / ratio) // 16 * 16, round(resolution * ratio) // 16 * 16
    return max(16, width), max(16, height)


def omnigen(instruction: str) -> str:
    return f"<img><|image_1|></img> {instruction}"


def fibo(instruction: str) -> str:
    return json.dumps({"edit_instruction": instruction}, ensure_ascii=False)


_MEGAPIXEL = "about one megapixel with the picture's aspect ratio, as the pipeline decides"
_OWN = "the picture's size, at most one megapixel, sides floored to the model's multiple"
_FLUX2 = Recipe(output=_OWN)

RECIPES: dict[str, Recipe] = {
    "FluxKontextPipeline": Recipe(
        size=kontext,
        follow=kontext_area,
        batched=True,
        output="the nearest of 17 preferred sizes of about resolution x resolution",
    ),
    "QwenImageEditPipeline": Recipe(guidance="true_cfg_scale", output=_MEGAPIXEL),
    "QwenImageEditPlusPipeline": Recipe(guidance="true_cfg_scale", nested=1, output=_MEGAPIXEL),
    "QwenImage21Pipeline": Recipe(
        guidance="true_cfg_scale",
        resolution="output_resolution",
        output="about resolution x resolution with the picture's aspect ratio; transparency is dropped",
    ),
    "StableDiffusionXLInstructPix2PixPipeline": Recipe(
        image_guidance="image_guidance_scale",
        size=r64,
        fit=True,
        batched=True,
        denoiser="unet",
        output="rule r64 at the row's resolution",
    ),
    "OmniGenPipeline": Recipe(
        image="input_images",
        nested=1,
        prompt=omnigen,
        image_guidance="img_guidance_scale",
        resolution="max_input_image_size",
        fixed={"use_input_image_size_as_output": True},
        output="the picture's size, at most `resolution` on the longer side, sides floored to 16",
    ),
    "LEditsPPPipelineStableDiffusion": Recipe(
        guidance="edit_guidance_scale",
        size=r64,
        fit=True,
        denoiser="unet",
        reads="object",
        output="rule r64 at the row's resolution",
    ),
    "LEditsPPPipelineStableDiffusionXL": Recipe(
        guidance="edit_guidance_scale",
        size=r64,
        fit=True,
        denoiser="unet",
        reads="object",
        output="rule r64 at the row's resolution",
    ),
    "Flux2Pipeline": _FLUX2,
    "Flux2KleinPipeline": _FLUX2,
    "Flux2KleinKVPipeline": Recipe(guidance="", output=_OWN),
    "LongCatImageEditPipeline": Recipe(output=_MEGAPIXEL),
    "ChronoEditPipeline": Recipe(
        size=chronoedit,
        fixed={"num_frames": 5},
        float32=("vae", "image_encoder"),
        result="frames",
        needs="ftfy",
        output="area of 720 x 1280 with the picture's aspect ratio",
    ),
    "JoyImageEditPipeline": Recipe(
        output="the nearest bucket of about one megapixel; the picture is cropped to its aspect ratio"
    ),
    "JoyImageEditPlusPipeline": Recipe(
        image="images",
        nested=2,
        output="the nearest bucket of about one megapixel; the picture is cropped to its aspect ratio",
    ),
    "DreamLitePipeline": Recipe(
        image_guidance="image_guidance_scale",
        size=area(32),
        denoiser="unet",
        output="about resolution x resolution with the picture's aspect ratio",
    ),
    "DreamLiteMobilePipeline": Recipe(
        guidance="",
        size=area(32),
        denoiser="unet",
        output="about resolution x resolution with the picture's aspect ratio",
    ),
    "Kandinsky5I2IPipeline": Recipe(
        result="image", output="the nearest of seven sizes of about one megapixel"
    ),
    "BriaFiboEditPipeline": Recipe(prompt=fibo, output="the nearest preferred size of about one megapixel"),
}


def get_recipe(name: str) -> Recipe:
    """How diffusers' class `name` is called; EditorError for a class that is no editor we know."""
    if name not in RECIPES:
        raise EditorError(
            f"{name!r} is not an editing pipeline that can be called here; there are "
            f"StableDiffusionInstructPix2PixPipeline, {', '.join(RECIPES)}"
        )
    return RECIPES[name]
