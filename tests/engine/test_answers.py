import errno
import fcntl
import json
import multiprocessing
import os
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nein.engine import answers
from nein.engine.answers import AnswerCache, BlockStore, Unique
from nein.engine.errors import UserError
from nein.engine.features import FeatureCache, scope_of
from nein.models.cached import Questions
from tests.helpers.commands import exit_code


def test_an_answer_serves_its_space_and_key_only_and_a_later_one_replaces_it(tmp_path):
    with AnswerCache(tmp_path / "deep" / "answers.sqlite") as cache:
        assert cache.get("model", "question") is None
        cache.put("model", "question", {"text": "Yés", "odd": "\ud83d", "numbers": [1.5, None]})
        cache.put("model", "question", {"text": "Nó", "odd": "\ud83d", "numbers": [0.1 + 0.2, None]})
        assert cache.get("other", "question") is cache.get("model", "other") is None
        assert cache.get("model", " question") is cache.get("model ", "question") is None
    with AnswerCache(tmp_path / "deep" / "answers.sqlite") as again:
        assert again.get("model", "question") == {"text": "Nó", "odd": "\ud83d", "numbers": [0.1 + 0.2, None]}


def test_threads_and_two_processes_write_into_one_file_and_see_each_other(tmp_path):
    path = tmp_path / "answers.sqlite"

    def write(cache, name):
        for number in range(40):
            cache.put("model", f"{name} {number}", {"number": number})

    process = multiprocessing.get_context("fork").Process(target=lambda: write(AnswerCache(path), "there"))
    process.start()
    with AnswerCache(path) as cache:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda name: write(cache, name), "abc"))
        process.join(60)
        assert process.exitcode == 0
        for key in (f"{name} {number}" for name in ("there", *"abc") for number in range(40)):
            assert cache.get("model", key) == {"number": int(key.split()[1])}


def test_a_kill_in_the_middle_of_writing_leaves_every_earlier_answer(tmp_path):
    path = tmp_path / "answers.sqlite"

    def child():
        cache = AnswerCache(path)
        cache.put("model", "first", {"kept": True})
        cache._db.execute("PRAGMA cache_spill = 1")  # half-written pages reach the file before the end
        cache._db.execute("PRAGMA cache_size = 1")
        cache._db.execute("BEGIN IMMEDIATE")
        for number in range(200):
            row = (number.to_bytes(16, "big"), "x" * 4000)
            cache._db.execute("INSERT INTO answers VALUES (?, ?)", row)
        os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert path.with_name("answers.sqlite-journal").exists()
    with AnswerCache(path) as cache:
        assert cache.get("model", "first") == {"kept": True}
        assert cache._db.execute("SELECT count(*) FROM answers").fetchone() == (1,)


class NoLocks(sqlite3.Connection):
    """As on a file system that knows no locks, in the words of SQLite: whoever does not do without fails."""

    message, locking = "database is locked", False

    def execute(self, sql, *given):
        if self.locking:
            raise sqlite3.OperationalError(self.message)
        return super().execute(sql, *given)


@pytest.fixture
def no_locks(monkeypatch):
    connect = sqlite3.connect

    def refused(place, *more, **options):
        made = connect(place, *more, **options, factory=NoLocks)
        made.locking = "nolock" not in str(place) and str(place) not in ("", ":memory:")
        return made

    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(answers.sqlite3, "connect", refused)
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(fcntl, "lockf", flock)


@pytest.mark.parametrize("message", ["database is locked", "disk I/O error", "locking protocol"])
def test_a_file_system_without_locks_keeps_a_file_per_answer(tmp_path, monkeypatch, message, request):
    monkeypatch.setattr(NoLocks, "message", message)
    path, before = tmp_path / "answers.sqlite", tmp_path / "before.sqlite"
    with AnswerCache(before) as cache:
        cache.put("model", "question", {"text": "Yes"})
    request.getfixturevalue("no_locks")
    with AnswerCache(before) as cache:  # of a disk with locks
        cache.put("model", "later", {"text": "No"})
        assert [cache.get("model", key)["text"] for key in ("question", "later")] == ["Yes", "No"]
    with AnswerCache(path) as one, AnswerCache(path) as other:
        one.put("model", "question", {"text": "Yes"})
        assert other.get("model", "question") == {"text": "Yes"}
        assert other.get("model", "other") is None
        block = BlockStore(other, "block")
        block.put("judge", "key", {"answer": "No"})
        block.flush()
    assert not path.exists()
    monkeypatch.undo()
    with AnswerCache(path) as moved:  # to a disk with locks
        assert moved.get("model", "question") == {"text": "Yes"}
        assert BlockStore(moved, "block").get("judge", "key") == {"answer": "No"}
        moved.put("model", "later", {"text": "No"})


