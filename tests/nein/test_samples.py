"""NeIn's samples: records, the official layout, the hub, run folders, and what is wrong with any of them."""

import json
import re
import shutil
import sys
import unicodedata

import pytest

from nein.benchmarks.nein import stages
from nein.benchmarks.nein.config import EvalConfig
from nein.datasets import nein as loading
from nein.datasets.nein import load_folder, validate_images
from nein.engine import images
from nein.loading.errors import UserError
from nein.models.editor_choice import find_external_edits
from tests.helpers.hub import Repository
from tests.reporting import made


def rewrite(root, change):
    records = json.loads((root / "val.json").read_text())
    changed = change(records)
    (root / "val.json").write_text(json.dumps(records if changed is None else changed))
    return root


def test_records_become_samples_in_file_order(make_data):
    found = load_folder(make_data(2, 2))
    assert [s.id for s in found.samples] == [f"NeIn_{s:012d}_{k}" for s in (1, 2) for k in (1, 2)]
    third = found.samples[2]
    assert (third.source_id, third.object, third.template) == ("COCO_000000000002", "apple", 2)
    assert (third.generated, third.negative) == ("Add an apple.", "The image cannot have any apple.")
    assert (third.source_path.name, third.sample_path.name) == (
        "COCO_000000000002.png", "NeIn_000000000002_1.png",
    )  # fmt: skip
    told = [third.instruction(track) for track in ("negative", "remove", "add")]
    assert told == [third.negative, "Remove the apple.", third.generated]


def test_a_limit_takes_the_first_sample_of_every_image_first(make_data):
    root = make_data(3, 2)
    rewrite(root, lambda rows: rows[:2] + rows[3:])  # the second image has one sample, its second
    data = loading.load(str(root))
    order = ["1_1", "2_2", "3_1", "1_2", "3_2"]
    assert [sample.id for sample in data.samples] == [f"NeIn_00000000000{name}" for name in order]
    assert [list(data.select(limit, None)) for limit in (2, 3)] == [[0, 1], [0, 1, 2]]
    assert loading.reload(data.origin).samples == data.samples
    in_file = loading.read_samples(str(root), split="val").samples  # what training sees
    assert [sample.id for sample in in_file] == sorted(sample.id for sample in data.samples)
    cells = loading.load(str(root), families=["minimal_pairs"]).samples[:8]  # whole pairs, of two images
    assert [cell.source_id[-1] for cell in cells] == [*"11112222"]


def test_a_sample_without_file_of_any_kind_is_named_with_every_other_problem(make_data):
    root = make_data(3, 1)
    (root / "coco_for_val" / "COCO_000000000001.png").unlink()
    (root / "nein_val" / "NeIn_000000000002_1.png").write_bytes(b"")
    with pytest.raises(UserError) as caught:
        validate_images(load_folder(root).samples, "The data")
    for said in ("2 problems", "1 x missing COCO image", "COCO_000000000001", "1 x unreadable NeIn image",
                 "NeIn_000000000002_1"):  # fmt: skip
        assert said in str(caught.value)


def composed(root, name, path):
    path.rename(path.with_name(unicodedata.normalize("NFD", f"é{name}.PNG")))
    return unicodedata.normalize("NFC", f"é{name}")


@pytest.mark.parametrize("named", [lambda root, name, path: f"{name}.jpg", composed])
def test_an_image_is_known_by_its_name_without_ending_and_form_of_accents(make_data, named):
    root = make_data(2, 1)
    plain = load_folder(root).samples[0]
    text = named(root, plain.id, plain.sample_path)
    rewrite(root, lambda rows: rows[0].update(NeIn=text))
    (root / "val.json").write_bytes(b"\xef\xbb\xbf" + (root / "val.json").read_bytes())
    dataset = load_folder(root)
    assert not dataset.missing
    assert dataset.find_indices([text]) == [0]
    assert text.startswith(dataset.samples[0].id)


def test_two_files_of_one_name_are_named(make_data):
    root = make_data(2, 1)
    path = load_folder(root).samples[0].sample_path
    shutil.copy(path, path.with_suffix(".jpg"))
    with pytest.raises(UserError, match=rf"two files of one name: {path.with_suffix('.jpg')} and {path}"):
        load_folder(root)
    with pytest.raises(UserError, match=r"1\.jpg' and '.*1\.png' are of one sample"):
        find_external_edits(path.parent)


def test_all_faults_of_the_records_are_said_at_once(make_data):
    def spoil(records):
        records[0]["T_generated"] = "Insert a cat."
        records[1]["T_negativ"] = "No cat."
        records[2]["NeIn"] = records[3]["NeIn"]
        records[4]["T_generated"] = "Add a zebra."
        records[5]["NeIn"] = "../escape"

    with pytest.raises(UserError) as caught:
        load_folder(rewrite(make_data(3, 2), spoil))
    for said in (
        "'Insert a cat.' is not of the form", "unknown field: 'T_negativ'", "did you mean 'T_negative'",
        "duplicate id: NeIn_000000000002_2", "'zebra' of T_generated does not occur", "not a plain file stem",
    ):  # fmt: skip
        assert said in str(caught.value)


def test_missing_parts_of_the_layout_are_named(tmp_path, make_data, monkeypatch):
    with pytest.raises(UserError, match="is not a folder; pass a folder in NeIn's"):
        load_folder(tmp_path / "nowhere")
    root = make_data(1, 1)
    (root / "nein_val").rename(root / "edited")
    with pytest.raises(UserError, match="has no nein_val; pass another --split"):
        load_folder(root)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=re.escape("pip install -e '.[hub]'")):
        loading.load("hub:owner/name", cache=tmp_path)


