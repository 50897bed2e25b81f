"""Editors that are a function, `edit(image, instruction) -> image`, or a pipeline of diffusers in memory."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from editors.base import Editor, EditorError, EditRequest, EditResult, digest, find_fault, fingerprint
from editors.presets import near_match

if TYPE_CHECKING:
    import numpy as np

#: "module:attribute" and "path/file.py:attribute".
_PLACE = re.compile(r"(?P<home>[^\W\d]\w*(\.[^\W\d]\w*)*|.+\.py):(?P<name>[^\W\d]\w*)")
#: What an editor is known by.
_PARTS = ("name", "fingerprint", "describe", "edit")
#: Values that stand for themselves in the fingerprint of a function that holds them.
_PLAIN = (bool, int, float, str, bytes, tuple, frozenset, type(None))


class FunctionEditor:
    """Edits by a function of yours.

    function  Called with a copy of the picture, a `PIL.Image.Image` in mode RGB, and the instruction; gives a
              picture in mode RGB, or (H, W, 3) uint8. One call at a time. A parameter `seed`, where it has
              one, gets the sample's: use it for whatever is drawn, and an edit can be repeated.
    name      What the editor is called in results; the function's own name if None.

    What the function raises, and a result that is no picture, is the error of that sample. The fingerprint
    covers the source of the function, its defaults and the plain values it holds; not the functions that it
    calls, nor a model that it was made with. Raises EditorError for what cannot be called so.
    """

    def __init__(self, function: Callable[..., Any], *, name: str | None = None) -> None:
        self.function = function
        self.name = name or name_of(function)
        self._seeded = _takes_seed(function, self.name)
        self._lock = threading.Lock()  # functions are seldom written to be called from several threads

    def describe(self) -> dict[str, Any]:
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "function": f"{getattr(self.function, '__module__', '')}.{name_of(self.function)}",
            "source_sha256": source_hash(self.function),
            "seeded": self._seeded,
        }

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.describe())

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        return [self._edit_one(request) for request in requests]

    def _edit_one(self, request: EditRequest) -> EditResult:
        from PIL import Image

        fault = find_fault(request)
        if fault is not None:
            return EditResult(request.id, None, fault)
        further = {"seed": request.seed} if self._seeded else {}
        try:
            with self._lock:
                made = self.function(Image.fromarray(request.image.copy()), request.instruction, **further)
            image = as_picture(made)  # a file that breaks off is noticed when its pixels are asked for
        except Exception as error:
            if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
                raise  # is about the machine, not about the sample
            text = " ".join(str(error).split())[:300]
            return EditResult(request.id, None, f"{self.name} raised {type(error).__name__}: {text}")
        if isinstance(image, str):
            return EditResult(request.id, None, f"{self.name} gave {image}")
        return EditResult(request.id, image)


def as_picture(made: Any) -> np.ndarray | str:
    """(H, W, 3) uint8 of a picture in mode RGB or of such an array; else what it is and what is expected."""
    import numpy as np
    from PIL import Image

    wanted = "expected a PIL image in mode RGB, or an array (H, W, 3) of uint8"
    if isinstance(made, Image.Image):
        if made.mode != "RGB":
            return f"a picture in mode {made.mode}; {wanted}"
        return np.array(made) if all(made.size) else "a picture without pixels"
    if isinstance(made, np.ndarray):
        fits = made.dtype == np.uint8 and made.ndim == 3 and made.shape[2] == 3 and made.size > 0
        return made.copy() if fits else f"an array of shape {made.shape} and dtype {made.dtype}; {wanted}"
    if made is None:
        return f"nothing (None); {wanted}"
    return f"a {type(made).__module__}.{type(made).__name__}; {wanted}"


def is_place(reference: str) -> bool:
    """Whether a reference has the form `module:attribute` or `file.py:attribute`."""
    return _PLACE.fullmatch(reference) is not None and not reference.startswith(("nano:", "hub:"))


def place_name(reference: str) -> str:
    """The attribute of a place: "edit" of "./mine.py:edit"."""
    return reference.rpartition(":")[2]


def at_place(reference: str) -> Any:
    """What `module:attribute` or `file.py:attribute` names. Raises EditorError where it is not there."""
    place = _PLACE.fullmatch(reference)
    if place is None:
        raise EditorError(f"{reference!r} is no place; expected module:attribute or file.py:attribute")
    try:
        if not place["home"].endswith(".py"):
            return pkgutil.resolve_name(reference)
        module = _module_of(Path(place["home"]).expanduser())
        if not hasattr(module, place["name"]):
            near = near_match(place["name"], list(vars(module)))
            raise AttributeError(f"'{place['home']}' has no '{place['name']}'{near}")
        return getattr(module, place["name"])
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise EditorError(f"{reference!r} cannot be imported: {error}") from None


def _module_of(file: Path) -> Any:
    """The module in a file, run once; files beside it can be imported by it."""
    name = f"_file_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise FileNotFoundError(f"there is no file '{file}'")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # every name that ends in .py has one, and a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def as_editor(
    thing: Any,
    *,
    name: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int = 8,
    preset: str = "paper",
    **options: Any,
) -> Editor:
    """An editor from an object.

    thing    An editor; a class or function that makes one, called with those of `name`, `device`, `dtype` and
             `batch_size` that it takes, and the options; a function `edit(image, instruction[, seed]) ->
             image`; or a pipeline of diffusers, which keeps its number type and is the editor's to move and
             to freeze.
    preset   "paper" or "nano": whose values a pipeline gets, by its class, where `options` say nothing.
    options  Of the factory; of a pipeline, as `get_editor` takes them for its class.

    Raises EditorError for anything else.
    """
    if is_editor(thing):
        return thing
    label = name or name_of(thing)
    machine: dict[str, Any] = {"device": device, "dtype": dtype, "batch_size": batch_size}
    if _is_pipeline(thing):
        return _of_pipeline(thing, name=label, **machine, **{**_row_of(thing, preset), **options})
    if not callable(thing):
        raise EditorError(
            f"{label!r} is a {type(thing).__name__}, no editor; expected a function (image, instruction) -> "
            f"image, a pipeline of diffusers, or an object with {', '.join(_PARTS)}"
        )
    if not isinstance(thing, type) and not _is_factory(thing):
        if options:
            raise EditorError(f"{label!r} is a function and has no options; leave out {', '.join(options)}")
        return FunctionEditor(thing, name=label)
    try:
        made = thing(**_taken(thing, {"name": label, **machine}), **options)
    except TypeError as error:
        raise EditorError(f"{label!r} cannot be made: {error}") from None
    if not is_editor(made):
        lacking = [part for part in _PARTS if not hasattr(made, part)]
        raise EditorError(f"what {label!r} makes is no editor: it has no {', '.join(lacking)}")
    return made


def is_editor(thing: Any) -> bool:
    """Whether an object (and not its class) has what an editor has."""
    return not isinstance(thing, type) and all(hasattr(thing, part) for part in _PARTS)


def takes_options(thing: Any) -> bool:
    """Whether `as_editor` has a use for options: for a pipeline, and for what makes an editor."""
    if is_editor(thing) or not callable(thing):
        return False
    return isinstance(thing, type) or _is_pipeline(thing) or _is_factory(thing)


def name_of(thing: Any) -> str:
    """What a function, class or object calls itself; a lambda is "lambda"."""
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None) or type(thing).__name__
    return str(name).strip("<>")


def _is_pipeline(thing: Any) -> bool:
    return any(base.__module__.startswith("diffusers.") for base in type(thing).__mro__)


def _row_of(pipeline: Any, preset: str) -> dict[str, Any]:
    from editors.presets import class_options

    values = class_options(type(pipeline).__name__, preset)
    return {name: value for name, value in values.items() if name != "pipeline"}


def _of_pipeline(thing: Any, *, name: str, dtype: str, **options: Any) -> Editor:
    """A pipeline keeps the number type it has: whoever made it chose that."""
    dtype = str(thing.dtype).removeprefix("torch.")
    if type(thing).__name__ == "StableDiffusionInstructPix2PixPipeline":
        from editors.checkpoint import in_memory
        from editors.instruct_pix2pix import InstructPix2Pix

        return InstructPix2Pix(in_memory(thing), name=name, dtype=dtype, **options)
    from editors.pipelines import DiffusersPipeline

    return DiffusersPipeline(thing, name=name, dtype=dtype, **options)


def _is_factory(function: Callable[..., Any]) -> bool:
    """Whether a function makes editors: it takes `name`, and neither of an edit's arguments."""
    parameters = _parameters(function)
    words = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
    return "name" in [p.name for p in parameters] and not {"image", "instruction"} & {*words}


