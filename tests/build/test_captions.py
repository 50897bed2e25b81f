import json

import pytest

from nein.engine.images import write_png
from nein.generate.config import BuildConfig
from nein.generate.nein import stages, stats
from nein.loading.errors import UserError
from tests.helpers import commands
from tests.metrics import tiny


@pytest.fixture
def folder(tmp_path):
    for name in ("a.png", "b.png", "deep/a.png", "COCO_val2014_000000000007.png"):
        write_png(tmp_path / "images" / name, tiny.picture(len(name)))
    return tmp_path


def coco(folder, images, annotations):
    (folder / "captions.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return folder / "captions.json"


def load(path, images=None):
    return stages.load_sources(BuildConfig(source=str(path), images=str(images) if images else None))


def load_lines(folder, lines):
    (folder / "list.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return load(folder / "list.jsonl", folder / "images")


def test_coco_captions_are_joined_by_image_and_named_as_nein_names_them(folder):
    images = [{"id": 7, "file_name": "COCO_val2014_000000000007.png"}, {"id": 9, "file_name": "a.png"}]
    said = [(7, " A dog.\nIt  runs. "), (9, "A cat"), (7, "A dog"), (9, "  ")]
    rows = [{"image_id": image, "caption": text} for image, text in said]
    found = load(coco(folder, images, rows), folder / "images")
    first, second = found.records
    assert first.id == "COCO_000000000007"
    assert first.captions == ("A dog. It runs.", "A dog")
    assert first.path == folder / "images" / "COCO_val2014_000000000007.png"
    assert (second.id, second.captions) == ("a", ("A cat",))
    rows[1]["caption"] = "A dog"
    assert load(coco(folder, images, rows), folder / "images").sha256() != found.sha256()


def test_captions_of_an_image_listed_again_are_added(folder):
    found = load_lines(folder, [
        {"image": "a.png", "captions": ["one", "two"]}, {"image": "b.png", "captions": "three"},
        {"image": "a.png", "captions": "four"},
    ])  # fmt: skip
    assert [(s.id, s.captions) for s in found.records] == [("a", ("one", "two", "four")), ("b", ("three",))]
    assert dict(found.notes) == {"image listed again; captions added": 1}


def test_missing_captions_and_equal_and_bad_names_are_kept_with_their_problem(folder):
    found = load_lines(folder, [
        {"image": "a.png", "captions": ["one"]},
        {"image": "deep/a.png", "captions": ["another file of that name"]},
        {"image": "b.png", "captions": []},
        {"image": "../b.png", "captions": ["outside"]},
        {"image": "COCO_a.png", "captions": ["would make the samples of a.png"]},
    ])  # fmt: skip
    expected = ["", stages.SAME_NAME, stages.NO_CAPTION, stages.BAD_NAME, stages.SAME_NAME]
    assert [s.problem for s in found.records] == expected


def test_the_papers_words_count_whole_and_stand_beside_its_printed_rows(tmp_path, capsys):
    assert len(stats.PAPER_WORDS) == len(set(stats.PAPER_WORDS)) == 28
    found = stats.count([(str(i), s) for i, s in enumerate(SENTENCES)], stats.PAPER_WORDS)
    assert (len(found.hits), sum(found.hits), found.words["no"]) == (7, 3, 2)
    assert found.examples == [SENTENCES[k] for k in (2, 3, 4)]
    (tmp_path / "c.txt").write_text(
        "A dog isn't here.\nSnow and knots.\nHe can NOT see.\nNobody cannot lack.\n"
    )
    assert not commands.exit_code("stats", str(tmp_path / "c.txt"), "--examples", "0")
    lines = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    [own] = [cells for cells in lines if "paper (28)" in cells]
    assert own[3:5] == ["4", "2"]
    printed = [cells for cells in lines if cells[1:2] and cells[1].endswith("(printed)")]
    assert len(printed) == 11
    off = [cells[1] for cells in printed if f"{100 * int(cells[4]) / int(cells[3]):.2f}" != cells[5]]
    assert off == ["MagicBrush-val (printed)"]  # 1.14, a misprint


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("x.json", "{", "Invalid JSON"),
    ("x.json", "[]", "Input should be an object"),
    ("x.jsonl", '{"image": "a.png"}\n{', "line 2: Invalid JSON"),
    ("x.jsonl", '{"caption": "a"}', "line 1, names no image"),
    ("x.jsonl", '{"image": "a.png", "captions": 3}', "captions that must be"),
    ("x.jsonl", '{"image": "gone.png", "captions": "a"}', "No image of"),
    ("nowhere", None, "neither nano"),
    ("images", None, "No image of"),
])  # fmt: skip
def test_a_list_that_cannot_be_used_is_one_sentence(folder, name, content, sentence):
    if content is not None:
        (folder / name).write_text(content)
        with pytest.raises(UserError, match="There is no folder"):
            load(folder / name, folder / "gone")
    with pytest.raises(UserError, match=sentence):
        load(folder / name, folder / "images")


