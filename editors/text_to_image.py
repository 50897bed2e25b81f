"""Text-to-image models as editors of an empty canvas: the instruction is the prompt.

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
from nein.loading.references import expand_user, load_attribute, locate_embedded, parse_reference

FORMS = "a folder of images, diffusers:MODEL, nano:NAME, openai:URL#MODEL or FILE.py:FUNCTION"
SIDE = 1024  # pixels of the canvas; also requested of served models without a default size


class DrawingFunction(FunctionEditor):
    draws = True  # the function gets no image: (prompt[, seed])


class ServedGenerator(ServedEditor):
    path, draws = "/images/generations", True  # the request holds no image


def find_pipeline(reference: str) -> str | None:
    """Folder, hub id or nano:NAME of a pipeline; None for a served model or a function. Checks the reference,
    loads no model. Raises EditorError if it is not a generator."""
    kind, model = parse_reference(reference).kind, reference.removeprefix("diffusers:")
    if model != reference or kind == "embedded":
        location = parse_reference(locate_embedded(model))
        if location.kind not in ("hub", "embedded") and not expand_user(location.name).is_dir():
            raise EditorError(f"There is no pipeline '{model}'; give a hub id (owner/name) or a folder.")
        return model
    if kind == "served":
        split_address(reference)
    elif kind == "attribute":
        load_attribute(reference)
    else:
        raise EditorError(f"'{reference}' is not a generator; expected {FORMS}.")
    return None


def get_generator(reference: str, **options: Any) -> Editor:
    """Load a generator; options are those of its class. Raises EditorError."""
    model = find_pipeline(reference)
    try:
        if model is not None:
            from nein.editors.pipelines import DiffusersGenerator

            # The miniatures have settings of their own; other pipelines keep those of their class.
            is_nano = parse_reference(model).kind == "embedded"
            defaults = {"steps": 20, "guidance_scale": 3.0} if is_nano else {"steps": None}
            return DiffusersGenerator(locate_embedded(model), name=reference, **{**defaults, **options})
        if reference.startswith("openai:"):
            return ServedGenerator(reference, **options)
        return DrawingFunction(load_attribute(reference), name=reference, **options)
    except TypeError as error:
        raise EditorError(f"'{reference}' cannot be loaded: {error}.") from None