def _taken(factory: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that a factory has a parameter for."""
    parameters = _parameters(factory)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return values
    names = {p.name for p in parameters}
    return {name: value for name, value in values.items() if name in names}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C: nothing is known of it
        return [inspect.Parameter("arguments", inspect.Parameter.VAR_POSITIONAL)]


def _takes_seed(function: Callable[..., Any], name: str) -> bool:
    """Whether it has a parameter `seed`; EditorError where it cannot be called with two arguments."""
    parameters = _parameters(function)
    seeded = any(p.name == "seed" for p in parameters)
    try:
        inspect.Signature(parameters).bind(None, None, **({"seed": 0} if seeded else {}))
    except TypeError:
        shown = inspect.Signature(parameters)
        raise EditorError(
            f"{name}{shown} cannot be called with a picture and an instruction; an editor is a function "
            "edit(image, instruction) -> image, with a further parameter seed if it draws anything"
        ) from None
    return seeded


def source_hash(function: Callable[..., Any]) -> str:
    """SHA-256 of what a function says and of the plain values that it was made with."""
    inner = inspect.unwrap(function)
    try:
        text = inspect.getsource(inner if not callable(getattr(inner, "func", None)) else inner.func)
    except (TypeError, OSError):  # no function of Python, or typed into an interpreter
        code = getattr(inner, "__code__", None)
        text = repr((code.co_code, code.co_names)) if inspect.iscode(code) else type(inner).__qualname__
    values: list[Any] = []
    if inspect.isroutine(inner) or callable(getattr(inner, "func", None)):  # a function, or a partial one
        values += [*(getattr(inner, "__defaults__", None) or ()), *(getattr(inner, "args", None) or ())]
        values += list((getattr(inner, "keywords", None) or {}).items())
        values += [cell.cell_contents for cell in getattr(inner, "__closure__", None) or () if _is_set(cell)]
    shown = [repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__ for value in values]
    return digest({"source": text, "values": shown})


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
