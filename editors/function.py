"""Makes editors from user code: a function (image, instruction) -> image, a class, or a pipeline in memory.
Parts: base class of editors that send requests (also of `editors.served`); editor that calls a function;
`make_editor`."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nein.editors.base import Editor, EditorError, EditRequest, EditResult, Refused, check_count, find_fault
from nein.editors.presets import find_row_of_class
from nein.loading.digests import Json, source_digest
from nein.loading.errors import UnavailableError, out_of_memory, reason
from nein.loading.service import RETRIED, Pace

if TYPE_CHECKING:
    import numpy as np

# --- editors that send requests --------------------------------------------------------------------------

PATIENCE = 8  # failed requests, without any success, after which the editor gives up


class RemoteEditor(Editor):
    """Editor that sends `concurrency` requests at a time, paced by `pace`; subclasses define `edit_one`."""

    paid = True  # whether every image costs money: one request per call
    seeded = True  # whether the sample's seed decides the image

    def __init__(self, name: str, concurrency: int, pace: Pace | None = None) -> None:
        check_count("concurrency", concurrency)
        self.name, self.concurrency = name, concurrency
        self.pace = pace or Pace(concurrency)
        self._failures = 0  # of all calls so far
        self._has_succeeded = False  # whether any request did so far

    def edit_one(self, request: EditRequest) -> EditResult:
        raise NotImplementedError

    def will_recur(self, result: EditResult) -> bool:
        """Whether other requests will probably fail like this one."""
        return result.transient

    def stop(self) -> None:
        self.pace.stop()

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """Raises UnavailableError if nothing can be sent, or if no request has succeeded so far, of several
        in this call or after `PATIENCE` failures. Raises CancelledError after `stop`."""
        by_index = dict(self.pace.map(lambda index: self.edit_one(requests[index]), range(len(requests))))
        results = [by_index[index] for index in range(len(requests))]
        failed = [result for result in results if self.will_recur(result)]
        self._failures += len(failed)
        self._has_succeeded = self._has_succeeded or len(failed) < len(results)
        if failed and not self._has_succeeded and (len(requests) > 1 or self._failures >= PATIENCE):
            why = f"Editor '{self.name}' has made no image so far: {failed[-1].error}."
            raise UnavailableError(why) from failed[-1].cause
        return results


# --- the editor that calls a function --------------------------------------------------------------------

#: Options of a function; they change no image.
FUNCTION_OPTIONS = ("concurrency", "retries")


class FunctionEditor(RemoteEditor):
    """Editor that calls a user's function. An exception, or a result that is no image, is the error of that
    sample; `Refused` is a refusal.

    function     Called with a `PIL.Image.Image` (RGB), the instruction and, if it has a parameter `seed`, the
                 sample's seed; returns an RGB image or an array (H, W, 3) uint8. May be async.
    concurrency  Calls at a time, in threads or in one event loop.
    retries      Retries of a call after a transient error (`is_transient`), after 0.5, 1, 2, ... 8 seconds.
    """

    text_only = False  # whether the function gets no image: (instruction[, seed])

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, concurrency: int = 1, retries: int = 5
    ) -> None:
        super().__init__(name or name_of(function), concurrency)
        check_count("retries", retries, least=0)
        self.function, self._retries = function, retries
        self._short_name = self.name.rpartition("/")[2]  # for messages
        try:
            self.seeded = "seed" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # a function in C has no signature
            self.seeded = False
        self._source_sha256 = source_digest(function)
        self._loop: Any = None  # asyncio's event loop, once a call has returned an awaitable
        self._loop_lock = threading.Lock()

    def describe(self) -> Json:
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "function": f"{getattr(self.function, '__module__', '')}.{name_of(self.function)}",
            "source_sha256": self._source_sha256,
            "seeded": self.seeded,
        }

    def will_recur(self, result: EditResult) -> bool:
        # Errors of the function, as `edit_one` writes them; not those of the request, and no refusals
        return str(result.error).startswith((f"{self._short_name} raised ", f"{self._short_name} returned "))

    def edit_one(self, request: EditRequest) -> EditResult:
        if fault := find_fault(request):
            return EditResult(request.id, None, fault)
        for attempt in itertools.count():
            try:
                with self.pace.seat():
                    image = read_output(self._call(request))
                break
            except Refused as error:
                return EditResult(request.id, None, str(error) or "no reason given", refused=True)
            except Exception as error:
                if out_of_memory(error):
                    raise  # the machine's fault, not the sample's
                transient = is_transient(error)
                if not transient or attempt == self._retries:
                    message = f"{self._short_name} raised {reason(error)}"
                    return EditResult(request.id, None, message, transient=transient, cause=error)
                self.pace.wait(min(8.0, 0.5 * 2**attempt))
        if isinstance(image, str):  # a fault instead
            return EditResult(request.id, None, f"{self._short_name} {image}")
        return EditResult(request.id, image)

    def _call(self, request: EditRequest) -> Any:
        from PIL import Image

        seed = {"seed": request.seed} if self.seeded else {}
        images = [] if self.text_only else [Image.fromarray(request.image.copy())]
        result = self.function(*images, request.instruction, **seed)
        if inspect.isawaitable(result):
            import asyncio

            with self._loop_lock:
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                    threading.Thread(target=self._loop.run_forever, daemon=True, name="event loop").start()
            result = asyncio.run_coroutine_threadsafe(_wait_for(result), self._loop).result()
        return result


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable  # asyncio runs coroutines only; the function may return any awaitable


#: Names of exceptions, in any package: the service did not answer in time, or not at all.
_TIMEOUTS = ("Timeout", "TimeoutError", "TimeoutException")
_TRANSIENT = (*_TIMEOUTS, "ConnectionError", "TransportError", "APIConnectionError")


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: a timeout, a broken connection, or a retryable HTTP status in an error of
    openai, httpx, requests or google-genai."""
    response = getattr(error, "response", None)
    status = (
        getattr(error, "status_code", None)
        or getattr(response, "status_code", None)
        or getattr(error, "code", None)
    )
    if isinstance(status, int):
        return status in RETRIED or 500 <= status < 600
    return any(kind.__name__ in _TRANSIENT for kind in type(error).__mro__)


