"""A JSONL list of captioned images for `nein negbench generate`: what is read, and what is refused how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nein.datasets.negbench.concepts import IN_CAPTION, Concepts
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.generate.negbench import listing, sources
from nein.generate.negbench.config import BuildConfig


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
    assert {c.path: c.captions or c.problem for c in found} == {
        "a/one.png": ("A dog.", "A cat."), "two.jpg": ("A car.",), "three.jpg": ("A boat.",),
        "four.jpg": sources.NO_CAPTION,
    }  # fmt: skip


@pytest.mark.parametrize(
    "content, said",
    [
        (b'{"image": "a.png", "captions": 5}', "line 1, has captions that must be a text or a list of"),
        (b'{"image": "a.png"}\n{"image": ', "line 2, the last one, is cut short"),
        (b'{"caption": "A dog."}', "line 1, names no image; it needs one of: image, "),
        (b"[1]", "line 1, is not a JSON object"),
        (b'{"image": "\xff.png"}', "line 1, is not UTF-8 text"),
    ],
)
def test_a_line_that_is_no_record_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_halves_of_characters_and_names_that_are_no_text_end_nothing(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(
        '{"image": "a.png", "caption": "A dog \\ud83d."}\n{"image": "b\\udc80.png", "caption": "A cat."}\n'
    )
    found = read(path)
    assert [(c.captions, c.problem) for c in found] == [(("A dog ?.",), ""), (("A cat.",), sources.BAD_NAME)]
    assert all("\ud83d" not in c.path and c.path.encode() for c in found)
    assert listing.write(Folder(tmp_path), found, 4).count == 2


def test_a_text_that_cannot_be_read_is_a_problem_of_its_picture(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jpg").write_bytes(b"")
    (tmp_path / "a.txt").write_text("A  dog.")
    (tmp_path / "b.txt").symlink_to(tmp_path / "nowhere")
    found = read(tmp_path)
    assert [(c.id, c.captions) for c in found] == [("a", ("A dog.",)), ("b", ())]
    assert found[1].problem.startswith(sources.BAD_TEXT)


def test_a_caption_that_is_no_text_is_none_and_what_a_caption_names_is_not_absent(tmp_path: Path) -> None:
    images = [{"id": k, "file_name": f"{k}.jpg"} for k in range(3)]
    said = ["A dog beside two cars.", None, "A dog."]
    captions = [{"image_id": k, "caption": text} for k, text in enumerate(said)]
    kinds = [{"id": k, "name": name} for k, name in enumerate(["dog", "car", "cat"])]
    shown = [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 2)]
    found = [{"image_id": image, "category_id": kind} for image, kind in shown]
    given = {name: str(tmp_path / f"{name}.json") for name in ("captions", "instances")}
    for name, rows in (("captions", captions), ("instances", found)):
        content = {"images": images, "annotations": rows, "categories": kinds}
        Path(given[name]).write_text(json.dumps(content))
    first, second, third = sources.load(BuildConfig(source="coco", **given))
    assert (first.negatives, first.notes) == (("cat",), (IN_CAPTION,))
    assert second.captions == ()
    assert (third.negatives, third.notes) == (("car",), ())


def test_videos_are_listed_where_videos_are_asked_for(tmp_path: Path) -> None:
    for name in ("a.mp4", "b.jpg"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).with_suffix(".txt").write_text("A dog.")
    for thing, names in (("image", ["b.jpg"]), ("video", ["a.mp4", "b.jpg"])):
        config = BuildConfig(source="captions", captions=str(tmp_path), thing=thing)
        assert [c.path for c in sources.load(config)] == names


def test_an_image_gets_three_questions_and_a_video_one_where_nothing_is_said() -> None:
    def numbers(**options: Any) -> tuple[int, int]:
        config = BuildConfig(**options)
        return config.absent, config.asked

    assert numbers() == (3, 3)  # the three most frequent
    assert numbers(concepts="llm") == (5, 3)
    assert numbers(concepts="llm", thing="video") == (1, 1)
    assert numbers(negatives=2, questions=4, thing="video") == (2, 4)
    paper = BuildConfig.parse(["--preset", "paper", "--instances", "x.json"])
    assert (paper.protocol, paper.absent, paper.asked) == ("paper", 3, 3)
