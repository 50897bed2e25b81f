"""Edits images with models behind OpenAI's `images.edit`, also offered by Azure, vLLM-Omni, SGLang, LiteLLM.

Users name a model `openai:URL#MODEL`, or `openai:MODEL` at OPENAI_BASE_URL (default: OpenAI). Parts: sizes to
ask for; the editor; reading of replies.
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
from nein.loading.service import WITHHELD, NoAnswer, Service, encode_png

Size = tuple[int, int]  # (width, height)
#: Sizes of GPT image models before gpt-image-2. Source: openai-python, types/image_edit_params.py.
THREE_SIZES = ((1024, 1024), (1536, 1024), (1024, 1536))


def nearest_of_three(size: Size) -> Size:
    """Size in `THREE_SIZES` with the nearest aspect ratio."""
    return min(THREE_SIZES, key=lambda one: abs(math.log(one[0] / one[1] * size[1] / size[0])))


def megapixel(size: Size) -> Size:
    """Size of about 1024 x 1024 pixels with the aspect ratio (cut to 1:3 ... 3:1), in multiples of 16."""
    ratio = min(3.0, max(1 / 3, size[0] / size[1]))
    return round_size((1024 * math.sqrt(ratio), 1024 / math.sqrt(ratio)))


def round_size(size: tuple[float, float]) -> Size:
    """Size in multiples of 16: the width is rounded, the height follows from the aspect ratio."""
    width = max(1, round(size[0] / 16))
    return 16 * width, 16 * max(1, round(width * size[1] / size[0]))


#: Fields of the request that users cannot set.
RESERVED = ("image", "prompt", "model", "n", "mask", "markup", "stream", "partial_images")
#: Options of `Service`; all others are fields of the request.
SENDING = ("concurrency", "timeout", "retries", "spending")


class ServedEditor(RemoteEditor):
    """Editor behind an OpenAI-compatible endpoint. Raises EditorError unless the endpoint serves the model.

    size     WIDTHxHEIGHT or "auto"; None: the size nearest to the image's that the model supports.
    seed     Of every request; None: the sample's, modulo 2**31. Hosted services take none.
    options  `SENDING`, and further fields of the request.
    """

    path = "/images/edits"  # below the URL
    text_only = False  # whether no image is sent

    def __init__(
        self, reference: str, *, size: str | None = None, seed: int | None = None, **options: Any
    ) -> None:
        for name in sorted(RESERVED):
            if name in options:
                raise EditorError(f"the option {name!r} is set by the benchmark; omit it")
        url, self.model = split_address(reference)
        sending = {name: options.pop(name) for name in SENDING if name in options}
        self._service = Service(url, self.model, **{"timeout": 300.0, **sending})
        super().__init__(f"openai:#{self.model}", self._service.concurrency, self._service.pace)
        is_hosted = bool(self._service.host)
        if self.model.startswith(("gpt-image-1", "chatgpt-image")):
            self._choose_size = nearest_of_three
        else:
            self._choose_size = megapixel if is_hosted else round_size
        self.size, self.seed, self.options = size, seed, options
        self.seeded = seed is None and not is_hosted
        self._service.check()
        self.usage = self._service.usage

    def describe(self) -> Json:
        rule = "own" if self._choose_size is round_size else self._choose_size.__name__
        return {
            "editor": self.name,
            "class": type(self).__name__,
            "model": self.model,
            "size": self.size or rule,
            "seed": "the sample's, modulo 2**31" if self.seeded else self.seed,
            "options": dict(sorted(self.options.items())),
            "sent": "PNG",
        }

    def stop(self) -> None:
        self._service.stop()

    def edit_one(self, request: EditRequest) -> EditResult:
        if fault := find_fault(request):
            return EditResult(request.id, None, fault)
        width, height = self._choose_size((request.image.shape[1], request.image.shape[0]))
        size = self.size or f"{width}x{height}"
        body = {**self.options, "model": self.model, "prompt": request.instruction, "size": size}
        seed = request.seed % 2**31 if self.seeded else self.seed
        if seed is not None:
            body["seed"] = seed
        if request.negative_prompt:
            body["negative_prompt"] = request.negative_prompt
        try:
            png = None if self.text_only else encode_png(request.image)
            reply = self._service.send(self.path, body, image=png)
            image = read_image(reply)
        except NoAnswer as failure:
            refused = failure.kind == WITHHELD
            return EditResult(request.id, None, str(failure), refused=refused, transient=failure.transient)
        self._service.count(images=1)
        returned = f"{image.shape[1]}x{image.shape[0]}"
        return EditResult(request.id, image, note=f"size wanted {size}, returned {returned}")


def read_image(reply: Any) -> np.ndarray:
    """Image (H, W, 3) uint8 of a reply, transparent pixels on white. Raises NoAnswer."""
    try:
        raw = base64.b64decode(reply["data"][0]["b64_json"].rpartition(",")[2], validate=True)
        with Image.open(io.BytesIO(raw), formats=("PNG", "JPEG", "WEBP", "GIF")) as image:
            if image.has_transparency_data:
                white = Image.new("RGBA", image.size, "white")
                return np.array(Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"))
            return np.array(image.convert("RGB"))
    except (LookupError, TypeError, AttributeError, OSError, ValueError, SyntaxError) as error:
        raise NoAnswer(
            f"the reply has no readable image in b64_json ({type(error).__name__}); if the server returns a "
            "link, pass --editor-options.response_format b64_json"
        ) from None
    except Image.DecompressionBombError as error:
        raise NoAnswer(f"the image in the reply is too large ({error})") from None
