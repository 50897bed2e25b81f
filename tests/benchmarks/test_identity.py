"""What stands behind a name has changed: no old number is shown as its own."""

import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nein.datasets import negvqa as questions
from nein.datasets.negbench.official import write as write_csv
from nein.engine import images
from nein.loading.service import encode_png
from nein.nano import zoo
from nein.reporting import figures as frames
from tests.helpers import commands
from tests.negbench.conftest import items
from tests.reporting import made

EDIT = "def edit(image, instruction):\n    return image{}\n"
JUDGE = """
from nein.metrics.judges.base import Answer

class Judge:
    fingerprint, template = "always the same", "plain"
    def describe(self):
        return {{"kind": "vqa"}}
    def ask(self, images, questions):
        return [[Answer("{}", 1) for _ in row] for row in questions]

judge = Judge()
"""
EVAL = "eval --limit 4 --control none --protocol fixed"
#: Command with THING for what changes, its role, its content before and after: text, or nano models.
CHANGES = {
    "editor": (f"{EVAL} --metrics l1 --editor THING.py:edit", "editor", EDIT, ("", ".rotate(90)")),
    "judge": (
        f"{EVAL} --metrics removal_vqa --editor identity --models.vqa THING.py:judge",
        "vqa", JUDGE, ("No", "Yes"),
    ),
    "encoder": (
        f"{EVAL} --metrics clip_i --editor identity --models.clip THING", "clip", "", ("clip", "clip")
    ),
    "answerer": (
        "negvqa --limit 8 --questions 8 --blind 0 --model THING", "model", "", ("negvqa", "negvqa-negated")
    ),
    "dual": ("negbench eval --limit 8 --scenes 16 --model THING", "model", "", ("clip", "clip")),
}  # fmt: skip


def other_weights(folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: t.flip(0) for name, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def put(place, text, content, changed):
    if text:
        place.with_suffix(".py").write_text(text.format(content))
        return
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(zoo.path(content), place)
    if changed and content == "clip":
        other_weights(place)


@pytest.mark.parametrize(("line", "role", "text", "contents"), CHANGES.values(), ids=CHANGES)
def test_another_model_under_the_same_name_is_refused_or_made_anew(line, role, text, contents, tmp_path):
    thing = tmp_path / "mine"

    def run(*words):
        given = line.replace("THING", str(thing)).split()
        done = commands.in_a_fork(*given, *words, "--device", "cpu", "--out", tmp_path / "out")
        return done, pd.concat(map(frames.read, sorted((tmp_path / "out").rglob("figures.csv"))))["value"]

    put(thing, text, contents[0], changed=False)
    done, before = run()
    assert done.returncode == 0, done.stderr
    put(thing, text, contents[1], changed=True)
    done, kept = run()
    assert (done.returncode, f"made with weights or source: {role} " in done.stderr) == (2, True), done.stderr
    pd.testing.assert_series_equal(kept, before)
    done, after = run("--overwrite")
    assert done.returncode == 0, done.stderr
    assert not after.equals(before)


def nein_data(root):
    made.write_data(root, made.records(3, 2))
    return f"eval --editor identity --control none --metrics l1,l2 --data {root}", "coco_for_val/*1.png"


def negbench_data(root):
    for item in (originals := items(8))[0]:
        images.write_png(root / item.image, made.picture(int(item.id[:3]), 24, striped=False))
    for name, rows in zip(("retrieval.csv", "negated_retrieval.csv"), originals, strict=True):
        write_csv(root / name, rows)
    return f"negbench eval --model random --data {root}", "001.png"


def negvqa_data(root):
    shutil.copytree(questions.ensure_drawn(8), root)
    return f"negvqa --model nano:negvqa --blind 0 --data {root}/questions.jsonl", "images/*1.png"


def write_padded(path, image):
    """A PNG of 16,384 bytes, whatever is on it."""
    path.write_bytes(encode_png(image).ljust(1 << 14, b"\0"))


#: The data, and the blocks that are exchanged.
DATA = {
    "nein": (nein_data, "identity/negative/scores/l1", "identity/negative/scores/l2"),
    "negbench": (negbench_data, "random/own/sentences/*", "random/own/pictures"),
    "negvqa": (negvqa_data, "nano-negvqa/answers", "nano-negvqa/answers"),
}


@pytest.mark.parametrize(("data", "one", "other"), DATA.values(), ids=DATA)
def test_replaced_images_and_blocks_in_a_wrong_place_are_made_again(data, one, other, tmp_path, capsys):
    line, replaced = data(tmp_path / "data")

    def run(out):
        words = [*line.split(), "--device", "cpu", "--batch-size", "4", "--out", tmp_path / out]
        done = commands.outcome(capsys, *words)
        assert done.code == 0, done.stderr
        return pd.concat(map(frames.read, sorted((tmp_path / out).rglob("figures.csv"))))["value"]

    files = [*(tmp_path / "data").glob(replaced)]
    for file in files:
        write_padded(file, images.decode(file))
    before = run("out")
    for file in files:
        write_padded(file, np.random.default_rng(9).integers(0, 256, (40, 40, 3), np.uint8))
    after, fresh = run("out"), run("fresh")
    assert not after.equals(before)
    pd.testing.assert_series_equal(after, fresh)
    blocks = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.jsonl")}
    for file in filter(Path.is_file, (tmp_path / "data").rglob("*")):
        os.utime(file)  # as the files of a copy
    pd.testing.assert_series_equal(run("out"), fresh)
    assert {path: path.stat().st_mtime_ns for path in blocks} == blocks
    first, second = (sorted((tmp_path / "out").rglob(f"{name}/000/*.jsonl"))[-1] for name in (one, other))
    shutil.copy(second := second.with_name("000000.jsonl"), first)
    second.write_bytes(b"")
    pd.testing.assert_series_equal(run("out"), fresh)
