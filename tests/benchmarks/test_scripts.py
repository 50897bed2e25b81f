"""The scripts of `benchmarks/` run, at the smallest sizes their options allow."""

import json
from dataclasses import asdict

import pytest
import torch
from diffusers import UNet2DConditionModel
from transformers import MistralConfig, MistralModel

from benchmarks import published, report
from nein import statistics
from nein.benchmarks import compare
from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.report import make_sides
from nein.benchmarks.nein.runs import EDIT, RunDir
from nein.metrics import METRICS
from nein.statistics.estimates import pairs as paired_values
from tests.helpers import commands


def test_runs_of_different_samples_are_compared_over_those_of_both(tmp_path):
    runs = report.make(tmp_path, 40, editors=2, side=8)
    for editor, gone in ((0, "_1"), (1, "_2")):
        run = RunDir(runs / f"editor-{editor}" / "negative")
        kept = [i for i, edit in enumerate(run.edits) if not edit.endswith(gone)]
        run.update(selected={EDIT: {"size": 16, "records": [[i, i + 1] for i in kept]}})
        RunDir(run.path).make_scores().write(run.path / "scores.csv")
    first, second = of_runs.load_complete([runs])
    both = make_sides([first, second], {}).values()
    for metric in ("l1", "removal_vqa"):
        one, other, apart = compare.compare_metric(*both, metric)
        test = statistics.pairs_test(
            *paired_values(first.values(metric), second.values(metric), first.sources), METRICS[metric].span
        )
        assert test is not None
        assert (apart["n"] + apart["unscored"], one["n"], other["n"], apart["n"]) == (40, 32, 32, 24)
        estimate = asdict(test.difference)
        assert {key: apart[key] for key in estimate} == pytest.approx(estimate)
        assert (apart["p"], one["value"], other["value"]) == pytest.approx((test.p, *test.means))


def test_true_sizes_are_the_published_ones():
    """By their parameters: Stable Diffusion 1.5 with 8 input channels, Mistral-7B without its head."""
    with torch.device("meta"):
        unet = UNet2DConditionModel(in_channels=8, out_channels=4, **published.IP2P["unet_sizes"])
        language = MistralModel(MistralConfig(vocab_size=32064, **published.LLAVA["language"]))
    assert round(sum(p.numel() for p in unet.parameters()) / 1e6, 1) == 859.5
    assert round(sum(p.numel() for p in language.parameters()) / 1e9, 1) == 7.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "printed"),
    [
        # With this mean one of the 24,576 values is a grey level off at most, where rounding to bytes turns.
        ("editing --images 2 --batch-size 1 --steps 2 --out {out}", "of 255 (mean 0.0000)"),
        ("executors --samples 4 --on debug,threads", "files equal byte by byte: yes"),
        ("finetune --steps 4 --batch-size 2 --out {out}", "making the features once"),
        ("image_metrics --limit 2 --tiny --out {out}", "values equal to 1e-4: yes"),
        ("judges --limit 2 --tiny --out {out}", "every decision equal: yes"),
        ("negbench --scenes 8 --width 64 --layers 1 --out {out}", "6 figures equal"),
        ("true_size --tiny --dtypes float32 --stages edit,ovd --out {out}", "0 of 4 decisions differ"),
    ],
)
def test_a_benchmark_runs_and_both_sides_agree(line, printed, tmp_path):
    name, *options = line.format(out=tmp_path / "out.json").split()
    done = commands.in_a_process(*options, script=("-m", f"benchmarks.{name}"))
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
    if "{out}" in line:
        sides = [stage["ours"] for stage in json.loads((tmp_path / "out.json").read_text())["stages"]]
        assert sides[0]["profile"]
        assert all(side["share"] is not None for side in sides)
