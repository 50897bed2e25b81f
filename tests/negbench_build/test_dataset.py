import json
from pathlib import Path

import pytest

from nein.datasets.negbench.sentences import IN_CAPTION, Concepts
from nein.generate.config import NegbenchConfig
from nein.generate.maker import NO_CAPTION, Listing
from nein.generate.negbench import files
from nein.loading.errors import UserError
from tests.helpers.runs import write_block


@pytest.fixture
def maker_of(monkeypatch):
    """A build of images that no file lists."""

    def maker(out, images, **options):
        monkeypatch.setattr(files, "load_images", lambda config: Listing(images, {}))
        given = {"source": "captions", "captions": "x", "form": "training", "shard_size": 4, **options}
        return files.NegbenchMaker(NegbenchConfig(out=str(out), images=".", **given))

    return maker


def scenes(count):
    return [
        Concepts(f"{k}", f"{k}.jpg", (f"A dog, a cat and table {k}",), ("dog", "cat"), ("car", "boat"))
        for k in range(count)
    ]


def test_an_id_that_occurs_twice_is_refused_and_what_was_there_stays(maker_of, tmp_path):
    maker = maker_of(tmp_path, scenes(2), source="pairs")
    one = scenes(1)[0]
    write_block(maker.folder, "work/pairs", 0, [one, one])
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "negcap.csv").write_text("before")
    with pytest.raises(UserError, match="the id '0' occurs more than once"):
        maker.write()
    assert [path.name for path in (tmp_path / "dataset").iterdir()] == ["negcap.csv"]
    assert (tmp_path / "dataset" / "negcap.csv").read_text() == "before"


def test_a_failed_pair_is_counted_whatever_its_picture_is_called(maker_of, tmp_path):
    start = [Concepts("a-with", "a.png"), Concepts("b-without", "b.png"), Concepts("c", "c.png")]
    made = [
        Concepts("a-with", problem="no try"),
        Concepts("b-without-without", "b1.png", ("A dog",), ("dog",), ("cat",), source_id="b-without"),
        Concepts("b-without-with", "b2.png", ("A",), ("dog", "cat"), ("car",), source_id="b-without"),
        Concepts("c", problem="no try"),
    ]
    maker = maker_of(tmp_path, start, source="pairs")
    write_block(maker.folder, "work/pairs", 0, made)
    facts = maker.write()
    one = maker_of(tmp_path, start, source="pairs", limit=1)
    assert [image.id for image, _ in one.images()] == ["a-with"]
    assert facts["unusable"] == {"no try": 2}
    assert facts["images"] == 4


# --- lists of captioned images: what is read, and what is refused how -------------------------------


def read(path):
    return files.load_images(NegbenchConfig(source="captions", captions=str(path))).records


def test_lines_of_images_and_captions_are_read_in_order(tmp_path):
    lines = [
        {"image": "a/one.png", "captions": ["A  dog.", "A dog.", "A cat."]},
        {"image": "two.jpg", "captions": "A\ncar."},
        {"image": "three.jpg", "captions": ["A boat.", 7]},
        {"image": "four.jpg"},
    ]
    path = tmp_path / "list.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in [*lines, lines[0]]))
    found = read(path)
    listing = files.load_images(NegbenchConfig(source="captions", captions=str(path)))
    assert listing.notes["listed twice, left out the second time"] == 1
    assert {c.path: c.captions or c.problem for c in found} == {
        "a/one.png": ("A dog.", "A cat."), "two.jpg": ("A car.",), "three.jpg": ("A boat.",),
        "four.jpg": NO_CAPTION,
    }  # fmt: skip


def test_a_caption_that_is_no_text_is_none_and_what_a_caption_names_is_not_absent(tmp_path):
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
    first, second, third = files.load_images(NegbenchConfig(source="coco", **given)).records
    assert (first.negatives, first.notes) == (("cat",), (IN_CAPTION,))
    assert second.captions == ()
    assert (third.negatives, third.notes) == (("car",), ())


def test_videos_are_listed_where_videos_are_asked_for(tmp_path):
    for name in ("a.mp4", "b.jpg"):
        (tmp_path / name).write_bytes(b"")
        (tmp_path / name).with_suffix(".txt").write_text("A dog.")
    for thing, names in (("image", ["b.jpg"]), ("video", ["a.mp4", "b.jpg"])):
        config = NegbenchConfig(source="captions", captions=str(tmp_path), thing=thing)
        assert [c.path for c in files.load_images(config).records] == names


def test_an_image_gets_three_questions_and_a_video_one_where_nothing_is_said():
    def numbers(**options):
        config = NegbenchConfig(**options)
        return config.absent, config.asked

    assert numbers() == (3, 3)  # the three most frequent
    assert numbers(concepts="llm") == (5, 3)
    assert numbers(concepts="llm", thing="video") == (1, 1)
    assert numbers(negatives=2, questions=4, thing="video") == (2, 4)
    paper = NegbenchConfig.parse(["--preset", "paper", "--instances", "x.json"])
    assert (paper.protocol, paper.absent, paper.asked) == ("paper", 3, 3)
