from pathlib import Path

import pytest
import yaml
from huggingface_hub import EvalResultEntry
from huggingface_hub._eval_results import parse_eval_result_entries

from nein.benchmarks import export, registry
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting import figures as frames


def read(*folders):
    return [export.read(folder) for folder in registry.finished(folders)]


@pytest.fixture
def one(out):
    return read(out / "magicbrush" / "negative")


def test_the_entries_are_the_hubs_own_format(one, out, tmp_path):
    files = export.write_hub(one, tmp_path, dataset="owner/benchmark")
    entries = parse_eval_result_entries(
        yaml.safe_load((tmp_path / ".eval_results" / "nein.yaml").read_text())
    )
    assert all(isinstance(entry, EvalResultEntry) for entry in entries)
    by_task = {entry.task_id: entry for entry in entries}
    figures = frames.read(out / "magicbrush" / "negative" / "figures.csv")
    metrics = {f["metric"]: f for f in frames.records(frames.select(figures, task="results"))}
    assert set(by_task) == {f"negative/{name}" for name in metrics}
    removal = by_task["negative/removal_vqa"]
    assert removal.value == round(100 * metrics["removal_vqa"]["value"], 4)
    assert removal.dataset_id == "owner/benchmark"
    assert removal.notes is not None
    assert "nano: a miniature" in removal.notes
    assert f"n {metrics['removal_vqa']['n']}, unscored 0" in removal.notes
    summary = atomic.read_json(files["nein/magicbrush-negative.json"])
    assert [f["task_id"] for f in summary["figures"]] == [f"negative/{name}" for name in metrics]
    assert str(tmp_path.parent) not in str(summary)
    assert "command" not in str(summary["manifest"]["invocations"])


def test_miniature_results_are_not_filed_under_a_published_data_set(one, tmp_path):
    for dataset, sentence in ((None, "are on miniature data"), ("nhatttanbui/NeIn", "do not belong to")):
        with pytest.raises(UserError, match=sentence):
            export.write_hub(one, tmp_path, dataset=dataset)
    assert not any(tmp_path.iterdir())


def test_the_citation_file_is_valid():
    cited = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "version", "license"} <= set(cited)
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'version = "{cited["version"]}"' in project
