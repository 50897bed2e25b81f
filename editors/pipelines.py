"""Edits images with the editing pipelines of diffusers: one adapter for all classes, by a `Recipe` for each.

The recipes are in presets.yaml. Every sample has a CPU generator of its own. Images share a call only where
the results equal those of separate calls. The prompt is the instruction verbatim, or the text of the vendor's
rewriter. Parts: recipes; the editor; loading of pipelines.
"""

from __future__ import annotations

import importlib.util
import json
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import diffusers
import numpy as np
import torch
from huggingface_hub import hf_hub_download
from PIL import Image

from nein.editors.base import Editor, EditorError, EditRequest, EditResult, check_count, edit_in_batches
from nein.editors.checkpoint import (
    add_lora,
    check_parts,
    check_tokenizers,
    content_hash,
    explain_errors,
    find_device,
    locate,
)
from nein.editors.presets import PIPELINES, TEXT_TO_IMAGE
from nein.editors.resize import SIZES, Size, fit
from nein.editors.sampling import effective_config
from nein.loading.digests import Json
from nein.loading.errors import choose
from nein.loading.references import is_local
from nein.loading.weights import align, torch_dtype

# --- recipes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How one class of diffusers is called; "" stands for an argument that it does not have."""

    image: str = "image"  # argument for the image; "" for a class that makes one from the text alone
    nested: int = 0  # number of lists around the image
    prompt: str = ""  # form of `write_prompt`
    guidance: str = "guidance_scale"  # argument for the weight of the instruction
    image_guidance: str = ""  # argument for the weight of the source image
    size: str = ""  # key of `SIZES`: passed as width and height; "" leaves it to the pipeline
    crops_to_size: bool = False  # the image is cropped and resized to `size` before the call
    batched: bool = False  # images of one size may share a call: it gives the edits of separate calls
    resolution: str = ""  # argument for the resolution
    fixed: Mapping[str, Any] = field(default_factory=dict)  # further arguments of every call
    limits_area: bool = False  # the pipeline resizes to one megapixel without the argument `max_area`
    float32: tuple[str, ...] = ()  # components that stay in float32 whatever the dtype
    result: str = "images"  # field of the output with the images; of "frames" the last is the edit
    #: Argument -> value that replaces one of at most 1, at which a negative prompt has no effect; {}: none to
    #: replace. None: the class takes no negative prompt.
    negative_guidance: Mapping[str, float] | None = field(default_factory=dict)
    rewriter: str = ""  # the block (of a pipeline of blocks) or method that rewrites the instruction
    needs: str = ""  # package that the class imports without a check
    output: str = ""  # a note on the size of the results, for the reader of a run


RECIPES = {name: Recipe(**fields) for name, fields in PIPELINES.items()}


def write_prompt(form: str, instruction: str) -> str:
    """The prompt in the form of `Recipe.prompt`, with the instruction verbatim in it."""
    if form == "omnigen":
        return f"<img><|image_1|></img> {instruction}"
    if form == "fibo":
        return json.dumps({"edit_instruction": instruction}, ensure_ascii=False)
    return instruction


# --- the editor ------------------------------------------------------------------------------------------

OFFLOADS = ("none", "model", "sequential")


