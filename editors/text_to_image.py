"""Loads text-to-image models as editors that ignore the source image, with the instruction as the prompt.

diffusers:MODEL, nano:NAME           a pipeline (`text_to_image` in presets.yaml): a folder, hub id or NAME
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

#: Forms of `--generator`; a folder of images is read by the command itself.
FORMS = "a folder of images, diffusers:MODEL, nano:NAME, openai:URL#MODEL or FILE.py:FUNCTION"
SIDE = 1024  # pixels of the blank source image, from which served models take the size of the result


class DrawingFunction(FunctionEditor):
    text_only = True


class ServedGenerator(ServedEditor):
    path = "/images/generations"
    text_only = True


def find_pipeline(reference: str) -> str | None:
    """Folder, hub id or nano:NAME of the pipeline that a reference names; None for a served model or a
    function. Loads no model. Raises EditorError if the reference is not a generator."""
    kind = parse_reference(reference).kind
    if reference.startswith("diffusers:") or kind == "embedded":
        model = reference.removeprefix("diffusers:")
        location = parse_reference(locate_embedded(model))
        if location.kind not in ("hub", "embedded") and not expand_user(location.name).is_dir():
            raise EditorError(f"There is no pipeline '{model}'; give a hub id (owner/name) or a folder.")
        return model
    if kind == "served":
        split_address(reference)  # raises EditorError for a malformed address
    elif kind == "attribute":
        load_attribute(reference)  # raises UserError if there is no such function
    else:
        raise EditorError(f"'{reference}' is not a generator; expected {FORMS}.")
    return None


def get_generator(reference: str, **options: Any) -> Editor:
    """Load a generator; options are those of its class. Raises EditorError."""
    model = find_pipeline(reference)
    try:
        if model is not None:
            from nein.editors.pipelines import DiffusersGenerator

            # Embedded pipelines have settings of their own; others keep those of their class.
            is_nano = parse_reference(model).kind == "embedded"
            defaults = {"steps": 20, "guidance_scale": 3.0} if is_nano else {"steps": None}
            return DiffusersGenerator(locate_embedded(model), name=reference, **{**defaults, **options})
        if reference.startswith("openai:"):
            return ServedGenerator(reference, **options)
        return DrawingFunction(load_attribute(reference), name=reference, **options)
    except TypeError as error:
        raise EditorError(f"'{reference}' cannot be loaded: {error}.") from None
