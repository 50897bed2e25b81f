"""Editors from user code: a function `edit(image, instruction) -> image`, a class, or a diffusers pipeline in
memory; and the base class of editors that send requests."""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nein.editors.base import Editor, EditorError, EditRequest, EditResult, Refused, check_count, find_fault
from nein.editors.presets import row_of_class
from nein.loading.digests import Json, source_digest
from nein.loading.errors import UnavailableError, out_of_memory, reason
from nein.loading.service import RETRIED, Pace

if TYPE_CHECKING:
    import numpy as np

PATIENCE = 8  # failed requests in a row before any success, after which no more are sent
#: Attributes of an editor.
_PARTS = ("name", "fingerprint", "describe", "edit")
#: Options of a function; they change no image.
FUNCTION_OPTIONS = ("concurrency", "retries")


class RemoteEditor(Editor):
    """Editor that sends `concurrency` requests at a time, rate-limited by a shared `pace`; subclasses edit
    one.

    paid    Every image costs money: one request per call.
    seeded  The sample's seed decides the image.
    """

    paid = True
    seeded = True

    def __init__(self, name: str, concurrency: int, pace: Pace | None = None) -> None:
        check_count("concurrency", concurrency)
        self.name, self.concurrency = name, concurrency
        self.pace = pace or Pace(concurrency)
        self._failed, self._answered = 0, False  # failures so far, any success so far

    def edit_one(self, request: EditRequest) -> EditResult:
        raise NotImplementedError

    def hopeless(self, result: EditResult) -> bool:
        """Whether other requests will probably fail too."""
        return result.transient

    def stop(self) -> None:
        self.pace.stop()

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """Raises UnavailableError if nothing can be sent, or if none of several requests, or of `PATIENCE`,
        has succeeded; CancelledError after `stop`."""
        numbers = range(len(requests))
        by_number = self.pace.map(lambda number: self.edit_one(requests[number]), numbers)
        results = [result for _, result in sorted(by_number, key=lambda pair: pair[0])]
        failed = [result for result in results if self.hopeless(result)]
        self._answered = self._answered or len(failed) < len(results)
        self._failed += len(failed)
        if failed and not self._answered and (len(requests) > 1 or self._failed >= PATIENCE):
            why = f"Editor '{self.name}' has made no image so far: {failed[-1].error}."
            raise UnavailableError(why) from failed[-1].cause
        return results


class FunctionEditor(RemoteEditor):
    """Editor from a user's function.

    function  Called with a `PIL.Image.Image` (RGB), the instruction and, if it has a parameter `seed`, the
              sample's seed; returns an RGB image or an array (H, W, 3) uint8. May be async.
    concurrency  Calls at a time, in threads or in one event loop.
    retries      Retries of a call after a transient error (`is_transient`), after 0.5, 1, 2, ... 8 seconds.

    draws        It makes the image from the text alone and is not given one.

    An exception, or a result that is no image, is the error of that sample; `Refused` is a refusal.
    """

    draws = False

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, concurrency: int = 1, retries: int = 5
    ) -> None:
        super().__init__(name or name_of(function), concurrency)
        check_count("retries", retries, least=0)
        self.function, self._retries, self._short = function, retries, self.name.rpartition("/")[2]
        try:
            self.seeded = "seed" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # a function in C has no signature
            self.seeded = False
        self._source = source_digest(function)
        self._first = threading.Lock()
        self._loop: Any = None  # asyncio's, once a call has returned an awaitable

    def describe(self) -> Json:
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "function": f"{getattr(self.function, '__module__', '')}.{name_of(self.function)}",
            "source_sha256": self._source,
            "seeded": self.seeded,
        }

    def hopeless(self, result: EditResult) -> bool:
        return str(result.error).startswith((f"{self._short} raised ", f"{self._short} returned "))

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
                again, message = is_transient(error), f"{self._short} raised {reason(error)}"
                if not again or attempt == self._retries:
                    return EditResult(request.id, None, message, transient=again, cause=error)
                self.pace.wait(min(8.0, 0.5 * 2**attempt))
        if isinstance(image, str):
            return EditResult(request.id, None, f"{self._short} {image}")
        return EditResult(request.id, image)

    def _call(self, request: EditRequest) -> Any:
        from PIL import Image

        seed = {"seed": request.seed} if self.seeded else {}
        images = [] if self.draws else [Image.fromarray(request.image.copy())]
        result = self.function(*images, request.instruction, **seed)
        if inspect.isawaitable(result):
            import asyncio

            with self._first:
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                    threading.Thread(target=self._loop.run_forever, daemon=True, name="event loop").start()
            result = asyncio.run_coroutine_threadsafe(_wait_for(result), self._loop).result()
        return result


