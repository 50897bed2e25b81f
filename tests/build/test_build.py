import json
import shutil
from collections import Counter

import pytest
from PIL import Image

from nein.datasets import nein as loading
from nein.datasets.nein import validate_images
from nein.engine import atomic
from nein.generate import config as configuration
from tests.build.conftest import OBJECTS, arguments, write_set
from tests.helpers import commands

MORE = ("--families", "all", "--kept", "4", "--evaluation-share", "0.5")


@pytest.fixture(scope="module")
def built(captioned, models, tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "out"
    assert commands.exit_code("generate", *arguments(captioned, models, out, *MORE)) == 0
    return out


def test_every_candidate_has_a_verdict_and_the_counts_agree(built):
    rows = [row for row in atomic.read_lines(built / "candidates.jsonl") if "id" in row]
    facts, text = json.loads((built / "card.json").read_text()), (built / "dataset/README.md").read_text()
    verdicts = Counter(row["verdict"] for row in rows)
    assert verdicts["accepted"] == facts["stages"]["accepted"] == sum(facts["samples"].values())
    assert {k: v for k, v in verdicts.items() if k != "accepted"} == facts["rejected"]
    assert len(rows) == facts["stages"]["candidates"]
    failed = facts["rejected"]["the editor failed"]  # which costs its samples only
    assert facts["stages"]["generated"] == len(rows) - failed < len(rows)
    assert facts["stages"]["passed filter 1"] == sum(row["ask"] is not None for row in rows)
    assert len(verdicts) >= 4  # the thresholds and answers of the tiny models give several outcomes
    for row in rows:
        low = row["match"] is not None and row["match"]["cosine"] <= 0.25
        assert (row["verdict"] == "match at or below the threshold") == low
        assert (row["ask"] is None) == (low or row["generated_picture"]["image"] is None)
    asked = [
        q for row in atomic.read_lines(built / "candidates.jsonl") if "queried" in row for q in row["queried"]
    ]
    assert sum(facts["queried"].values()) == len(asked) == 7 * 8
    assert json.loads((built / "manifest.json").read_text())["status"] == "complete"
    for part in ("rejected", "families", "objects", "templates"):  # and the card names all of them
        assert all(name in text and str(count) in text for name, count in facts[part].items()), part
    assert facts["data_sha256"] in text
    assert not facts["drawn"]
    assert (built / "card.png").read_bytes().startswith(b"\x89PNG")


def test_the_official_layout_loads_and_no_image_is_in_both_splits(built, captioned):
    sides = {}
    for split in ("train", "val"):
        found = loading.load(str(built / "dataset"), split=split)
        validate_images(found.samples, split)
        sides[split] = {sample.source_id for sample in found.samples}
        for sample in found.samples:
            assert sample.object in OBJECTS
            assert sample.stays == (sample.family == "double_negation")
            assert sample.source_path == sample.sample_path if sample.stays else True
        folder = built / "dataset" / f"coco_for_{split}"
        assert {p.stem for p in folder.iterdir()} == sides[split]
        for path in folder.iterdir():  # the user's files, byte for byte
            original = captioned / "images" / path.name.replace("COCO_", "COCO_train2014_")
            assert path.read_bytes() == original.read_bytes()
    assert sides["train"]
    assert sides["val"]
    assert not sides["train"] & sides["val"]


def test_the_paper_protocol_writes_the_five_official_fields_and_jpeg(captioned, models, build, tmp_path):
    more = ("--protocol=paper", "--families=plain", "--image-format=jpg", "--evaluation-share=1")
    done = build(*arguments(captioned, models, tmp_path, *more, "--models.vqa", "tests.rehearsal:yes"))
    assert done.code == 0, done.stderr
    records = json.loads((tmp_path / "dataset" / "val.json").read_text())
    assert {tuple(row) for row in records} == {("COCO", "T_original", "T_negative", "T_generated", "NeIn")}
    assert not (tmp_path / "dataset" / "train.json").exists()
    name = f"{records[0]['NeIn']}.jpg"
    with Image.open(tmp_path / "dataset" / "nein_val" / name) as picture:
        assert picture.format == "JPEG"
    rows = {row["id"]: row for row in atomic.read_lines(tmp_path / "candidates.jsonl") if "id" in row}
    assert len({row["seed"] for row in rows.values() if row["source"] == records[0]["COCO"]}) == 1


def test_bad_images_are_reported_counted_and_skipped(models, build, tmp_path):
    given = write_set(tmp_path / "set", 5)
    listing = json.loads((given / "captions.json").read_text())
    images = given / "images"
    (images / "COCO_train2014_000000000001.png").write_bytes(b"no image at all")
    truncated = images / "COCO_train2014_000000000002.png"
    truncated.write_bytes(truncated.read_bytes()[:300])
    (images / "COCO_train2014_000000000003.png").unlink()
    listing["annotations"] = [a for a in listing["annotations"] if a["image_id"] != 40]
    shutil.copytree(images, images / "copy")
    listing["images"].append({"id": 99, "file_name": "copy/COCO_train2014_000000000005.png"})
    listing["annotations"].append({"image_id": 99, "caption": "Again."})
    (given / "captions.json").write_text(json.dumps(listing))
    more = ("--absent-below", "0.12", "--match-above", "-1", "--models.vqa", "tests.rehearsal:yes")
    more += ("--editor-options.fail_every", "0", "--evaluation-share", "1")
    done = build(*arguments(given, models, tmp_path / "out", *more))
    assert done.code == 0, done.stderr
    facts = json.loads((tmp_path / "out" / "card.json").read_text())
    problems = {"unreadable image": 3, "no caption": 1, "another image has this name": 1}
    assert facts["image_problems"] == problems
    assert 0 < facts["stages"]["accepted"] < 5  # fewer than five of the objects are that far from the picture
    assert facts["slots_without_candidate"] == {"no absent object left": 5 - facts["stages"]["candidates"]}
    assert "3 images unusable: unreadable image" in done.stdout
    rows = [row for row in atomic.read_lines(tmp_path / "out" / "candidates.jsonl") if "image" in row]
    [missing] = [row["problem"] for row in rows if row["image"] == "COCO_000000000003"]
    assert "the file is missing" in missing
    assert str(tmp_path) not in missing


def test_the_paper_preset_has_the_papers_values():
    config = configuration.BuildConfig.parse(["--preset", "paper", "--source", "x.json"])
    assert (config.queried, config.kept, config.absent_below, config.match_above) == (15, 5, 0.4, 0.4)
    assert (config.family_labels, config.editor, config.protocol) == (["plain"], "magicbrush", "paper")
    assert (config.models.itm, config.models.vqa, config.models.vqa_quantization) == (
        "Salesforce/blip-itm-large-coco", "llava-hf/llava-v1.6-mistral-7b-hf", "bnb-fp4",
    )  # fmt: skip
    assert config.evaluation_share == pytest.approx(24182 / 366957, abs=1e-4)


def test_a_build_that_accepts_nothing_is_finished(captioned, models, build, tmp_path):
    done = build(*arguments(captioned, models, tmp_path, "--match-above", "1", "--limit", "2"))
    assert done.code == 0, done.stderr
    assert "0 accepted" in done.stdout
    assert not list((tmp_path / "dataset").glob("*.json"))
