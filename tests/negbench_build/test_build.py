import json
import re
from collections import Counter

from nein.datasets.negbench import official
from nein.engine import atomic


def coco_arguments(coco, out, *more):
    return [
        "generate", "--source", "coco", "--instances", coco / "instances.json",
        "--captions", coco / "captions.json", "--images", coco / "images", "--out", out,
        "--shard-size", "2", "--device", "cpu", *more,
    ]  # fmt: skip


def test_coco_gives_captions_and_questions_in_the_official_layout(coco, negbench, tmp_path):
    done = negbench(*coco_arguments(coco, tmp_path))
    assert done.code == 0, done.stderr
    original = official.read_retrieval(tmp_path / "dataset" / "retrieval.csv")
    negated = official.read_retrieval(tmp_path / "dataset" / "negated_retrieval.csv", "negated")
    asked = official.read_questions(tmp_path / "dataset" / "mcq.csv")
    first = next(item for item in negated if item.id == "a")
    assert [item.id for item in original] == ["a", "b", "c", "d", "e", "broken"]
    # with dog and cat: car twice (b twice over both, c once) and boat; kite is in no image
    assert first.negatives in (("car",), ("boat",))
    assert original[0].captions == ("A picture of dog and cat.",)
    denial = f"There is no {first.negatives[0]} in the image."
    assert first.captions[0].replace(denial, "").strip() == "A picture of dog and cat."
    assert all(question.correct == 0 for question in asked)
    assert {question.image for question in asked} <= {f"{item.id}.png" for item in original}
    assert "1 unusable: no annotated object" in done.stdout
    assert [row["id"] for row in atomic.read_lines(tmp_path / "unusable.jsonl")] == ["empty"]
    assert re.search(r"no annotated object +\| 1", (tmp_path / "dataset" / "README.md").read_text())
    # A file that an earlier command wrote and this one does not is gone.
    (tmp_path / "dataset" / "mcq_rephrased.csv").write_text("of another time\n")
    assert negbench(*coco_arguments(coco, tmp_path)).code == 0
    found = {path.name for path in (tmp_path / "dataset").iterdir()}
    assert found == {"README.md", "negated_retrieval.csv", "retrieval.csv", "mcq.csv"}


def test_a_detector_drops_absent_objects_it_sees_and_an_unreadable_image_is_not_taken_for_empty(
    coco, negbench, tmp_path
):
    how = ("--verify", "negatives", "--detector")
    sees_all = negbench(*coco_arguments(coco, tmp_path / "all", *how, "tests.rehearsal:score_01"))
    assert sees_all.code == 2  # 0.1 and above is there: no absent object is left
    assert "7 images yielded no caption and no question" in sees_all.stderr
    done = negbench(*coco_arguments(coco, tmp_path / "none", *how, "tests.rehearsal:score_009"))
    assert done.code == 0, done.stderr
    assert "1 unusable: unreadable image" in done.stdout
    names = {item.id for item in official.read_retrieval(tmp_path / "none" / "dataset" / "retrieval.csv")}
    assert names == {"a", "b", "c", "d", "e"}


def test_voc_gives_questions_only_and_difficult_objects_are_neither_present_nor_absent(
    voc, negbench, tmp_path
):
    given = ["generate", "--source", "voc", "--instances", voc, "--device", "cpu"]
    done = negbench(*given, "--out", tmp_path / "all")
    assert done.code == 0, done.stderr
    assert not (tmp_path / "all" / "dataset" / "retrieval.csv").exists()
    asked = official.read_questions(tmp_path / "all" / "dataset" / "mcq.csv")
    assert {question.image for question in asked} == {"000001.jpg"}  # 2 has nothing absent; 3 one sure object
    assert asked[0].negatives == ("car",)
    assert "the annotation cannot be read" in done.stdout
    listed = negbench(*given, "--image-set", "test", "--mcq", "files", "--out", tmp_path / "test")
    assert listed.code == 0, listed.stderr
    assert "2 images." in listed.stdout
    filed = official.read_questions(tmp_path / "test" / "dataset" / "mcq.csv")
    assert [question.image for question in filed] == ["000001.jpg"]  # 2 has nothing absent


def test_the_training_form_gives_three_captions_and_shuffled_questions(coco, negbench, tmp_path):
    assert negbench(*coco_arguments(coco, tmp_path, "--form", "training", "--preset", "paper")).code == 0
    rows = [
        row for _, row in official.iter_rows(tmp_path / "dataset" / "negcap.csv", ("filepath", "caption"))
    ]
    assert Counter(row["filepath"] for row in rows) == {f"{name}.png": 3 for name in (*"abcde", "broken")}
    assert all(row["caption"] for row in rows)
    asked = official.read_questions(tmp_path / "dataset" / "negmcq.csv")
    assert len(asked) == 6
    assert len({question.correct for question in asked}) > 1


def test_a_source_that_has_changed_is_refused(coco, negbench, tmp_path):
    own = tmp_path / "instances.json"
    content = json.loads((coco / "instances.json").read_text())
    given = coco_arguments(coco, tmp_path / "out", "--instances", own)
    own.write_text(json.dumps(content))
    assert negbench(*given).code == 0
    own.write_text(json.dumps(content, indent=1))  # the same, in another file
    assert negbench(*given).code == 0
    own.write_text(json.dumps({**content, "annotations": content["annotations"][:-2]}))
    refused = negbench(*given)
    assert (refused.code, "listing" in refused.stderr) == (2, True)
