"""The report: which sample counts where, what "add" means, paired differences, and the whole command."""

import pytest

from nein.benchmarks.nein.runs import RunDir
from nein.datasets.nein.samples import load_folder
from nein.nano import data as nano_data
from nein.reporting import figures as frames
from nein.train.editor_finetuning import report
from nein.train.editor_finetuning.report import HeldOut
from tests.helpers.runs import write


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = nano_data.ensure("dev", 12, tmp_path_factory.mktemp("report"))
    return load_folder(folder, split="dev")


def write_scores(root, editor, dataset, value):
    """Runs of all tasks with value(sample, task, metric) for every sample and metric."""
    runs = {}
    for task, names in report.TASKS.items():
        run = RunDir(root, editor, task)
        edits = [
            {"id": s.id, "source_id": s.source_id, "object": s.object, "image": None, "error": "",
             "instruction": "", "template": None}
            for s in dataset.samples
        ]  # fmt: skip
        lines = [
            {"id": s.id, "metric": m, "value": value(s, task, m), "reason": "", "detail": {}}
            for s in dataset.samples
            for m in names
        ]
        runs[task] = write(run, edits, lines)
    return runs


def test_samples_are_grouped_by_what_was_held_out(dataset):
    noun, number = dataset.samples[0].object, dataset.samples[0].template
    held = HeldOut(frozenset([noun]), frozenset([number]))
    names = {
        (False, False): "in distribution", (True, False): "unseen objects",
        (False, True): "unseen templates", (True, True): "both unseen",
    }  # fmt: skip
    found = set()
    for sample in dataset.samples:
        new = (sample.object == noun, sample.template == number)
        assert held.group(sample, "negative") == names[new]
        assert held.group(sample, "add") == ("unseen objects" if new[0] else "seen objects")
        found.add(new)
    assert found == set(names)


def test_figures_are_means_by_group_with_paired_differences(tmp_path, dataset):
    noun = dataset.samples[0].object
    held = HeldOut(frozenset([noun]))
    before = write_scores(tmp_path / "b", "x", dataset, lambda s, task, m: 0.0)
    after = write_scores(
        tmp_path / "a",
        "y",
        dataset,
        lambda s, task, m: None if s.id == dataset.samples[3].id else float(s.object != noun),
    )
    figures = report.figures("y", before, after, dataset, held)
    found = {(f["task"], f["group"], f["metric"], f["statistic"]): f for f in frames.records(figures)}
    seen, unseen = (("negative", group, "removal_vqa") for group in ("in distribution", "unseen objects"))
    assert [found[(*seen, which)]["value"] for which in ("before", "after", "difference")] == [0, 1, 1]
    assert found[(*unseen, "after")]["value"] == 0
    assert found[(*seen, "before")]["unscored"] == 0
    lost = [f for key, f in found.items() if key[0] == "negative" and key[2:] == ("l1", "after")]
    assert sum(f["unscored"] for f in lost) == 1
    assert found[(*seen, "before")]["high"] > 0  # Wilson's interval: none of few is not none of all
    added = ("add", "seen objects", "added_vqa")  # gone after "Add a X." is a failure
    assert [found[(*added, which)]["value"] for which in ("before", "after")] == [1, 0]
    assert found["add", "seen objects", "retention_vqa", "before"]["value"] == 0
    sheet = report.table("y", "x", held).sheet(figures)
    assert len(sheet.rows) == len(found) / 3
    row = next(row for row in sheet.rows if row[1:3] == ["in distribution", "Removal (VQA) ↑"])
    assert row[-2:] == ["100.0 [68.2, 100.0]", "0 + 1"]
    assert "Added (VQA) ↑" in {row[2] for row in sheet.rows}
    assert noun in sheet.note


@pytest.mark.slow
def test_the_whole_report_of_two_editors(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    report.main(["nano:ip2p", "nano:magicbrush", "--limit", "4", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert "negative sentence" in said
    assert (tmp_path / "table.md").read_text() in said
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")
