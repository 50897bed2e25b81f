"""Editors that work elsewhere: a function of yours, `edit(image, instruction) -> image`; and what makes an
editor of it, or of a pipeline of diffusers in memory."""

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

PATIENCE = 8  # requests that fail, one after the other, until nothing more is sent
#: What an editor is known by.
_PARTS = ("name", "fingerprint", "describe", "edit")
#: Options of any function; they decide no image.
FUNCTION_OPTIONS = ("concurrency", "retries")


class RemoteEditor(Editor):
    """Sends `concurrency` requests at a time; a subclass edits one, at the `pace` that all threads share.

    paid    Every image costs something: it is asked sample by sample.
    seeded  Whether the sample's seed decides the image.
    """

    paid = True
    seeded = True

    def __init__(self, name: str, concurrency: int, pace: Pace | None = None) -> None:
        check_count("concurrency", concurrency)
        self.name, self.concurrency = name, concurrency
        self.pace = pace or Pace(concurrency)
        self._failed, self._answered = 0, False  # since the start

    def edit_one(self, request: EditRequest) -> EditResult:
        raise NotImplementedError

    def hopeless(self, result: EditResult) -> bool:
        """Whether other requests can be expected to fare alike."""
        return result.transient

    def stop(self) -> None:
        self.pace.stop()

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """Raises UnavailableError where no more can be sent, or where of several requests, or of `PATIENCE`,
        none has succeeded; CancelledError after `stop`."""
        numbers = range(len(requests))
        by_number = self.pace.map(lambda number: self.edit_one(requests[number]), numbers)
        results = [result for _, result in sorted(by_number, key=lambda pair: pair[0])]
        failed = [result for result in results if self.hopeless(result)]
        self._answered = self._answered or len(failed) < len(results)
        self._failed += len(failed)
        if failed and not self._answered and (len(requests) > 1 or self._failed >= PATIENCE):
            why = f"Editor '{self.name}' has made no picture so far: {failed[-1].error}."
            raise UnavailableError(why) from failed[-1].cause
        return results


class FunctionEditor(RemoteEditor):
    """Edits by a function of yours.

    function  Called with a `PIL.Image.Image` in mode RGB, the instruction, and the sample's seed where it has
              a parameter `seed`; gives a picture in mode RGB, or (H, W, 3) uint8. May be async.
    concurrency  Calls at a time, in threads, or in one event loop.
    retries      How often a call is made again that fails for a reason of a service (`is_transient`): after
                 0.5, 1, 2, ... 8 seconds.

    What it raises, and a result that is no image, is the error of that sample; `Refused` is a refusal.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, concurrency: int = 1, retries: int = 5
    ) -> None:
        super().__init__(name or name_of(function), concurrency)
        check_count("retries", retries, least=0)
        self.function, self._retries, self._short = function, retries, self.name.rpartition("/")[2]
        try:
            self.seeded = "seed" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # written in C: nothing is known of it
            self.seeded = False
        self._source = source_digest(function)
        self._first = threading.Lock()
        self._loop: Any = None  # of asyncio, once a call has returned something to await

    def describe(self) -> Json:
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "function": f"{getattr(self.function, '__module__', '')}.{name_of(self.function)}",
            "source_sha256": self._source,
            "seeded": self.seeded,
        }

    def hopeless(self, result: EditResult) -> bool:
        return str(result.error).startswith((f"{self._short} raised ", f"{self._short} gave "))

    def edit_one(self, request: EditRequest) -> EditResult:
        if fault := find_fault(request):
            return EditResult(request.id, None, fault)
        for attempt in itertools.count():
            try:
                with self.pace.seat():
                    image = as_image(self._called(request))
                break
            except Refused as error:
                return EditResult(request.id, None, str(error) or "no reason given", refused=True)
            except Exception as error:
                if out_of_memory(error):
                    raise  # is about the machine, not about the sample
                again, message = is_transient(error), f"{self._short} raised {reason(error)}"
                if not again or attempt == self._retries:
                    return EditResult(request.id, None, message, transient=again, cause=error)
                self.pace.wait(min(8.0, 0.5 * 2**attempt))
        if isinstance(image, str):
            return EditResult(request.id, None, f"{self._short} {image}")
        return EditResult(request.id, image)

    def _called(self, request: EditRequest) -> Any:
        from PIL import Image

        further = {"seed": request.seed} if self.seeded else {}
        result = self.function(Image.fromarray(request.image.copy()), request.instruction, **further)
        if inspect.isawaitable(result):
            import asyncio

            with self._first:
                if self._loop is None:
                    self._loop = asyncio.new_event_loop()
                    threading.Thread(target=self._loop.run_forever, daemon=True, name="event loop").start()
            result = asyncio.run_coroutine_threadsafe(_awaited(result), self._loop).result()
        return result


async def _awaited(made: Any) -> Any:
    return await made


#: Names of errors, in several packages, by which a service did not answer in time or at all.
_TRANSIENT = frozenset(
    "TimeoutError ConnectionError TimeoutException TransportError APIConnectionError Timeout".split()
)


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed another time: a timeout, a broken connection, or a status of HTTP
    that says so, as in the errors of openai, httpx, requests and google-genai."""
    response = getattr(error, "response", None)
    found = (getattr(error, "status_code", None), getattr(response, "status_code", None))
    status = next(filter(None, found), None) or getattr(error, "code", None)
    if isinstance(status, int):
        return status in RETRIED or 500 <= status < 600
    return any(kind.__name__ in _TRANSIENT for kind in type(error).__mro__)