async def _wait_for(awaitable: Any) -> Any:
    return await awaitable


#: Names of exceptions in several packages: the service did not answer in time, or not at all.
_TRANSIENT = frozenset(
    "TimeoutError ConnectionError TimeoutException TransportError APIConnectionError Timeout".split()
)


def is_transient(error: BaseException) -> bool:
    """Whether a retry may succeed: a timeout, a broken connection, or a retryable HTTP status in an error of
    openai, httpx, requests or google-genai."""
    response = getattr(error, "response", None)
    codes = (getattr(error, "status_code", None), getattr(response, "status_code", None))
    status = next(filter(None, codes), None) or getattr(error, "code", None)
    if isinstance(status, int):
        return status in RETRIED or 500 <= status < 600
    return any(kind.__name__ in _TRANSIENT for kind in type(error).__mro__)


def read_output(output: Any) -> np.ndarray | str:
    """Image (H, W, 3) uint8 of a function's output, or the reason why it is none."""
    import numpy as np
    from PIL import Image

    if isinstance(output, Image.Image) and output.mode == "RGB" and all(output.size):
        return np.array(output)
    if (
        isinstance(output, np.ndarray)
        and output.dtype == np.uint8
        and output.shape[2:] == (3,)
        and output.size
    ):
        return output.copy()
    actual = (
        f"an image in mode {output.mode}" if isinstance(output, Image.Image) else f"a {type(output).__name__}"
    )
    if isinstance(output, np.ndarray):
        actual = f"an array of shape {output.shape} and dtype {output.dtype}"
    return f"returned {actual}; expected a PIL image in mode RGB, or an array (H, W, 3) of uint8"


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

    thing    An editor, which is returned; a class of editors, called with those of `name`, `device`, `dtype`
             and `batch_size` that it takes, and `options`; a function `edit(image, instruction[, seed]) ->
             image`; or a diffusers pipeline, which keeps its dtype.
    preset   "paper" or "nano": default options of a pipeline, by its class.
    """
    if is_editor(thing):
        return thing
    label = name or name_of(thing)
    arguments: dict[str, Any] = {"name": label, "device": device, "dtype": dtype, "batch_size": batch_size}
    if _is_pipeline(thing):
        kind = type(thing).__name__
        row = row_of_class({**thing.config, "_class_name": kind}, preset)
        arguments |= {**row.options(), **options, "dtype": str(thing.dtype).removeprefix("torch.")}
        if kind == "StableDiffusionInstructPix2PixPipeline":
            from nein.editors.checkpoint import wrap_pipeline
            from nein.editors.instruct_pix2pix import InstructPix2Pix

            return InstructPix2Pix(wrap_pipeline(thing), **arguments)
        from nein.editors.pipelines import DiffusersPipeline

        return DiffusersPipeline(thing, **arguments)
    if not callable(thing):
        raise EditorError(
            f"{label!r} is of type {type(thing).__name__}, not an editor; expected a function "
            f"(image, instruction) -> image, a diffusers pipeline, or an object with {', '.join(_PARTS)}"
        )
    if not isinstance(thing, type):
        if further := sorted(options.keys() - {*FUNCTION_OPTIONS}):
            raise EditorError(
                f"{label!r} is a function; its options are {' and '.join(FUNCTION_OPTIONS)}; omit "
                f"{', '.join(further)}"
            )
        return FunctionEditor(thing, name=label, **options)
    parameters = inspect.signature(thing).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        arguments = {name: arguments[name] for name in parameters if name in arguments}
    try:
        editor = thing(**arguments, **options)
    except TypeError as error:
        raise EditorError(f"{label!r} cannot be made: {error}") from None
    if not is_editor(editor):
        missing = [part for part in _PARTS if not hasattr(editor, part)]
        raise EditorError(f"{label!r} does not make an editor: it has no {', '.join(missing)}")
    return editor


def is_editor(thing: Any) -> bool:
    return not isinstance(thing, type) and all(hasattr(thing, part) for part in _PARTS)


def takes_options(thing: Any) -> bool:
    """Whether `make_editor` uses options for it."""
    return not is_editor(thing) and (isinstance(thing, type) or _is_pipeline(thing))


def name_of(thing: Any) -> str:
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None) or type(thing).__name__
    return str(name).strip("<>")


def _is_pipeline(thing: Any) -> bool:
    return any(base.__module__.startswith("diffusers.") for base in type(thing).__mro__)
