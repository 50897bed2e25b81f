"""`nein convert` as a command: what it prints, what it refuses, and that its folder runs in an evaluation."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.runs import RunDir
from tests.helpers import plain
from tests.helpers.commands import outcome


@pytest.fixture
def convert(capsys):
    return functools.partial(outcome, capsys, "convert")


def test_help_is_immediate_and_names_the_options():
    code = (
        "import sys; from nein import cli\n"
        "try: cli.main(['convert', '--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "print({'torch', 'PIL', 'transformers', 'diffusers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("set()")
    assert "--ema, --no-ema" in done.stdout
    assert "--base" in done.stdout


def test_a_training_checkpoint_becomes_a_folder_that_can_be_evaluated(tmp_path, convert, make_data, evaluate):
    import torch
    from diffusers import StableDiffusionInstructPix2PixPipeline

    from tests.editors.ldm import original_format
    from tests.editors.tiny import build_pipeline

    tiny = build_pipeline(tmp_path / "tiny")
    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(tiny, safety_checker=None)
    state = {"state_dict": original_format(pipeline, ema=0.1), "callbacks": Path("x")}
    torch.save(state, tmp_path / "last.ckpt")

    code, _, error = convert(tmp_path / "last.ckpt", tmp_path / "out", "--base", tiny)
    assert code == 2
    assert "two sets of UNet weights" in error
    assert not (tmp_path / "out").exists()
    code, text, error = convert(tmp_path / "last.ckpt", tmp_path / "out", "--ema", "--base", tiny)
    assert (code, error) == (0, "")
    assert "averaged (EMA)" in text
    assert "Not read: pathlib" in text
    code, _, error = convert(tmp_path / "last.ckpt", tmp_path / "out", "--ema", "--base", tiny)
    assert code == 2
    assert "exists already" in error

    common = ("--data", make_data(1, 2), "--metrics", "l1", "--control", "none", "--steps", 2)
    done = evaluate("--editor", tmp_path / "last.ckpt", *common, "--out", tmp_path / "no")
    assert done.code == 2
    assert "nein convert last.ckpt FOLDER --ema" in done.stderr
    done = evaluate("--editor", f"ip2p={tmp_path}/out", *common, "--out", tmp_path / "runs")
    assert done.code == 0, done.stderr
    [run] = runs.find(tmp_path / "runs")
    source = run.manifest()["models"]["editor"]["published"]["converted_from"]
    assert (source["ema"], source["file"]) == (True, "last.ckpt")


def test_a_checkpoint_of_two_number_types_becomes_a_folder_that_plain_diffusers_runs(tmp_path, convert):
    from diffusers import StableDiffusionInstructPix2PixPipeline
    from safetensors.torch import save_file

    from tests.editors.ldm import original_format
    from tests.editors.tiny import build_pipeline

    tiny = build_pipeline(tmp_path / "tiny")
    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(tiny, safety_checker=None)
    state = {
        name: (tensor if name.startswith("first_stage_model.") else tensor.half()).contiguous().clone()
        for name, tensor in original_format(pipeline).items()
    }
    save_file(state, tmp_path / "pruned.safetensors")
    code, _, error = convert(tmp_path / "pruned.safetensors", tmp_path / "out", "--base", tiny)
    assert (code, error) == (0, "")
    assert plain.number_types(tmp_path / "out") == {"float32"}
    plain.runs(tmp_path / "out", "edit", tmp_path)


def test_peak_memory_is_in_the_manifest_and_printed_for_both_stages(tmp_path, make_data, evaluate):
    command = (
        "--editor",
        "identity",
        "--data",
        make_data(1, 2),
        "--control",
        "none",
        "--out",
        tmp_path / "o",
    )
    done = evaluate(*command, "--metrics", "l1")
    assert done.code == 0, done.stderr
    assert "Peak memory, identity: " in done.stderr
    assert "Peak memory, scoring: " in done.stderr
    run = RunDir(tmp_path / "o", "identity", "negative")
    peak = run.manifest()["peak_memory"]
    assert set(peak) == {"edit", "score"}
    assert 10e6 < peak["edit"]["bytes"] < 1e12
    assert "resident set of the process" in peak["edit"]["what"]
    done = evaluate(*command, "--metrics", "l1")  # nothing left to do: nothing measured, nothing lost
    assert "Peak memory" not in done.stderr
    assert run.manifest()["peak_memory"] == peak


def test_an_editor_that_is_told_the_object_gets_the_samples_own(tmp_path, make_data, evaluate, monkeypatch):
    from nein.editors.basic import Identity

    seen = []
    original = Identity.edit

    def watch(self, requests):
        seen.extend((request.id, request.object, request.instruction) for request in requests)
        return original(self, requests)

    monkeypatch.setattr(Identity, "edit", watch)
    common = ("--data", make_data(1, 2), "--metrics", "l1", "--control", "none", "--out", tmp_path / "o")
    assert evaluate("--editor", "identity", *common).code == 0
    assert len(seen) == 2
    assert all(word and word in sentence for _, word, sentence in seen)
    assert len({word for _, word, _ in seen}) == 2
