"""What the engine cannot know of a build that goes on: pictures put in place, weights.

Kills, processes, parts and vanished pictures: tests/benchmarks/test_restart.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from nein import cli
from tests.build.conftest import arguments
from tests.helpers import commands, killing

MORE = ("--families", "all", "--evaluation-share", "0.5", "--formats", "official")


def contents(out):
    """Everything that must not depend on how the work was done."""
    found = {str(p.relative_to(out)): p.read_bytes() for p in (out / "dataset").rglob("*") if p.is_file()}
    for name in ("candidates.jsonl", "card.json", "card.png"):
        found[name] = (out / name).read_bytes()
    return found


def sha(out):
    return json.loads((out / "manifest.json").read_text())["data_sha256"]


@pytest.fixture(scope="module")
def whole(captioned, models, tmp_path_factory):
    """A build that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    assert commands.exit_code("generate", *arguments(captioned, models, out, *MORE)) == 0
    assert json.loads((out / "card.json").read_text())["stages"]["accepted"] >= 3
    return out


def test_a_kill_while_pictures_are_put_in_place_and_a_rerun_give_the_same_data_set(
    whole, captioned, models, build, tmp_path
):
    given = arguments(captioned, models, tmp_path, *MORE)
    moment = killing.Call("nein.generate.nein.dataset:_put", 6)
    assert killing.run(cli.main, ["generate", *given], moment) == killing.KILLED
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "incomplete"
    again = build(*given)
    assert again.code == 0, again.stderr
    assert contents(tmp_path) == contents(whole)
    assert sha(tmp_path) == sha(whole)


def test_a_stage_without_what_it_needs_says_so(captioned, models, build, tmp_path):
    given = arguments(captioned, models, tmp_path, *MORE)
    for stage in ("finish", "match"):  # nobody will make what it needs: it does not wait for ever
        alone = build(*given, "--stages", stage)
        assert alone.code == 2
        assert "lacks stage clauses of 4 of 4 shards" in alone.stderr


def test_other_settings_discard_what_is_there(whole, captioned, models, build, tmp_path):
    out = Path(shutil.copytree(whole, tmp_path / "copy"))
    given = arguments(captioned, models, out, *MORE)
    discarded = build(*given, "--match-above", "0.3", "--overwrite")
    assert discarded.code == 0, discarded.stderr
    assert sha(out) != sha(whole)


def test_replaced_weights_are_refused(captioned, models, build, tmp_path):
    from tests.metrics import tiny

    own = Path(shutil.copytree(models, tmp_path / "models"))
    given = arguments(captioned, own, tmp_path / "out", *MORE)
    assert build(*given, "--stages", "clauses").code == 0
    shutil.rmtree(own / "blip")
    tiny.make_blip(own / "blip", seed=5)
    done = build(*given)
    assert done.code == 2
    assert "weights or settings behind 'itm' have changed" in done.stderr
