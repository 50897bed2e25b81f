"""Editors behind an address: `images.edit` of OpenAI, as Azure, vLLM-Omni, SGLang and LiteLLM serve it, too.

`openai:URL#MODEL` names one; `openai:MODEL` is at OPENAI_BASE_URL, by default OpenAI's own.
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

import numpy as np
from PIL import Image

from nein.editors.base import EditorError, EditRequest, EditResult, find_fault
from nein.editors.function import RemoteEditor
from nein.editors.presets import split_address
from nein.loading.digests import Json
from nein.loading.service import WITHHELD, NoAnswer, Service, png

#: Fields of a request that are no user's: what is edited, and how the reply comes.
OURS = ("image", "prompt", "model", "n", "mask", "markup", "stream", "partial_images")
SENDING = ("concurrency", "timeout", "retries", "spending")
#: The sizes of GPT image models before gpt-image-2. Source: openai-python, types/image_edit_params.py.
THREE_SIZES = ((1024, 1024), (1536, 1024), (1024, 1536))

Size = tuple[int, int]


def nearest_of_three(size: Size) -> Size:
    """The one of `THREE_SIZES` with the nearest aspect ratio; sizes are (width, height)."""
    return min(THREE_SIZES, key=lambda shape: abs(math.log(shape[0] / shape[1] * size[1] / size[0])))


def megapixel(size: Size) -> Size:
    """The aspect ratio, between 1:3 and 3:1, with about 1024 x 1024 pixels, in multiples of 16."""
    ratio = min(3.0, max(1 / 3, size[0] / size[1]))
    return own((1024 * math.sqrt(ratio), 1024 / math.sqrt(ratio)))


def own(size: tuple[float, float]) -> Size:
    """The image's own size, in multiples of 16: of the width first, then with the aspect ratio."""
    width = max(1, round(size[0] / 16))
    return 16 * width, 16 * max(1, round(width * size[1] / size[0]))


class ServedEditor(RemoteEditor):
    """Edits by a model behind an address.

    size     WIDTHxHEIGHT or "auto"; None: the image's, as near as the model can.
    seed     Of every request; None: the sample's, modulo 2**31; hosted services have none.
    options  `SENDING` of `nein.loading.service.Service`, and further fields of the request.

    Raises EditorError where nobody answers, or the model is not served there.
    """

    def __init__(
        self, reference: str, *, size: str | None = None, seed: int | None = None, **options: Any
    ) -> None:
        if taken := sorted({*OURS} & options.keys()):
            raise EditorError(f"the option {taken[0]!r} is decided by the benchmark; leave it out")
        url, self.model = split_address(reference)
        sending = {name: options.pop(name) for name in SENDING if name in options}
        self._service = Service(url, self.model, **{"timeout": 300.0, **sending})
        super().__init__(f"openai:#{self.model}", self._service.concurrency, self._service.pace)
        hosted = bool(self._service.hosted)
        early = self.model.startswith(("gpt-image-1", "chatgpt-image"))
        self._sized = nearest_of_three if early else megapixel if hosted else own
        self.size, self.seed, self.options = size, seed, options
        self.seeded = seed is None and not hosted
        self._service.check()
        self.usage = self._service.usage

    def describe(self) -> Json:
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "model": self.model,
            "size": self.size or self._sized.__name__,
            "seed": "the sample's, modulo 2**31" if self.seeded else self.seed,
            "options": dict(sorted(self.options.items())),
            "sent": "PNG",
        }

    def stop(self) -> None:
        self._service.stop()

    def edit_one(self, request: EditRequest) -> EditResult:
        if fault := find_fault(request):
            return EditResult(request.id, None, fault)
        height, width = request.image.shape[:2]
        size = self.size or "{}x{}".format(*self._sized((width, height)))
        body = {**self.options, "model": self.model, "prompt": request.instruction, "size": size}
        seed = request.seed % 2**31 if self.seeded else self.seed
        if seed is not None:
            body["seed"] = seed
        if request.negative_prompt:
            body["negative_prompt"] = request.negative_prompt
        try:
            image = read_image(self._service.send("/images/edits", body, image=png(request.image)))
        except NoAnswer as failure:
            refused, transient = failure.kind == WITHHELD, failure.transient
            return EditResult(request.id, None, str(failure), refused=refused, transient=transient)
        self._service.count(images=1)
        returned = f"{image.shape[1]}x{image.shape[0]}"
        return EditResult(request.id, image, note=f"size wanted {size}, returned {returned}")


def read_image(reply: Any) -> np.ndarray:
    """(H, W, 3) uint8 of a reply, what is transparent on white. Raises NoAnswer."""
    try:
        raw = base64.b64decode(reply["data"][0]["b64_json"].rpartition(",")[2], validate=True)
        with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG", "WEBP", "GIF")) as image:
            if image.has_transparency_data:
                white = Image.new("RGBA", image.size, "white")
                return np.array(Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"))
            return np.array(image.convert("RGB"))
    except (LookupError, TypeError, AttributeError, OSError, ValueError, SyntaxError) as error:
        raise NoAnswer(
            f"the reply has no picture in b64_json that can be read ({type(error).__name__}); where the "
            "server gives a link in its place, add --editor-options.response_format b64_json"
        ) from None
    except Image.DecompressionBombError as error:
        raise NoAnswer(f"the reply's picture is too large ({error})") from None
