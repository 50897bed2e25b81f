"""Killed by signal 9 at any moment, or shared by processes: the same files, and nothing asked twice."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nein import cli
from nein.engine.folder import Folder
from nein.engine.images import write_png
from tests.helpers import commands, killing
from tests.loopback import Reply, Server
from tests.negbench_build.conftest import picture
from tests.negbench_build.test_build import contents
from tests.negbench_build.test_language import polite

CONCURRENCY = 2


def arguments(captions: Path, out: Path, server: Server) -> list[str]:
    return [
        "generate", "--source", "captions", "--captions", str(captions), "--form", "training",
        "--concepts", "llm", "--verify", "negatives", "--detector", "tests.rehearsal:score_005",
        "--paraphrase", "--llm.model", f"openai:{server.url}#eye-7b", "--llm.retries", "0",
        "--llm.concurrency", str(CONCURRENCY), "--shard-size", "3", "--device", "cpu", "--out", str(out),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def captioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """14 pictures with captions beside them; for two of them the model has nothing usable to say."""
    folder = tmp_path_factory.mktemp("captioned")
    things = ["dog and cat", "dog and car", "cat and boat", "sky"]
    for number in range(14):
        write_png(folder / f"{number:02d}.png", picture(10 * number))
        (folder / f"{number:02d}.txt").write_text(f"A picture of {things[number % 4]}, number {number}.")
    return folder


class Slow:
    """Polite, after a moment; counts what it answered."""

    def __init__(self) -> None:
        self.answered: list[str] = []

    def __call__(self, body: dict[str, Any], count: int) -> Reply:
        time.sleep(0.02)
        reply = polite(body, count)
        self.answered.append(json.dumps([body["messages"], body.get("seed")]))
        return reply


@pytest.fixture(scope="module")
def whole(captioned: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], int]:
    """What an undisturbed build makes, and how many questions it asks."""
    out, server, rule = tmp_path_factory.mktemp("whole"), Server(), Slow()
    server.rule = rule
    assert commands.exit_code("negbench", *arguments(captioned, out, server)) == 0
    server.close()
    found = contents(out)
    usage = Folder(out).manifest()["usage"].values()
    assert sum(one["requests"] for one in usage) == len(rule.answered)
    assert {"dataset/negcap.csv", "dataset/negmcq.csv", "dataset/negcap_rephrased.csv"} <= set(found)
    assert found["unusable.jsonl"].count(b"\n") == 3
    return found, len(rule.answered)


MOMENTS = (2, 9, 16, 17, 60)


def test_killed_again_and_again_it_ends_in_the_same_files_and_asks_nothing_twice(
    captioned: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path, server: Server
) -> None:
    server.rule = rule = Slow()
    given = arguments(captioned, tmp_path, server)
    for moment in MOMENTS:  # so many answers in all
        process = killing.start(cli.main, ["negbench", *given])  # in a process of its own
        while process.is_alive() and len(rule.answered) < moment:
            time.sleep(0.002)
        process.kill()
        process.join()
        assert process.exitcode == killing.KILLED
        assert not (tmp_path / "dataset").exists()
    assert commands.exit_code("negbench", *given) == 0
    assert contents(tmp_path) == whole[0]
    asked = Counter(rule.answered)
    assert len(asked) == whole[1]
    # An answer that was on its way at the moment of a kill is asked for again: one per connection at most.
    assert sum(asked.values()) - len(asked) <= CONCURRENCY * len(MOMENTS)


def test_a_server_that_dies_ends_the_build_within_a_few_shards_and_what_it_said_is_kept(
    captioned: Path, whole: tuple[dict[str, bytes], int], tmp_path: Path, server: Server, negbench: Any
) -> None:
    rule = Slow()

    def dying(body: dict[str, Any], count: int) -> Reply:
        """Twelve answers, then none; later than those, since what is on its way when a build ends is lost.
        Many more questions are left than are waited for, so that a late answer among them does not matter."""
        if count <= 12:
            return rule(body, count)
        time.sleep(0.1)
        return 500, {"error": "down"}, {}

    server.rule = dying
    given = [*arguments(captioned, tmp_path, server), "--shard-size", "1"]
    done = negbench(*given)
    assert done.code == 2
    assert "20 questions in a row without an answer" in done.stderr
    assert len(server.requests) < 50 < whole[1]
    # A question may have been on its way when the build ended, and nobody waits for its answer.
    for thread in [one for one in threading.enumerate() if one.name == "question"]:
        thread.join()
    server.rule = rule
    again = negbench(*given)
    assert again.code == 0, again.stderr
    assert contents(tmp_path) == whole[0]
    assert max(Counter(rule.answered).values()) == 1
