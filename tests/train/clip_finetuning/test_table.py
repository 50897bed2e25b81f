import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from nein.datasets.negbench import drawn, official, sentences
from nein.datasets.negbench.records import Option, Question, RetrievalItem
from nein.datasets.negbench.sentences import Concepts
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.engine.machine import Processes
from nein.train.clip_finetuning import table
from nein.train.clip_finetuning.data import Features, Reader, load
from nein.train.clip_finetuning.options import ContrastConfig
from tests.train.runs import logged

TEXTS = ["A dog.", "A\n cat, 'odd'", 'say "no"', "ends in \u2028 a line?", "Stra\u00dfe", "a\r\nb"]


def write(folder, count, root=""):
    items = [
        RetrievalItem(f"{k}", f"{root}{k}.png", (TEXTS[k % len(TEXTS)], f"caption {k}")) for k in range(count)
    ]
    asked = [
        Question(f"{k}", f"{root}{k}.png", tuple(Option(f"{t} {k}") for t in TEXTS[:4]), k % 4)
        for k in range(count)
    ]
    official.write_retrieval(folder / "negcap.csv", items)
    official.write_questions(folder / "negmcq.csv", asked)
    return folder / "negcap.csv", folder / "negmcq.csv"


def test_a_row_is_what_reading_the_whole_file_gives_whatever_stands_in_it(tmp_path):
    captions, questions = write(tmp_path, 13)
    for path in (captions, questions):  # with a mark at the beginning, other ends of lines, a blank line
        data = path.read_bytes().replace(b"\n", b"\r\n").replace(b"\r\r\n", b"\r\n")
        path.write_bytes(b"\xef\xbb\xbf" + data.replace(b"\r\n", b"\r\n\r\n", 1))
    found, whole = table.Captions(captions), official.read_retrieval(captions)
    assert [(f.id, f.image, f.captions) for f in found] == [(w.id, w.image, w.captions) for w in whole]
    assert (len(found), found[-1]) == (13, found[12])
    asked, every = table.Questions(questions), official.read_questions(questions)
    for one, other in zip(asked[3:9], every[3:9], strict=True):
        assert (one.id, one.image, one.correct) == (other.id, other.image, other.correct)
        assert [o.text for o in one.options] == [o.text for o in other.options]
    assert asked.options == {4}
    with pytest.raises(IndexError):
        asked[13]


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
    read = table.Captions(tmp_path / "x_llama3.1_neg_captions.csv")
    assert [(item.image, item.captions) for item in read] == [
        ("a.jpg", ("A dog, but no car's here.", 'No "boat".')),
        ("c.jpg", ("No cup.",)),
    ]
    assert read.left_out == 1
    assert "1 rows of" in caplog.text
    plain = table.Captions(tmp_path / "x_llama3.1_neg_captions.csv", captions="caption")
    assert [item.captions for item in plain] == [("A dog",), ("A cat",), ("A sofa",)]
    # open_clip's own defaults: a tab, and columns by other names
    (tmp_path / "t.csv").write_text("path\ttitle\na.jpg\t[red] dog, no cat\nb.jpg\t['A', 'B']\n")
    tabbed = table.Captions(tmp_path / "t.csv", image="path", delimiter="\t")
    assert [item.captions for item in tabbed] == [("[red] dog, no cat",), ("A", "B")]
    with pytest.raises(UserError, match=r"no column 'text'; it has filepath, caption, .*--caption-column"):
        table.Captions(tmp_path / "x_llama3.1_neg_captions.csv", captions="text")
    (tmp_path / "other.csv").write_text("filepath,words\na.jpg,A dog\n")
    with pytest.raises(UserError, match=r"none of the columns negative_captions, .*--separator tab"):
        table.Captions(tmp_path / "other.csv")
    (tmp_path / "none.csv").write_text("filepath,negative_captions\na.jpg,[]\n")
    with pytest.raises(UserError, match="1 rows and a caption in none"):
        table.Captions(tmp_path / "none.csv")


def as_csv_dataset_reads(path, column):
    """What the released CsvDataset (training/data.py, as open_clip's) hands to the tokenizer."""
    return [str(cell) for cell in pd.read_csv(path, sep=",")[column].tolist()]