class DiffusersPipeline(Editor):
    """Edits by any class of `RECIPES`. Raises EditorError.

    checkpoint            Local folder, hub id, "owner/name@revision", one .safetensors file, local or as
                          "owner/name:FILE", with `config` (folder or hub id), or a pipeline in memory.
    pipeline              Class of diffusers; None takes the one the checkpoint declares.
    steps, guidance_scale, image_guidance_scale   None is the class's own default.
    negative_prompt       For requests without one of their own; None passes none.
    resolution            Pixels, for classes that let one choose; None is 1024 for these.
    cosxl                 Whether the weights are CosXL's, whose noise schedule is in none of their files.
    rewriter              Whether the vendor's rewriter rewrites the instruction before the edit.
    lora                  Weights to fuse into those of the checkpoint: see `presets.split_lora`.
    offload               "model" keeps a part on the GPU only while it runs, "sequential" a layer.
    """

    recipes: ClassVar[Mapping[str, Recipe]] = RECIPES  # of the classes that this editor runs

    def __init__(
        self,
        checkpoint: str | diffusers.DiffusionPipeline,
        *,
        name: str = "pipeline",
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        batch_size: int = 8,
        pipeline: str | None = None,
        steps: int | None = 50,
        guidance_scale: float | None = None,
        image_guidance_scale: float | None = None,
        negative_prompt: str | None = None,
        resolution: int | None = None,
        config: str | None = None,
        cosxl: bool = False,
        rewriter: bool = False,
        lora: str | None = None,
        offload: str = "none",
    ) -> None:
        # --- the pipeline with its weights, and its recipe; settings are checked before weights are read ---
        for setting, value in (("batch_size", batch_size), ("steps", steps), ("resolution", resolution)):
            if value is not None:
                check_count(setting, value)
        self._device = find_device(device)
        if choose("offload", offload, OFFLOADS) != "none" and self._device.type == "cpu":
            raise EditorError(f"offload is {offload!r}, which needs a GPU, but the device is 'cpu'")

        # Load the pipeline; published: what the checkpoint says of itself
        if isinstance(checkpoint, str):
            label = checkpoint
            options: Json = {"class_name": pipeline, "config": config, "dtype": dtype, "rewriter": rewriter}
            self._pipeline, published = load_checkpoint(checkpoint, revision, self.recipes, **options)
        elif lora is not None:
            raise EditorError("a pipeline in memory takes no lora; call its load_lora_weights")
        else:
            label, published = "in memory", {"class": type(checkpoint).__name__}
            self._pipeline = checkpoint

        # Find the recipe of its class, and check what the class supports
        class_name = type(self._pipeline).__name__
        self._recipe = recipe = self.recipes[choose("pipeline class", class_name, self.recipes)]
        if rewriter and not recipe.rewriter:
            message = "has no rewriter of its own; omit rewriter, or pass --mend rewrite"
            raise EditorError(f"{class_name} {message}")
        if offload != "none" and not hasattr(self._pipeline, f"enable_{offload}_cpu_offload"):
            raise EditorError(f"{class_name} is made of blocks and cannot be offloaded; leave out offload")
        self._rewriter = recipe.rewriter if rewriter else ""  # "": the instruction stays verbatim
        check_tokenizers(self._pipeline, label)

        # Change the weights and the scheduler
        if lora is not None:
            add_lora(self._pipeline, lora)
        if cosxl:
            self._pipeline.is_cosxl_edit = True
            # The noise schedule is not in the file. Source: hf.co/spaces/multimodalart/cosxl, app.py.
            levels = {"sigma_min": 0.002, "sigma_max": 120.0, "sigma_data": 1.0}
            schedule = {"prediction_type": "v_prediction", "sigma_schedule": "exponential"}
            self._pipeline.scheduler = diffusers.EDMEulerScheduler(**levels, **schedule)

        # --- settings of every call ---
        self._guidance: dict[str, float] = {}  # argument -> scale
        for setting, argument, scale in (
            ("guidance_scale", recipe.guidance, guidance_scale),
            ("image_guidance_scale", recipe.image_guidance, image_guidance_scale),
        ):
            if scale is not None and not argument:
                raise EditorError(f"{class_name} has no {setting}; omit {setting}={scale}")
            if scale is not None:
                self._guidance[argument] = float(scale)
        has_resolution = bool(recipe.size or recipe.resolution)
        if resolution is not None and not has_resolution:
            raise EditorError(f"{class_name} chooses sizes itself; omit resolution={resolution}")
        self.name, self.steps, self.negative_prompt = name, steps, negative_prompt
        self.resolution = (resolution or 1024) if has_resolution else None
        self.batch_size = batch_size if recipe.batched else 1
        self._lock = threading.Lock()  # one call at a time: the scheduler has state

        # --- facts for `describe`, and the weights' device ---
        parts = self._pipeline.components
        modules = {key: part for key, part in parts.items() if isinstance(part, torch.nn.Module)}
        tokenizers = [part for part in parts.values() if hasattr(part, "get_vocab")]
        self._facts = {
            "pipeline": class_name,
            "checkpoint": label,
            "revision": revision,
            "weights": {"sha256": content_hash(modules, tokenizers)},
            "published": published,
            "steps": steps,
            "guidance": self._guidance,
            "negative_prompt": negative_prompt,
            "resolution": self.resolution,
            "output": recipe.output,
            "fixed": dict(recipe.fixed),
            "cosxl": cosxl,
            "scheduler": effective_config(self._pipeline.scheduler),
            "dtype": dtype,
            "noise": "one CPU generator per sample",
        }
        if rewriter:
            self._facts["rewriter"] = self._rewriter
        if lora:
            self._facts["lora"] = lora
        if recipe.negative_guidance:
            self._facts["with a negative prompt"] = dict(recipe.negative_guidance)
        for module in modules.values():
            align(module).eval().requires_grad_(False)
        with explain_errors(label):
            if offload == "none":
                self._pipeline.to(self._device)
            else:
                getattr(self._pipeline, f"enable_{offload}_cpu_offload")(device=self._device)
        self._pipeline.set_progress_bar_config(disable=True)

    def describe(self) -> Json:
        return {"editor": self.name, "class": type(self).__name__, **self._facts}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        return edit_in_batches(
            requests, self._prepare, self._edit_batch, batch_size=self.batch_size, device=self._device
        )

    def _prepare(self, request: EditRequest) -> tuple[Any, tuple[EditRequest, Size]] | str:
        if request.guided:
            return f"the attention of {self._facts['pipeline']} cannot be guided"
        if request.negative_prompt and self._recipe.negative_guidance is None:
            return f"{self._facts['pipeline']} takes no negative prompt"
        size = source = (request.image.shape[1], request.image.shape[0])
        if self._recipe.size and self.resolution is not None:
            size = SIZES[self._recipe.size](source, self.resolution)
        # Grouped by having a negative prompt, too: to some classes "" is not the same as none.
        return (source, bool(request.negative_prompt)), (request, size)

    def _edit_batch(self, items: list[tuple[EditRequest, Size]]) -> list[EditResult]:
        """Edit a batch of images of one size."""
        requests = [request for request, _ in items]
        size = items[0][1]  # the same for all
        devices: list[Any] = [self._device] if self._device.type == "cuda" else []
        with self._lock, torch.random.fork_rng(devices=devices):
            # Some pipelines sample words with the global generator; they take one request per call.
            torch.manual_seed(requests[0].seed)
            edited, texts = self._run_pipeline(requests, size)
        results = []
        for request, image, text in zip(requests, edited, texts, strict=True):
            if np.isfinite(image).all():
                pixels = (image[..., :3].clip(0, 1) * 255).round().astype(np.uint8)  # without transparency
                results.append(EditResult(request.id, pixels, rewritten=text))
            else:
                fault = "the model gave values that are not finite; try another dtype"
                results.append(EditResult(request.id, None, fault, rewritten=text))
        return results

    def _run_pipeline(
        self, requests: list[EditRequest], size: Size
    ) -> tuple[list[np.ndarray], Sequence[str | None]]:
        """(edited images, (H, W, 3) float in [0, 1]; texts of the vendor's rewriter, None without one)."""
        recipe = self._recipe

        # Arguments for all requests together
        arguments: dict[str, Any] = {**recipe.fixed, **self._guidance}
        if self.steps:
            arguments["num_inference_steps"] = self.steps
        if recipe.size:
            arguments["width"], arguments["height"] = size
        if recipe.resolution:
            arguments[recipe.resolution] = self.resolution
        if recipe.limits_area:
            arguments["max_area"] = size[0] * size[1]
            # The pipeline resizes the source to its preferred sizes, which are for 1024.
            arguments["_auto_resize"] = self.resolution == 1024

        # Arguments with a value per request: a list, or the value itself for a single request
        is_batch = len(requests) > 1
        values: dict[str, list[Any]] = {
            "prompt": [write_prompt(recipe.prompt, request.instruction) for request in requests],
            "generator": [torch.Generator("cpu").manual_seed(int(request.seed)) for request in requests],
        }
        negative_prompts = [request.negative_prompt or self.negative_prompt or "" for request in requests]
        if self.negative_prompt is not None or any(negative_prompts):
            values["negative_prompt"] = negative_prompts
        if any(negative_prompts):
            for argument, scale in (recipe.negative_guidance or {}).items():
                if arguments.get(argument, 1) <= 1:
                    arguments[argument] = scale
        arguments |= {argument: column if is_batch else column[0] for argument, column in values.items()}
        sources = [request.image for request in requests]  # (H, W, 3) uint8
        if recipe.crops_to_size:
            sources = [fit(source, size) for source in sources]
        images = [Image.fromarray(source) for source in sources]
        if recipe.image:
            nested: Any = images if is_batch else images[0]
            for _ in range(recipe.nested):
                nested = [nested]
            arguments[recipe.image] = nested

        # The call. Classes with a rewriter are not batched: there is one request, and one text.
        texts: Sequence[str | None] = [None] * len(requests)
        is_modular = isinstance(self._pipeline, diffusers.ModularPipeline)
        if is_modular:
            output = self._pipeline(output_type="np", output=[recipe.result, "prompt"], **arguments)
            # The rewriter's text replaces the prompt; a pipeline in memory may rewrite without the option.
            if self._rewriter or output["prompt"] != arguments["prompt"]:
                texts = [output["prompt"]]
            edited = output[recipe.result]
        else:
            if self._rewriter:  # before the call, which does not return the text
                rewrite = getattr(self._pipeline, self._rewriter)
                texts = rewrite([arguments["prompt"]], images=images, device=self._device)
                arguments["prompt"] = texts[0]
            edited = getattr(self._pipeline(output_type="np", **arguments), recipe.result)
        if recipe.result == "frames":
            edited = [frames[-1] for frames in edited]  # the last frame of each video
        return [np.asarray(image) for image in edited], texts


