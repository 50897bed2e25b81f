"""What the engine cannot know of a run that goes on: an editor's bits and weights.

Kills, processes, parts and vanished pictures: tests/benchmarks/test_restart.py.
"""

from __future__ import annotations

import shutil

from nein import cli
from nein.benchmarks.nein import runs
from nein.editors import EditResult
from tests.editors.tiny import build_pipeline
from tests.helpers import killing
from tests.rehearsal import Flaky

CANONICAL = ("scores.csv", "corpus.json", "figures.csv", "table.md")
METRICS = "l1,l2,removal_vqa,removal_ovd,auc_removal"


def contents(out):
    """Every file of the run directories that must not depend on how the work was done."""
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.name in CANONICAL
        or path.suffix == ".png"
        or (path.suffix == ".jsonl" and path.stem.isdigit())
    }


def test_scores_of_edits_that_were_deleted_and_came_out_otherwise_are_those_of_the_new_edits(
    make_data, evaluate, tmp_path, monkeypatch
):
    data, out = make_data(4, 2), tmp_path / "out"

    def line(out, metrics=METRICS):
        given = ("--data", data, "--out", out, "--metrics", metrics)
        judges = ("--models.vqa", "tests.rehearsal:no", "--models.ovd", "tests.rehearsal:score_025")
        return ["--editor", "flaky", *given, "--device", "cpu", "--batch-size", 2, *judges]

    assert evaluate(*line(out)).code == 0
    before = contents(out)

    def other(self, request):
        """Fails where it did not and the other way round, as an endpoint may, and edits otherwise."""
        fails = request.seed % self.fail_every != 0
        return EditResult(request.id, None if fails else 255 - request.image, "now" if fails else None)

    monkeypatch.setattr(Flaky, "_edit_one", other)
    for block in (
        block
        for track in ("negative", "remove")
        for block in (out / "flaky" / track / "edit").rglob("*.jsonl")
    ):
        block.unlink()
    few = line(out, "l1,removal_vqa")
    for command in ([*few, "--stages", "edit"], few, line(out), line(tmp_path / "new")):
        assert evaluate(*command).code == 0
    expected = contents(tmp_path / "new")
    assert {name: contents(out).get(name) for name in expected} == expected != before


def test_a_diffusion_editor_resumes_to_the_same_bytes(make_data, evaluate, tmp_path):
    data, model = make_data(2, 2), build_pipeline(tmp_path / "model")
    options = ["--editor", str(model), "--data", str(data), "--device", "cpu", "--batch-size", "2"]
    options += ["--steps", "2", "--metrics", "l1", "--control", "none"]
    done = evaluate(*options, "--out", tmp_path / "whole")
    assert done.code == 0, done.stderr
    expected = contents(tmp_path / "whole")
    assert len({value for name, value in expected.items() if name.endswith(".png")}) == 4
    out = ["--out", str(tmp_path / "killed")]
    moment = killing.File("*/edit/*.jsonl", 2, "torn")
    assert killing.run(cli.main, ["eval", *options, *out], moment) == killing.KILLED
    again = evaluate(*options, *out)
    assert again.code == 0, again.stderr
    assert contents(tmp_path / "killed") == expected
    [run] = runs.find(tmp_path / "killed")
    assert run.manifest()["models"]["editor"]["steps"] == 2
    shutil.rmtree(model)
    build_pipeline(model, seed=1)  # other weights under the same name
    shutil.rmtree(next((tmp_path / "killed").glob("*/negative/images")))
    refused = evaluate(*options, *out)
    assert refused.code == 2
    assert "weights or settings behind 'editor' have changed" in refused.stderr