def as_image(made: Any) -> np.ndarray | str:
    """(H, W, 3) uint8; else a sentence: what was given and is expected."""
    import numpy as np
    from PIL import Image

    if isinstance(made, Image.Image) and made.mode == "RGB" and all(made.size):
        return np.array(made)
    if isinstance(made, np.ndarray) and made.dtype == np.uint8 and made.shape[2:] == (3,) and made.size:
        return made.copy()
    given = f"a picture in mode {made.mode}" if isinstance(made, Image.Image) else f"a {type(made).__name__}"
    if isinstance(made, np.ndarray):
        given = f"an array of shape {made.shape} and dtype {made.dtype}"
    return f"gave {given}; expected a PIL image in mode RGB, or an array (H, W, 3) of uint8"


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
    """An editor from an editor; a class of editors, called with those of `name`, `device`, `dtype` and
    `batch_size` that it takes, and the options; a function `edit(image, instruction[, seed]) ->
    image`; or a pipeline of diffusers, which keeps its dtype. Raises EditorError.

    preset   "paper" or "nano": whose values a pipeline gets, by its class, where `options` say nothing.
    """
    if is_editor(thing):
        return thing
    label = name or name_of(thing)
    given: dict[str, Any] = {"name": label, "device": device, "dtype": dtype, "batch_size": batch_size}
    if _is_pipeline(thing):
        kind = type(thing).__name__
        row = row_of_class({**thing.config, "_class_name": kind}, preset)
        given |= {**row.options(), **options, "dtype": str(thing.dtype).removeprefix("torch.")}
        if kind == "StableDiffusionInstructPix2PixPipeline":
            from nein.editors.checkpoint import in_memory
            from nein.editors.instruct_pix2pix import InstructPix2Pix

            return InstructPix2Pix(in_memory(thing), **given)
        from nein.editors.pipelines import DiffusersPipeline

        return DiffusersPipeline(thing, **given)
    if not callable(thing):
        raise EditorError(
            f"{label!r} is of type {type(thing).__name__}, which is not an editor; expected a function "
            f"(image, instruction) -> image, a pipeline of diffusers, or an object with {', '.join(_PARTS)}"
        )
    if not isinstance(thing, type):
        if further := sorted(options.keys() - {*FUNCTION_OPTIONS}):
            raise EditorError(
                f"{label!r} is a function and has no options but {' and '.join(FUNCTION_OPTIONS)}; leave out "
                f"{', '.join(further)}"
            )
        return FunctionEditor(thing, name=label, **options)
    parameters = inspect.signature(thing).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        given = {name: given[name] for name in parameters if name in given}
    try:
        editor = thing(**given, **options)
    except TypeError as error:
        raise EditorError(f"{label!r} cannot be made: {error}") from None
    if not is_editor(editor):
        lacking = [part for part in _PARTS if not hasattr(editor, part)]
        raise EditorError(f"what {label!r} makes is no editor: it has no {', '.join(lacking)}")
    return editor


def is_editor(thing: Any) -> bool:
    return not isinstance(thing, type) and all(hasattr(thing, part) for part in _PARTS)


def takes_options(thing: Any) -> bool:
    """Whether `as_editor` has a use for options."""
    return not is_editor(thing) and (isinstance(thing, type) or _is_pipeline(thing))


def name_of(thing: Any) -> str:
    name = getattr(thing, "__name__", None) or getattr(thing, "name", None) or type(thing).__name__
    return str(name).strip("<>")


def _is_pipeline(thing: Any) -> bool:
    return any(base.__module__.startswith("diffusers.") for base in type(thing).__mro__)
