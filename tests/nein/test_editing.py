"""Editing: ZONE, converted checkpoints, and edits made elsewhere."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from PIL import Image
from safetensors.torch import save_file

from nein.benchmarks.nein import stages
from nein.benchmarks.nein.runs import RunDir
from nein.engine.folder import find_runs
from nein.engine.images import decode, write_png
from tests.editors.ldm import original_format
from tests.editors.tiny import build_action, build_pipeline, build_sam
from tests.helpers import plain
from tests.helpers.commands import outcome
from tests.helpers.runs import edits_of, scores_in
from tests.rehearsal import ScriptedDetector, ScriptedJudge


def files(run, kind):
    return {path.stem: path.read_bytes() for path in sorted((run / kind).rglob("*.png"))}


def test_zone_says_what_it_did_with_every_image(make_data, evaluate, tmp_path):
    """ZONE on the shipped nano editors with a tiny SAM and classifier, two samples of 32 x 24 pixels."""
    out = tmp_path / "out"
    models = {"sam": build_sam(tmp_path / "sam"), "action": build_action(tmp_path / "action", width=128)}
    line = ["--editor", "zone", "--data", make_data(1, 2), "--device", "cpu", "--editor-options.steps", 2]
    line += ["--metrics", "l1", "--control", "none", "--stages", "edit,score", "--out", out]
    for name, folder in models.items():
        line += [f"--editor-options.{name}", folder]
    done = evaluate(*line)
    assert done.code == 0, done.stderr
    edits = edits_of(out / "zone" / "negative")
    assert [edit["note"].split(",")[0] in ("CHANGE", "ADD", "REMOVE") for edit in edits] == [True, True]


@pytest.fixture
def convert(capsys):
    return functools.partial(outcome, capsys, "convert")


@pytest.fixture
def tiny(tmp_path):
    folder = build_pipeline(tmp_path / "tiny")
    return folder, StableDiffusionInstructPix2PixPipeline.from_pretrained(folder, safety_checker=None)


def test_a_training_checkpoint_becomes_a_folder_that_can_be_evaluated(
    tmp_path, convert, make_data, evaluate, tiny
):
    base, pipeline = tiny
    state = {"state_dict": original_format(pipeline, ema=0.1), "callbacks": Path("x")}
    torch.save(state, tmp_path / "last.ckpt")
    code, text, error = convert(tmp_path / "last.ckpt", tmp_path / "out", "--ema", "--base", base)
    assert (code, error) == (0, "")
    assert "averaged (EMA)" in text
    assert "Ignored classes: pathlib" in text
    common = ("--data", make_data(1, 2), "--metrics", "l1", "--control", "none", "--editor-options.steps", 2)
    done = evaluate("--editor", tmp_path / "last.ckpt", *common, "--out", tmp_path / "no")
    assert done.code == 2
    assert "nein convert last.ckpt FOLDER --ema" in done.stderr
    done = evaluate("--editor", f"ip2p={tmp_path}/out", *common, "--out", tmp_path / "runs")
    assert done.code == 0, done.stderr
    [run] = map(RunDir, find_runs(tmp_path / "runs"))
    source = run.manifest()["models"]["editor"]["published"]["converted_from"]
    assert (source["ema"], source["file"]) == (True, "last.ckpt")
    costs = run.sum_costs()
    assert set(costs) == {"edit", "score"}
    assert 10e6 < costs["edit"]["peak_memory"]["host"] < 1e12
    done = evaluate("--editor", f"ip2p={tmp_path}/out", *common, "--out", tmp_path / "runs")
    assert run.sum_costs() == costs


def test_a_checkpoint_of_two_number_types_becomes_a_folder_that_plain_diffusers_runs(tmp_path, convert, tiny):
    base, pipeline = tiny
    state = {
        name: (tensor if name.startswith("first_stage_model.") else tensor.half()).contiguous().clone()
        for name, tensor in original_format(pipeline).items()
    }
    save_file(state, tmp_path / "pruned.safetensors")
    code, _, error = convert(tmp_path / "pruned.safetensors", tmp_path / "out", "--base", base)
    assert (code, error) == (0, "")
    assert plain.number_types(tmp_path / "out") == {"float32"}
    plain.runs(tmp_path / "out", "edit")


METRICS = ["--device", "cpu", "--metrics", "l1,removal_vqa", "--models.vqa", "tests.rehearsal:no"]
METRICS += ["--stages", "edit,score"]


@pytest.fixture
def data(make_data):
    return make_data(3, 2)


@pytest.fixture
def given(evaluate, data, tmp_path):
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


def test_a_folder_per_method_becomes_a_run_per_method(given, data, tmp_path):
    out = tmp_path / "out"
    publish(data, tmp_path / "published" / "MagicBrush")
    publish(data, tmp_path / "published" / "HQ Edit" / "negative", skip=2)
    publish(data, tmp_path / "published" / "HQ Edit" / "remove")
    done = given(tmp_path / "published")
    assert done.code == 0, done.stderr
    found = {str(p.parent.relative_to(out)) for p in out.glob("*/*/manifest.json")}
    assert found == {"MagicBrush/negative", "HQ-Edit/negative", "HQ-Edit/remove"}
    run = RunDir(out / "MagicBrush" / "negative")
    assert run.manifest()["status"] == "complete"
    for place in [*(tmp_path / "published" / "MagicBrush").iterdir()]:
        if place.suffix in (".webp", ".tiff", ".BMP"):  # lossless
            edited = run.image_path(run.edits[place.stem])
            assert (decode(edited) == decode(data / "nein_val" / f"{place.stem}.png")).all()
    missing = [row for row in edits_of(out / "HQ-Edit" / "negative") if row["image"] is None]
    said = [f"there is no image of {row['id']} in 'HQ Edit'" for row in missing]
    assert [row["error"] for row in missing] == said
    assert len(missing) == 2


def test_paper_reads_pictures_as_the_released_scripts_and_turns_them_for_the_detector(given, data, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    names = [path.stem for path in sorted((data / "nein_val").glob("*_1.png"))[:3]]  # of --limit 3
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
        more = ("--metrics", "removal_ovd", "--models.ovd", "tests.rehearsal:score_05", "--limit", 3)
        done = given(folder, "--protocol", protocol, "--out", out, *more)
        assert done.code == 0, done.stderr
        run = RunDir(out / "mine" / "negative")
        edits = run.edits
        seen = [decode(run.image_path(edits[name])) for name in names]
        assert [seen[0][0, 0].tolist(), seen[1][0, 0].tolist()] == [first[protocol], second[protocol]]
        assert seen[2].shape == (24, 32, 3)  # as stored, for all but the detector
        boxes = {r.id: r.detail["box"] for r in run.score_rows() if r.metric == "removal_ovd"}
        assert boxes[names[2]] == box
        assert boxes[names[0]] == [0, 0, 32, 24]
    assert given(folder, "--protocol", "fixed", "--out", tmp_path / "paper", *more).code == 2


def test_paper_reads_the_datas_own_pictures_so_too(make_data, evaluate, tmp_path, monkeypatch):
    data = make_data(2, 1)
    clear = np.full((24, 32, 4), (200, 0, 0, 0), np.uint8)
    target, sample, turned = (
        data / place for place in ("coco_for_val/COCO_000000000001.png", "nein_val/NeIn_000000000001_1.png",
                                   "nein_val/NeIn_000000000002_1.png")
    )  # fmt: skip
    for path in (target, sample):
        Image.fromarray(clear).save(path)
    with Image.open(turned) as picture:
        picture.getexif()[0x0112] = 6
        picture.save(turned, exif=picture.getexif())
    # Of both objects of the caption the detector sees one where a picture stands upright.
    tall = ScriptedDetector(lambda image, label: float(image.shape[0] > image.shape[1] or label == "car"))
    bright = ScriptedJudge(lambda image, prompt: "Yes" if image.mean() > 240 else "No")
    monkeypatch.setattr(stages, "load_models", lambda *_: {"ovd": tall, "vqa": bright})
    found = {}
    for protocol in ("fixed", "paper"):
        out = tmp_path / "out" if protocol == "fixed" else tmp_path / "other"
        given = ("--metrics", "l1,retention_ovd,retention_vqa", "--device", "cpu", "--control", "none")
        line = ("--editor", "identity", "--data", data, *given, "--protocol", protocol, "--out", out)
        assert evaluate(*line).code == 0
        rows = {(row["id"][-3], row["metric"]): row for row in scores_in(out / "identity" / "negative")}
        found[protocol] = [
            rows["1", "l1"]["value"], rows["1", "retention_vqa"]["reason"],
            rows["2", "retention_ovd"]["detail"]["in_sample"],
        ]  # fmt: skip
    assert found["fixed"] == [0.0, "2 of 2 objects are still there", ["car"]]  # white, as it was edited
    darker = pytest.approx((255 - 200 + 255 + 255) / 3 / 255)
    objects = ["man", "car", "house", "number"]
    assert found["paper"] == [darker, "no object of the caption was found in the sample", objects]


@pytest.mark.parametrize(("pictures", "expected"), [
    (None, "holds no edited images"),
    ((), "holds no edited images"),
    (("m/000001.png",), "No image of 'm'"),
    (("m/a.png", "m/negative/a.png"), "are of one sample; remove one"),
])  # fmt: skip
def test_unusable_folders_are_refused_in_one_sentence(given, tmp_path, pictures, expected):
    folder = tmp_path / "edited"
    if pictures is not None:
        folder.mkdir()
    for name in pictures or ():
        write_png(folder / name, np.zeros((4, 4, 3), np.uint8))
    done = given(folder)
    assert done.code == 2
    assert expected in done.stderr


def test_one_folder_is_one_method_a_truncated_picture_costs_its_sample_and_replaced_ones_are_read(
    given, data, tmp_path
):
    folder = publish(data, tmp_path / "mine")
    (folder / "notes.txt").write_text("not a picture")
    write_png(folder / "stray.png", np.zeros((4, 4, 3), np.uint8))
    victim = sorted(folder.glob("*.webp"))[0]
    victim.write_bytes(victim.read_bytes()[:60])
    assert given(folder, "--limit", "4", "--batch-size", "2").code == 0
    rows = {row["id"]: row for row in edits_of(tmp_path / "out" / "mine" / "negative")}
    assert [name for name, row in rows.items() if row["image"] is None] == [victim.stem]
    assert str(tmp_path) not in rows[victim.stem]["error"]
    for path in folder.glob("*.webp"):
        Image.new("RGB", (8, 8)).save(path)
    assert given(folder, "--batch-size", "2").code == 0
    run = RunDir(tmp_path / "out" / "mine" / "negative")
    shapes = {name: decode(run.image_path(row)).shape for name, row in run.edits.items()}
    assert [name for name, shape in shapes.items() if shape == (8, 8, 3)] == [
        p.stem for p in folder.glob("*.webp")
    ]