def test_lists_of_objects(tmp_path):
    assert len(stages.load_categories("coco", 15)) == 80
    mine = tmp_path / "o.txt"
    mine.write_text("cat\n\n  hot   dog \ncat\n")
    assert stages.load_categories(str(mine), 2) == ("cat", "hot dog")
    for name, said in ((str(mine), "--queried is 3, but"), ("cocoa", "pass coco, nano or a")):
        with pytest.raises(UserError, match=said):
            stages.load_categories(name, 3)


SENTENCES = [
    "A dog on a bench.",
    "Things you cannot miss in Rome.",
    "The kitchen doesn’t have any windows.",
    "A no parking sign on a street without cars.",
    "A no parking sign.",
    "An empty room.",
    "A notable north tower and nonchalant people.",
]


def run(*argv):
    return commands.exit_code("stats", *argv)


def test_the_command_reads_coco_jsonl_nein_and_text(tmp_path, capsys):
    coco = {"images": [], "annotations": [{"image_id": i, "caption": s} for i, s in enumerate(SENTENCES)]}
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    nein = [{"COCO": "a", "T_original": s, "T_negative": "No cat."} for s in SENTENCES]
    (tmp_path / "nein.json").write_text(json.dumps(nein))
    lines = [json.dumps({"image": "a.png", "captions": SENTENCES})]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    (tmp_path / "c.txt").write_text("\n".join(SENTENCES))
    (tmp_path / "mine.txt").write_text("tower\nbench\n")
    files = [tmp_path / name for name in ("coco.json", "nein.json", "c.jsonl", "c.txt")]
    assert run(*files, "--words", f"paper,{tmp_path / 'mine.txt'}", "--json", tmp_path / "out.json") == 0
    printed = capsys.readouterr().out
    assert printed.count("42.86") == 4
    assert SENTENCES[2] in printed
    counts = json.loads((tmp_path / "out.json").read_text())
    assert {counts[f"{f.name}/paper"]["negative"] for f in files} == {3}
    assert {counts[f"{f.name}/mine.txt"]["negative"] for f in files} == {2}


@pytest.mark.parametrize(("name", "content", "sentence"), [
    ("a.json", "{}", "has no list of captions"),
    ("a.json", '[{"x": 1}]', "entry 0 has no caption"),
    ("a.jsonl", "{", "line 1: Invalid JSON"),
    ("a.txt", "\n", "has no captions"),
])  # fmt: skip
def test_a_file_that_holds_no_captions_is_one_sentence(tmp_path, capsys, name, content, sentence):
    (tmp_path / name).write_text(content)
    assert run(tmp_path / name) == 2
    assert sentence in capsys.readouterr().err
    assert run(tmp_path / "missing.txt") == 2
    assert "There is no file" in capsys.readouterr().err
