"""The one contract of this package: a batch of edit requests in, one result per request out, in order.

An image is always a NumPy array of shape (H, W, 3), dtype uint8, RGB. Nothing here reads or writes a file.
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

#: A mistake the user can correct (unknown editor, bad checkpoint); the message is one clear sentence.
EditorError = UserError


class Refused(Exception):
    """For functions that edit: the service declines this request, and says why."""


@dataclass(frozen=True)
class EditRequest:
    """One edit to make.

    image        (H, W, 3) uint8 RGB. Never modified.
    instruction  Given to the model verbatim.
    seed         0 <= seed < 2**63; with image, instruction and editor it decides the result, whatever else is
                 in the batch.
    negative_prompt  What the edit is guided away from; with it the instruction may be empty (`editors.can`).
    guided       By what rule attention is guided away from the negative prompt in place of classifier-free
                 guidance: "nag", "vsf", or with a scale "nag:8" (`editors.can`).
    weights      Words of the instruction -> factor of the attention to them, -2 to 2 (Prompt-to-Prompt,
                 arXiv:2208.01626, section 3.2) (`editors.can`).
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
    """What came of one request: `image` (H', W', 3) uint8 RGB, or None and a one-sentence `error`.

    note       What a reader should know although the edit succeeded.
    refused    Whether a service declined the request; `error` has its words.
    transient  Whether the error is about the service or the machine, and another try may succeed.
    cause      What a user's function raised.
    rewritten  The instruction as a rewriter worded it before the model painted; None without a rewriter.
    """

    id: str
    image: np.ndarray | None
    error: str | None = None
    note: str = ""
    refused: bool = False
    transient: bool = False
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    rewritten: str | None = None


#: What `describe` says that decides no result.
_NAMES = ("editor", "checkpoint", "revision", "published", "lora")


class Editor(Protocol):
    """Anything that edits.

    `describe()` is JSON-serialisable and says everything that decides the result. `fingerprint` is a SHA-256
    hex string over the same facts with the content of the weights in place of their name; device and batch
    size are not part of it. `edit()` never raises for a single bad request, whose result carries the error;
    it raises when no request could succeed (device lost, out of memory). A class whose edits cost money has
    an attribute `paid = True`: it is asked sample by sample.
    """

    name: str

    @property
    def fingerprint(self) -> str:
        """Of weights only their hash decides, and no name."""
        facts = {key: value for key, value in self.describe().items() if key not in _NAMES}
        if "weights" in facts:
            facts["weights"] = facts["weights"]["sha256"]
        if "models" in facts:
            facts["models"] = {role: model["sha256"] for role, model in facts["models"].items()}
        return json_digest(facts)

    def describe(self) -> Json: ...

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]: ...


def find_fault(request: EditRequest) -> str | None:
    """One sentence saying why no editor can carry out `request`, or None when it is in order."""
    import numpy as np  # not for a command line, which needs the words of this package alone

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
    """Raises EditorError for a setting that is no whole number, or below the least."""
    if not isinstance(value, numbers.Integral) or value < least:
        raise EditorError(f"{name} is {value!r}; expected a whole number of at least {least}")


Prepared = TypeVar("Prepared")
#: What a bad sample can raise inside a pipeline of diffusers.
SAMPLE_ERRORS = (*MODEL_ERRORS, TypeError)


def edit_in_batches(
    requests: Sequence[EditRequest],
    prepare: Callable[[EditRequest], tuple[Hashable, Prepared] | str],
    edit: Callable[[list[Prepared]], list[EditResult]],
    *,
    batch_size: int,
    device: torch.device,
) -> list[EditResult]:
    """One result per request, in order.

    prepare  The group of a request and what `edit` needs of it, or why it cannot be done, given or raised.
    edit     Results for at most `batch_size` requests of one group. When it fails, they are tried one by one;
             out of memory goes through, since smaller batches would change last bits.
    """
    results: dict[int, EditResult] = {}
    groups: dict[Hashable, list[tuple[int, Prepared]]] = {}
    for index, request in enumerate(requests):
        try:
            ready = find_fault(request) or prepare(request)
        except EditorError as error:
            ready = str(error)
        if isinstance(ready, str):
            results[index] = EditResult(request.id, None, ready)
        else:
            groups.setdefault(ready[0], []).append((index, ready[1]))

    def failed(error: BaseException) -> str:
        if device.type == "cuda":
            # A broken CUDA context fails every later call too: that is the end of the run, not a sample.
            import torch

            torch.cuda.synchronize(device)
        return reason(error)

    for members in groups.values():
        for start in range(0, len(members), batch_size):
            indices, items = zip(*members[start : start + batch_size], strict=True)
            edited = isolate(lambda some: edit(list(some)), items, failed, SAMPLE_ERRORS)
            for index, result in zip(indices, edited, strict=True):
                fault = isinstance(result, str)
                results[index] = EditResult(requests[index].id, None, result) if fault else result
    return [results[index] for index in range(len(requests))]


# --- editors without a model: for trying things out, and what doing nothing earns -----------------------


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
    """Returns one colour at the size of the image.

    color  "#rrggbb"; mid-grey by default.
    """

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
