from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nein.benchmarks.nein.runs import RunDir
from nein.engine.images import decode, write_png

METRICS = ["--device", "cpu", "--metrics", "l1,removal_vqa", "--models.vqa", "tests.rehearsal:no"]


@pytest.fixture
def data(make_data):
    return make_data(3, 2)


@pytest.fixture
def score(evaluate, data, tmp_path):
    return lambda folder, *more: evaluate(
        "--edited", folder, "--data", data, *METRICS, "--out", tmp_path / "out", *more
    )


def publish(data, folder, skip=0):
    """Every sample under its official name, every second without loss, as an editor that changes nothing."""
    folder.mkdir(parents=True)
    for number, path in enumerate(sorted((data / "nein_val").iterdir())[skip:]):
        kind = ("webp", "jpg", "tiff", "gif", "BMP", "JPEG")[number % 6]
        how = {"lossless": True} if kind == "webp" else {}
        Image.open(path).save(folder / f"{path.stem}.{kind}", **how)
    return folder


def test_a_folder_per_method_becomes_a_run_per_method(score, data, tmp_path):
    out = tmp_path / "out"
    publish(data, tmp_path / "published" / "MagicBrush")
    publish(data, tmp_path / "published" / "HQ Edit" / "negative", skip=2)
    publish(data, tmp_path / "published" / "HQ Edit" / "remove")
    done = score(tmp_path / "published")
    assert done.code == 0, done.stderr
    found = {str(p.parent.relative_to(out)) for p in out.glob("*/*/manifest.json")}
    assert found == {"MagicBrush/negative", "HQ-Edit/negative", "HQ-Edit/remove"}
    run = RunDir(out, "MagicBrush", "negative")
    assert run.manifest()["status"] == "complete"
    for row in run.read_edits()[::2]:  # lossless
        assert (decode(run.path / row["image"]) == decode(data / "nein_val" / f"{row['id']}.png")).all()
    missing = [row for row in RunDir(out, "HQ-Edit", "negative").read_edits() if row["image"] is None]
    said = [f"there is no edited picture of {row['id']} in 'HQ Edit'" for row in missing]
    assert [row["error"] for row in missing] == said
    assert len(missing) == 2
    before = {p: p.read_bytes() for p in out.glob("*/*/scores.csv")}
    assert score(tmp_path / "published").code == 0
    assert before == {p: p.read_bytes() for p in out.glob("*/*/scores.csv")}


def test_one_folder_of_pictures_is_one_method_and_a_truncated_one_costs_its_sample(score, data, tmp_path):
    folder = publish(data, tmp_path / "mine")
    (folder / "notes.txt").write_text("not a picture")
    write_png(folder / "stray.png", np.zeros((4, 4, 3), np.uint8))
    victim = sorted(folder.glob("*.webp"))[0]
    victim.write_bytes(victim.read_bytes()[:60])
    done = score(folder)
    assert done.code == 0, done.stderr
    rows = {row["id"]: row for row in RunDir(tmp_path / "out", "mine", "negative").read_edits()}
    assert [name for name, row in rows.items() if row["image"] is None] == [victim.stem]
    assert str(tmp_path) not in rows[victim.stem]["error"]


def test_replaced_pictures_are_not_mixed_with_old_ones(score, data, tmp_path):
    folder = publish(data, tmp_path / "mine")
    assert score(folder, "--limit", "2", "--batch-size", "2").code == 0
    for path in folder.glob("*.webp"):
        Image.new("RGB", (8, 8)).save(path)
    done = score(folder, "--batch-size", "2")
    assert done.code == 2
    assert "have changed since" in done.stderr


def test_paper_reads_pictures_as_the_released_scripts_and_turns_them_for_the_detector(score, data, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    names = [path.stem for path in sorted((data / "nein_val").iterdir())[:3]]
    clear = np.full((24, 32, 4), (200, 0, 0, 0), np.uint8)
    Image.fromarray(clear).save(folder / f"{names[0]}.png")
    Image.fromarray(np.full((24, 32), 0x8000, np.uint16)).save(folder / f"{names[1]}.png")
    turned = Image.new("RGB", (32, 24))
    turned.getexif()[0x0112] = 6
    turned.save(folder / f"{names[2]}.jpg", exif=turned.getexif())
    first = {"fixed": [255, 255, 255], "paper": [200, 0, 0]}
    second = {"fixed": [128] * 3, "paper": [255] * 3}
    for protocol, box in (("fixed", [0, 0, 32, 24]), ("paper", [0, 0, 24, 32])):
        out = tmp_path / protocol
        more = ("--metrics", "removal_ovd,l1", "--models.ovd", "tests.rehearsal:score_05", "--limit", 3)
        done = score(folder, "--protocol", protocol, "--out", out, *more)
        assert done.code == 0, done.stderr
        run = RunDir(out, "mine", "negative")
        seen = [decode(run.image_path(name)) for name in names]
        assert [seen[0][0, 0].tolist(), seen[1][0, 0].tolist()] == [first[protocol], second[protocol]]
        assert seen[2].shape == (24, 32, 3)  # as stored, for all but the detector
        boxes = {r["id"]: r["detail"]["box"] for r in run.scores() if r["metric"] == "removal_ovd"}
        assert boxes[names[2]] == box
        assert boxes[names[0]] == [0, 0, 32, 24]
    assert score(folder, "--protocol", "fixed", "--out", tmp_path / "paper", *more).code == 2


@pytest.mark.parametrize(("pictures", "expected"), [
    (None, "must be a folder of edited pictures"),
    ((), "holds no edited pictures"),
    (("m/000001.png",), "None of the 1 pictures in"),
    (("m/a.png", "m/negative/a.png"), "holds m/negative twice"),
])  # fmt: skip
def test_unusable_folders_are_refused_in_one_sentence(score, tmp_path, pictures, expected):
    folder = tmp_path / "edited"
    if pictures is not None:
        folder.mkdir()
    for name in pictures or ():
        write_png(folder / name, np.zeros((4, 4, 3), np.uint8))
    done = score(folder)
    assert done.code == 2
    assert expected in done.stderr
