"""A server that dies in the middle of a build: the same files in the end, and nothing asked twice."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter

from nein.engine.folder import Folder
from nein.engine.images import write_png
from tests.negbench_build.conftest import picture
from tests.negbench_build.test_build import contents
from tests.negbench_build.test_language import polite


def test_a_server_that_dies_ends_the_build_within_a_few_shards_and_what_it_said_is_kept(
    server, negbench, tmp_path
):
    # 14 pictures with captions beside them; for two of them the model has nothing usable to say
    (source := tmp_path / "source").mkdir()
    things = ["dog and cat", "dog and car", "cat and boat", "sky"]
    for number in range(14):
        write_png(source / f"{number:02d}.png", picture(10 * number))
        (source / f"{number:02d}.txt").write_text(f"A picture of {things[number % 4]}, number {number}.")
    answered = []

    def build(name):
        return negbench(
            "generate", "--source", "captions", "--captions", source, "--form", "training",
            "--concepts", "llm", "--verify", "negatives", "--detector", "tests.rehearsal:score_005",
            "--paraphrase", "--llm.model", f"openai:{server.url}#eye-7b", "--retries", "0",
            "--concurrency", "2", "--shard-size", "1", "--device", "cpu", "--out", tmp_path / name,
        )  # fmt: skip

    def slow(body, count):
        time.sleep(0.02)
        answered.append(json.dumps([body["messages"], body.get("seed")]))
        return polite(body, count)

    def dying(body, count):
        """Twelve answers, then none; later than those, since what is on its way when a build ends is lost.
        Many more questions are left than are waited for, so that a late answer among them does not matter."""
        if len(answered) < 12:
            return slow(body, count)
        time.sleep(0.1)
        return 500, {"error": "down"}, {}

    server.rule = slow
    assert build("whole").code == 0
    whole, questions = contents(tmp_path / "whole"), len(answered)
    usage = Folder(tmp_path / "whole").manifest()["usage"].values()
    assert sum(one["requests"] for one in usage) == questions
    assert {"dataset/negcap.csv", "dataset/negmcq.csv", "dataset/negcap_rephrased.csv"} <= set(whole)
    assert whole["unusable.jsonl"].count(b"\n") == 3

    answered.clear()
    server.requests.clear()
    server.rule = dying
    done = build("interrupted")
    assert done.code == 2
    assert "20 questions in a row without an answer" in done.stderr
    assert len(server.requests) < 50 < questions
    # A question may have been on its way when the build ended, and nobody waits for its answer.
    for thread in [one for one in threading.enumerate() if one.name == "question"]:
        thread.join()
    server.rule = slow
    again = build("interrupted")
    assert again.code == 0, again.stderr
    assert contents(tmp_path / "interrupted") == whole
    assert max(Counter(answered).values()) == 1
    assert len(answered) == questions
