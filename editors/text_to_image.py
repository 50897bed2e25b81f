"""Text-to-image models as editors of an empty canvas: a request's instruction is the prompt.

diffusers:MODEL, nano:NAME           a pipeline of `text_to_image` in presets.yaml: a folder or hub id
openai:URL#MODEL, openai:MODEL       `images.generate` of OpenAI, and servers of the same shape
FILE.py:FUNCTION, module:function    (prompt[, seed]) -> image
"""

from __future__ import annotations

from typing import Any

from nein.editors.base import Editor, EditorError
from nein.editors.function import FunctionEditor
from nein.editors.presets import split_address
from nein.editors.served import ServedEditor
from nein.loading.references import expand_user, load_attribute, locate, parse_reference

FORMS = "a folder of images, diffusers:MODEL, nano:NAME, openai:URL#MODEL or FILE.py:FUNCTION"
SIDE = 1024  # pixels of the canvas: what a served model without a size of its own is asked for
#: Of the embedded miniatures; other pipelines have their class's own.
NANO = {"steps": 20, "guidance_scale": 3.0}


class DrawingFunction(FunctionEditor):
    """Images by a function of yours, (prompt[, seed]) -> image."""

    draws = True


class ServedGenerator(ServedEditor):
    """Images by `images.generate` of a model behind an address."""

    path, draws = "/images/generations", True


def model_of(reference: str) -> str | None:
    """Folder, hub id or nano:NAME of a pipeline; None of a served model or a function. Loads no model. Raises
    EditorError for what is no generator."""
    form = parse_reference(reference)
    if form.kind == "served":
        split_address(reference)
    elif reference.startswith("diffusers:") or form.kind == "embedded":
        model = reference.removeprefix("diffusers:")
        place = parse_reference(locate(model))
        if place.kind in ("hub", "embedded") or expand_user(place.name).is_dir():
            return model
        raise EditorError(f"There is no pipeline '{model}'; give a hub id (owner/name) or a folder.")
    elif form.kind == "attribute":
        load_attribute(reference)
    else:
        raise EditorError(f"'{reference}' is no generator; expected {FORMS}.")
    return None


def get_generator(
    reference: str, *, device: str = "cpu", dtype: str = "float32", batch_size: int = 8, **options: Any
) -> Editor:
    """The generator, loaded; options as of the class. Raises EditorError."""
    model = model_of(reference)
    try:
        if model is not None:
            from nein.editors.pipelines import DiffusersGenerator

            own = NANO if parse_reference(model).kind == "embedded" else {"steps": None}
            machine: dict[str, Any] = {"device": device, "dtype": dtype, "batch_size": batch_size}
            return DiffusersGenerator(locate(model), name=reference, **machine, **{**own, **options})
        if reference.startswith("openai:"):
            return ServedGenerator(reference, **options)
        return DrawingFunction(load_attribute(reference), name=reference, **options)
    except TypeError as error:
        raise EditorError(f"'{reference}' cannot be made: {error}.") from None
