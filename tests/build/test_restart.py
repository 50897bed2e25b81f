"""A kill at any moment, a rerun, several workers, threads: the same data set, byte for byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nein import cli
from nein.engine.processes import Processes
from tests.build.conftest import arguments
from tests.helpers import commands, killing
from tests.helpers.commands import Outcome

Build = Callable[..., Outcome]
MORE = ("--families", "all", "--evaluation-share", "0.5", "--formats", "official")


def contents(out: Path) -> dict[str, bytes]:
    """Everything that must not depend on how the work was done."""
    found = {str(p.relative_to(out)): p.read_bytes() for p in (out / "dataset").rglob("*") if p.is_file()}
    for name in ("candidates.jsonl", "card.json", "card.png"):
        found[name] = (out / name).read_bytes()
    return found


def sha(out: Path) -> str:
    return json.loads((out / "manifest.json").read_text())["data_sha256"]


@pytest.fixture(scope="module")
def whole(captioned: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert commands.exit_code("generate", *arguments(captioned, models, out, *MORE)) == 0
    assert json.loads((out / "card.json").read_text())["stages"]["accepted"] >= 3
    return out


@pytest.mark.parametrize(
    ("moment", "threads"),
    [
        (killing.File("*/work/clauses/*/[0-9]*.jsonl", 2, "torn"), 1),
        (killing.File("*/NeIn*.png", 5), 3),
        (killing.File("*/work/generate/*/[0-9]*.jsonl", 3, "after"), 1),
        (killing.File("*/work/match/*/[0-9]*.jsonl", 1), 2),
        (killing.File("*/work/ask/*/[0-9]*.jsonl", 4, "torn"), 1),
        (killing.Call("nein.generate.nein.dataset:_put", 6), 3),
    ],
    ids=str,
)
def test_a_kill_and_a_rerun_with_other_workers_give_the_same_data_set(
    whole: Path,
    captioned: Path,
    models: Path,
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: killing.File | killing.Call,
    threads: int,
) -> None:
    given = arguments(captioned, models, tmp_path, *MORE)
    monkeypatch.setattr(Processes, "workers", lambda self, device: 1)
    assert killing.run(cli.main, ["generate", *given], moment) == killing.KILLED
    before = {path: path.read_bytes() for path in tmp_path.glob("work/*/*/[0-9]*.jsonl")}
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "incomplete"

    monkeypatch.setattr(Processes, "workers", lambda self, device: threads)
    again = build(*given)
    assert again.code == 0, again.stderr
    assert contents(tmp_path) == contents(whole)
    assert sha(tmp_path) == sha(whole)
    for path, written in before.items():
        assert path.read_bytes() == written  # nothing that was written is lost


def test_two_workers_at_once_share_the_shards_and_give_the_same(
    whole: Path, captioned: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Processes, "workers", lambda self, device: 1)
    given = arguments(captioned, models, tmp_path, *MORE)
    workers = [killing.start(cli.main, ["generate", *given]) for _ in range(2)]
    for worker in workers:
        worker.join(240)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert contents(tmp_path) == contents(whole)
    for stage in ("clauses", "generate", "match", "ask"):
        assert sorted(p.name for p in (tmp_path / "work" / stage / "000").iterdir()) == [
            f"{number:06d}.jsonl" for number in range(4)
        ]


def test_stages_may_run_apart_and_a_limit_may_grow(
    whole: Path, captioned: Path, models: Path, build: Build, tmp_path: Path
) -> None:
    given = arguments(captioned, models, tmp_path, *MORE)
    early = build(*given, "--stages", "finish")
    assert early.code == 2
    assert "lacks stage clauses of 4 of 4 shards" in early.stderr
    alone = build(*given, "--stages", "match")  # nobody will make what it needs: it does not wait for ever
    assert alone.code == 2
    assert "lacks stage clauses of 4 of 4 shards" in alone.stderr
    for more in (
        ("--limit", "3"),
        ("--stages", "clauses,generate"),
        ("--stages", "match"),
        ("--stages", "ask,finish"),
    ):
        done = build(*given, *more)
        assert done.code == 0, done.stderr
    assert contents(tmp_path) == contents(whole)


def test_a_vanished_picture_is_made_again_and_other_settings_are_refused(
    whole: Path, captioned: Path, models: Path, build: Build, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "copy"))
    given = arguments(captioned, models, out, *MORE)
    next((out / "work" / "pictures").glob("*.png")).unlink()
    assert build(*given).code == 0
    assert contents(out) == contents(whole)
    refused = build(*given, "--match-above", "0.3")
    assert refused.code == 2
    assert "holds a build made with match_above 0.25, not 0.3" in refused.stderr
    assert contents(out) == contents(whole)
    discarded = build(*given, "--match-above", "0.3", "--overwrite")
    assert discarded.code == 0, discarded.stderr
    assert sha(out) != sha(whole)


def test_replaced_weights_are_refused(captioned: Path, models: Path, build: Build, tmp_path: Path) -> None:
    from tests.metrics import tiny

    own = Path(shutil.copytree(models, tmp_path / "models"))
    given = arguments(captioned, own, tmp_path / "out", *MORE)
    assert build(*given, "--stages", "clauses").code == 0
    shutil.rmtree(own / "blip")
    tiny.make_blip(own / "blip", seed=5)
    done = build(*given)
    assert done.code == 2
    assert "weights or settings behind 'itm' have changed" in done.stderr


@pytest.mark.slow
def test_two_processes_of_accelerate_give_the_same(
    captioned: Path, models: Path, build: Build, tmp_path: Path
) -> None:
    def given(out: Path) -> list[str]:
        return arguments(captioned, models, out, *MORE, "--models.vqa", "tests.rehearsal:yes")

    assert build(*given(tmp_path / "one")).code == 0
    words = ("generate", *given(tmp_path / "two"))
    done = commands.in_a_process(*words, script=commands.on_two_processes(29631), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert done.stdout.count("Data set:") == 1