def test_a_command_that_asks_models_runs_where_there_are_no_locks(tmp_path, no_locks):
    words = "eval --editor identity --metrics removal_vqa --models.vqa tests.rehearsal:no --limit 2"
    assert exit_code(*words.split(), "--device", "cpu", "--out", tmp_path / "out") == 0
    assert not list(tmp_path.rglob("*.sqlite"))


def test_another_program_that_keeps_the_file_is_not_waited_for_without_end(tmp_path):
    with AnswerCache(tmp_path / "a") as holder, AnswerCache(tmp_path / "a", wait=0.1) as cache:
        holder._db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UserError, match="database is locked"):
            cache.put("model", "question", {})
        holder._db.execute("ROLLBACK")
        cache.put("model", "question", {"later": True})
        assert holder.get("model", "question") == {"later": True}


def test_a_damaged_file_is_a_sentence(tmp_path):
    path = tmp_path / "answers.sqlite"
    path.write_bytes(b"no data base" * 1000)
    with pytest.raises(UserError, match=r"damaged.*remove the file"):
        AnswerCache(path)
    path.unlink()
    with AnswerCache(path) as cache:
        cache.put("model", "question", {"answer": "Yes"})
        cache._db.execute("UPDATE answers SET value = '{\"answer'")
        with pytest.raises(UserError, match="damaged"):
            cache.get("model", "question")
    with pytest.raises(UserError, match="cannot be read or written"):
        AnswerCache(tmp_path)


def test_of_several_commands_one_asks_and_what_a_dead_one_was_asking_is_asked(tmp_path):
    path, asked = tmp_path / "answers.sqlite", []

    def command():
        with AnswerCache(path) as cache:
            questions = Questions(cache, "model", at_once=4, limit=9)

            def ask(key):
                asked.append(key)
                time.sleep(0.05)
                return {"text": key}

            keys = [str(number) for number in range(8)]
            found = dict(questions.each(lambda key: questions.answer(key, lambda: ask(key)), keys))
            assert found == {key: {"text": key} for key in keys}

    with AnswerCache(path) as cache, cache.claimed("model", "3") as mine:
        assert mine
        [file] = (tmp_path / "answers.sqlite-asked").iterdir()
        file.write_text(json.dumps({**json.loads(file.read_text()), "began": "earlier"}))
        with ThreadPoolExecutor(3) as pool:
            for done in [pool.submit(command) for _ in range(3)]:
                done.result(60)
    assert sorted(asked) == sorted(set(asked))
    assert len(asked) == 8


def test_answers_about_a_block_are_kept_as_a_whole_and_serve_that_block_only(tmp_path):
    with AnswerCache(tmp_path / "a") as cache:
        block = BlockStore(cache, "one")
        block.put("judge", "key", {"answer": "No"})
        assert block.get("judge", "key") == {"answer": "No"}
        assert BlockStore(cache, "one").get("judge", "key") is None, "what was not flushed is not kept"
        block.flush()
        assert BlockStore(cache, "one").get("judge", "key") == {"answer": "No"}
        assert BlockStore(cache, "two").get("judge", "key") is None
        again = BlockStore(cache, "one")
        again.put("judge", "other", {"answer": "Yes"})
        again.flush()
        assert BlockStore(cache, "one").get("judge", "key") == {"answer": "No"}


def test_a_name_is_new_once_whatever_its_characters():
    names, given = Unique(), ("a", "b", "a", "\ud83d", "\ud83d", "")
    assert [names.add(name) for name in given] == [True, True, False, True, False, True]
    assert Unique().add("a")


def test_features_come_back_bit_for_bit_in_their_space_and_block_and_damaged_ones_are_made_again(
    tmp_path, caplog
):
    value = np.random.default_rng(0).normal(size=7).astype(np.float32)

    def keep():
        cache = BlockStore(FeatureCache(tmp_path), scope_of(["a", "b"]))
        cache.put("clip@1", "key", value)
        cache.flush()

    def found(space="clip@1", key="key", ids="ab"):
        return BlockStore(FeatureCache(tmp_path), scope_of(ids)).get(space, key)

    keep()
    assert found().dtype == np.float32
    assert np.array_equal(found(), value)
    assert found("clip@2") is found(key="other") is found(ids="ba") is None
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-3])
    assert found() is None
    assert "is damaged and is made again" in caplog.text
    keep()
    assert np.array_equal(found(), value)
