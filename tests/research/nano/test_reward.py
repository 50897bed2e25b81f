"""What the nano reward is taught, and what it starts from."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import reward as benchmark
from metrics import rewards
from metrics.base import Score
from nein.nano import zoo
from nein.nano.data import NEGATIVES
from nein.nano.scenes import render
from nein.nano.worlds import HELD_OUT, NEGATOR, UNSEEN, VARIED, WORLDS, World
from research.nano import reward
from tests.nano.words import negated

EVERYTHING = World("all", named=WORLDS["nano:taught"].named)


@pytest.fixture(scope="module")
def scenes() -> list[reward.Drawn]:
    return [reward.drawn("train", index, EVERYTHING) for index in range(60)]


@pytest.fixture(scope="module")
def tasks(scenes: list[reward.Drawn]) -> list[tuple[reward.Drawn, reward.Task]]:
    rng = random.Random(0)
    drawn = [one for one in scenes for _ in range(8)]
    return [(one, reward.task(rng, one, EVERYTHING, NEGATIVES[VARIED])) for one in drawn]


def test_edits_are_the_scene_without_this_or_that_and_with_more(scenes: list[reward.Drawn]) -> None:
    for one in scenes:
        inside = [set(scene.categories) for scene in one.edits]
        whole = set(one.scene.categories)
        gone = [set(), {one.first}, {one.second}, {one.first, one.second}, set(), set()]
        assert inside[:5] == [whole - names for names in gone[:5]]
        assert inside[5] == whole | {one.third} != whole
        assert len(one.edits.another_first.items) == len(one.scene.items) + 1
        assert len({render(scene).tobytes() for scene in one.edits}) == 6


def test_the_right_edit_is_the_one_that_does_what_is_said_and_no_more(
    tasks: list[tuple[reward.Drawn, reward.Task]],
) -> None:
    kinds = set()
    for one, asked in tasks:
        named = [n for n in (one.first, one.second, one.third) if asked in _possible(one, asked, n)]
        assert named, asked
        assert asked.right not in asked.wrong
        denies = bool(negated([asked.sentence])) or _removes(asked.sentence)
        kinds.add((denies, asked.right))
        assert asked.right in ((0, 1, 2) if denies else (0, 5)), asked
    assert kinds >= {(True, 1), (True, 2), (True, 0), (False, 0), (False, 5)}


def _removes(sentence: str) -> bool:
    return bool(re.search("remove|delete|away|erase|rid|cut|disappear|wipe|drop|clear", sentence.lower()))


def _possible(one: reward.Drawn, asked: reward.Task, name: str) -> list[reward.Task]:
    return [reward.denial(one, asked.sentence, name), reward.affirmation(one, asked.sentence, name)]


def test_no_negative_sentence_names_a_held_out_object_or_is_in_a_held_out_wording(
    tasks: list[tuple[reward.Drawn, reward.Task]],
) -> None:
    denied = [task.sentence for _, task in tasks if negated([task.sentence])]
    assert 0.4 < len(denied) / len(tasks) < 0.6
    assert not any(re.search(rf"\b{noun}", text) for text in denied for noun in HELD_OUT)
    for wording in set(NEGATIVES[UNSEEN]) | set(NEGATIVES[NEGATOR]):
        pattern = re.sub(r"\\{[^}]*\\}", "[a-z ]+", re.escape(wording))
        assert not any(re.fullmatch(pattern, text, re.IGNORECASE) for text in denied), wording
    others = [task.sentence for _, task in tasks if not negated([task.sentence])]
    assert any(re.search(rf"\b{noun}", text) for text in others for noun in HELD_OUT)


def test_it_starts_from_the_nano_blip_with_denying_words_as_tokens_of_their_own() -> None:
    model, tokenizer = reward.start(zoo.ZOO)
    assert model.config.pictures == 2
    assert len(model.get_input_embeddings().weight) == len(tokenizer) == model.config.text_config.vocab_size
    words = tokenizer.tokenize("There isn't a cup without a bus, not here.")
    assert {"isn", "without", "not"} <= {word.strip() for word in words}


@pytest.mark.slow
def test_a_smoke_run_gives_a_reward_that_scores_edits(tmp_path: Path) -> None:
    from research.nano import __main__ as nano

    zoo_root = tmp_path / "zoo"
    zoo_root.mkdir()
    for name in ("blip", "ip2p"):
        (zoo_root / name).symlink_to(zoo.ZOO / name)
    line = ["reward", "--scale", "0.001", "--device", "cpu", "--work", str(tmp_path / "work")]
    nano.main([*line, "--zoo", str(zoo_root)])
    kept = {p.name for p in (zoo_root / "reward").iterdir()}
    assert kept == {"README.md", "training.json", "changes.safetensors", "config.json", "tokenizer.json"}
    whole = zoo.continued("reward", zoo_root / "blip", zoo_root)
    judge = rewards.load_reward(f"matching:{whole}")
    picture = render(reward.drawn("dev", 0, EVERYTHING).scene)
    [one] = judge.score([picture], [picture], ["No dog."])
    assert one.value is not None


def test_the_benchmark_of_a_judge_of_edits_counts_what_it_prefers() -> None:
    class Emptier(rewards.RewardJudge):
        """Prefers the picture from which more is gone: where there is less difference to the last one."""

        def describe(self) -> dict[str, Any]:
            return {}

        def score(self, sources: Any, edits: Any, instructions: Any) -> list[Score]:
            empty = edits[reward.NEITHER].astype(float)
            return [Score(-float(np.abs(edit - empty).mean())) for edit in edits]

    told = benchmark.shares(Emptier(None), "taught", "nano:taught", "taught", 4)
    assert told["took another along"].startswith("0.0 [")
    assert told["did nothing"].startswith("100.0 [")
    assert set(told) == set(benchmark.WRONG)
