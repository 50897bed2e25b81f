"""Negation in scope as a file: drawn pairs of scenes (`nein.nano.scope`) with sentences of a language."""

from __future__ import annotations

import json
from pathlib import Path

from nein.engine.images import write_png
from nein.nano import scope
from nein.nano.scenes import render
from nein.wording.languages import LANGUAGES
from nein.wording.languages.base import DENIES

FILE = "scope.json"


def write(root: Path, split: str, count: int, language: str = "en") -> None:
    """The pictures and FILE: [{image_0, image_1, caption_0, caption_1, denies_0, denies_1, construction,
    others, depth}], caption k true of picture k; `denies`: whether a caption has a denying word."""
    rows = []
    for number, pair in enumerate(scope.pairs(split, count)):
        said = LANGUAGES[language].pair(pair.construction, pair.named, pair.depth)
        row: dict[str, str | int | bool] = {}
        for k, (scene, text) in enumerate(zip(pair.scenes, said, strict=True)):
            row[f"image_{k}"] = f"images/{number:05d}_{k}.png"
            row[f"caption_{k}"] = text
            row[f"denies_{k}"] = bool(pair.depth) or DENIES[pair.construction][k]
            write_png(root / f"images/{number:05d}_{k}.png", render(scene))
        rows.append({**row, "construction": pair.construction, "others": pair.others, "depth": pair.depth})
    (root / FILE).write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
