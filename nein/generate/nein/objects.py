"""Lists of categories that may be asked for."""

from __future__ import annotations

import re
from pathlib import Path

from nein.engine.errors import UserError, shortlist

#: The 80 categories of COCO (Lin et al., arXiv:1405.0312), in its order and spelling.
COCO: tuple[str, ...] = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "backpack", "umbrella", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple",
    "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch",
    "potted plant", "bed", "dining table", "toilet", "tv", "laptop", "mouse", "remote", "keyboard",
    "cell phone", "microwave", "oven", "toaster", "sink", "refrigerator", "book", "clock", "vase", "scissors",
    "teddy bear", "hair drier", "toothbrush",
)  # fmt: skip


def load(name: str, queried: int) -> tuple[str, ...]:
    """ "coco", "nano", or the lines of a text file. Raises UserError, also for fewer than `queried`."""
    if name == "coco":
        names = COCO
    elif name == "nano":
        from nein.nano.draw import CATEGORIES

        names = CATEGORIES
    else:
        try:
            lines = Path(name).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"--objects takes coco, nano or a text file; '{name}' cannot be read ({error})."
            ) from None
        names = tuple(dict.fromkeys(" ".join(line.split()) for line in lines if line.strip()))
        if strange := [repr(text) for text in names if not re.fullmatch(r"(?:[^\W_]|[-' ])+", text)]:
            raise UserError(f"'{name}' must hold one plain name per line, not {shortlist(strange, 3)}.")
    if len(names) < queried:
        raise UserError(
            f"--queried asks for {queried} categories per image, but '{name}' has {len(names)}; lower it."
        )
    return names
