"""`nein study`: what a page hides, what is drawn, and what labels say of judges and of Removal."""

import csv
import json
import re

import pytest

from nein.benchmarks.finished import report
from nein.benchmarks.nein.config import ReportConfig
from nein.reporting import figures as frames
from tests.helpers import commands
from tests.reporting import made

FEW = ("--items", "24", "--shared", "8", "--gold", "4")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The truth is "gone" for every other sample. The judge sees no dog, in magicbrush's no cat either."""
    root = tmp_path_factory.mktemp("study")
    rows = made.records(40, 1)
    data = made.write_data(root / "data", rows)
    for editor, unseen in {"ip2p": ("dog",), "magicbrush": ("dog", "cat")}.items():
        judged = {"removal_vqa": lambda i, unseen=unseen: float(i % 2 == 0 or made.OBJECTS[i % 5] in unseen)}
        made.write_run(root / "runs", data, editor, "negative", rows, judged, failed=[3])
    return root / "runs"


def facts(page):
    return json.loads(re.search(r'id="facts">(.*?)</script>', page.read_text(), re.DOTALL)[1])


def label(study, rater, name, answer):
    """The file of a rater: answer(what the item is) for each."""
    plan, shown = json.loads((study / "study.json").read_text()), facts(study / f"rater-{rater}.html")
    keys = [question["key"] for question in shown["questions"]]
    path = study / f"{name}.csv"
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["sheet", "items", "rater", "item", *keys, "seconds", "note"])
        for item in shown["items"]:
            said = {"kept": "mostly", "artefacts": "none", **answer(plan["items"][item["id"]])}
            lines.writerow(
                [shown["sheet"], len(shown["items"]), name, item["id"], *map(said.get, keys), 3, ""]
            )
    return path


def index(item):
    return int(item["id"].split("_")[1]) - 1


def truth(item):
    return {"gone": item["gold"] or ("there", "gone")[index(item) % 2 == 0]}


def test_pages_say_nothing_of_the_editor_and_share_a_part(out, tmp_path, capsys):
    study, again = tmp_path / "study", tmp_path / "again"
    assert commands.exit_code("study", out, "--out", study, *FEW) == 0
    assert "24 items, 8 of them for every rater, and 4 of known truth." in capsys.readouterr().out
    plan = json.loads((study / "study.json").read_text())
    pages = [study / "rater-1.html", study / "rater-2.html"]
    first, second = ([item["id"] for item in facts(page)["items"]] for page in pages)
    assert len(first) == len(second) == 4 + 8 + 8
    assert len({*first} & {*second}) == 4 + 8
    assert [i for i in first if i in second] != [i for i in second if i in first]  # each in its own order
    for page in pages:
        for word in ("ip2p", "magicbrush", "negative", "NeIn_", "http:", "https:"):
            assert word not in page.read_text()
    drawn = [item for item in plan["items"].values() if not item["gold"]]
    assert sorted(item["editor"] for item in drawn) == ["ip2p"] * 12 + ["magicbrush"] * 12
    assert all(index(item) != 3 for item in drawn)  # there is no picture of this one
    gold = [item["gold"] for item in plan["items"].values() if item["gold"]]
    assert sorted(gold) == ["gone", "gone", "there", "there"]
    commands.exit_code("study", out, "--out", again, *FEW)
    assert all((again / file.name).read_bytes() == file.read_bytes() for file in study.iterdir())
    assert commands.exit_code("study", out, "--out", again, *FEW, "--seed", "1") == 2
    assert "has another study, whose labels would be lost" in capsys.readouterr().err
    assert all((again / file.name).read_bytes() == file.read_bytes() for file in study.iterdir())


def test_labels_find_the_judge_out_correct_removal_and_reach_the_report(out, tmp_path, capsys):
    study = tmp_path / "study"
    commands.exit_code("study", out, "--out", study, "--items", "60", "--shared", "20")
    unsure = lambda item: truth(item) if item["gold"] or index(item) % 7 else {"gone": "cannot tell"}  # noqa: E731
    files = f"{label(study, 1, 'Ada', truth)},{label(study, 2, 'Bob', unsure)}"
    assert commands.exit_code("study", out, "--out", study, "--labels", files) == 0
    said = capsys.readouterr().out
    assert "Labels for nein report --labels" in said
    figures = frames.read(study / "figures.csv")
    of_ip2p = {"task": "labelled", "model": "ip2p", "statistic": "labelled"}
    found = frames.pick(figures, **of_ip2p)
    with (study / "labels.csv").open() as lines:
        known = {row["id"] for row in csv.DictReader(lines)
                 if row["editor"] == "ip2p" and row["gone"] != "cannot tell"}  # fmt: skip
    assert found["low"] < 19.5 / 39 < found["high"]
    assert found["n"] == len(known)
    same = frames.records(frames.select(figures, by="object", statistic="same"))
    by = {one["group"]: one["value"] for one in same}
    assert (by["apple"], by["dog"] < 0.75) == (1, True)
    seen = frames.pick(figures, by="object", group="dog", statistic="sensitivity")
    assert seen["value"] == 0  # of dogs that people see this judge sees none
    assert frames.pick(figures, task="people", metric="gone", statistic="kappa")["value"] == 1
    assert frames.pick(figures, task="raters", rater="Ada", statistic="gold")["value"] == 1
    page = tmp_path / "page.html"
    words = [out, "-o", page, "--labels", study / "labels.csv", "--formats", "csv"]
    report(ReportConfig.parse([*map(str, words)]))
    again = frames.pick(frames.read(page.with_suffix(".csv")), **of_ip2p)
    assert [again[k] for k in ("value", "low", "high")] == [found[k] for k in ("value", "low", "high")]
