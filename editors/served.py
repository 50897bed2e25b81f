"""Editors behind an address: `images.edit` of OpenAI, as Azure, vLLM-Omni, SGLang and LiteLLM serve it, too.

`openai:URL#MODEL` names one; `openai:MODEL` is at OPENAI_BASE_URL, by default OpenAI's own.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nein.editors.base import EditorError, EditRequest, EditResult, find_fault
from nein.editors.presets import split_address
from nein.editors.remote import RemoteEditor
from nein.loading.service import AT_ONCE, WITHHELD, NoAnswer, Service, png

#: Fields of a request that are no user's: what is edited, and how the reply comes.
OURS = ("image", "prompt", "model", "n", "mask", "markup", "stream", "partial_images")
MOST_PIXELS = 64_000_000
#: The sizes of GPT image models before gpt-image-2. Source: openai-python, types/image_edit_params.py.
THREE_SIZES = ((1024, 1024), (1536, 1024), (1024, 1536))

Size = tuple[int, int]


def nearest_of_three(size: Size) -> Size:
    """The one of `THREE_SIZES` with the nearest aspect ratio; sizes are (width, height)."""
    return min(THREE_SIZES, key=lambda shape: abs(math.log(shape[0] / shape[1] * size[1] / size[0])))


def megapixel(size: Size) -> Size:
    """The aspect ratio, between 1:3 and 3:1, with about 1024 x 1024 pixels, in multiples of 16."""
    ratio = min(3.0, max(1 / 3, size[0] / size[1]))
    return _in_sixteens(1024 * math.sqrt(ratio), 1024 / math.sqrt(ratio))


def own(size: Size) -> Size:
    """The picture's own size, in multiples of 16."""
    return _in_sixteens(*size)


def _in_sixteens(width: float, height: float) -> Size:
    """Sides in multiples of 16, within a tenth of these if there are any; the nearest aspect ratio."""
    around = range(math.ceil(0.9 * width / 16), math.floor(1.1 * width / 16) + 1) or [
        max(1, round(width / 16))
    ]
    pairs = [(16 * n, 16 * max(1, round(n * height / width))) for n in around]

    def apart(one: Size) -> tuple[float, float]:
        return round(abs(math.log(one[0] / one[1] * height / width)), 4), abs(one[0] - width)

    return min(pairs, key=apart)


#: Rules of the size that is asked for, which keep the aspect ratio as far as the model can.
SIZES = {"nearest of three": nearest_of_three, "about a megapixel": megapixel, "the picture's": own}


class ServedEditor(RemoteEditor):
    """Edits by a model behind an address.

    size     WIDTHxHEIGHT, "auto", or a rule of `SIZES`; None: the rule of the model.
    seed     A number, "sample" (modulo 2**31) or "none"; None: "none" for hosted services, which have none.
    concurrency, timeout, retries, spending   Of `nein.loading.service.Service`.
    options  Further fields of the request.

    Raises EditorError where nobody answers, or the model is not served there.
    """

    def __init__(
        self, reference: str, *, size: str | None = None, seed: int | str | None = None,
        concurrency: int = AT_ONCE, timeout: float = 300.0, retries: int = 5, spending: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        if taken := sorted({*OURS} & options.keys()):
            raise EditorError(f"the option {taken[0]!r} is decided by the benchmark; leave it out")
        url, self.model = split_address(reference)
        sending: dict[str, Any] = {"concurrency": concurrency, "timeout": timeout, "retries": retries}
        self._service = Service(url, self.model, **sending, spending=spending)
        super().__init__(f"openai:#{self.model}", self._service.concurrency, self._service.pace)
        hosted = bool(self._service.hosted)
        if size is None:
            early = self.model.startswith(("gpt-image-1", "chatgpt-image"))
            size = "nearest of three" if early else "about a megapixel" if hosted else "the picture's"
        if "steps" in options:  # as `--steps` is called by the servers that have it
            options["num_inference_steps"] = options.pop("steps")
        self.size, self.options = str(size), options
        self.seed = seed if seed is not None else "none" if hosted else "sample"
        if not (self.seed in ("none", "sample") or isinstance(self.seed, int)):
            raise EditorError(f"seed is {seed!r}; expected a whole number, sample or none")
        self.seeded = self.seed == "sample"
        self._service.check()

    def describe(self) -> dict[str, Any]:
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "model": self.model,
            "size": self.size,
            "seed": "the sample's, modulo 2**31" if self.seeded else self.seed,
            "options": dict(sorted(self.options.items())),
            "sent": "PNG",
        }

    def usage(self) -> dict[str, Any]:
        return self._service.usage()

    def stop(self) -> None:
        self._service.stop()

    def edit_one(self, request: EditRequest) -> EditResult:
        if fault := find_fault(request):
            return EditResult(request.id, None, fault)
        width, height = request.image.shape[1], request.image.shape[0]
        size = self.size
        if size in SIZES:
            size = "{}x{}".format(*SIZES[size]((width, height)))
        try:
            image = self._picture(self._send(request, size))
        except NoAnswer as failure:
            refused, transient = failure.kind == WITHHELD, failure.transient
            return EditResult(request.id, None, str(failure), refused=refused, transient=transient)
        returned = f"{image.shape[1]}x{image.shape[0]}"
        return EditResult(request.id, image, note=f"size wanted {size}, returned {returned}")

    def _send(self, request: EditRequest, size: str) -> Any:
        body = dict(self.options)
        if self.seed != "none":
            body["seed"] = request.seed % 2**31 if self.seeded else self.seed
        if request.negative_prompt:
            body["negative_prompt"] = request.negative_prompt
        body |= {"model": self.model, "prompt": request.instruction, "size": size}
        return self._service.send("/images/edits", body, image=png(request.image))

    def _picture(self, reply: Any) -> np.ndarray:
        """(H, W, 3) uint8 of a reply. Raises NoAnswer."""
        data = reply.get("data") if isinstance(reply, dict) else None
        entry = data[0] if isinstance(data, Sequence) and data else {}
        content = entry.get("b64_json") if isinstance(entry, dict) else None
        if not (isinstance(content, str) and content):
            raise NoAnswer(
                "the reply has no picture in b64_json; where the server gives a link in its place, add "
                "--editor-options.response_format b64_json"
            )
        try:
            image = _decoded(base64.b64decode(content.rpartition(",")[2], validate=True))
        except binascii.Error:
            raise NoAnswer("the reply's picture is not base64") from None
        self._service.count(images=1)
        return image


def _decoded(raw: bytes) -> np.ndarray:
    """(H, W, 3) uint8 of a file, what is transparent on white. Raises NoAnswer."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG", "WEBP", "GIF")) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise NoAnswer(f"the reply's picture has {picture.width} x {picture.height} pixels")
            if picture.has_transparency_data:
                white = Image.new("RGBA", picture.size, "white")
                return np.array(Image.alpha_composite(white, picture.convert("RGBA")).convert("RGB"))
            return np.array(picture.convert("RGB"))
    except (OSError, ValueError, Image.DecompressionBombError, SyntaxError) as error:
        raise NoAnswer(f"the reply's picture cannot be read ({type(error).__name__})") from None
