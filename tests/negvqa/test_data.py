import base64
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from nein.datasets import negvqa as questions
from nein.engine import images
from nein.loading.errors import UserError
from nein.loading.service import encode_png
from nein.nano.sentences import KINDS, iter_questions, question_scene
from tests.metrics.tiny import picture
from tests.negvqa.tiny import records, write_questions


def test_a_file_in_the_released_layout_is_read_whole(tmp_path):
    found = questions.load(str(write_questions(tmp_path)))
    assert len(found.items) == 12
    assert [item.id for item in found.items] == [f"{n}" for n in (*range(10, 22, 2), *range(11, 22, 2))]
    item = found.items[7]
    assert (item.id, item.subset, item.category) == ("13", "GQA", "Reasoning")
    assert item.options == ("cat 3", "dog 3")
    assert item.questions == {"original": "What is number 3?", "negated": "What is not number 3?"}
    assert item.answers == {"original": "B", "negated": "A"}
    assert (images.decode(item.image) == picture(1)).all()
    assert found.items[1].source == item.source  # two questions, one picture
    assert len({item.source for item in found.items}) == 6


def test_a_picture_may_be_base64_and_fields_may_have_other_names(tmp_path, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    rows = records(1)
    inside = base64.b64encode(encode_png(picture(7))).decode()
    renamed = [
        {**{k: v for k, v in row.items() if k != "category"}, "image": inside, "set": "OCRVQA"}
        for row in rows
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in renamed))
    found = questions.load(str(tmp_path / "q.jsonl"), columns={"category": "set"})
    assert (images.decode(found.items[0].image) == picture(7)).all()
    assert found.items[0].category == "OCR"
    with pytest.raises(UserError, match="Unknown field of --columns 'subset'"):
        questions.load(str(tmp_path / "q.jsonl"), columns={"subset": "set"})


def test_left_over_columns_of_the_source_are_no_options_unless_named(tmp_path):
    rows = [{**row, "C": "owl", "D": None} for row in records(1)]
    file = str(write_questions(tmp_path, rows))
    assert questions.load(file).items[0].options == ("cat 0", "dog 0")
    assert questions.load(file, columns={"C": "C"}).items[0].options == ("cat 0", "dog 0", "owl")


def test_a_data_set_of_the_hub_is_read_with_its_picture_files(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    rows = records(2)
    pictures = [{"bytes": encode_png(picture(n // 2)), "path": None} for n in range(4)]
    columns = {key: [row[key] for row in rows] for key in rows[0] if key != "image"}
    table = datasets.Dataset.from_dict({**columns, "image": pictures})
    table = table.cast_column("image", datasets.Image())
    (tmp_path / "made" / "data").mkdir(parents=True)
    table.to_parquet(str(tmp_path / "made" / "data" / "test-00000-of-00001.parquet"))
    found = questions.load(f"hub:{tmp_path / 'made'}")
    assert [item.id for item in found.items] == ["10", "12", "11", "13"]
    assert (images.decode(found.items[1].image) == picture(1)).all()
    assert found.items[0].source == found.items[2].source != found.items[1].source
    with pytest.raises(UserError, match="could not be loaded from the hub"):
        questions.load(f"hub:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize("name", ["../secret.png", "/etc/secret.png", "x/../../secret.png"])
def test_a_data_set_names_no_picture_elsewhere(tmp_path, monkeypatch, name):
    def load(name, source, pictures):
        rows = [{**record, "image": name} for record in records(1)]
        monkeypatch.setattr(questions.hub, "read", lambda *given: rows)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return questions.load(source, image_folder=str(pictures) if pictures else None).items[0].image

    file = tmp_path / "pictures" / "questions.jsonl"
    file.parent.mkdir()
    with pytest.raises(UserError, match="image is a file name; pass the folder"):
        load(name, "hub:some/body", None)
    for source, pictures in (("hub:some/body", file.parent), (str(file), file.parent), (str(file), None)):
        assert load("x/inside.png", source, pictures) == file.parent / "x/inside.png"
        with pytest.raises(UserError, match=r"lies outside '.*pictures'"):
            load(name, source, pictures)
    assert name[0] != "/" or load(name, str(file), Path("/")) == Path(name)


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"negated_question": ""}, "without negated_question"),
        ({"original_answer": "C"}, "no letter of its options"),
        ({"negated_answer": "B"}, "one answer to both"),
        ({"index": 11}, "duplicate id"),
        ({"image": 7}, "neither a file name, bytes nor base64"),
        ({"A": ["cat", "owl"]}, "options are no texts"),
        ({"negated_question": {"text": "What?"}}, "options are no texts"),
    ],
)
def test_bad_records_are_named(tmp_path, change, sentence):
    rows = records()
    rows[3] = {**rows[3], "original_answer": "B", "negated_answer": "A", **change}
    file = write_questions(tmp_path, rows)
    with pytest.raises(UserError, match=sentence):
        questions.load(str(file))
    file.write_text("\n")
    with pytest.raises(UserError, match="has no records"):
        questions.load(str(file))


def test_nano_questions_are_drawn_once_and_letters_are_balanced(tmp_path, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path))
    found, again = (questions.load("nano", questions=48) for _ in range(2))
    assert found.sha256 == again.sha256
    assert len(found.items) == 48
    for kind in KINDS:
        own = [item for item in found.items if item.subset == kind]
        assert Counter(item.answers["original"] for item in own) == {"A": 6, "B": 6}
        assert all(item.answers["negated"] != item.answers["original"] for item in own)
    assert all(item.image.is_file() for item in found.items)
    assert images.decode(found.items[0].image).shape == (64, 64, 3)


def test_the_questions_are_those_that_the_models_were_trained_on_and_splits_share_no_scene():
    scenes = [{question_scene(split, k) for k in range(60)} for split in ("train", "dev", "val")]
    assert len(set.union(*scenes)) == sum(map(len, scenes))
    drawn = repr(list(iter_questions("dev", 240)))
    assert hashlib.sha256(drawn.encode()).hexdigest()[:16] == "62be326fd98c7965"