def read_output(output: Any) -> np.ndarray | str:
    """Image (H, W, 3) uint8 of a function's output, or a text: why the output is none."""
    import numpy as np
    from PIL import Image

    if isinstance(output, Image.Image):
        if output.mode == "RGB" and all(output.size):
            return np.array(output)
        actual = f"an image in mode {output.mode}"
    elif isinstance(output, np.ndarray):
        if output.dtype == np.uint8 and output.shape[2:] == (3,) and output.size:
            return output.copy()
        actual = f"an array of shape {output.shape} and dtype {output.dtype}"
    else:
        actual = f"a {type(output).__name__}"
    return f"returned {actual}; expected a PIL image in mode RGB, or an array (H, W, 3) of uint8"


# --- any user code -> editor -----------------------------------------------------------------------------

#: Attributes that every editor has.
_ATTRIBUTES = ("name", "fingerprint", "describe", "edit")


def make_editor(
    thing: Any,
    *,
    name: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int = 8,
    preset: str = "paper",
    **options: Any,
) -> Editor:
    """Make an editor. Raises EditorError.

    thing    An editor, which is returned; a class of editors, called with `options` and with those of `name`,
             `device`, `dtype` and `batch_size` that it takes; a function `edit(image, instruction[, seed])
             -> image`; or a diffusers pipeline, which keeps its dtype.
    preset   "paper" or "nano": default options of a pipeline, by its class.
    """
    if is_editor(thing):
        return thing
    label = name or name_of(thing)
    arguments: dict[str, Any] = {"name": label, "device": device, "dtype": dtype, "batch_size": batch_size}

    # A pipeline
    if _is_pipeline(thing):
        class_name = type(thing).__name__
        row = find_row_of_class({**thing.config, "_class_name": class_name}, preset)
        arguments |= {**row.options(), **options, "dtype": str(thing.dtype).removeprefix("torch.")}
        if class_name == "StableDiffusionInstructPix2PixPipeline":
            from nein.editors.checkpoint import wrap_pipeline
            from nein.editors.instruct_pix2pix import InstructPix2Pix

            return InstructPix2Pix(wrap_pipeline(thing), **arguments)
        from nein.editors.pipelines import DiffusersPipeline

        return DiffusersPipeline(thing, **arguments)

    # A function
    if not callable(thing):
        raise EditorError(
            f"{label!r} is of type {type(thing).__name__}, not an editor; expected a function "
            f"(image, instruction) -> image, a diffusers pipeline, or an object with {', '.join(_ATTRIBUTES)}"
        )
    if not isinstance(thing, type):
        if unknown := ", ".join(sorted(options.keys() - {*FUNCTION_OPTIONS})):
            allowed = " and ".join(FUNCTION_OPTIONS)
            raise EditorError(f"{label!r} is a function; its options are {allowed}; omit {unknown}")
        return FunctionEditor(thing, name=label, **options)

    # A class, called with those arguments that it takes
    parameters = inspect.signature(thing).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {key: arguments[key] for key in parameters if key in arguments}
    try:
        editor = thing(**arguments, **options)
    except TypeError as error:
        raise EditorError(f"{label!r} cannot be made: {error}") from None
    if not is_editor(editor):
        missing = [attribute for attribute in _ATTRIBUTES if not hasattr(editor, attribute)]
        raise EditorError(f"{label!r} does not make an editor: it has no {', '.join(missing)}")
    return editor


def is_editor(thing: Any) -> bool:
    return not isinstance(thing, type) and all(hasattr(thing, attribute) for attribute in _ATTRIBUTES)


def takes_options(thing: Any) -> bool:
    """Whether `make_editor` uses options for it."""
    return not is_editor(thing) and (isinstance(thing, type) or _is_pipeline(thing))


def name_of(thing: Any) -> str:
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None) or type(thing).__name__
    return str(name).strip("<>")  # "<lambda>"


def _is_pipeline(thing: Any) -> bool:
    return any(base.__module__.startswith("diffusers.") for base in type(thing).__mro__)
