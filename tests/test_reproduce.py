"""`nein reproduce`: every table end to end in miniature, and agreement."""

import json
from pathlib import Path

import pytest

from nein import reproduce
from nein.benchmarks import registry
from nein.benchmarks.runner import PaperEstimate
from nein.config import options
from nein.reproduce import FILE, TABLES, ReproduceConfig
from tests.helpers.commands import outcome

#: Table -> the rows that its miniature has, and how many figures.
NANO = {
    "nein-table3": (["InstructPix2Pix"], 11),
    "negbench-table1": (["CLIP"], 3),
    "negvqa-table1": (["LLaVA-1.5-7B"], 10),
}


@pytest.mark.parametrize("table", NANO)
def test_a_table_is_reproduced_in_miniature_and_written_to_a_file(table, tmp_path, capsys):
    # NegBench's own twin is drawn for fewer scenes than its cache has.
    words = ["--preset=nano", "--limit=4", "--device=cpu", f"--out={tmp_path}"]
    words += ["--model=ip2p", "--run.metrics=l1,fid,removal_vqa"] if table == "nein-table3" else []
    words += ["--run.scenes=8"] if table.startswith("negbench") else []
    code, printed, _ = outcome(capsys, "reproduce", table, *words)
    found, (rows, count) = json.loads((tmp_path / FILE).read_text()), NANO[table]
    assert code == 0
    assert [run["row"] for run in found["runs"]] == rows
    assert all(row in printed for row in rows)
    assert sum(len(run["figures"]) for run in found["runs"]) == count
    assert printed.count("miniature models: not comparable") == count
    assert "Nothing is comparable" in printed
    assert all(run["data"] and run["models"] for run in found["runs"])
    assert sum(cost["seconds"] for run in found["runs"] for cost in run["stages"].values()) > 0
    assert all(machine["packages"]["torch"] for run in found["runs"] for machine in run["machines"])
    assert str(Path.home()) not in (tmp_path / FILE).read_text()
    assert str(tmp_path) not in (tmp_path / FILE).read_text()


def test_every_table_names_models_of_it_and_options_of_its_command():
    counts = {}
    for name, table in TABLES.items():
        cells = list(registry.get(table.benchmark).paper_estimates(table.source, None))
        keys = {(printed.row, str(sorted(printed.key.items()))) for printed in cells}
        counts[name] = len(keys)
        assert len(keys) == len(cells), name
        config = options.read(ReproduceConfig, [name, "--data=x", "--limit=3"], to_fetch=True)[0]
        inner = config.benchmark_options(to_fetch=True)
        assert (inner.protocol, inner.limit, inner.data) == ("paper", 3, "x")
        assert config.needs()
    assert counts == {
        "nein-table3": 44 + 33, "negbench-table1": 48, "negbench-baselines": 40, "negbench-scaling": 24,
        "negbench-finetuned": 8, "negbench-figures": 6, "negvqa-table1": 200,
    }  # fmt: skip


OURS = {"of": {}, "value": 0.5, "low": 0.4, "high": 0.6, "n": 9, "unscored": 1}
CELL = PaperEstimate("row", {}, 0.45, "%", 10)


@pytest.mark.parametrize(
    ("printed", "ours", "preset", "samples", "said"),
    [
        ({}, {}, "paper", None, "yes"),
        ({"value": 0.39}, {}, "paper", None, "no"),
        ({"value": 0.6}, {}, "paper", None, "yes"),
        ({}, {}, "nano", None, "miniature models: not comparable"),
        ({}, {"value": None}, "paper", None, "not measured"),
        ({}, {"low": None}, "paper", None, "no interval"),
        ({"needs_all": True}, {}, "paper", 10, "depends on how many samples there are"),
        ({"needs_all": True}, {}, "paper", None, "yes"),
        ({}, {"n": 8}, "paper", None, "of 9 samples, published of 10"),
        ({}, {"n": 8}, "paper", 9, "yes"),
    ],
)
def test_a_published_value_agrees_that_lies_within_our_interval(printed, ours, preset, samples, said):
    assert reproduce.agreement(CELL._replace(**printed), {**OURS, **ours}, preset, samples) == said


def test_a_run_of_a_published_model_is_found_in_its_table_by_its_manifest():
    def rows(table, **manifest):
        chosen = TABLES[table]
        return {one.row for one in registry.get(chosen.benchmark).paper_estimates(chosen.source, manifest)}

    assert rows("nein-table3", editor="ip2p-abc", track="negative") == {"InstructPix2Pix"}
    assert rows("nein-table3", editor="nein-ip2p", track="negative") == {"InstructPix2Pix + NeIn"}
    assert rows("nein-table3", editor="ip2p+rewrite", track="negative") == set()
    assert rows("nein-table3", editor="ip2p", track="remove") == set()
    clip = {"row": "clip-negfull", "dataset": "coco"}
    assert rows("negbench-table1", summary=clip) == {"CLIP + CC12M-NegFull"}
    assert rows("negbench-scaling", summary=clip) == rows("negbench-table1", summary={"row": None}) == set()
    assert rows("negvqa-table1", reference="/x/y", name="Molmo-7B-O-0924") == {"Molmo-7B-O"}
    assert rows("negvqa-table1", reference="/x/y", name="mine") == set()
