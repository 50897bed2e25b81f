import csv
import json
from pathlib import Path

import pandas as pd
import pytest

from nein.generate import negvqa as sources
from nein.generate.config import ConversionConfig
from nein.generate.negvqa import SPLIT
from nein.loading.errors import UserError
from nein.nano.sentences import iter_questions
from tests.negvqa_build.conftest import WORDS, rows, write


def load(source, **options):
    return sources.load(ConversionConfig(source=str(source), **options))


def test_a_vmcbench_file_is_read_with_every_option(choices):
    found = load(choices).records
    assert len(found) == 24
    assert (found[5].answer, found[5].subset, found[5].options) == ("dog", "TextVQA", WORDS)
    assert found[5].wrong == ["cat", "car", "bench"]
    assert found[5].picture == choices.parent / "pictures" / "5.png"
    assert not any(item.problem for item in found)


def test_other_column_names_are_mapped(tmp_path):
    names = {"index": "id", "image": "file", "question": "prompt", "answer": "gold", "A": "opt1", "B": "opt2"}
    path = write(tmp_path, [{name: row[key] for key, name in names.items()} for row in rows()[:2]])
    found = load(path, columns=names).records
    assert [(item.answer, item.subset) for item in found] == [("cat", "all"), ("dog", "all")]
    with pytest.raises(UserError, match=r"no question in the first record.*--columns\.question"):
        load(path)
    with pytest.raises(UserError, match="did you mean 'question'"):
        load(path, columns={"questoin": "prompt"})


def test_tables_and_lists_read_like_lines(choices):
    records = rows()
    expected = load(choices)
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        with choices.with_suffix(suffix).open("w", newline="") as file:
            writer = csv.DictWriter(file, records[0], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(records)
        assert load(choices.with_suffix(suffix)).records == expected.records


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"question": " "}, "no question"),
        ({"answer": "E"}, "no letter of an option"),
        ({"answer": "cat"}, "no letter of an option"),
        ({"answer": None}, "no letter of an option"),
        ({"B": None}, "fewer than two options"),
        ({"index": 0}, "occurs twice"),
        ({"image": "pictures/nowhere.png"}, "not there"),
        ({"image": None}, "neither a file name, bytes nor base64"),
        ({"A": "Cat", "B": "cat", "C": "CAT.", "D": " cat"}, "differs from the right one"),
    ],
)
def test_a_record_that_cannot_be_used_stays_and_says_why(choices, change, problem):
    records = rows()
    records[1] = {**records[1], **change}
    choices.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = load(choices).records
    assert len(found) == 24
    assert problem in found[1].problem
    assert [item.problem for item in found if item != found[1]] == [""] * 23


def test_two_splits_of_the_hub_are_read_one_after_the_other(choices, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(choices.parent / "cache"))
    folder = choices.parent / "hub"
    for split, part in (("dev", rows()[:3]), ("test", rows()[3:5])):
        (folder / "data").mkdir(parents=True, exist_ok=True)
        table = pd.DataFrame(part).assign(
            image=[{"bytes": b"\x89PNG" + split.encode(), "path": None}] * len(part)
        )
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    found = load(f"hub:{folder}", split="dev+test").records
    assert [item.id for item in found] == ["0", "1", "2", "3", "4"]


def test_drawn_questions_have_options_that_are_really_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path))
    found = load("nano", questions=16).records
    for item, (_, scene, question) in zip(found, iter_questions(SPLIT, 16), strict=True):
        assert item.answer == question.right
        assert len(item.wrong) == len(item.options) - 1 >= 1
        if item.subset == "presence":
            assert not set(item.wrong) & set(scene.categories)
        assert isinstance(item.picture, Path)
        assert item.picture.is_file()
    assert len({item.right for item in found}) > 1
