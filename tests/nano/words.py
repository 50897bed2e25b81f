"""What tests about the nano world's text need to know: COCO's names, and what counts as a negated word."""

from __future__ import annotations

import re

COCO = (
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

NEGATED = re.compile(
    r"\b(?:no|not|cannot|without|never|none|nothing|nobody|neither|nor|nowhere|missing|absent|absence|devoid"
    r"|empty|lack\w*|minus|except|exclud\w*)\b|n['’]t\b|\bfree of\b|\binstead of\b",
    re.IGNORECASE,
)


def negated(lines: list[str]) -> list[str]:
    """The lines that hold a negated word."""
    return [line for line in lines if NEGATED.search(line)]