def test_written_captions_are_what_the_released_training_code_trains_on(tmp_path):
    items = drawn.negcap("train", 20)
    official.write_retrieval(tmp_path / "negcap.csv", items, official.TRAINING_CAPTIONS)
    texts = [text for item in items for text in item.captions]
    assert as_csv_dataset_reads(tmp_path / "negcap.csv", "caption") == texts
    images = pd.read_csv(tmp_path / "negcap.csv", sep=",")["filepath"].tolist()
    assert images == [item.image for item in items for _ in item.captions]
    assert [item.captions for item in table.Captions(tmp_path / "negcap.csv")] == [(text,) for text in texts]
    official.write_retrieval(tmp_path / "lists.csv", items)  # a retrieval file would be trained on as lists
    assert all(text.startswith("[") for text in as_csv_dataset_reads(tmp_path / "lists.csv", "captions"))


def test_written_questions_are_what_the_released_training_code_asks(tmp_path):
    """CsvMCQDataset takes caption_0 .. caption_3, correct_answer and correct_answer_template of a row."""
    images = [Concepts(f"{k}", f"{k}.png", (), ("dog", "cat")[: 1 + k % 2], ("car",)) for k in range(40)]
    asked = [question for image in images if (question := sentences.training_question(image, 0))]
    official.write_questions(tmp_path / "negmcq.csv", asked, training=True)
    frame = pd.read_csv(tmp_path / "negmcq.csv", sep=",")
    for question, (_, row) in zip(asked, frame.iterrows(), strict=True):
        assert [row[f"caption_{k}"] for k in range(4)] == [option.text for option in question.options]
        assert row["correct_answer"] == question.correct
    words = set(zip(frame["correct_answer_template"], frame["positive_objects"], strict=True))
    single = {word for word, shown in words if shown == "['dog']"}
    assert single == {"modified_positive", "negative", "hybrid"}
    assert {word for word, _ in words} - single == {"positive"}
    assert list(official.read_questions(tmp_path / "negmcq.csv")) == asked


def test_a_row_that_cannot_be_used_is_named_and_one_behind_the_limit_is_not_looked_at(tmp_path):
    captions, questions = write(tmp_path, 5)
    with captions.open("a") as file:
        file.write("5.png,no list,5,,,\n")
    with questions.open("a") as file:
        file.write("9,a,b,c,d,,5.png,5,,,,,,,\n")
    with pytest.raises(UserError, match=r"negcap.csv, line \d+, captions: 'no list'"):
        table.Captions(captions)
    with pytest.raises(UserError, match=r"line \d+, correct_answer: '9'"):
        table.Questions(questions)
    assert (len(table.Captions(captions, 5)), len(table.Questions(questions, 4))) == (5, 4)
    with pytest.raises(UserError, match="There is no file"):
        table.Captions(tmp_path / "nowhere.csv")
    with pytest.raises(UserError, match="no column 'filepath'"):
        table.Captions(questions)


def test_a_file_that_is_cut_while_it_is_read_is_a_sentence(tmp_path):
    captions, _ = write(tmp_path, 5)
    found = table.Captions(captions)
    os.truncate(captions, 100)
    with pytest.raises(UserError, match="has become shorter"):
        found[4]


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
    captions, questions = write(here, 7)[0], write(there, 7)[1]
    shades(here, 7, 10)
    if several:
        shades(there, 7, 100)
    (here / "3.png").write_bytes(b"no picture")
    config = ContrastConfig(captions=str(captions), questions=str(questions), unreadable="skip")
    config.alpha, config.batch_size, config.questions_per_step = ["0.5"], 7, 7
    corpus = load(config)
    kept = Features(corpus, Grey(), tmp_path / "kept")
    kept.make(Processes())
    drawn, read = Reader(config, corpus, kept).read(0, 0, 1), Reader(config, corpus).read(0, 0, 1)
    assert kept.rows(drawn.pictures)[:, 0].tolist() == [p.mean() for p in read.pictures]
    assert kept.rows(drawn.question_pictures)[:, 0].tolist() == [p.mean() for p in read.question_pictures]
    assert (drawn.captions, drawn.options) == (read.captions, read.options)
    assert len(kept._files.unreadable) == 1
    assert max(p.mean() for p in read.question_pictures) == (106 if several else 16)
    again = Features(corpus, Grey(), tmp_path / "kept")
    again.make(Processes())
    assert (again.rows(drawn.pictures) == kept.rows(drawn.pictures)).all()


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
