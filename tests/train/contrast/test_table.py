"""Files of captions and questions that are read by row, and features that are read by picture."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nein.datasets.negbench import official
from nein.datasets.negbench.records import Option, Question, RetrievalItem
from nein.engine.errors import UserError
from nein.engine.images import write_png
from nein.engine.processes import Processes
from train.contrast import table
from train.contrast.data import Reader, Shuffled, load
from train.contrast.features import Features
from train.contrast.options import ContrastConfig, spelled

TEXTS = ["A dog.", "A\n cat, 'odd'", 'say "no"', "ends in \u2028 a line?", "Stra\u00dfe", "a\r\nb"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))


def write(folder: Path, count: int, root: str = "") -> tuple[Path, Path]:
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


def test_a_row_is_what_reading_the_whole_file_gives_whatever_stands_in_it(tmp_path: Path) -> None:
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
    assert asked.options == [4]
    with pytest.raises(IndexError):
        asked[13]


def test_a_row_that_cannot_be_used_is_named_and_one_behind_the_limit_is_not_looked_at(tmp_path: Path) -> None:
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


def test_a_file_is_looked_through_once_and_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions, _ = write(tmp_path, 5)
    seen: list[int] = []
    record = table.Captions.record

    def counted(self: Any, row: Any, where: Any) -> Any:
        seen.append(1)
        return record(self, row, where)

    monkeypatch.setattr(table.Captions, "record", counted)
    first = table.Captions(captions)
    assert len(seen) == 5
    assert (table.Captions(captions).sha256, len(seen)) == (first.sha256, 5)
    write(tmp_path, 6)
    again = table.Captions(captions)
    assert (len(again), len(seen)) == (6, 11)
    assert again.sha256 != first.sha256
    assert first[4].captions == again[4].captions  # what was opened before stays what it was


def test_a_file_that_is_cut_while_it_is_read_is_a_sentence(tmp_path: Path) -> None:
    captions, _ = write(tmp_path, 5)
    found = table.Captions(captions)
    os.truncate(captions, 100)
    with pytest.raises(UserError, match="has become shorter"):
        found[4]


def test_memory_holds_a_few_bytes_of_a_row(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        folder = tmp_path / str(count)
        captions, questions = write(folder, count)
        config = ContrastConfig(captions=str(captions), questions=str(questions), image_root=str(folder))
        tracemalloc.start()
        corpus = load(config)
        assert corpus.captions[count - 1].image == corpus.questions[count - 1].image == f"{count - 1}.png"
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)
    assert (peak(2100) - peak(100)) / 2000 < 100  # bytes; rows that are all kept take 7,000


class Grey:
    """A model whose one feature is a picture's mean."""

    fingerprint, width = "grey", 1
    model = torch.nn.Linear(1, 1)

    def encode(self, pictures: list[np.ndarray]) -> np.ndarray:
        return np.array([[picture.mean()] for picture in pictures], np.float32)


def shades(folder: Path, count: int, first: int) -> None:
    for k in range(count):
        write_png(folder / f"{k}.png", np.full((4, 4, 3), first + k, np.uint8))


@pytest.mark.parametrize("several", [False, True])
def test_a_feature_is_that_of_its_picture_also_where_two_folders_have_the_same_names(
    several: bool, tmp_path: Path
) -> None:
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


def test_an_order_has_every_row_once_a_pass_and_any_number_of_processes_sees_it() -> None:
    order = Shuffled(tuple(range(50)), 0, 3)  # type: ignore[type-var]
    first, second = ([order.row(50 * epoch + k) for k in range(50)] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert [Shuffled(tuple(range(50)), 0, 4).row(k) for k in range(50)] != first  # type: ignore[type-var]


def test_a_model_with_dropout_learns_the_same_each_time(
    tune: Callable[..., Path], clip_folder: Path, tmp_path: Path
) -> None:
    base = Path(shutil.copytree(clip_folder, tmp_path / "base"))
    about = json.loads((base / "config.json").read_text())
    for part in ("text_config", "vision_config"):
        about[part]["attention_dropout"] = 0.5
    (base / "config.json").write_text(json.dumps(about))

    def losses(name: str, **options: Any) -> list[float]:
        torch.manual_seed(os.getpid() + len(name))  # whatever was drawn before
        run = tune(out=tmp_path / name, steps=3, **{"base": base, **options})
        return [json.loads(line)["loss"] for line in (run / "log.jsonl").read_text().splitlines()]

    one = losses("one")
    assert losses("another") == one
    assert losses("plain", base=clip_folder) != one


def test_a_weight_is_spelled_as_it_was_meant() -> None:
    assert [spelled(a) for a in (0.0, 0.5, 0.99, 1.0, 0.1234567)] == ["0", "0.5", "0.99", "1", "0.1234567"]
    assert ContrastConfig().at(0.1234567, Path("x")).alphas == [0.1234567]
