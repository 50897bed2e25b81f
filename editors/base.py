"""Defines the interface of editors: a batch of edit requests in, one result per request out, in order.

Parts: interface (request, result, `Editor`); checks and batches, for all editors; baseline editors without a
model. An image is always a NumPy array (H, W, 3), uint8, RGB. Nothing here reads or writes a file.
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

#: Error that the user can correct (unknown editor, bad checkpoint); its message is one sentence.
EditorError = UserError


class Refused(Exception):
    """Raised by a user's function: the service declines this request; the message says why."""


@dataclass(frozen=True)
class EditRequest:
    """One edit to make. With the editor, its fields decide the result, independent of the batch."""

    id: str
    image: np.ndarray  # (H, W, 3) uint8 RGB, never modified
    instruction: str  # passed to the model verbatim
    seed: int  # 0 <= seed < 2**63

    # For editors that support them (`editors.supports`):
    negative_prompt: str = ""  # text that guidance steers away from; with it the instruction may be empty
    #: Rule of attention guidance away from the negative prompt, instead of classifier-free guidance: "nag",
    #: "vsf", or with a scale "nag:8"; "" for none.
    guided: str = ""
    #: Word of the instruction -> factor of its attention, -2 to 2 (Prompt-to-Prompt, arXiv:2208.01626, 3.2).
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EditResult:
    """Result of one request: an image, or None and an error."""

    id: str
    image: np.ndarray | None  # (H', W', 3) uint8 RGB
    error: str | None = None  # one sentence
    note: str = ""  # remark on a successful edit
    refused: bool = False  # whether a service declined the request; `error` has its words
    transient: bool = False  # whether the error is the service's or the machine's: a retry may succeed
    cause: BaseException | None = field(default=None, compare=False, repr=False)  # of a user's function
    rewritten: str | None = None  # instruction that a rewriter gave to the model; None without a rewriter


#: Entries of `describe()` that name the editor, and do not decide a result.
_NAMES = ("editor", "checkpoint", "revision", "published", "lora")


class Editor(Protocol):
    """Interface of every editor. If edits cost money, it has `paid = True` and gets one request per call."""

    name: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 over `describe` in hexadecimal; equal weights under different names have the same."""
        facts = {key: value for key, value in self.describe().items() if key not in _NAMES}
        if "weights" in facts:
            facts["weights"] = facts["weights"]["sha256"]
        if "models" in facts:
            facts["models"] = {role: model["sha256"] for role, model in facts["models"].items()}
        return json_digest(facts)

    def describe(self) -> Json:
        """Everything that decides a result, except device and batch size; JSON-serializable."""

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        """One result per request, in order. A bad request gets an error as its result; raises only if no
        request can succeed (device lost, out of memory)."""


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
            prepared = find_fault(request) or prepare(request)  # a text if the request is invalid
        except EditorError as error:
            prepared = str(error)
        if isinstance(prepared, str):
            results[index] = EditResult(request.id, None, prepared)
        else:
            group, item = prepared
            groups.setdefault(group, []).append((index, item))

    def explain(error: BaseException) -> str:
        if device.type == "cuda":
            import torch

            # Raises for a broken CUDA context, which would fail every later call: the run ends.
            torch.cuda.synchronize(device)
        return reason(error)

    for members in groups.values():
        for start in range(0, len(members), batch_size):
            batch = members[start : start + batch_size]
            items = [item for _, item in batch]
            edited = isolate(lambda part: edit(list(part)), items, explain, SAMPLE_ERRORS)
            for (index, _), result in zip(batch, edited, strict=True):
                failed = isinstance(result, str)  # the error
                results[index] = EditResult(requests[index].id, None, result) if failed else result
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
        self.color = list(bytes.fromhex(color[1:]))  # [red, green, blue], 0 to 255

    def describe(self) -> Json:
        return {**super().describe(), "color": self.color}

    def _paint(self, request: EditRequest) -> np.ndarray:
        image = request.image.copy()
        image[:] = self.color
        return image
