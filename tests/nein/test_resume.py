"""What the engine cannot know of a run that goes on: an editor's bits and weights.

Kills, processes, parts and vanished pictures: tests/benchmarks/test_restart.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nein import cli
from nein.benchmarks.nein import runs
from nein.editors import EditRequest, EditResult
from tests.editors.tiny import build_pipeline
from tests.helpers import killing
from tests.nein.conftest import Outcome, write_data
from tests.rehearsal import Flaky

Evaluate = Callable[..., Outcome]
CANONICAL = ("scores.csv", "corpus.json", "figures.csv")


METRICS = "l1,l2,removal_vqa,removal_ovd,auc_removal"


def arguments(data: Path, out: Path, *more: str, metrics: str = METRICS) -> list[str]:
    """A whole evaluation without a network: a flaky editor, two tracks, pixels and scripted judges."""
    return [
        *(
            "--editor",
            "flaky",
            "--data",
            str(data),
            "--out",
            str(out),
            "--device",
            "cpu",
            "--batch-size",
            "2",
        ),
        *("--metrics", metrics),
        *("--models.vqa", "tests.rehearsal:no", "--models.ovd", "tests.rehearsal:score_025", *more),
    ]


def contents(out: Path) -> dict[str, bytes]:
    """Every file of the run directories that must not depend on how the work was done."""
    found = {}
    for path in sorted(out.rglob("*")):
        block = path.suffix == ".jsonl" and path.stem.isdigit()
        if path.name in (*CANONICAL, "table.md", "figures.csv") or path.suffix == ".png" or block:
            found[str(path.relative_to(out))] = path.read_bytes()
    return found


@dataclass(frozen=True)
class Whole:
    """An evaluation that nothing disturbed."""

    data: Path
    out: Path
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    root = tmp_path_factory.mktemp("whole")
    data, out = write_data(root / "data", 4, 2), root / "out"
    with pytest.raises(SystemExit) as caught:
        cli.main(["eval", *arguments(data, out)])
    assert caught.value.code == 0
    found = contents(out)
    assert len([name for name in found if name.endswith("scores.csv")]) == 2
    return Whole(data, out, found)


def kill(arguments: list[str], pattern: str, count: int, how: Any) -> None:
    """The evaluation, killed when it writes the COUNT-th file of a kind."""
    moment = killing.File(pattern, count, how)
    assert killing.run(cli.main, ["eval", *arguments], moment) == killing.KILLED


def test_scores_of_edits_that_were_deleted_and_came_out_otherwise_are_those_of_the_new_edits(
    whole, evaluate, tmp_path, monkeypatch
):
    out = Path(shutil.copytree(whole.out, tmp_path / "copy"))

    def other(self: Flaky, request: EditRequest) -> EditResult:
        """Fails where it did not and the other way round, as an endpoint may, and edits otherwise."""
        fails = request.seed % self.fail_every != 0
        return EditResult(request.id, None if fails else 255 - request.image, "now" if fails else None)

    monkeypatch.setattr(Flaky, "_edit_one", other)
    for track in ("negative", "remove"):
        for block in (out / "flaky" / track / "edit").rglob("*.jsonl"):
            block.unlink()
    few = arguments(whole.data, out, metrics="l1,removal_vqa")
    assert evaluate(*few, "--stages", "edit").code == 0
    assert evaluate(*few).code == 0
    assert evaluate(*arguments(whole.data, out)).code == 0
    assert evaluate(*arguments(whole.data, tmp_path / "new")).code == 0
    expected = contents(tmp_path / "new")
    assert {name: contents(out).get(name) for name in expected} == expected
    assert expected != whole.files


def test_a_diffusion_editor_resumes_to_the_same_bytes(make_data, evaluate, tmp_path):
    data, model = make_data(2, 2), build_pipeline(tmp_path / "model")
    options = [
        *(
            "--editor",
            str(model),
            "--data",
            str(data),
            "--device",
            "cpu",
            "--batch-size",
            "2",
            "--steps",
            "2",
        ),
        *("--metrics", "l1", "--control", "none"),
    ]
    done = evaluate(*options, "--out", tmp_path / "whole")
    assert done.code == 0, done.stderr
    expected = contents(tmp_path / "whole")
    assert len({value for name, value in expected.items() if name.endswith(".png")}) == 4
    kill([*options, "--out", str(tmp_path / "killed")], "*/edit/*.jsonl", 2, "torn")
    again = evaluate(*options, "--out", tmp_path / "killed")
    assert again.code == 0, again.stderr
    assert contents(tmp_path / "killed") == expected
    [run] = runs.find(tmp_path / "killed")
    assert run.manifest()["models"]["editor"]["steps"] == 2

    shutil.rmtree(model)
    build_pipeline(model, seed=1)  # other weights under the same name
    shutil.rmtree(next((tmp_path / "killed").glob("*/negative/images")))
    refused = evaluate(*options, "--out", tmp_path / "killed")
    assert refused.code == 2
    assert "weights or settings behind 'editor' have changed" in refused.stderr