def test_the_record_hash_sees_every_field_and_the_order(make_data):
    root = make_data(2, 2)

    def sha(change):
        return load_folder(rewrite(root, change)).records_sha256

    hashes = {load_folder(root).records_sha256, sha(lambda rows: rows[::-1])}
    hashes.add(sha(lambda rows: rows[0].update(T_original="Another caption.")))
    assert len(hashes) == 3
    said = load_folder(root).samples[0].object
    assert sha(lambda rows: rows[0].update(object=said)) in hashes  # what the sentences say already
    assert sha(lambda rows: rows[0].update(object="zebra")) not in hashes


def cell(path):
    return {"bytes": path.read_bytes(), "path": path.name}


def with_pictures(root, source, sample):
    records = json.loads((root / "val.json").read_text())
    return [
        {**r, source: cell(root / "coco_for_val" / f"{r['COCO']}.png"),
         sample: cell(root / "nein_val" / f"{r['NeIn']}.png")}
        for r in records
    ]  # fmt: skip


def test_a_hub_data_set_is_downloaded_laid_out_and_loaded(make_data, tmp_path, monkeypatch, hub):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    root = make_data(2, 2)
    rows = [{"caption": row.pop("T_original"), **row} for row in with_pictures(root, "gt", "sample_image")]
    features = {name: datasets.Value("string") for name in rows[0]}
    features |= {name: datasets.Image() for name in ("gt", "sample_image")}
    table = datasets.Dataset.from_list(rows, features=datasets.Features(features))
    table.to_parquet(tmp_path / "val.parquet")
    content = {"data/val-00000-of-00001.parquet": (tmp_path / "val.parquet").read_bytes()}
    hub.datasets["owner/name"] = Repository({"abc": content})
    named = {"columns": {"T_original": "caption", "source_image": "gt"}, "cache": tmp_path / "hub"}
    with pytest.raises(UserError, match="has no column 'T_original'; it has caption, COCO"):
        loading.load("hub:owner/name@abc", cache=tmp_path / "other")
    found, original = loading.load("hub:owner/name@abc", **named), loading.load(str(root))
    assert (found.records_sha256, found.origin["name"]) == (original.records_sha256, "owner/name")
    pixels = [[(s.sample_path.read_bytes(), s.source_path.read_bytes()) for s in data.samples]
              for data in (found, original)]  # fmt: skip
    assert pixels[0] == pixels[1]
    asked = len(hub.requests)
    assert loading.load("hub:owner/name@abc", **named).samples == found.samples
    assert len(hub.requests) == asked  # the second time it is read from the cache


def test_a_folder_of_the_hubs_layout_is_laid_out_again_when_it_changes(make_data, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder, found = tmp_path / "published", []
    (folder / "data").mkdir(parents=True)
    for side in (24, 40):
        rows = with_pictures(made.write_data(tmp_path / str(side), made.records(2, 1), side), "source_image",
                             "sample_image")  # fmt: skip
        datasets.Dataset.from_list(rows).to_parquet(folder / "data" / "val-00000-of-00001.parquet")
        found.append(loading.load(f"hub:{folder}", cache=tmp_path / "laid out").samples[0])
    assert [images.decode(sample.sample_path).shape for sample in found] == [(24, 32, 3), (40, 48, 3)]


BROKEN = {"Invalid JSON: EOF": "[{", "recursion limit exceeded": "[" * 100_000, "Invalid JSON: exp": "\xff",
          "Input should be a valid array": '{"COCO": 1}', "has no records": "[]"}  # fmt: skip


@pytest.mark.parametrize("sentence", BROKEN)
def test_a_broken_annotation_file_is_one_sentence(make_data, sentence):
    root = make_data(1, 1)
    (root / "val.json").write_bytes(BROKEN[sentence].encode("latin-1"))
    with pytest.raises(UserError, match=sentence):
        load_folder(root)


@pytest.mark.parametrize(("field", "value", "sentence"), [
    ("NeIn", "a\u2028b", "not a plain file stem"),
    ("T_original", "A cat \ud83d.", "unexpected end of hex escape"),
])  # fmt: skip
def test_what_no_file_or_record_can_hold_is_refused(make_data, evaluate, field, value, sentence):
    root = rewrite(make_data(1, 1), lambda rows: rows[0].update({field: value}))
    said = evaluate("--data", root, "--out", root / "out", "--editor", "identity")
    assert (said.code, sentence in said.stderr) == (2, True)


def test_columns_rename_fields(make_data):
    root = rewrite(make_data(2, 1), lambda rows: [{"prompt": r.pop("T_negative"), **r} for r in rows])
    with pytest.raises(UserError, match=r"'0.T_negative': Field required"):
        load_folder(root)
    assert load_folder(root, columns={"T_negative": "prompt"}).samples[0].negative.endswith(".")
    with pytest.raises(UserError, match="Unknown field of --columns 'negative'"):
        loading.load(str(root), columns={"negative": "prompt"})


def test_a_scorer_loads_each_model_once_and_when_a_metric_first_needs_it(tmp_path, monkeypatch):
    asked = []

    def load(names, *_):
        asked.append(list(names))
        return {kind: object() for kind in stages.list_model_kinds(asked[-1])}

    monkeypatch.setattr(stages, "load_models", load)
    scorer = stages.Scorer(EvalConfig.create(out=str(tmp_path)), "cpu")
    for lacking in (["l1", "removal_vqa"], ["l1", "removal_vqa"], ["removal_vqa", "clip_i"]):
        scorer.score([], lacking, run_metrics=["l1", "removal_vqa", "clip_i"])
    assert (set(scorer.loaded), asked) == ({"vqa", "clip"}, [["removal_vqa"], ["clip_i"]])
