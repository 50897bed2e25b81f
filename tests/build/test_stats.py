"""Counting negative sentences: whole words only, idioms apart, any format of captions."""

from __future__ import annotations

import json

import pytest

from nein.generate.nein import stats
from tests.helpers import commands

SENTENCES = [
    "A dog on a bench.",
    "Things you cannot miss in Rome.",
    "The kitchen doesn’t have any windows.",
    "A no parking sign on a street without cars.",
    "A no parking sign.",
    "An empty room.",
    "A notable north tower and nonchalant people.",
]


def rows():
    return [(str(i), s) for i, s in enumerate(SENTENCES)]


def test_the_core_list_has_the_papers_length_and_the_wide_one_contains_it():
    assert len(stats.CORE) == len(set(stats.CORE)) == 32
    assert set(stats.CORE) < set(stats.WIDE)


def test_negative_words_count_as_whole_words_and_idioms_apart():
    found = stats.count(rows(), stats.CORE)
    assert (found.sentences, found.negative, found.idiomatic) == (7, 4, 2)
    assert found.idioms == [SENTENCES[1], SENTENCES[4]]
    assert found.examples == [SENTENCES[2], SENTENCES[3]]
    assert found.words["no"] == 2
    wide = stats.count(rows(), stats.WIDE)
    assert wide.negative == 5
    assert wide.words["empty"] == 1


def test_a_share_has_an_interval_clustered_by_image():
    one = stats.count([(str(i), s) for i, s in enumerate(SENTENCES * 20)], stats.CORE)
    few = stats.count([(str(i % 7), s) for i, s in enumerate(SENTENCES * 20)], stats.CORE)
    narrow, wide = stats.share(one), stats.share(few)
    assert narrow.value == wide.value == pytest.approx(4 / 7)
    assert wide.high - wide.low > narrow.high - narrow.low  # type: ignore[operator]


def run(*argv):
    return commands.exit_code("stats", *argv)


def test_the_command_reads_coco_jsonl_nein_and_text(tmp_path, capsys):
    coco = {"images": [], "annotations": [{"image_id": i, "caption": s} for i, s in enumerate(SENTENCES)]}
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    nein = [{"COCO": "a", "T_original": s, "T_negative": "No cat."} for s in SENTENCES]
    (tmp_path / "nein.json").write_text(json.dumps(nein))
    lines = [json.dumps({"image": "a.png", "captions": SENTENCES})]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    (tmp_path / "c.txt").write_text("\n".join(SENTENCES))
    (tmp_path / "mine.txt").write_text("tower\nbench\n")
    llava = [{"image": "a.png", "conversations": [{"from": "gpt", "value": s}]} for s in SENTENCES]
    (tmp_path / "llava.json").write_text(json.dumps(llava))
    files = [tmp_path / name for name in ("coco.json", "nein.json", "llava.json", "c.jsonl", "c.txt")]
    assert run(*files, "--words", tmp_path / "mine.txt", "--json", tmp_path / "out.json") == 0
    printed = capsys.readouterr().out
    assert printed.count("57.14") == 5
    assert "false positive Things you cannot miss in Rome." in printed
    counts = json.loads((tmp_path / "out.json").read_text())
    assert {counts[f"{f.name}/core"]["negative"] for f in files} == {4}
    assert {counts[f"{f.name}/mine.txt"]["negative"] for f in files} == {2}


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("a.json", "{}", "has no list of captions"),
    ("a.json", '[{"x": 1}]', "entry 0 has no caption"),
    ("a.jsonl", "{", "line 1, the last one, is cut short"),
    ("a.txt", "\n", "holds no caption"),
])  # fmt: skip
def test_a_file_that_holds_no_captions_is_one_sentence(tmp_path, capsys, name, content, sentence):
    (tmp_path / name).write_text(content)
    assert run(tmp_path / name) == 2
    assert sentence in capsys.readouterr().err
    assert run(tmp_path / "missing.txt") == 2
    assert "cannot be read" in capsys.readouterr().err
