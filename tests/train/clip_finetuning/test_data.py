import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from nein.datasets.negbench import drawn, official, sentences
from nein.datasets.negbench.official import write as write_csv
from nein.datasets.negbench.records import Option, Question, RetrievalItem
from nein.datasets.negbench.sentences import Concepts
from nein.engine.images import write_png
from nein.engine.machine import Processes
from nein.loading.errors import UserError
from nein.train.clip_finetuning.data import Features, Reader, load, read_captions
from nein.train.clip_finetuning.options import ClipConfig
from tests.train.runs import logged


def captions_of(path, **options):
    items, left_out = read_captions(ClipConfig(captions=str(path), **options))
    return [(item.image, item.captions) for item in items], left_out


def test_what_the_released_scripts_write_is_read_by_column_and_separator(tmp_path, caplog):
    """generate_negative_captions.py adds a column with the text of a list; what the model did not give is not
    in it."""
    frame = pd.DataFrame(
        {
            "filepath": ["a.jpg", "b.jpg", "c.jpg"],
            "caption": ["A dog", "A cat", "A sofa"],
            "extracted_objects": ["['dog']", "['cat']", "['sofa']"],
            "negative_objects": ["['car', 'boat']", "['dog']", "['cup']"],
            "negative_captions": [str(["A dog, but no car's here.", 'No "boat".']), "[]", "['No cup.']"],
        }
    )
    frame.to_csv(tmp_path / "x_llama3.1_neg_captions.csv", index=False)
    file = tmp_path / "x_llama3.1_neg_captions.csv"
    lists = [("a.jpg", ("A dog, but no car's here.", 'No "boat".')), ("c.jpg", ("No cup.",))]
    assert captions_of(file) == (lists, 1)
    assert "1 rows of" in caplog.text
    assert captions_of(file, limit=1) == (lists[:1], 0)
    plain = [("a.jpg", ("A dog",)), ("b.jpg", ("A cat",)), ("c.jpg", ("A sofa",))]
    assert captions_of(file, caption_column="caption") == (plain, 0)
    # open_clip's own defaults: a tab, and columns by other names
    (tmp_path / "t.csv").write_text("path\ttitle\na.jpg\t[red] dog, no cat\nb.jpg\t['A', 'B']\n")
    tabbed = [("a.jpg", ("[red] dog, no cat",)), ("b.jpg", ("A", "B"))]
    assert captions_of(tmp_path / "t.csv", image_column="path") == (tabbed, 0)


@pytest.mark.parametrize(("text", "options", "said"), [
    ("filepath,caption\na.jpg,A\n", {"caption_column": "text"},
     r"no column text; it has filepath, caption\. .*--caption-column"),
    ("filepath,words\na.jpg,A dog\n", {}, "no column negative_captions or captions"),
    ("filepath,negative_captions\na.jpg,[]\n", {}, "1 rows, all without a caption"),
    ("filepath,captions\na.jpg,['A']\na.jpg,no list\n", {}, "line 3, captions: 'no list'"),
    ("path,captions\na.jpg,['A']\n", {}, "no column 'filepath'"),
])  # fmt: skip
def test_captions_that_cannot_be_used_are_a_sentence(text, options, said, tmp_path):
    (tmp_path / "captions.csv").write_text(text)
    with pytest.raises(UserError, match=said):
        captions_of(tmp_path / "captions.csv", **options)


def as_csv_dataset_reads(path, column):
    """What the released CsvDataset (training/data.py, as open_clip's) hands to the tokenizer."""
    return [str(cell) for cell in pd.read_csv(path, sep=",")[column].tolist()]


def test_written_captions_are_what_the_released_training_code_trains_on(tmp_path):
    items = drawn.draw_negcap(20)
    write_csv(tmp_path / "negcap.csv", items, training=True)
    texts = [text for item in items for text in item.captions]
    assert as_csv_dataset_reads(tmp_path / "negcap.csv", "caption") == texts
    images = pd.read_csv(tmp_path / "negcap.csv", sep=",")["filepath"].tolist()
    assert images == [item.image for item in items for _ in item.captions]
    assert [captions for _, captions in captions_of(tmp_path / "negcap.csv")[0]] == [(t,) for t in texts]
    write_csv(tmp_path / "lists.csv", items)  # a retrieval file would be trained on as lists
    assert all(text.startswith("[") for text in as_csv_dataset_reads(tmp_path / "lists.csv", "captions"))


