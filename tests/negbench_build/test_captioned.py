"""A JSONL list of captioned images for `nein-negbench build`: what is read, what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nein.errors import UserError
from nein.negbench.build import sources
from nein.negbench.build.concepts import Concepts
from nein.negbench.build.config import BuildConfig


def read(path: Path) -> list[Concepts]:
    return list(sources.load(BuildConfig(source="captions", captions=str(path))))


def test_every_spelling_of_image_and_captions_is_read_in_order(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"image": "a/one.png", "captions": ["A  dog.", "A dog.", "A cat."]},
        {"filepath": "two.jpg", "caption": "A\ncar."},
        {"file_name": "three.jpg", "text": ["A boat.", 7]},
        {"filename": "four.jpg"},
    ]
    path = tmp_path / "list.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    found = read(path)
    assert [(c.path, c.captions) for c in found] == [
        ("a/one.png", ("A dog.", "A cat.")),
        ("two.jpg", ("A car.",)),
        ("three.jpg", ("A boat.",)),
        ("four.jpg", ()),
    ]
    assert [c.problem for c in found] == ["", "", "", sources.NO_CAPTION]


@pytest.mark.parametrize(
    "content, said",
    [
        (b'{"image": "a.png", "captions": 5}', "line 1: captions must be a text or a list of texts, not 5"),
        (b'{"image": "a.png"}\n{"image": ', "line 2 is not valid JSON"),
        (b'{"caption": "A dog."}', "line 1 names no image; it needs one of: image, "),
        (b"[1]", "line 1 names no image"),
        (b'{"image": "\xff.png"}', "cannot be read"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_place(
    content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "list.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        read(path)
    assert str(path) in str(caught.value)
