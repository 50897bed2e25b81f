from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nein.benchmarks.nein.runs import RunDir
from nein.engine.images import decode, write_png

METRICS = ["--device", "cpu", "--metrics", "l1,removal_vqa", "--models.vqa", "tests.rehearsal:no"]


@pytest.fixture
def data(make_data: Callable[..., Path]) -> Path:
    return make_data(3, 2)


def publish(data: Path, folder: Path, skip: int = 0) -> Path:
    """Every sample as a JPEG or WebP under its official name, as an editor that changes nothing would give
    it."""
    folder.mkdir(parents=True)
    for number, path in enumerate(sorted((data / "nein_val").iterdir())[skip:]):
        kind = "jpg" if number % 2 else "webp"
        Image.open(path).save(
            folder / f"{path.stem}.{kind}", **({"lossless": True} if kind == "webp" else {})
        )
    return folder


def test_a_folder_per_method_becomes_a_run_per_method(evaluate, data, tmp_path):
    publish(data, tmp_path / "published" / "MagicBrush")
    publish(data, tmp_path / "published" / "HQ Edit" / "negative", skip=2)
    publish(data, tmp_path / "published" / "HQ Edit" / "remove")
    line = ["--edited", tmp_path / "published", "--data", data, *METRICS, "--out", tmp_path / "out"]
    done = evaluate(*line)
    assert done.code == 0, done.stderr
    found = {
        str(p.parent.relative_to(tmp_path / "out")) for p in (tmp_path / "out").glob("*/*/manifest.json")
    }
    assert found == {"MagicBrush/negative", "HQ-Edit/negative", "HQ-Edit/remove"}
    run = RunDir(tmp_path / "out", "MagicBrush", "negative")
    assert (run.manifest() or {})["status"] == "complete"
    for number, row in enumerate(run.read_edits()):
        kept = decode(run.path / row["image"])
        if number % 2 == 0:  # lossless
            assert (kept == decode(data / "nein_val" / f"{row['id']}.png")).all()
    missing = [
        row for row in RunDir(tmp_path / "out", "HQ-Edit", "negative").read_edits() if row["image"] is None
    ]
    assert [row["error"] for row in missing] == [
        f"there is no edited picture of {r['id']} in 'HQ Edit'" for r in missing
    ]
    assert len(missing) == 2
    before = {p: p.read_bytes() for p in (tmp_path / "out").glob("*/*/scores.csv")}
    assert evaluate(*line).code == 0
    assert before == {p: p.read_bytes() for p in (tmp_path / "out").glob("*/*/scores.csv")}


def test_one_folder_of_pictures_is_one_method(evaluate, data, tmp_path):
    publish(data, tmp_path / "mine")
    (tmp_path / "mine" / "notes.txt").write_text("not a picture")
    write_png(tmp_path / "mine" / "stray.png", np.zeros((4, 4, 3), np.uint8))
    done = evaluate("--edited", tmp_path / "mine", "--data", data, *METRICS, "--out", tmp_path / "out")
    assert done.code == 0, done.stderr
    assert (tmp_path / "out" / "mine" / "negative" / "scores.csv").exists()
    assert done.code == 0


def test_a_truncated_picture_costs_its_sample_and_says_so(evaluate, data, tmp_path):
    folder = publish(data, tmp_path / "mine")
    victim = sorted(folder.glob("*.webp"))[0]
    victim.write_bytes(victim.read_bytes()[:60])
    assert evaluate("--edited", folder, "--data", data, *METRICS, "--out", tmp_path / "out").code == 0
    rows = {row["id"]: row for row in RunDir(tmp_path / "out", "mine", "negative").read_edits()}
    assert rows[victim.stem]["image"] is None
    assert str(tmp_path) not in rows[victim.stem]["error"]
    assert sum(row["image"] is None for row in rows.values()) == 1


def test_replaced_pictures_are_not_mixed_with_old_ones(evaluate, data, tmp_path):
    folder = publish(data, tmp_path / "mine")
    line = ["--edited", folder, "--data", data, *METRICS, "--out", tmp_path / "out"]
    assert evaluate(*line, "--limit", "2", "--batch-size", "2").code == 0
    for path in folder.glob("*.webp"):
        Image.new("RGB", (8, 8)).save(path)
    done = evaluate(*line, "--batch-size", "2")
    assert done.code == 2
    assert "have changed since" in done.stderr


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda root: root / "gone", "must be a folder of edited pictures"),
        (lambda root: _made(root / "empty"), "holds no edited pictures"),
        (lambda root: _stranger(root / "names"), "None of the 1 pictures in"),
        (lambda root: _twice(root / "twice"), "holds m/negative twice"),
    ],
)
def test_unusable_folders_are_refused_in_one_sentence(evaluate, data, tmp_path, make, expected):
    done = evaluate("--edited", make(tmp_path), "--data", data, *METRICS, "--out", tmp_path / "out")
    assert done.code == 2
    assert expected in done.stderr


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _stranger(folder: Path) -> Path:
    write_png(folder / "m" / "000001.png", np.zeros((4, 4, 3), np.uint8))
    return folder


def _twice(folder: Path) -> Path:
    write_png(folder / "m" / "a.png", np.zeros((4, 4, 3), np.uint8))
    write_png(folder / "m" / "negative" / "a.png", np.zeros((4, 4, 3), np.uint8))
    return folder
