import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nein.engine.answers import AnswerCache, BlockStore, FeatureCache, hash_scope
from nein.loading.errors import UserError


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


def test_features_come_back_bit_for_bit_in_their_space_and_block_and_damaged_ones_are_made_again(
    tmp_path, caplog
):
    value = np.random.default_rng(0).normal(size=7).astype(np.float32)

    def keep():
        cache = BlockStore(FeatureCache(tmp_path), hash_scope(["a", "b"]))
        cache.put("clip@1", "key", value)
        cache.flush()

    def found(space="clip@1", key="key", ids="ab"):
        return BlockStore(FeatureCache(tmp_path), hash_scope(ids)).get(space, key)

    keep()
    assert found().dtype == np.float32
    assert np.array_equal(found(), value)
    assert found("clip@2") is found(key="other") is found(ids="ba") is None
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    file.write_bytes(file.read_bytes()[:-3])
    assert found() is None
    assert "is damaged and will be rewritten" in caplog.text
    keep()
    assert np.array_equal(found(), value)
