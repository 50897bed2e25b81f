"""Defines the interface of editors: a batch of edit requests in, one result per request out, in order.

Parts: request, result and `Editor`; checks and batches, which editors share; editors without a model, as
baselines. An image is always a NumPy array (H, W, 3), uint8, RGB. Nothing here reads or writes a file.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from nein.loading.digests import Json, json_digest
from nein.loading.errors import MODEL_ERRORS, UserError, isolate, reason

if TYPE_CHECKING:
    import numpy as np
    import torch

# --- interface ------------------------------------------------------------------------------------------

#: Error the user can correct (unknown editor, bad checkpoint); the message is one sentence.
EditorError = UserError


class Refused(Exception):
    """Raised by a user's function: the service declines this request; the message says why."""


@dataclass(frozen=True)
class EditRequest:
    """One edit to make.

    image        (H, W, 3) uint8 RGB. Never modified.
    instruction  Passed to the model verbatim.
    seed         0 <= seed < 2**63; with image, instruction and editor it decides the result, independent of
                 the batch.

    For editors that support them (`editors.supports`):

    negative_prompt  Text that guidance steers away from; with it the instruction may be empty.
    guided           Rule of attention guidance away from the negative prompt, instead of classifier-free
                     guidance: "nag", "vsf", or with a scale "nag:8".
    weights          Word of the instruction -> factor of its attention, -2 to 2 (Prompt-to-Prompt,
                     arXiv:2208.01626, section 3.2).
    """

    id: str
    image: np.ndarray
    instruction: str
    seed: int
    negative_prompt: str = ""
    guided: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EditResult:
    """Result of one request: `image` (H', W', 3) uint8 RGB, or None and a one-sentence `error`.

    note       Remark on a successful edit.
    refused    A service declined the request; `error` has its words.
    transient  The error is the service's or the machine's, and a retry may succeed.
    cause      Exception of a user's function.
    rewritten  The instruction that a rewriter gave to the model; None without a rewriter.
    """

    id: str
    image: np.ndarray | None
    error: str | None = None
    note: str = ""
    refused: bool = False
    transient: bool = False
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    rewritten: str | None = None


#: Entries of `describe()` that name the editor, and do not decide a result.
_NAMES = ("editor", "checkpoint", "revision", "published", "lora")


class Editor(Protocol):
    """Interface of every editor.

    describe     Everything that decides a result, JSON-serializable.
    fingerprint  SHA-256 over it, with the content of the weights instead of their name, without device and
                 batch size.
    edit         Never raises for one bad request, whose result has the error; raises if no request can
                 succeed (device lost, out of memory).

    An editor whose edits cost money has `paid = True` and gets one request per call.
    """

    name: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hexadecimal; equal weights under different names have the same."""
        facts = {key: value for key, value in self.describe().items() if key not in _NAMES}
        if "weights" in facts:
            facts["weights"] = facts["weights"]["sha256"]
        if "models" in facts:
            facts["models"] = {role: model["sha256"] for role, model in facts["models"].items()}
        return json_digest(facts)

    def describe(self) -> Json: ...

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]: ...


# --- checks and batches ---------------------------------------------------------------------------------


def find_fault(request: EditRequest) -> str | None:
    """Reason why a request is invalid for every editor; None if it is valid."""
    import numpy as np  # slow to import, and not needed to parse a command line

    image = request.image
    if not isinstance(image, np.ndarray):
        return f"the image is a {type(image).__name__}, not a NumPy array of shape (H, W, 3) and dtype uint8"
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        return f"the image has shape {image.shape} and dtype {image.dtype}; expected (H, W, 3) and uint8, RGB"
    instruction = request.instruction
    if not isinstance(instruction, str) or not (instruction.strip() or request.negative_prompt.strip()):
        return f"the instruction is {request.instruction!r}; expected a sentence"
    if not isinstance(request.seed, int | np.integer) or not 0 <= request.seed < 2**63:
        return f"the seed is {request.seed!r}; expected an integer from 0 to 2**63 - 1"
    return None


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises EditorError unless a setting is a whole number of at least `least`."""
    if not isinstance(value, numbers.Integral) or value < least:
        raise EditorError(f"{name} is {value!r}; expected a whole number of at least {least}")


Prepared = TypeVar("Prepared")
#: Exceptions of a diffusers pipeline for a bad sample.
SAMPLE_ERRORS = (*MODEL_ERRORS, TypeError)


def edit_in_batches(
    requests: Sequence[EditRequest],
    prepare: Callable[[EditRequest], tuple[Hashable, Prepared] | str],
    edit: Callable[[list[Prepared]], list[EditResult]],
    *,
    batch_size: int,
    device: torch.device,
) -> list[EditResult]:
    """Edit requests in batches of equal group. One result per request, in order.

    prepare  Request -> (group, input of `edit`), or the reason why it is invalid, returned or raised.
    edit     At most `batch_size` inputs of one group -> results. If it fails, they are tried one by one; out
             of memory is raised, since smaller batches would change last bits.
    """
    results: dict[int, EditResult] = {}  # by index of the request
    groups: dict[Hashable, list[tuple[int, Prepared]]] = {}
    for index, request in enumerate(requests):
        try:
            prepared = find_fault(request) or prepare(request)
        except EditorError as error:
            prepared = str(error)
        if isinstance(prepared, str):
            results[index] = EditResult(request.id, None, prepared)
        else:
            group, item = prepared
            groups.setdefault(group, []).append((index, item))

    def explain(error: BaseException) -> str:
        if device.type == "cuda":
            # Raises for a broken CUDA context, which would fail every later call: the run ends.
            import torch

            torch.cuda.synchronize(device)
        return reason(error)

    for members in groups.values():
        for start in range(0, len(members), batch_size):
            batch = members[start : start + batch_size]
            items = [item for _, item in batch]
            edited = isolate(lambda some: edit(list(some)), items, explain, SAMPLE_ERRORS)
            for (index, _), result in zip(batch, edited, strict=True):
                if isinstance(result, str):  # an error
                    result = EditResult(requests[index].id, None, result)
                results[index] = result
    return [results[index] for index in range(len(requests))]


# --- baseline editors without a model -------------------------------------------------------------------


class Identity(Editor):
    """Returns a copy of each image."""

    def __init__(self, *, name: str = "identity") -> None:
        self.name = name

    def describe(self) -> Json:
        return {"editor": self.name, "class": type(self).__name__}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        results = []
        for request in requests:
            fault = find_fault(request)
            results.append(EditResult(request.id, None if fault else self._paint(request), fault))
        return results

    def _paint(self, request: EditRequest) -> np.ndarray:
        return request.image.copy()


class Solid(Identity):
    """Returns an image of one color. color: "#rrggbb"; mid-gray by default."""

    def __init__(self, *, name: str = "solid", color: str = "#808080") -> None:
        super().__init__(name=name)
        if not re.fullmatch("#[0-9a-fA-F]{6}", str(color)):
            raise EditorError(f"color is {color!r}; expected '#rrggbb'")
        self.color = [*bytes.fromhex(color[1:])]

    def describe(self) -> Json:
        return {**super().describe(), "color": self.color}

    def _paint(self, request: EditRequest) -> np.ndarray:
        image = request.image.copy()
        image[:] = self.color
        return image