def test_written_questions_are_what_the_released_training_code_asks(tmp_path):
    """CsvMCQDataset takes caption_0 .. caption_3, correct_answer and correct_answer_template of a row."""
    images = [Concepts(f"{k}", f"{k}.png", (), ("dog", "cat")[: 1 + k % 2], ("car",)) for k in range(40)]
    asked = [question for image in images if (question := sentences.make_training_question(image, 0))]
    write_csv(tmp_path / "negmcq.csv", asked, training=True)
    frame = pd.read_csv(tmp_path / "negmcq.csv", sep=",")
    for question, (_, row) in zip(asked, frame.iterrows(), strict=True):
        assert [row[f"caption_{k}"] for k in range(4)] == [option.text for option in question.options]
        assert row["correct_answer"] == question.correct
    words = set(zip(frame["correct_answer_template"], frame["positive_objects"], strict=True))
    single = {word for word, shown in words if shown == "['dog']"}
    assert single == {"modified_positive", "negative", "hybrid"}
    assert {word for word, _ in words} - single == {"positive"}
    assert list(official.read_questions(tmp_path / "negmcq.csv")) == asked


class Grey:
    """A model whose one feature is a picture's mean."""

    fingerprint, width = "grey", 1
    model = torch.nn.Linear(1, 1)

    def encode(self, pictures):
        return np.array([[picture.mean()] for picture in pictures], np.float32)


def shades(folder, count, first):
    for k in range(count):
        write_png(folder / f"{k}.png", np.full((4, 4, 3), first + k, np.uint8))


@pytest.mark.parametrize("several", [False, True])
def test_a_feature_is_that_of_its_picture_also_where_two_folders_have_the_same_names(several, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there" if several else tmp_path / "here"
    items = [RetrievalItem(f"{k}", f"{k}.png", (f"caption {k}",)) for k in range(7)]
    asked = [Question(f"{k}", f"{k}.png", (Option(f"a {k}"), Option(f"b {k}")), k % 2) for k in range(7)]
    captions, questions = here / "negcap.csv", there / "negmcq.csv"
    write_csv(captions, items)
    write_csv(questions, asked)
    shades(here, 7, 10)
    if several:
        shades(there, 7, 100)
    (here / "3.png").write_bytes(b"no picture")
    config = ClipConfig(captions=str(captions), questions=str(questions), unreadable="skip")
    config.alpha, config.batch_size, config.questions_per_step = ["0.5"], 7, 7
    corpus = load(config)
    kept = Features(corpus, Grey(), tmp_path / "kept")
    kept.make(Processes())
    drawn, read = Reader(config, corpus, kept).read(0, 0, 1), Reader(config, corpus).read(0, 0, 1)
    assert kept.read_rows(drawn.images)[:, 0].tolist() == [p.mean() for p in read.images]
    assert kept.read_rows(drawn.question_images)[:, 0].tolist() == [p.mean() for p in read.question_images]
    assert (drawn.captions, drawn.options) == (read.captions, read.options)
    assert max(p.mean() for p in read.question_images) == (106 if several else 16)
    again = Features(corpus, Grey(), tmp_path / "kept")
    again.make(Processes())
    assert (again.read_rows(drawn.images) == kept.read_rows(drawn.images)).all()


def test_a_model_with_dropout_learns_the_same_each_time(tune, whole, clip_folder, tmp_path):
    base = Path(shutil.copytree(clip_folder, tmp_path / "base"))
    about = json.loads((base / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        about[part]["attention_dropout"] = 0.5
    (base / "config.json").write_text(json.dumps(about))

    def losses(name):
        torch.manual_seed(os.getpid() + len(name))  # whatever was drawn before
        return logged(tune(base=base, out=tmp_path / name, steps=3))

    one = losses("one")
    assert losses("another") == one
    assert one[0] != logged(whole)[0]