class DiffusersGenerator(DiffusersPipeline):
    """Images from the text alone, by a class of `TEXT_TO_IMAGE`, at the class's own size."""

    recipes: ClassVar = {name: Recipe(image="", **fields) for name, fields in TEXT_TO_IMAGE.items()}


# --- loading of pipelines --------------------------------------------------------------------------------


def load_checkpoint(
    checkpoint: str,
    revision: str | None,
    recipes: Mapping[str, Recipe],
    *,
    class_name: str | None,
    config: str | None,
    dtype: str,
    rewriter: bool,
) -> tuple[Any, Json]:
    """(pipeline, published: what the checkpoint says of itself). Raises EditorError. class_name: to load, one
    of `recipes`; None: the one that the checkpoint declares. Other options: as in `DiffusersPipeline`."""
    source, file = checkpoint, ""
    if not is_local(checkpoint):
        source, _, file = checkpoint.partition(":")  # "owner/name:FILE"
    source, revision = locate(source, revision)
    with warnings.catch_warnings(), explain_errors(checkpoint):
        # `torch_dtype` is `dtype` in later versions of diffusers, which still take it.
        warnings.simplefilter("ignore", FutureWarning)
        if file or Path(source).is_file():
            path = hf_hub_download(source, file, revision=revision) if file else source
            if Path(path).suffix != ".safetensors" or class_name is None or config is None:
                raise EditorError(
                    f"{path!r} is a single file; a single file ends in .safetensors and needs pipeline=CLASS "
                    "and config=FOLDER; pass them, or a folder"
                )
            # Diffusers converts the file; CosXL is published that way.
            convert = getattr(diffusers, class_name).from_single_file
            published = {"class": None, "file": file or Path(path).name}
            return convert(path, config=config, torch_dtype=torch_dtype(dtype)), published

        # A folder or repository: its index names the class and the parts.
        is_modular = (class_name or "").endswith("ModularPipeline")
        loader = diffusers.ModularPipeline if is_modular else diffusers.DiffusionPipeline
        index = loader.load_config(source, revision=revision)
        published = {"class": index.get("_class_name")}
        chosen = class_name or str(published["class"])
        recipe = recipes[choose("pipeline class", chosen, recipes)]
        if recipe.needs and importlib.util.find_spec(recipe.needs) is None:
            raise EditorError(f"{chosen} needs the package {recipe.needs}; pip install -e '.[pipelines]'")
        cls = getattr(diffusers, chosen)
        if not is_modular:
            check_parts(index, checkpoint, source, revision)
            options: dict[str, Any] = {"torch_dtype": torch_dtype(dtype)}
            if recipe.float32:
                exceptions = dict.fromkeys(recipe.float32, torch.float32)  # component -> dtype
                options["torch_dtype"] = {"default": torch_dtype(dtype), **exceptions}
            if "safety_checker" in index:
                options["safety_checker"] = None
            return cls.from_pretrained(source, revision=revision, use_safetensors=True, **options), published

        # A pipeline of blocks loads its parts in a second step.
        blocks = getattr(diffusers, cls.default_blocks_name)()
        if recipe.rewriter and not rewriter:
            blocks.sub_blocks.pop(recipe.rewriter)  # its model is not loaded
        hide_progress(blocks)
        pipeline = cls(blocks, source, revision=revision)
        parts = {part: index[part] for part in pipeline.components if part in index}
        check_parts(parts, checkpoint, source, revision)
        pipeline.load_components(dtype=torch_dtype(dtype), use_safetensors=True)
        if absent := [part for part, loaded in pipeline.components.items() if loaded is None]:
            raise EditorError(f"{source!r} lacks the {absent[0]} of {chosen}; fetch it anew (nein fetch)")
        return pipeline, published


def hide_progress(block: Any) -> None:
    """Hide the progress bars of a block and its inner blocks; the pipeline only hides the outermost ones."""
    if hasattr(block, "set_progress_bar_config"):
        block.set_progress_bar_config(disable=True)
    for inner in getattr(block, "sub_blocks", {}).values():
        hide_progress(inner)
