import json
import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from nein.engine import atomic
from nein.loading.errors import UserError
from tests.helpers import killing


def test_drafts_of_killed_writers_are_removed_and_those_at_work_stay(tmp_path):
    def killed():
        with atomic.write_file(tmp_path / "deep" / "rows.jsonl"):
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=killed)
    process.start()
    process.join()
    with atomic.write_file(tmp_path / "mine.txt") as file:
        assert len(list(tmp_path.rglob(".*.tmp"))) == 2
        atomic.remove_drafts(tmp_path)
        file.write(b"whole")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.txt"]


def test_an_output_that_is_a_folder_is_a_sentence(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=r"b' is a folder; give the name of a file"):
        atomic.write_text(tmp_path / "b", "b")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    atomic.write_lines(path, [{"a": 1}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_lines(path, [{"a": 2}, {"a": float("nan")}])
    assert atomic.read_lines(path) == [{"a": 1}]
    assert [entry.name for entry in tmp_path.iterdir()] == ["rows.jsonl"]


def test_lines_come_back_with_their_numbers_whatever_is_in_their_texts(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": "two\nlines"}, {"text": "a line\u2028for some, né"}, {}]
    atomic.write_lines(path, rows)
    assert list(atomic.iter_lines(path)) == [(1, rows[0]), (2, rows[1]), (3, rows[2])]
    path.write_bytes(b'{"a": 1}\r\n\r\n{"a": 2}')
    assert list(atomic.iter_lines(path)) == [(1, {"a": 1}), (3, {"a": 2})]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"a": 1}\n{"a": 2, "te', r"rows\.jsonl', line 2: Invalid JSON: EOF"),
        (b'{"a": 1}\n{"a": 2, "te\n{"a": 3}\n', r"rows\.jsonl', line 2: Invalid JSON: .* column \d+"),
        (b'{"a": 1}\n[2]\n', r"rows\.jsonl', line 2: Input should be an object"),
        (b'{"a": 1}\n{"a": "\xff"}\n', r"rows\.jsonl', line 2: Invalid JSON: invalid unicode"),
    ],
    ids=["torn", "broken", "list", "latin"],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, content, sentence):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    lines = atomic.iter_lines(path)
    assert next(lines) == (1, {"a": 1})  # read as they are asked for
    with pytest.raises(UserError, match=sentence):
        next(lines)


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 0.1, "b": 1e-320, "c": 123456789012345678901234567890, "d": -0.0, "e": 12345678.000000001}',
        '{"a": "alone", "b": "\\u00e9\\n\\/", "c": {"c": []}, "a": 2}',
        '{"a": 1, "b": true, "c": null, "d": 1.0}',
    ],
)
def test_a_line_is_what_the_standard_parser_makes_of_it(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{line}\n")
    assert repr(atomic.read_lines(path)) == repr([json.loads(line)])


def test_a_file_that_is_not_there_or_a_folder_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        atomic.read_lines(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        atomic.read_lines(tmp_path)


def write_three(arguments):
    for name in ("a.txt", "b.json", "c.txt"):
        atomic.write_text(Path(arguments[0]) / name, "ten letters")


@pytest.mark.parametrize(
    ("how", "there"), [("before", "a.txt b.json"), ("torn", "a.txt b.json"), ("after", "a.txt b.json c.txt")]
)
def test_a_kill_while_a_file_is_written_leaves_whole_files_only(tmp_path, how, there):
    assert killing.run(write_three, [str(tmp_path)], killing.File("*.txt", 2, how)) == killing.KILLED
    whole = sorted(path for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert " ".join(path.name for path in whole) == there
    assert {path.read_text() for path in whole} == {"ten letters"}
    rest = [path.read_text() for path in tmp_path.glob(".c.txt.*")]
    assert rest == (["ten l"] if how == "torn" else [])
    assert killing.run(write_three, [str(tmp_path)]) == 0


def test_of_those_that_need_a_folder_at_the_same_time_one_makes_it_and_the_others_wait(tmp_path):
    began, made = threading.Event(), []

    def make(draft):
        made.append(draft)
        began.wait(timeout=20)
        (draft / "proof").write_text("whole")

    given = (tmp_path / "records", make, "proof")
    threads = [threading.Thread(target=atomic.make_once, args=given) for _ in range(3)]
    for thread in threads:
        thread.start()
    began.set()
    for thread in threads:
        thread.join()
    assert (tmp_path / "records" / "proof").read_text() == "whole"
    assert len(made) == 1
